package disk

import (
	"encoding/binary"
	"errors"
	"io"
)

var (
	errZstdMagic = errors.New("no zstd frame")
	errZstdBlock = errors.New("reserved zstd block type")
)

// zstdFrame returns the length of the frame that p begins with, and whether it is a
// skippable one. Spec: RFC 8878, 3.1.1 (frames) and 3.1.2 (skippable frames).
func zstdFrame(p []byte) (n int, skippable bool, err error) {
	if len(p) < 5 {
		return 0, false, io.ErrUnexpectedEOF
	}
	magic := binary.LittleEndian.Uint32(p)
	if magic&^0xf == 0x184d2a50 {
		if len(p) < 8 {
			return 0, false, io.ErrUnexpectedEOF
		}
		size := uint64(binary.LittleEndian.Uint32(p[4:])) + 8
		if size > uint64(len(p)) {
			return 0, false, io.ErrUnexpectedEOF
		}
		return int(size), true, nil
	}
	if magic != 0xfd2fb528 {
		return 0, false, errZstdMagic
	}
	descriptor := p[4]
	single := descriptor>>5&1 == 1
	n = 5 + [...]int{0, 1, 2, 4}[descriptor&3] // dictionary ID
	switch size := descriptor >> 6; {
	case size > 0:
		n += 1 << size
	case single:
		n++
	}
	if !single {
		n++ // window descriptor
	}
	for last := false; !last; {
		if len(p) < n+3 {
			return 0, false, io.ErrUnexpectedEOF
		}
		header := uint32(p[n]) | uint32(p[n+1])<<8 | uint32(p[n+2])<<16
		last = header&1 == 1
		n += 3
		switch header >> 1 & 3 {
		case 0, 2: // raw, compressed
			n += int(header >> 3)
		case 1: // RLE: one byte
			n++
		default:
			return 0, false, errZstdBlock
		}
	}
	if descriptor>>2&1 == 1 {
		n += 4 // content checksum
	}
	if n > len(p) {
		return 0, false, io.ErrUnexpectedEOF
	}
	return n, false, nil
}
