package disk

import "io"

// Source is the image file of a conversion: a stream, or a file to be read anywhere.
type Source struct {
	stream io.Reader
	file   io.ReaderAt
	size   int64
}

// Mapper is an optional ability of what is read at any offset: to know where it has nothing
// but zeros.
type Mapper interface {
	// NextData returns a range that begins at off or behind and is not empty, such that
	// all from off to its start is zeros; what is in the range may be zeros, too. It returns
	// the empty range at the end if there is no more.
	NextData(off int64) (Range, error)
}

// Stream returns a source that is read once, from front to back.
func Stream(r io.Reader) Source { return Source{stream: r, size: -1} }

// File returns a source of size bytes that can be read at any offset, by several
// goroutines at once. Plain data is not read where r is a [Mapper] and has nothing.
func File(r io.ReaderAt, size int64) Source { return Source{file: r, size: size} }

// maxIdle is how many reads in a row may return nothing, as in bufio.
const maxIdle = 100

// forward is the reading position of a walk over a stream. It can step back over bytes
// just read, which is how pieces that share bytes are both read.
type forward struct {
	r     io.Reader
	pos   int64  // offset of the next byte that read returns
	carry []byte // bytes to be read again, before r's
}

// read fills p as far as the stream goes: n < len(p) with io.EOF is the stream's end, any
// other error is the stream's own. An io.ErrUnexpectedEOF is the stream's own too: it is how
// a broken download ends, and no end of file.
func (f *forward) read(p []byte) (n int, err error) {
	n = copy(p, f.carry)
	f.carry = f.carry[n:]
	for idle := 0; n < len(p) && err == nil; {
		var m int
		if m, err = f.r.Read(p[n:]); m > 0 {
			idle = 0
		} else if idle++; idle == maxIdle && err == nil {
			err = io.ErrNoProgress
		}
		n += m
	}
	f.pos += int64(n)
	if n == len(p) {
		return n, nil
	}
	return n, err
}

// unread steps back to pos; p ends with the bytes just read.
func (f *forward) unread(p []byte, pos int64) {
	if n := f.pos - pos; n > 0 {
		f.carry = append(append([]byte(nil), p[int64(len(p))-n:]...), f.carry...)
		f.pos = pos
	}
}
