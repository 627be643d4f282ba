package formats

import (
	"bytes"
	"context"
	"fmt"
	"io"

	"github.com/archdisk/archdisk/qcow"
	"github.com/archdisk/archdisk/qcow/disk"
)

// HeadSize is how many first bytes of a file [Probe] wants to see, if there are so many.
const HeadSize = 64 << 10

// Format names a disk image format as qemu-img does.
type Format string

// The formats that are read.
const (
	Raw   Format = "raw"
	QCOW2 Format = "qcow2"
)

// Info is what the first bytes of an image tell.
type Info struct {
	Format      Format
	VirtualSize int64    // in bytes, -1 where only the end of the file tells
	Notes       []string // what is worth knowing and no reason to refuse
}

// Image is a disk read at any offset, in the guest's view.
type Image interface {
	io.ReaderAt
	Size() int64
	Close() error
}

// format is one row: how the first bytes are recognised, and what can be done with it.
// A row without open is a format that is refused by name.
type format struct {
	name   Format
	match  func(head []byte) bool
	probe  func(head []byte, l disk.Limits) (Info, error)
	layout func(head []byte, l disk.Limits) (disk.Layout, error)
	open   func(r io.ReaderAt, size int64, l disk.Limits) (Image, error)
	check  func(ctx context.Context, r io.ReaderAt, size int64, b *disk.Budget) (*qcow.CheckResult, error)
	why    string // of a row that is refused
}

// table returns the rows in the order in which they are tried. raw takes what is left.
func table() []format {
	return []format{
		{name: QCOW2, match: magic(0, qcow.Magic), probe: probeQCOW2, layout: layoutQCOW2, open: openQCOW2, check: checkQCOW2},
		{name: "vmdk", match: magic(0, "KDMV"), why: notYet},
		{name: "vmdk", match: magic(0, "COWD"), why: "VMware's old COW format is not read"},
		{name: "vmdk", match: descriptor, why: "this is a VMDK descriptor; the data is in other files, which are not opened"},
		{name: "vhdx", match: magic(0, "vhdxfile"), why: notYet},
		{name: "vhd", match: magic(0, "conectix"), why: notYet},
		{name: "vdi", match: magic(0x40, "\x7f\x10\xda\xbe"), why: notYet},
		{name: "qed", match: magic(0, "QED\x00"), why: banned},
		{name: "luks", match: magic(0, "LUKS\xba\xbe"), why: "the disk is encrypted, its passphrase would be needed"},
		{name: "parallels", match: magic(0, "WithoutFreeSpace"), why: banned},
		{name: "parallels", match: magic(0, "WithouFreSpacExt"), why: banned},
		{name: "bochs", match: magic(0, "Bochs Virtual HD Image"), why: banned},
		{name: "cloop", match: magic(0, "#!/bin/sh\n#V2.0 Format"), why: banned},
		{name: "dmg", match: magic(0, "koly"), why: banned},
		{name: "asif", match: magic(0, "shdw"), why: banned},
		{name: "gzip", match: magic(0, "\x1f\x8b\x08"), why: compressed},
		{name: "zstd", match: magic(0, "\x28\xb5\x2f\xfd"), why: compressed},
		{name: "xz", match: magic(0, "\xfd7zXZ\x00"), why: compressed},
		{name: "bzip2", match: magic(0, "BZh"), why: compressed},
		{name: "zip", match: magic(0, "PK\x03\x04"), why: "an archive is no disk"},
		{name: "tar", match: magic(257, "ustar"), why: "an archive is no disk"},
		{name: Raw, match: func([]byte) bool { return true }, probe: probeRaw, layout: layoutRaw, open: openRaw},
	}
}

const (
	notYet     = "this format is not read yet"
	banned     = "this format is not read"
	compressed = "the disk itself is compressed; only an import unwraps a compression, and only one"
)

func magic(off int, m string) func([]byte) bool {
	return func(head []byte) bool {
		return len(head) >= off+len(m) && string(head[off:off+len(m)]) == m
	}
}

func descriptor(head []byte) bool {
	return bytes.HasPrefix(head, []byte("# Disk DescriptorFile"))
}

func find(head []byte) format {
	for _, f := range table() {
		if f.match(head) {
			return f
		}
	}
	return format{} // unreachable: raw matches
}

// refused returns the error of a row that is not read.
func (f format) refused() error {
	if f.open != nil {
		return nil
	}
	return &disk.FormatError{Format: string(f.name), Reason: disk.BannedFormat, Offset: -1, Detail: f.why}
}

// Probe recognises a format by the first bytes of a file, [HeadSize] of them or the whole
// file, and judges whether it may be read at all.
//
// Errors: a [*disk.FormatError].
func Probe(head []byte, l disk.Limits) (Info, error) {
	f := find(head)
	if err := f.refused(); err != nil {
		return Info{Format: f.name, VirtualSize: -1}, err
	}
	return f.probe(head, l)
}

// NewLayout returns the layout of an image, given what [Probe] was given.
func NewLayout(head []byte, l disk.Limits) (disk.Layout, error) {
	f := find(head)
	if err := f.refused(); err != nil {
		return nil, err
	}
	return f.layout(head, l)
}

// OpenImage opens the image in the first size bytes of r, which stays the caller's.
func OpenImage(r io.ReaderAt, size int64, l disk.Limits) (Image, error) {
	head, err := readHead(r, size)
	if err != nil {
		return nil, err
	}
	f := find(head)
	if err := f.refused(); err != nil {
		return nil, err
	}
	return f.open(r, size, l)
}

func readHead(r io.ReaderAt, size int64) ([]byte, error) {
	head := make([]byte, min(HeadSize, max(size, 0)))
	if n, err := r.ReadAt(head, 0); n < len(head) {
		if err == nil || err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return nil, fmt.Errorf("formats: read of the first %d bytes: %w", len(head), err)
	}
	return head, nil
}

// Check looks for inconsistencies in the image in the first size bytes of r. b is the memory
// it may use; nil for a budget of its own.
//
// Errors: those of [qcow.Check], and a [*disk.FormatError] for formats that have nothing to check.
func Check(ctx context.Context, r io.ReaderAt, size int64, b *disk.Budget) (Format, *qcow.CheckResult, error) {
	head, err := readHead(r, size)
	if err != nil {
		return "", nil, err
	}
	f := find(head)
	if f.check == nil {
		err := f.refused()
		if err == nil {
			err = &disk.FormatError{Format: string(f.name), Reason: disk.UnknownFormat, Offset: -1, Detail: "it has no tables that could be checked"}
		}
		return f.name, nil, err
	}
	res, err := f.check(ctx, r, size, b)
	return f.name, res, err
}

func checkQCOW2(ctx context.Context, r io.ReaderAt, size int64, b *disk.Budget) (*qcow.CheckResult, error) {
	return qcow.Check(ctx, r, size, qcow.CheckOptions{Budget: b})
}

func probeQCOW2(head []byte, l disk.Limits) (Info, error) {
	h, err := qcow.ParseHeader(head, l)
	if err != nil {
		return Info{Format: QCOW2, VirtualSize: -1}, err
	}
	if err := h.Readable(l); err != nil {
		return Info{Format: QCOW2, VirtualSize: h.Size}, err
	}
	info := Info{Format: QCOW2, VirtualSize: h.Size}
	if h.Dirty() {
		info.Notes = append(info.Notes, "the image was not closed cleanly (dirty bit); its data is read as it stands")
	}
	if h.Snapshots > 0 {
		info.Notes = append(info.Notes, fmt.Sprintf("the image holds %d internal snapshots; the active state is read", h.Snapshots))
	}
	return info, nil
}

func layoutQCOW2(head []byte, l disk.Limits) (disk.Layout, error) {
	layout, err := qcow.NewLayout(head, l)
	if err != nil {
		return nil, err // not a Layout that holds a nil pointer
	}
	return layout, nil
}

func openQCOW2(r io.ReaderAt, size int64, l disk.Limits) (Image, error) {
	img, err := qcow.Open(r, size, qcow.OpenOptions{Limits: l})
	if err != nil {
		return nil, err
	}
	return img, nil
}

func probeRaw([]byte, disk.Limits) (Info, error) { return Info{Format: Raw, VirtualSize: -1}, nil }

func layoutRaw(_ []byte, l disk.Limits) (disk.Layout, error) { return disk.NewRawLayout(l), nil }

func openRaw(r io.ReaderAt, size int64, l disk.Limits) (Image, error) {
	img, err := disk.OpenRaw(r, size, l)
	if err != nil {
		return nil, err
	}
	return img, nil
}
