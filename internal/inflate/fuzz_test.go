package inflate

import (
	"bytes"
	stdflate "compress/flate"
	stdgzip "compress/gzip"
	stdzlib "compress/zlib"
	"errors"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/klauspost/compress/flate"
	"github.com/stretchr/testify/require"
)

const fuzzLimit = 1 << 20

// pieces hands a stream out in pieces of sizes drawn from seed.
type pieces struct {
	p    []byte
	rand *rand.Rand
	most int
}

func inPieces(p []byte, seed uint64) *pieces {
	r := rand.New(rand.NewPCG(seed, 1))
	return &pieces{p, r, 1 + r.IntN(1<<(r.IntN(17)))}
}

func (r *pieces) Read(p []byte) (int, error) {
	if len(r.p) == 0 {
		return 0, io.EOF
	}
	n := copy(p, r.p[:min(len(r.p), 1+r.rand.IntN(r.most))])
	r.p = r.p[n:]
	if len(r.p) == 0 && r.rand.IntN(2) == 0 {
		return n, io.EOF
	}
	return n, nil
}

// reference decodes with one of the decoders in use, and says how much it has read.
func reference(r io.Reader, in *bytes.Reader) (out []byte, used int, err error) {
	size := in.Len()
	out, err = io.ReadAll(io.LimitReader(r, fuzzLimit+1))
	return out, size - in.Len(), err
}

// same holds what the decoders in use make of z against ours of whole buffers and streams.
func same(t *testing.T, z []byte, seed uint64) {
	in := bytes.NewReader(z)
	want, used, wantErr := reference(stdflate.NewReader(in), in)
	in.Reset(z)
	also, alsoUsed, alsoErr := reference(flate.NewReader(in), in)
	if len(want) > fuzzLimit {
		return
	}
	// klauspost takes some streams that compress/flate and zlib refuse, with an incomplete code of code lengths.
	require.True(t, wantErr != nil || alsoErr == nil, "klauspost: %v", alsoErr)

	dst := make([]byte, len(want)+int(seed%512)) // the fast loop's bound is somewhere in it
	var d Decoder
	n, gotUsed, err := d.Inflate(dst, z)
	if wantErr != nil {
		require.Error(t, err, "compress/flate: %v", wantErr)
	} else {
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, also))
		require.Equal(t, used, alsoUsed)
		require.Equal(t, used, gotUsed)
		require.True(t, bytes.Equal(want, dst[:n]))
		if len(want) > 0 {
			short := int(seed % uint64(len(want)))
			n, _, err := d.Inflate(dst[:short], z)
			require.ErrorIs(t, err, ErrFull)
			require.True(t, bytes.Equal(want[:short], dst[:n]))
		}
	}

	r, err := NewReader(inPieces(z, seed), Raw)
	require.NoError(t, err)
	got, err := io.ReadAll(r)
	require.Equal(t, wantErr == nil, err == nil, "%v", err)
	if wantErr == nil {
		require.True(t, bytes.Equal(want, got))
	}
	var corrupt *CorruptError
	if errors.As(err, &corrupt) {
		require.LessOrEqual(t, corrupt.Offset, int64(len(z)))
		require.GreaterOrEqual(t, corrupt.Offset, int64(0))
	} else if err != nil {
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	}
}

// FuzzInflate: what compress/flate and klauspost/compress make of a stream is what comes out, and
// what compress/flate refuses is refused.
func FuzzInflate(f *testing.F) {
	for _, p := range contents(3000) {
		for _, level := range levels() {
			f.Add(deflated(f, p, level), uint64(len(p)))
		}
	}
	f.Fuzz(same)
}

// FuzzGzip does so for gzip and zlib.
func FuzzGzip(f *testing.F) {
	for _, p := range contents(3000) {
		var z bytes.Buffer
		w := stdgzip.NewWriter(&z)
		w.Name, w.Comment, w.Extra = "n", "c", []byte("e")
		_, _ = w.Write(p)
		_ = w.Close()
		f.Add(z.Bytes(), uint64(1))
		f.Add(append(z.Bytes(), z.Bytes()...), uint64(2))
		z.Reset()
		zw := stdzlib.NewWriter(&z)
		_, _ = zw.Write(p)
		_ = zw.Close()
		f.Add(z.Bytes(), uint64(3))
	}
	f.Fuzz(func(t *testing.T, z []byte, seed uint64) {
		check := func(format Format, open func(io.Reader) (io.Reader, error), header error) {
			std, wantErr := open(bytes.NewReader(z))
			var want, got []byte
			if wantErr == nil {
				want, wantErr = io.ReadAll(io.LimitReader(std, fuzzLimit+1))
			}
			if len(want) > fuzzLimit {
				return
			}
			r, err := NewReader(inPieces(z, seed), format)
			if err == nil {
				got, err = io.ReadAll(r)
			}
			if errors.Is(wantErr, header) { // of another limit on a gzip header's name, or a dictionary
				return
			}
			require.Equal(t, wantErr == nil, err == nil, "theirs: %v, ours: %v", wantErr, err)
			if err == nil {
				require.True(t, bytes.Equal(want, got))
			}
		}
		check(Gzip, func(r io.Reader) (io.Reader, error) { return stdgzip.NewReader(r) }, stdgzip.ErrHeader)
		check(Zlib, func(r io.Reader) (io.Reader, error) { return stdzlib.NewReader(r) }, stdzlib.ErrDictionary)
		dst := make([]byte, fuzzLimit)
		var d Decoder
		n, _, err := d.Zlib(dst, z)
		std, wantErr := stdzlib.NewReader(bytes.NewReader(z))
		if wantErr == nil {
			var want []byte
			if want, wantErr = io.ReadAll(io.LimitReader(std, fuzzLimit+1)); wantErr == nil {
				require.True(t, len(want) > fuzzLimit || err == nil && bytes.Equal(want, dst[:n]))
			}
		}
		require.True(t, wantErr == nil || err != nil)
	})
}

// TestDamage: one changed bit, anywhere, in streams of each kind of block.
func TestDamage(t *testing.T) {
	for _, p := range contents(700) {
		for _, level := range levels() {
			z := deflated(t, p, level)
			step := 5
			if testing.Short() {
				step = 31
			}
			for bit := 0; bit < 8*len(z); bit += step {
				z[bit/8] ^= 1 << (bit % 8)
				same(t, z, uint64(bit))
				z[bit/8] ^= 1 << (bit % 8)
			}
		}
	}
}
