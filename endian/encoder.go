package endian

import "encoding/binary"

// Encoder appends fixed-width integers to a record in a stated byte order.
// The zero value is not useful: take [NewBig] or [NewLittle].
type Encoder struct {
	order binary.AppendByteOrder
	buf   []byte
}

// NewBig returns an encoder of big-endian fields that appends to buf.
func NewBig(buf []byte) *Encoder { return &Encoder{order: binary.BigEndian, buf: buf} }

// NewLittle returns an encoder of little-endian fields that appends to buf.
func NewLittle(buf []byte) *Encoder { return &Encoder{order: binary.LittleEndian, buf: buf} }

// U8 appends one byte.
func (e *Encoder) U8(v uint8) { e.buf = append(e.buf, v) }

// U16 appends two bytes.
func (e *Encoder) U16(v uint16) { e.buf = e.order.AppendUint16(e.buf, v) }

// U32 appends four bytes.
func (e *Encoder) U32(v uint32) { e.buf = e.order.AppendUint32(e.buf, v) }

// U64 appends eight bytes.
func (e *Encoder) U64(v uint64) { e.buf = e.order.AppendUint64(e.buf, v) }

// Raw appends p as it is.
func (e *Encoder) Raw(p []byte) { e.buf = append(e.buf, p...) }

// Zero appends n zero bytes; a negative n appends none.
func (e *Encoder) Zero(n int) {
	if n > 0 {
		e.buf = append(e.buf, make([]byte, n)...)
	}
}

// Bytes returns what has been encoded, what buf held at first included.
func (e *Encoder) Bytes() []byte { return e.buf }
