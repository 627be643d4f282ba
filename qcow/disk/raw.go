package disk

import (
	"fmt"
	"io"
)

// RawLayout is the layout of a raw image: the file is the disk.
type RawLayout struct {
	limits Limits
	size   int64
}

// NewRawLayout returns the layout of a raw image of unknown length.
func NewRawLayout(l Limits) *RawLayout { return &RawLayout{limits: l.WithDefaults(), size: -1} }

// Start maps the whole file.
func (r *RawLayout) Start() ([]Extent, error) {
	return []Extent{{Kind: Data, File: Range{0, ToEnd}, Guest: Range{0, ToEnd}}}, nil
}

// Feed is never called: raw has no metadata.
func (r *RawLayout) Feed(Extent, []byte) ([]Extent, error) { return nil, nil }

// End checks the size, which only the end of the file tells.
func (r *RawLayout) End(size int64) ([]Extent, error) {
	if size%SectorSize != 0 {
		return nil, &FormatError{Format: "raw", Reason: VirtualSizeUnaligned, Offset: -1,
			Detail: fmt.Sprintf("%d bytes is no multiple of %d: the image is cut off, or is no disk", size, SectorSize)}
	}
	if size > r.limits.VirtualSize {
		return nil, tooLarge("raw", size, r.limits.VirtualSize)
	}
	r.size = size
	return nil, nil
}

// State gives the size once the end has been seen.
func (r *RawLayout) State() State {
	return State{Format: "raw", Size: r.size, MaxSize: r.limits.VirtualSize, Complete: true}
}

func tooLarge(format string, size, limit int64) error {
	return &FormatError{Format: format, Reason: VirtualSizeTooLarge, Offset: -1, Value: uint64(size),
		Detail: fmt.Sprintf("disk of at least %d bytes, %d allowed", size, limit)}
}

// RawImage is a raw image as a disk to be read at any offset.
type RawImage struct {
	*io.SectionReader
}

// OpenRaw opens the raw image in the first size bytes of r, which stays the caller's.
func OpenRaw(r io.ReaderAt, size int64, l Limits) (RawImage, error) {
	layout := NewRawLayout(l)
	if _, err := layout.End(size); err != nil {
		return RawImage{}, err
	}
	return RawImage{io.NewSectionReader(r, 0, size)}, nil
}

// Close does nothing: the reader is the caller's.
func (RawImage) Close() error { return nil }
