package inflate

import (
	"math/rand/v2"
	"testing"

	"bytes"
	stdflate "compress/flate"
	"io"

	"github.com/stretchr/testify/require"
)

// bitWriter writes a stream's bits, the first one lowest.
type bitWriter struct {
	out  []byte
	bits uint64
	n    uint
}

func (w *bitWriter) put(v uint64, n uint) {
	w.bits |= v << w.n
	for w.n += n; w.n >= 8; w.n -= 8 {
		w.out = append(w.out, byte(w.bits))
		w.bits >>= 8
	}
}

func (w *bitWriter) close() []byte {
	if w.n > 0 {
		w.put(0, 8-w.n)
	}
	return w.out
}

// code is a prefix code: the lengths of its words and the words, reversed.
type code struct {
	lens  []uint8
	words []uint64
}

func (w *bitWriter) symbol(c code, sym int) { w.put(c.words[sym], uint(c.lens[sym])) }

// words are the words of RFC 1951, 3.2.2, for lengths.
func words(lens []uint8) code {
	c := code{lens, make([]uint64, len(lens))}
	next := uint64(0)
	for l := uint8(1); l <= maxBits; l++ {
		next <<= 1
		for sym, have := range lens {
			if have != l {
				continue
			}
			for bit := range l {
				c.words[sym] |= next >> bit & 1 << (l - 1 - bit)
			}
			next++
		}
	}
	return c
}

// drawn returns a complete code of all the symbols, as deep as deep of 8 draws make it, in an order
// that is drawn, too.
func drawn(r *rand.Rand, symbols, deep int) code {
	lens := []uint8{1, 1}
	for len(lens) < symbols {
		i := r.IntN(len(lens))
		if r.IntN(8) < deep {
			for j, l := range lens {
				if l > lens[i] && l < maxBits {
					i = j
				}
			}
		}
		if lens[i] == maxBits {
			continue
		}
		lens[i]++
		lens = append(lens, lens[i])
	}
	r.Shuffle(len(lens), func(i, j int) { lens[i], lens[j] = lens[j], lens[i] })
	return words(lens)
}

// drawnBlock writes a block of drawn symbols in drawn codes, of which no compressor would choose
// the most: the longest codes with all their extra bits, one behind the other.
func drawnBlock(w *bitWriter, r *rand.Rand, last bool) {
	lit, dist := drawn(r, 286, r.IntN(9)), drawn(r, 30, r.IntN(9))
	final := uint64(0)
	if last {
		final = 1
	}
	w.put(final|2<<1, 3)
	w.put(286-257, 5)
	w.put(30-1, 5)
	w.put(numPre-4, 4)
	pre := make([]uint8, numPre) // 13 words of 4 bits and 6 of 5 are a complete code
	for i := range pre {
		pre[i] = 4 + uint8(i/13)
	}
	for _, sym := range preOrder {
		w.put(uint64(pre[sym]), 3)
	}
	lengths := words(pre)
	for _, l := range append(append([]uint8(nil), lit.lens...), dist.lens...) {
		w.symbol(lengths, int(l))
	}
	pick := func(c code, from, to int) int { // half of the time a long one
		sym := from + r.IntN(to-from)
		for range r.IntN(2) * 20 {
			if other := from + r.IntN(to-from); c.lens[other] > c.lens[sym] {
				sym = other
			}
		}
		return sym
	}
	literals := r.IntN(100)
	for range 2000 {
		if r.IntN(100) < literals {
			w.symbol(lit, pick(lit, 0, 256))
			continue
		}
		sym := pick(lit, 257, 286)
		w.symbol(lit, sym)
		extra := uint(lengthExtra[sym-257])
		w.put(r.Uint64()&(1<<extra-1), extra)
		sym = pick(dist, 0, 30)
		w.symbol(dist, sym)
		extra = uint(max(0, sym/2-1))
		w.put(r.Uint64()&(1<<extra-1), extra)
	}
	w.symbol(lit, 256)
}

// TestCodes: blocks in codes of all shapes, behind a window that every distance is in.
func TestCodes(t *testing.T) {
	rounds := 150
	if testing.Short() {
		rounds = 20
	}
	var d Decoder
	for round := range rounds {
		r := rand.New(rand.NewPCG(uint64(round), 4))
		var w bitWriter
		w.put(0, 8) // a stored block, not the last
		w.put(windowSize, 16)
		w.put(windowSize^0xffff, 16)
		for range windowSize {
			w.put(r.Uint64()&255, 8)
		}
		drawnBlock(&w, r, false)
		drawnBlock(&w, r, true)
		z := w.close()
		want, err := io.ReadAll(stdflate.NewReader(bytes.NewReader(z)))
		require.NoError(t, err)
		dst := make([]byte, len(want)+1000)
		n, used, err := d.Inflate(dst, z)
		require.NoError(t, err, round)
		require.Equal(t, len(z), used)
		require.True(t, bytes.Equal(want, dst[:n]), round)
		same(t, z, uint64(round))
		z[windowSize+50+r.IntN(len(z)-windowSize-50)] ^= 1 << r.IntN(8)
		same(t, z, uint64(round))
	}
}
