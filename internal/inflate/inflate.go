// Package inflate decodes DEFLATE: whole buffers ([Decoder]), and streams of gzip, zlib or
// nothing around it ([Reader]).
//
// It is strict as zlib is: a code that is over-subscribed, or incomplete but for a single word
// of one bit, a block without an end mark, a distance beyond what was written, a symbol that
// stands for nothing are errors, and so is an input that ends early. Nothing is allocated
// after the set-up.
//
// Spec: RFC 1951 (DEFLATE), RFC 1950 (zlib), RFC 1952 (gzip).
package inflate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/adler32"
	"io"
)

// ErrFull is more output than there is room for.
var ErrFull = errors.New("inflate: more output than there is room for")

// CorruptError is input that is no DEFLATE, or not what its checksum says.
type CorruptError struct {
	Offset int64 // in the input, about
	What   string
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("inflate: corrupt input at %d: %s", e.Offset, e.What)
}

// Decoder decodes whole buffers. The zero value is ready. It is large, to be kept and used
// again; it is not safe for concurrent use.
type Decoder struct{ s state }

// Inflate decodes src, raw DEFLATE, into dst. It returns how many bytes of dst were written
// and how many of src were read, up to the end of the last block's last byte.
//
// Errors: [ErrFull] if the stream does not end with dst, which then is full;
// [io.ErrUnexpectedEOF]; a [*CorruptError]. What stands in dst behind n is undefined.
func (d *Decoder) Inflate(dst, src []byte) (n, used int, err error) {
	s := &d.s
	s.reset()
	s.in, s.pos, s.eof, s.base = src, 0, true, 0
	s.out, s.at, s.low, s.stop = dst, 0, 0, len(dst)
	what, err := s.run()
	if err == nil && what == needRoom {
		err = ErrFull
	}
	n, used = s.at, s.pos-int(s.n/8)
	s.in, s.out = nil, nil
	return n, used, err
}

// Zlib decodes src, a zlib stream, into dst; see [Decoder.Inflate]. The checksum is compared.
func (d *Decoder) Zlib(dst, src []byte) (n, used int, err error) {
	if err := zlibHeader(src); err != nil {
		return 0, 0, err
	}
	n, used, err = d.Inflate(dst, src[zlibHeaderSize:])
	used += zlibHeaderSize
	if err != nil {
		return n, used, err
	}
	if len(src)-used < zlibTrailerSize {
		return n, used, io.ErrUnexpectedEOF
	}
	if binary.BigEndian.Uint32(src[used:]) != adler32.Checksum(dst[:n]) {
		return n, used, &CorruptError{Offset: int64(used), What: "Adler-32 is another"}
	}
	return n, used + zlibTrailerSize, nil
}
