package qcow

import (
	"errors"
	"fmt"
	"io"

	"github.com/archdisk/archdisk/qcow/disk"
)

// maxChain is how many images may stand on one another.
const maxChain = 64

// Reference is what an image says of another file that it needs.
type Reference struct {
	Reason disk.Reason // [disk.BackingFile] or [disk.ExternalDataFile]
	Name   string      // any bytes, of whoever made the image: no path to be followed unseen
	Format string      // of a backing file, "" where the image does not say
}

// File is another file that an image needs, as its caller opened it.
type File struct {
	io.ReaderAt
	Size int64 // bytes
	// Format of a backing file, "qcow2" or "raw"; "" takes what the image says. It is never
	// found out by looking inside: the guest of a raw disk can write a header there.
	Format string
	Close  func() error // called by [Image.Close]; may be nil
}

// OpenFunc opens what an image refers to. It decides what a name means and whether the image
// may have it.
type OpenFunc func(Reference) (File, error)

// openOthers opens what h refers to, by o.Files. seen are the images that stand on this one.
func (img *Image) openOthers(o OpenOptions, seen []string) error {
	h := img.h
	if h.hasDataFile() {
		f, err := img.openFile(o, Reference{Reason: disk.ExternalDataFile, Name: h.DataFile})
		if err != nil {
			return err
		}
		img.data = f
	}
	if h.BackingFileOffset == 0 {
		return nil
	}
	ref := Reference{Reason: disk.BackingFile, Name: h.BackingFile, Format: h.BackingFormat}
	for _, name := range seen {
		if name == ref.Name {
			return fault(disk.BackingFile, "backing_file_offset", 8, uint64(h.BackingFileOffset), "the chain of backing files comes back to %q", name)
		}
	}
	if len(seen) >= maxChain {
		return fault(disk.BackingFile, "backing_file_offset", 8, uint64(h.BackingFileOffset), "a chain of more than %d backing files", maxChain)
	}
	f, err := img.openFile(o, ref)
	if err != nil {
		return err
	}
	switch f.Format {
	case "raw":
		img.backing = f
		return nil
	case "qcow2":
		below, err := open(f, f.Size, o, append(seen, ref.Name))
		if err != nil {
			return fmt.Errorf("qcow: backing file %q: %w", ref.Name, err)
		}
		img.closers = append(img.closers, below.Close)
		img.backing = File{ReaderAt: below, Size: below.Size()}
		return nil
	case "":
		return fault(disk.BackingFile, "backing_file_offset", 8, uint64(h.BackingFileOffset), "neither the image nor its reader says the format of %q", ref.Name)
	}
	return fault(disk.BackingFile, "backing_file_offset", 8, uint64(h.BackingFileOffset), "backing file %q of format %q, qcow2 and raw are read", ref.Name, f.Format)
}

func (img *Image) openFile(o OpenOptions, ref Reference) (File, error) {
	f, err := o.Files(ref)
	if err != nil {
		return File{}, &disk.FormatError{Format: "qcow2", Reason: ref.Reason, Offset: -1, Detail: fmt.Sprintf("%q", ref.Name), Err: err}
	}
	if f.Close != nil {
		img.closers = append(img.closers, f.Close)
	}
	if f.ReaderAt == nil {
		return File{}, errors.New("qcow: OpenFunc returned nothing")
	}
	if f.Format == "" {
		f.Format = ref.Format
	}
	return f, nil
}

// readBacking fills p with what the backing file shows at off: zeros behind its end, and
// where there is none.
func (img *Image) readBacking(p []byte, off int64) error {
	n := int64(0)
	if img.backing.ReaderAt != nil {
		n = max(0, min(int64(len(p)), img.backing.Size-off))
	}
	clear(p[n:])
	return readFull(img.backing, p[:n], off)
}
