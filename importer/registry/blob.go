package registry

import (
	"context"
	"errors"
	"io"
	"sync"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Blob opens the blob d of ref's repository and streams its bytes as stored.
// They are not verified: hashing is the caller's. What is promised is their
// number: a Read returns io.EOF only after exactly d.Size bytes; a stream that
// breaks off is a [*StreamError], which unwraps to [io.ErrUnexpectedEOF], and
// one that is longer, or declared to be of another size, is a [*SizeError].
//
// The context governs the whole stream, not only its opening. The caller closes
// the reader; Close is idempotent, may run during a Read, and does not say
// whether the blob was read to its end. Any number of blobs may be open.
func (s *Source) Blob(ctx context.Context, ref string, d ocispec.Descriptor) (io.ReadCloser, error) {
	at, err := parseAt("blob", ref, d)
	if err != nil {
		return nil, err
	}
	res, err := s.get(ctx, "blob", at)
	if err != nil {
		return nil, err
	}
	if res.ContentLength >= 0 && res.ContentLength != d.Size {
		res.Body.Close()
		return nil, at.fail("blob", &SizeError{Want: d.Size, Have: res.ContentLength})
	}
	return &blob{
		at:        at,
		host:      res.Request.URL.Host,
		size:      d.Size,
		body:      res.Body,
		cancelled: ctx.Err,
		close:     sync.OnceValue(res.Body.Close),
	}, nil
}

// A blob counts the bytes of a response body.
type blob struct {
	at        place
	host      string // where the bytes come from
	size      int64
	off       int64
	body      io.Reader
	cancelled func() error // of the request's context, whose cause net/http may report in its place
	close     func() error
	err       error // sticks
}

func (b *blob) Read(p []byte) (int, error) {
	if b.err != nil || len(p) == 0 {
		return 0, b.err
	}
	if b.off == b.size {
		b.err = b.end()
		return 0, b.err
	}
	n, err := b.body.Read(p[:min(int64(len(p)), b.size-b.off)])
	b.off += int64(n)
	if err != nil && b.off < b.size {
		b.err = b.broken(err)
	}
	return n, b.err // an error after the last byte is looked at by end
}

// end looks for the end of the body after its last byte. How a body ends whose
// bytes are all here is no matter, as long as there are no more.
func (b *blob) end() error {
	var one [1]byte
	for {
		switch n, err := b.body.Read(one[:]); {
		case n > 0:
			return b.at.fail("blob", &SizeError{Want: b.size, Have: b.size + 1})
		case err != nil:
			return io.EOF
		}
	}
}

// broken returns the error of a body that failed at b.off, short of its size.
func (b *blob) broken(err error) error {
	if ctxErr := b.cancelled(); ctxErr != nil {
		return b.at.fail("blob", ctxErr)
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	e := b.at.fail("blob", &StreamError{Offset: b.off, Size: b.size, Err: err})
	e.Host = b.host
	return e
}

func (b *blob) Close() error { return b.close() }
