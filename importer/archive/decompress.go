package archive

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/archdisk/archdisk/internal/inflate"
	"github.com/archdisk/archdisk/qcow/disk"
	"github.com/klauspost/compress/zstd"
	"github.com/mikelolasagasti/xz"
)

// Compression names how a stream is compressed.
type Compression string

// The compressions that are unwrapped.
const (
	None Compression = "none"
	Gzip Compression = "gzip"
	Zstd Compression = "zstd"
	XZ   Compression = "xz"
)

// HeadSize is how many first bytes [Stream.Head] can show.
const HeadSize = 64 << 10

// Error is a stream that does not decompress. It unwraps to the decoder's error.
type Error struct {
	Compression Compression
	Offset      int64 // bytes that came out before
	Err         error
}

func (e *Error) Error() string {
	if errors.Is(e.Err, disk.ErrLimit) {
		return fmt.Sprintf("archive: %s stream needs more memory: %v", e.Compression, e.Err)
	}
	return fmt.Sprintf("archive: %s stream is damaged after %d decompressed bytes: %v", e.Compression, e.Offset, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// Detect recognises a compression by the first bytes of a stream.
func Detect(head []byte) Compression {
	has := func(magic string) bool { return bytes.HasPrefix(head, []byte(magic)) }
	skippable := len(head) >= 4 && head[0]&0xf0 == 0x50 && string(head[1:4]) == "\x2a\x4d\x18"
	switch {
	case has("\x1f\x8b\x08"):
		return Gzip
	case has("\x28\xb5\x2f\xfd"), skippable:
		return Zstd
	case has("\xfd7zXZ\x00"):
		return XZ
	}
	return None
}

// Stream is a decompressed stream whose first bytes can be looked at.
type Stream struct {
	Compression Compression
	buf         *bufio.Reader
	close       func()
}

// Head returns the first bytes of what has not been read, [HeadSize] of them or all.
func (s *Stream) Head() ([]byte, error) {
	head, err := s.buf.Peek(HeadSize)
	if err == io.EOF {
		err = nil
	}
	return head, err
}

// Read reads decompressed bytes. A damaged stream gives an [*Error].
func (s *Stream) Read(p []byte) (int, error) { return s.buf.Read(p) }

// Close frees the decoder and its memory. The compressed stream stays the caller's.
func (s *Stream) Close() {
	if s.close != nil {
		s.close()
		s.close = nil
	}
}

// Decompress looks at the first bytes of r and returns it decompressed, or as it is where
// it has no compression. A stream may be of any length, a few bytes included. The memory of
// the decoder's window is taken from budget; a stream that needs more is refused.
func Decompress(r io.Reader, budget *disk.Budget) (*Stream, error) {
	in := bufio.NewReaderSize(r, HeadSize)
	head, err := in.Peek(max(zstd.HeaderMaxSize, xzHeaderMax))
	if err != nil && err != io.EOF {
		return nil, err
	}
	kind := Detect(head)
	if kind == None {
		return &Stream{Compression: None, buf: in}, nil
	}
	dec, reserved, closeDecoder, err := decoder(kind, head, in, budget)
	if err != nil {
		return nil, &Error{Compression: kind, Err: asLimit(err)}
	}
	return &Stream{
		Compression: kind,
		buf:         bufio.NewReaderSize(&decoding{kind: kind, r: dec}, HeadSize),
		close:       func() { closeDecoder(); budget.Release(reserved) },
	}, nil
}

func decoder(kind Compression, head []byte, in *bufio.Reader, budget *disk.Budget) (r io.Reader, reserved int64, done func(), err error) {
	done = func() {}
	switch kind {
	case Gzip:
		r, err = inflate.NewReader(in, inflate.Gzip)
		return r, 0, done, err
	case XZ:
		// Blocks behind the first may have larger dictionaries than it, up to what xz -6 writes.
		reserved = max(xzDictionary(head), min(budget.Left()/2, 8<<20), 4<<10)
		if err := budget.Reserve(reserved+afterXZ, "the xz dictionary"); err != nil {
			return nil, 0, nil, err
		}
		budget.Release(afterXZ)
		if r, err = xz.NewReader(in, uint32(min(reserved, math.MaxUint32))); err != nil {
			budget.Release(reserved)
		}
		return r, reserved, done, err
	}
	// Frames behind the first may have larger windows than it, up to the usual maximum.
	window := uint64(8 << 20)
	var h zstd.Header
	if err := h.Decode(head); err == nil {
		window = max(window, h.WindowSize)
		if h.SingleSegment { // the whole frame is its window
			window = max(window, h.FrameContentSize)
		}
	}
	reserved = int64(min(window, 1<<40)) + 1<<20
	if err := budget.Reserve(reserved, "the zstd window"); err != nil {
		return nil, 0, nil, err
	}
	dec, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(window))
	if err != nil {
		budget.Release(reserved)
		return nil, 0, nil, err
	}
	return dec, reserved, dec.Close, nil
}

// afterXZ is memory that a dictionary must leave to whoever uses the stream, so that one
// too large is named as what is wrong.
const afterXZ = 1 << 20

// xzHeaderMax is the size of a stream header and the largest block header.
const xzHeaderMax = 12 + 1024

// xzDictionary returns the dictionary size that the first block of an xz stream states, 0
// if none does.
// Spec: The .xz File Format, 3.1 "Block Header", 5.3.1 "LZMA2".
func xzDictionary(head []byte) int64 {
	const streamHeader, lzma2 = 12, 0x21
	if len(head) < streamHeader+2 {
		return 0
	}
	block := head[streamHeader:]
	block = block[:min(len(block), 4*(int(block[0])+1))]
	if len(block) < 2 {
		return 0
	}
	flags, rest := block[1], block[2:]
	number := func() uint64 {
		v, n := binary.Uvarint(rest)
		rest = rest[max(n, 0):]
		return v
	}
	for _, size := range []byte{0x40, 0x80} { // of the block, compressed and not
		if flags&size != 0 {
			number()
		}
	}
	for range flags&3 + 1 {
		id, size := number(), number()
		if size > uint64(len(rest)) {
			return 0
		}
		if id == lzma2 && size == 1 {
			bits := rest[0] & 0x3f
			return int64(2|bits&1) << min(bits/2+11, 32)
		}
		rest = rest[size:]
	}
	return 0
}

// decoding gives a decoder's errors their place, and a limit its sentinel.
type decoding struct {
	kind Compression
	r    io.Reader
	n    int64
}

func (d *decoding) Read(p []byte) (int, error) {
	n, err := d.r.Read(p)
	d.n += int64(n)
	if err == nil || err == io.EOF {
		return n, err
	}
	return n, &Error{Compression: d.kind, Offset: d.n, Err: asLimit(err)}
}

// asLimit gives a decoder's refusal of a window its sentinel.
func asLimit(err error) error {
	if errors.Is(err, zstd.ErrWindowSizeExceeded) || errors.Is(err, xz.ErrMemlimit) {
		return fmt.Errorf("%w: %w", disk.ErrLimit, err)
	}
	return err
}
