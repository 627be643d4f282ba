package endian

import (
	"encoding/binary"
	"fmt"
	"io"
)

// ShortError says that a record ended before a field of it was complete.
// It unwraps to [io.ErrUnexpectedEOF].
type ShortError struct {
	Field  string // the field that was being read
	Offset int64  // absolute offset of that field
	Want   int    // bytes the field needs
	Have   int    // bytes there were
}

func (e *ShortError) Error() string {
	return fmt.Sprintf("endian: record ends inside %s at %#x: %d bytes wanted, %d there", e.Field, e.Offset, e.Want, e.Have)
}

func (e *ShortError) Unwrap() error { return io.ErrUnexpectedEOF }

// Decoder reads fixed-width integers from a record held in memory.
// The zero value is not useful: take [Big] or [Little]. A Decoder is not safe for
// concurrent use and keeps no copy of the record.
type Decoder struct {
	order binary.ByteOrder
	buf   []byte
	base  int64 // absolute offset of buf[0]
	pos   int
	err   error
}

// Big returns a decoder of big-endian fields (qcow2, VHD). base is the absolute offset
// of p[0] in its file, used in errors only.
func Big(p []byte, base int64) *Decoder {
	return &Decoder{order: binary.BigEndian, buf: p, base: base}
}

// Little returns a decoder of little-endian fields (VMDK, VDI, VHDX, GPT).
func Little(p []byte, base int64) *Decoder {
	return &Decoder{order: binary.LittleEndian, buf: p, base: base}
}

// take returns the next n bytes, or nil after the first short read.
func (d *Decoder) take(n int, field string) []byte {
	if d.err != nil {
		return nil
	}
	have := len(d.buf) - d.pos
	if n < 0 || n > have {
		d.err = &ShortError{Field: field, Offset: d.Offset(), Want: n, Have: have}
		return nil
	}
	p := d.buf[d.pos : d.pos+n]
	d.pos += n
	return p
}

// U8 reads one byte.
func (d *Decoder) U8(field string) uint8 {
	if p := d.take(1, field); p != nil {
		return p[0]
	}
	return 0
}

// U16 reads two bytes.
func (d *Decoder) U16(field string) uint16 {
	if p := d.take(2, field); p != nil {
		return d.order.Uint16(p)
	}
	return 0
}

// U32 reads four bytes.
func (d *Decoder) U32(field string) uint32 {
	if p := d.take(4, field); p != nil {
		return d.order.Uint32(p)
	}
	return 0
}

// U64 reads eight bytes.
func (d *Decoder) U64(field string) uint64 {
	if p := d.take(8, field); p != nil {
		return d.order.Uint64(p)
	}
	return 0
}

// Bytes returns the next n bytes. The slice aliases the record; nil after an error.
func (d *Decoder) Bytes(n int, field string) []byte { return d.take(n, field) }

// Skip passes over n bytes.
func (d *Decoder) Skip(n int, field string) { d.take(n, field) }

// Len returns the number of bytes not yet read.
func (d *Decoder) Len() int { return len(d.buf) - d.pos }

// Offset returns the absolute offset of the next field.
func (d *Decoder) Offset() int64 { return d.base + int64(d.pos) }

// Err returns the first short read as a [*ShortError], or nil.
func (d *Decoder) Err() error { return d.err }
