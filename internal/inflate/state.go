package inflate

import (
	"encoding/binary"
	"io"
)

// need is what a decoder lacks to go on.
type need uint8

const (
	needNothing need = iota // the last block has ended
	needInput               // and the end is not known to have come
	needRoom                // in the output
)

// mode is where in a block a decoder is.
type mode uint8

const (
	atHeader mode = iota
	inStored
	inCodes
	atEnd
)

const (
	maxMatch   = 258
	windowSize = 32 << 10

	// headerMax is the length of the longest block header: 17 bits, 19 lengths of 3 bits
	// each, 316 lengths of at most 7 bits each.
	headerMax = (17 + 19*3 + 316*7 + 7) / 8

	// slack is what the fast loop may write in one turn: four literals, a match, and what the
	// words it copies by stand over.
	slack = 4 + maxMatch + 24
	// lead is what the fast loop may read in one turn.
	lead = 4 * 8
)

// state is a decoder between two symbols. The output buffer is its window, too.
type state struct {
	in   []byte
	pos  int   // of the next byte that is not in bits; those that are stand before it
	eof  bool  // nothing comes behind in
	base int64 // of in, in the whole input

	bits uint64 // the next bits of the stream, the first one lowest
	n    uint64 // how many there are

	out  []byte
	at   int // where the next byte goes
	low  int // where the stream's first byte that is still there stands
	stop int // from where on a stream asks for room; the length of a whole buffer

	mode  mode
	last  bool
	fixed bool // the tables are those of the fixed codes
	left  int  // of a stored block

	lit  [litEnough]entry
	dist [distEnough]entry
	pre  [1 << preBits]entry
	lens [numLit + numDist]uint8
}

// reset makes s ready for a new stream.
func (s *state) reset() {
	s.bits, s.n, s.mode, s.last, s.left = 0, 0, atHeader, false, 0
}

func (s *state) corrupt(what string) error {
	return &CorruptError{Offset: s.base + int64(s.pos) - int64(s.n/8), What: what}
}

// run decodes until something is needed.
func (s *state) run() (need, error) {
	for {
		switch s.mode {
		case atHeader:
			if !s.eof && len(s.in)-s.pos < headerMax {
				return needInput, nil
			}
			if err := s.header(); err != nil {
				return 0, err
			}
		case inStored:
			m := copy(s.out[s.at:], s.in[s.pos:min(len(s.in), s.pos+s.left)])
			s.at, s.pos, s.left = s.at+m, s.pos+m, s.left-m
			switch {
			case s.left == 0:
				s.next()
			case s.at == len(s.out):
				return needRoom, nil
			case s.eof:
				return 0, io.ErrUnexpectedEOF
			default:
				return needInput, nil
			}
		case inCodes:
			if err := s.fast(); err != nil {
				return 0, err
			}
			if s.mode != inCodes {
				continue
			}
			if n, err := s.careful(); n != needNothing || err != nil {
				return n, err
			}
		case atEnd:
			return needNothing, nil
		}
	}
}

// next goes on behind a block.
func (s *state) next() {
	if s.mode = atHeader; s.last {
		s.mode = atEnd
	}
}

// refill takes whole bytes of input into bits, 56 to 63 of them if there are so many: the fast
// loop shifts by how many there are, so they are never 64.
func (s *state) refill() {
	for s.n < 56 && s.pos < len(s.in) {
		s.bits |= uint64(s.in[s.pos]) << s.n
		s.pos++
		s.n += 8
	}
}

// take returns the next bits, at most 16.
func (s *state) take(n uint64) (v uint32, err error) {
	if s.n < n {
		if s.refill(); s.n < n {
			return 0, io.ErrUnexpectedEOF
		}
	}
	v = uint32(s.bits) & (1<<n - 1)
	s.bits >>= n
	s.n -= n
	return v, nil
}

// header reads a block's header. Spec: RFC 1951, 3.2.3.
func (s *state) header() error {
	head, err := s.take(3)
	if err != nil {
		return err
	}
	s.last = head&1 != 0
	switch head >> 1 {
	case 0:
		return s.stored()
	case 1:
		s.fixedCodes()
	case 2:
		err = s.dynamicCodes()
	default:
		err = s.corrupt("reserved block type")
	}
	s.mode = inCodes
	return err
}

func (s *state) stored() error {
	drop := s.n % 8
	s.bits >>= drop
	s.n -= drop
	size, err := s.take(16)
	if err != nil {
		return err
	}
	check, err := s.take(16)
	if err != nil {
		return err
	}
	if size != check^0xffff {
		return s.corrupt("stored block's length and its complement differ")
	}
	s.pos -= int(s.n / 8) // whole bytes go back
	s.bits, s.n = 0, 0
	s.mode, s.left = inStored, int(size)
	return nil
}

// fixedCodes makes the tables of RFC 1951, 3.2.6.
func (s *state) fixedCodes() {
	if s.fixed {
		return
	}
	lens := s.lens[:numLit]
	for i := range lens {
		switch {
		case i < 144:
			lens[i] = 8
		case i < 256:
			lens[i] = 9
		case i < 280:
			lens[i] = 7
		default:
			lens[i] = 8
		}
	}
	build(s.lit[:], litBits, lens, litSymbols[:])
	lens = s.lens[:numDist]
	for i := range lens {
		lens[i] = 5
	}
	build(s.dist[:], distBits, lens, distSymbols[:])
	s.fixed = true
}

// preOrder is the order in which the lengths of the codes of code lengths come.
var preOrder = [numPre]uint8{16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15}

// dynamicCodes reads the two codes of a block and makes their tables. Spec: RFC 1951, 3.2.7.
func (s *state) dynamicCodes() error {
	s.fixed = false
	head, err := s.take(14)
	if err != nil {
		return err
	}
	lits, dists, pres := int(head&31)+257, int(head>>5&31)+1, int(head>>10)+4
	if lits > 286 || dists > 30 {
		return s.corrupt("too many length or distance symbols")
	}
	var pre [numPre]uint8
	for _, sym := range preOrder[:pres] {
		l, err := s.take(3)
		if err != nil {
			return err
		}
		pre[sym] = uint8(l)
	}
	if !build(s.pre[:], preBits, pre[:], preSymbols[:]) {
		return s.corrupt("code lengths have no sound code")
	}
	lens := s.lens[:lits+dists]
	for i := 0; i < len(lens); {
		if s.n < maxBits {
			s.refill()
		}
		e := s.pre[s.bits&(1<<preBits-1)]
		if uint64(e&0xff) > s.n {
			return io.ErrUnexpectedEOF
		}
		if e&entryOther != 0 {
			return s.corrupt("no code of a code length")
		}
		s.bits >>= e & 0xff
		s.n -= uint64(e & 0xff)
		sym := uint8(e >> 16)
		if sym < 16 {
			lens[i] = sym
			i++
			continue
		}
		var value uint8
		var repeat uint32
		switch sym {
		case 16:
			if i == 0 {
				return s.corrupt("nothing to repeat")
			}
			value = lens[i-1]
			repeat, err = s.take(2)
			repeat += 3
		case 17:
			repeat, err = s.take(3)
			repeat += 3
		case 18:
			repeat, err = s.take(7)
			repeat += 11
		}
		if err != nil {
			return err
		}
		if i+int(repeat) > len(lens) {
			return s.corrupt("more code lengths than symbols")
		}
		for range repeat {
			lens[i] = value
			i++
		}
	}
	if lens[256] == 0 {
		return s.corrupt("no code for a block's end")
	}
	if !build(s.lit[:], litBits, lens[:lits], litSymbols[:]) {
		return s.corrupt("literals and lengths have no sound code")
	}
	if !build(s.dist[:], distBits, lens[lits:], distSymbols[:]) {
		return s.corrupt("distances have no sound code")
	}
	return nil
}

const (
	noCode = "no code of a literal or length"
	noDist = "no code of a distance"
	tooFar = "distance beyond what was written"
)

// careful decodes symbols one by one, looking at the ends of input and output each time. It
// returns at a block's end, too.
func (s *state) careful() (need, error) {
	whole := s.stop == len(s.out)
	for {
		if !whole && s.at >= s.stop {
			return needRoom, nil
		}
		if s.mode != inCodes {
			return needNothing, nil
		}
		if len(s.in)-s.pos >= lead && len(s.out)-s.at >= slack {
			return needNothing, nil // for the fast loop
		}
		s.refill()
		bits, n := s.bits, s.n
		e := s.lit[bits&litMask]
		if e&entrySub != 0 {
			n -= min(n, litBits)
			bits >>= litBits
			e = s.lit[e>>16+uint32(bits)&(1<<(e>>8&15)-1)]
		}
		if uint64(e&0xff) > n || n == 0 {
			return s.dry()
		}
		switch {
		case e&entryLiteral != 0:
			if s.at == len(s.out) {
				return needRoom, nil
			}
			s.out[s.at] = byte(e >> 16)
			s.at++
			s.bits, s.n = bits>>(e&0xff), n-uint64(e&0xff)
			continue
		case e&entryEnd != 0:
			s.bits, s.n = bits>>(e&0xff), n-uint64(e&0xff)
			s.next()
			continue
		case e&entryOther != 0:
			return 0, s.corrupt(noCode)
		}
		length := value(e, bits)
		bits, n = bits>>(e&0xff), n-uint64(e&0xff)
		e = s.dist[bits&distMask]
		if e&entrySub != 0 {
			n -= min(n, distBits)
			bits >>= distBits
			e = s.dist[e>>16+uint32(bits)&(1<<(e>>8&15)-1)]
		}
		if uint64(e&0xff) > n || n == 0 {
			return s.dry()
		}
		if e&entryOther != 0 {
			return 0, s.corrupt(noDist)
		}
		distance := value(e, bits)
		if distance > s.at-s.low {
			return 0, s.corrupt(tooFar)
		}
		room := len(s.out) - s.at
		for i := range min(length, room) {
			s.out[s.at+i] = s.out[s.at+i-distance]
		}
		if s.at += min(length, room); length > room {
			return needRoom, nil
		}
		s.bits, s.n = bits>>(e&0xff), n-uint64(e&0xff)
	}
}

// dry is what a symbol cut at the end of the input means.
func (s *state) dry() (need, error) {
	if s.eof {
		return 0, io.ErrUnexpectedEOF
	}
	return needInput, nil
}

// value returns the length or distance of an entry for bits.
func value(e entry, bits uint64) int {
	return int(e>>16) + int(uint32(bits)&(1<<(e&31)-1)>>(e>>8&15))
}

// refilled takes as many whole bytes at pos into bits as there is room for.
func refilled(in []byte, bits, n uint64, pos int) (uint64, uint64, int) {
	return bits | binary.LittleEndian.Uint64(in[pos:])<<(n&63), n | 56, pos + int((63-n)>>3&7)
}

// fast decodes symbols as long as neither input nor output can end within one, or until the
// block does.
func (s *state) fast() error {
	in, out := s.in, s.out
	pos, at := s.pos, s.at
	bits, n := s.bits, s.n // above its lowest six bits, n is of no meaning here
	inEnd, outEnd := len(in)-lead, len(out)-slack
	if pos > inEnd || at > outEnd {
		return nil
	}
	what := ""
	bits, n, pos = refilled(in, bits, n, pos)
	// A refill makes all 64 bits right, of which n counts those that come in whole bytes. A turn
	// begins with the next entry, so that it is there in time, and 36 bits, one distance of at
	// most 15+13 bits after a refill: that is enough for two literals and the index of a third symbol,
	// 3*11, or for a length and the index of its distance, 15+5+8.
	e := s.lit[bits&litMask]
	for pos <= inEnd && at <= outEnd {
		if e&entryLiteral != 0 {
			bits >>= e & 63
			n -= uint64(e)
			out[at] = byte(e >> 16)
			at++
			e = s.lit[bits&litMask]
			if e&entryLiteral != 0 {
				bits >>= e & 63
				n -= uint64(e)
				out[at] = byte(e >> 16)
				at++
				e = s.lit[bits&litMask]
				bits, n, pos = refilled(in, bits, n, pos)
				if e&entryLiteral != 0 {
					bits >>= e & 63
					n -= uint64(e)
					out[at] = byte(e >> 16)
					at++
					e = s.lit[bits&litMask]
					if e&entryLiteral != 0 {
						bits >>= e & 63
						n -= uint64(e)
						out[at] = byte(e >> 16)
						at++
						e = s.lit[bits&litMask]
						continue
					}
				}
			} else {
				bits, n, pos = refilled(in, bits, n, pos)
			}
		}
		if e&entryOther != 0 {
			if e&entrySub != 0 {
				bits >>= e & 63
				n -= uint64(e)
				e = s.lit[e>>16+uint32(bits)&(1<<(e>>8&15)-1)]
				if e&entryLiteral != 0 {
					bits >>= e & 63
					n -= uint64(e)
					out[at] = byte(e >> 16)
					at++
					bits, n, pos = refilled(in, bits, n, pos)
					e = s.lit[bits&litMask]
					continue
				}
			}
			if e&entryOther != 0 {
				if e&entryEnd == 0 {
					what = noCode
				} else {
					s.next()
				}
				bits >>= e & 63
				n -= uint64(e)
				break
			}
		}
		length := value(e, bits)
		bits >>= e & 63
		n -= uint64(e)

		e = s.dist[bits&distMask]
		bits, n, pos = refilled(in, bits, n, pos)
		if e&entryOther != 0 {
			if e&entrySub != 0 {
				bits >>= e & 63
				n -= uint64(e)
				e = s.dist[e>>16+uint32(bits)&(1<<(e>>8&15)-1)]
			}
			if e&entryOther != 0 {
				what = noDist
				break
			}
		}
		distance := value(e, bits)
		bits >>= e & 63
		n -= uint64(e)
		if distance > at-s.low {
			what = tooFar
			break
		}
		e = s.lit[bits&litMask]

		if distance < 8 {
			repeat(out, at, distance, length)
			at += length
			continue
		}
		src, to := out[at-distance:at-distance+length+24], out[at:at+length+24]
		at += length
		binary.LittleEndian.PutUint64(to, binary.LittleEndian.Uint64(src))
		binary.LittleEndian.PutUint64(to[8:], binary.LittleEndian.Uint64(src[8:]))
		for i := 16; i < length; i += 8 {
			binary.LittleEndian.PutUint64(to[i:], binary.LittleEndian.Uint64(src[i:]))
		}
	}
	n &= 63
	s.pos, s.at, s.bits, s.n = pos, at, bits&(1<<n-1), n
	if what != "" {
		return s.corrupt(what)
	}
	return nil
}

// repeat copies length bytes from distance before at, less than eight, and may write up to 7
// bytes more.
func repeat(out []byte, at, distance, length int) {
	to := out[at : at+length+24]
	src := out[at-distance:]
	if distance == 1 {
		word := uint64(src[0]) * 0x0101010101010101
		for i := 0; i < length; i += 8 {
			binary.LittleEndian.PutUint64(to[i:], word)
		}
		return
	}
	for i := range 8 {
		to[i] = src[i]
	}
	// Whole periods back, as many as it takes to read by words.
	src = out[at+8-(8+distance-1)/distance*distance:]
	for i := 8; i < length; i += 8 {
		binary.LittleEndian.PutUint64(to[i:], binary.LittleEndian.Uint64(src[i-8:]))
	}
}
