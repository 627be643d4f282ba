package inflate

import "math/bits"

// An entry of a decoding table says what the next bits of the stream are:
//
//	bits 0-7    how many of them it takes, extra bits included
//	bits 8-11   how many of them are the code: above it stand the extra bits
//	bit 12      entryEnd: the end of the block
//	bit 13      entrySub: a sub-table, with as many index bits as bits 8-11 say, from the index in bits 16-31
//	bit 14      entryLiteral, of lengths only
//	bit 15      entryOther: neither a literal nor a length or distance; without the two above, no code at all
//	bits 16-31  the literal, or the base of a length or distance
type entry = uint32

const (
	entryEnd     entry = 1 << 12
	entrySub     entry = 1 << 13
	entryLiteral entry = 1 << 14
	entryOther   entry = 1 << 15
)

const (
	litBits  = 11 // index bits of the first level, literals and lengths
	distBits = 8  // distances
	preBits  = 7  // the lengths of the codes of the others: all of them
	maxBits  = 15 // the longest code

	litMask  = 1<<litBits - 1
	distMask = 1<<distBits - 1

	numLit  = 288 // symbols, two of which are never valid
	numDist = 32  // likewise
	numPre  = 19
)

// The sizes of tables with the most and longest sub-tables that complete codes of so many
// symbols can have, as zlib's examples/enough.c counts them.
const (
	litEnough  = 2342
	distEnough = 402
)

// Spec: RFC 1951, 3.2.5.
var (
	lengthBase  = [29]uint16{3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17, 19, 23, 27, 31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258}
	lengthExtra = [29]uint8{0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0}
)

// What the entries of symbols are, but for their code's length.
var (
	litSymbols  = lits()
	distSymbols = dists()
	preSymbols  = pres()
)

func lits() (s [numLit]entry) {
	for i := range s {
		switch l := i - 257; {
		case i < 256:
			s[i] = entryLiteral | entry(i)<<16
		case i == 256:
			s[i] = entryOther | entryEnd
		case l < len(lengthBase):
			s[i] = entry(lengthBase[l])<<16 | entry(lengthExtra[l])
		default:
			s[i] = entryOther
		}
	}
	return s
}

func dists() (s [numDist]entry) {
	base := entry(1)
	for i := range s {
		if i >= 30 {
			s[i] = entryOther
			continue
		}
		extra := entry(max(0, i/2-1))
		s[i] = base<<16 | extra
		base += 1 << extra
	}
	return s
}

func pres() (s [numPre]entry) {
	for i := range s {
		s[i] = entry(i) << 16
	}
	return s
}

// build makes the decoding table of the code with the given lengths, whose first level has
// index bits. It says whether that is a code: not over-subscribed, and complete unless it
// has just one word, of one bit, or none. What no word stands for gives entryOther alone.
// Spec: RFC 1951, 3.2.2; zlib's inflate for what is incomplete and accepted.
func build(table []entry, index uint, lens []uint8, symbols []entry) bool {
	var count [maxBits + 1]int
	for _, l := range lens {
		count[l]++
	}
	count[0] = 0
	var next [maxBits + 2]int // where in sorted a length's symbols go
	left := 1
	for l := 1; l <= maxBits; l++ {
		left = left<<1 - count[l]
		if left < 0 {
			return false
		}
		next[l+1] = next[l] + count[l]
	}
	words := next[maxBits+1]
	if left > 0 {
		if words > 1 || words != count[1] {
			return false
		}
		for i := range 1 << index {
			table[i] = entryOther
		}
	}
	var sorted [numLit]uint16
	for sym, l := range lens {
		if l > 0 {
			sorted[next[l]] = uint16(sym)
			next[l]++
		}
	}
	if left > 0 {
		if words == 1 {
			for i := 0; i < 1<<index; i += 2 {
				table[i] = symbols[sorted[0]] + 1<<8 + 1
			}
		}
		return true
	}

	// Words come in order, so the first level grows from the bits of the shortest on, and
	// what has been filled of it repeats for each longer one. The word is kept with its
	// bits reversed, as they come in the stream.
	word, length := 0, 0
	sub, subBits, end, prefix := 0, uint(0), 1<<index, -1
	for i := range words {
		for count[length] == 0 {
			if length > 0 && uint(length) < index {
				copy(table[1<<length:2<<length], table[:1<<length])
			}
			length++
		}
		l := uint(length)
		if l <= index {
			table[word] = symbols[sorted[i]] + entry(l)<<8 + entry(l)
		} else {
			if p := word & (1<<index - 1); p != prefix {
				prefix, subBits = p, l-index
				for room := count[l]; room < 1<<subBits; room = room<<1 + count[index+subBits] {
					subBits++
				}
				sub, end = end, end+1<<subBits
				table[p] = entryOther | entrySub | entry(sub)<<16 | entry(subBits)<<8 | entry(index)
			}
			e := symbols[sorted[i]] + entry(l-index)<<8 + entry(l-index)
			for at := word >> index; at < 1<<subBits; at += 1 << (l - index) {
				table[sub+at] = e
			}
		}
		count[length]--
		if zeros := word ^ (1<<l - 1); zeros != 0 { // add one from the left
			top := 1 << (bits.Len(uint(zeros)) - 1)
			word = word&(top-1) | top
		}
	}
	for ; uint(length) < index; length++ {
		copy(table[1<<length:2<<length], table[:1<<length])
	}
	return true
}
