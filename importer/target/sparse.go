package target

import (
	"io"
	"io/fs"
	"os"

	"github.com/archdisk/archdisk/qcow/disk"
)

// Sparse is a regular file to be read from, which knows its holes where the file system tells
// them: a [disk.Mapper]. Safe for concurrent use.
type Sparse struct {
	*io.SectionReader // from the front, and at any offset
	f                 *os.File
}

// OpenSparse opens the regular file at path, of the size that it has now.
func OpenSparse(path string) (*Sparse, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: path, Err: fs.ErrInvalid}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return &Sparse{io.NewSectionReader(f, 0, info.Size()), f}, nil
}

// NextData implements [disk.Mapper].
func (s *Sparse) NextData(off int64) (disk.Range, error) {
	size := s.Size()
	if off >= size {
		return disk.Range{Off: size}, nil
	}
	start, end, err := nextData(s.f, off)
	if err != nil { // this file system does not tell
		return disk.Range{Off: off, Len: size - off}, nil //nolint:nilerr // all of it may be data
	}
	start = min(start, size)
	return disk.Range{Off: start, Len: max(min(end, size)-start, 0)}, nil
}

// Close closes the file.
func (s *Sparse) Close() error { return s.f.Close() }
