package inflate

import (
	"encoding/binary"
	"errors"
	"hash"
	"hash/adler32"
	"hash/crc32"
	"io"
)

// ErrHeader is what should be a gzip or zlib stream, and does not begin like one.
var ErrHeader = errors.New("inflate: no header of the format")

// Format is what stands around DEFLATE in a stream.
type Format uint8

// The formats.
const (
	Raw  Format = iota // nothing
	Zlib               // one stream; what follows it is passed over
	Gzip               // members one after the other, to the end of the input
)

const (
	inSize  = 64 << 10
	outSize = windowSize + 256<<10 + slack
	// before is what stays of the input before its next byte: what bits may hold of it.
	before = 8

	zlibHeaderSize  = 2
	zlibTrailerSize = 4
	gzipHeaderSize  = 10
	gzipTrailerSize = 8
	// gzipFieldMax bounds a header's name and comment, which no limit of the format does.
	gzipFieldMax = 64 << 10
)

// Reader decodes a stream, and reads ahead in it. It is not safe for concurrent use.
type Reader struct {
	s      state
	format Format
	src    io.Reader
	buf    []byte // of the input; s.in is what is in use of it
	ended  error  // why nothing comes behind it
	done   int    // what has been read of the output
	summed int    // what the checksum has seen of it
	crc    uint32
	size   uint32 // of the member, modulo 2^32
	adler  hash.Hash32
	err    error
}

// NewReader returns a reader of the stream in src, whose header it reads.
//
// Errors: those of src; [ErrHeader], [io.ErrUnexpectedEOF]. Those of [Reader.Read] are,
// besides, a [*CorruptError].
func NewReader(src io.Reader, format Format) (*Reader, error) {
	r := &Reader{format: format, buf: make([]byte, inSize), adler: adler32.New()}
	r.s.out = make([]byte, outSize)
	r.s.stop = len(r.s.out) - slack
	if err := r.Reset(src); err != nil {
		return nil, err
	}
	return r, nil
}

// Reset makes r a reader of the stream in src; see [NewReader].
func (r *Reader) Reset(src io.Reader) error {
	s := &r.s
	s.in, s.pos, s.eof, s.base = r.buf[:0], 0, false, 0
	s.at, s.low = 0, 0
	r.src, r.done, r.ended = src, 0, nil
	r.err = r.start()
	if r.err == io.EOF {
		r.err = io.ErrUnexpectedEOF
	}
	return r.err
}

// Read reads decoded bytes.
func (r *Reader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	chunk, err := r.Next()
	n := copy(p, chunk)
	r.done -= len(chunk) - n
	return n, err
}

// Next returns the decoded bytes that come next, at least one, without copying them. They
// are valid until the next call of a method.
func (r *Reader) Next() ([]byte, error) {
	s := &r.s
	for r.done == s.at && r.err == nil {
		r.err = r.decode()
	}
	if r.done == s.at {
		return nil, r.err
	}
	chunk := s.out[r.done:s.at]
	r.done = s.at
	return chunk, nil
}

// decode decodes what there is room for. What it has decoded when it returns an error is
// good as far as is known.
func (r *Reader) decode() error {
	s := &r.s
	if s.at >= s.stop || s.at == len(s.out) {
		r.slide()
	}
	for {
		what, err := s.run()
		r.sum()
		if err == io.ErrUnexpectedEOF && r.ended != io.EOF {
			return r.ended
		}
		if err != nil {
			return err
		}
		switch what {
		case needRoom:
			return nil
		case needInput:
			r.fill()
		case needNothing:
			if err := r.end(); err != nil {
				return err
			}
		}
		if s.at >= s.stop {
			return nil
		}
	}
}

// slide moves the window to the start of the buffer.
func (r *Reader) slide() {
	s := &r.s
	shift := s.at - windowSize
	copy(s.out, s.out[shift:s.at])
	s.at -= shift
	s.low = max(0, s.low-shift)
	r.done, r.summed = s.at, s.at
}

// fill reads more input, at least a byte, or notes its end. What was read before an error is
// decoded first: damage that is found there may be its cause.
func (r *Reader) fill() {
	s := &r.s
	keep := max(0, s.pos-before)
	have := copy(r.buf, s.in[keep:])
	s.pos -= keep
	s.base += int64(keep)
	n, err := io.ReadAtLeast(r.src, r.buf[have:], 1)
	s.in = r.buf[:have+n]
	if err != nil {
		s.eof, r.ended = true, err
	}
}

// sum adds what was decoded to the checksum.
func (r *Reader) sum() {
	s := &r.s
	p := s.out[r.summed:s.at]
	r.summed = s.at
	r.size += uint32(len(p))
	switch r.format {
	case Gzip:
		r.crc = crc32.Update(r.crc, crc32.IEEETable, p)
	case Zlib:
		_, _ = r.adler.Write(p)
	}
}

// peek returns the next n bytes of the input, as it stands between blocks.
func (r *Reader) peek(n int) ([]byte, error) {
	s := &r.s
	s.pos -= int(s.n / 8)
	s.bits, s.n = 0, 0
	for len(s.in)-s.pos < n {
		if s.eof {
			if len(s.in) != s.pos && r.ended == io.EOF {
				return nil, io.ErrUnexpectedEOF
			}
			return nil, r.ended
		}
		r.fill()
	}
	return s.in[s.pos : s.pos+n], nil
}

// start reads a header, or answers [io.EOF] where there is none.
func (r *Reader) start() error {
	s := &r.s
	s.reset()
	s.low, r.summed, r.crc, r.size = s.at, s.at, 0, 0
	switch r.format {
	case Gzip:
		return r.gzipHeader()
	case Zlib:
		r.adler.Reset()
		p, err := r.peek(zlibHeaderSize)
		if err != nil {
			return err
		}
		s.pos += zlibHeaderSize
		return zlibHeader(p)
	}
	return nil
}

// end reads what follows the last block, and the next member's header.
func (r *Reader) end() error {
	s := &r.s
	switch r.format {
	case Gzip:
		p, err := r.trailer(gzipTrailerSize)
		if err != nil {
			return err
		}
		if binary.LittleEndian.Uint32(p) != r.crc {
			return s.corrupt("CRC-32 is another")
		}
		if binary.LittleEndian.Uint32(p[4:]) != r.size {
			return s.corrupt("length is another")
		}
		s.pos += gzipTrailerSize
		return r.start()
	case Zlib:
		p, err := r.trailer(zlibTrailerSize)
		if err != nil {
			return err
		}
		if binary.BigEndian.Uint32(p) != r.adler.Sum32() {
			return s.corrupt("Adler-32 is another")
		}
		s.pos += zlibTrailerSize
	}
	return io.EOF
}

func (r *Reader) trailer(n int) ([]byte, error) {
	p, err := r.peek(n)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return p, err
}

// gzipHeader reads a member's header. Spec: RFC 1952, 2.3.
func (r *Reader) gzipHeader() error {
	const (
		headerCRC = 1 << 1
		extra     = 1 << 2
		name      = 1 << 3
		comment   = 1 << 4
	)
	p, err := r.peek(gzipHeaderSize)
	if err != nil {
		return err
	}
	if p[0] != 0x1f || p[1] != 0x8b || p[2] != 8 {
		return ErrHeader
	}
	flags := p[3]
	sum := uint32(0)
	skip := func(n int) error {
		p, err := r.trailer(n)
		if err != nil {
			return err
		}
		sum = crc32.Update(sum, crc32.IEEETable, p)
		r.s.pos += n
		return nil
	}
	if err := skip(gzipHeaderSize); err != nil {
		return err
	}
	if flags&extra != 0 {
		p, err := r.trailer(2)
		if err != nil {
			return err
		}
		n := int(binary.LittleEndian.Uint16(p))
		if err := skip(2); err != nil {
			return err
		}
		for ; n > 0; n -= min(n, inSize/2) {
			if err := skip(min(n, inSize/2)); err != nil {
				return err
			}
		}
	}
	for _, field := range []byte{name, comment} {
		if flags&field == 0 {
			continue
		}
		for length := 0; ; length++ {
			p, err := r.trailer(1)
			if err != nil {
				return err
			}
			if length == gzipFieldMax {
				return ErrHeader
			}
			last := p[0] == 0
			if err := skip(1); err != nil {
				return err
			}
			if last {
				break
			}
		}
	}
	if flags&headerCRC != 0 {
		p, err := r.trailer(2)
		if err != nil {
			return err
		}
		if binary.LittleEndian.Uint16(p) != uint16(sum) {
			return ErrHeader
		}
		r.s.pos += 2
	}
	return nil
}

// zlibHeader judges a zlib header. Spec: RFC 1950, 2.2.
func zlibHeader(p []byte) error {
	if len(p) < zlibHeaderSize {
		return io.ErrUnexpectedEOF
	}
	const deflate, dictionary, maxWindow = 8, 1 << 5, 7
	if p[0]&15 != deflate || p[0]>>4 > maxWindow || p[1]&dictionary != 0 || binary.BigEndian.Uint16(p)%31 != 0 {
		return ErrHeader
	}
	return nil
}
