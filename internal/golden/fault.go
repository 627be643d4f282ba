package golden

import (
	"context"
	"io"
)

// Fault wraps the content of one request, whose context it gets.
type Fault func(ctx context.Context, r io.Reader) io.Reader

// FlipByte inverts the byte at offset at.
func FlipByte(at int64) Fault {
	return func(_ context.Context, r io.Reader) io.Reader { return &flipper{r: r, left: at} }
}

type flipper struct {
	r    io.Reader
	left int64 // to the byte
}

func (f *flipper) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	if f.left >= 0 && f.left < int64(n) {
		p[f.left] ^= 0xff
	}
	f.left -= int64(n)
	return n, err
}

// Truncate ends the content after n bytes as if it were whole.
func Truncate(n int64) Fault {
	return func(_ context.Context, r io.Reader) io.Reader { return io.LimitReader(r, n) }
}

// Append adds p to the content's end.
func Append(p []byte) Fault {
	return func(_ context.Context, r io.Reader) io.Reader { return io.MultiReader(r, &tail{p: p}) }
}

// FailAfter returns err after n bytes.
func FailAfter(n int64, err error) Fault {
	return func(_ context.Context, r io.Reader) io.Reader {
		return io.MultiReader(io.LimitReader(r, n), &tail{err: func() error { return err }})
	}
}

// BlockAfter blocks after n bytes until the request's context is done, and returns why it is.
func BlockAfter(n int64) Fault {
	return func(ctx context.Context, r io.Reader) io.Reader {
		return io.MultiReader(io.LimitReader(r, n), &tail{err: func() error {
			<-ctx.Done()
			return context.Cause(ctx)
		}})
	}
}

// tail reads p and then ends with err, or io.EOF.
type tail struct {
	p   []byte
	err func() error
}

func (t *tail) Read(p []byte) (int, error) {
	if len(t.p) > 0 {
		n := copy(p, t.p)
		t.p = t.p[n:]
		return n, nil
	}
	if t.err != nil {
		return 0, t.err()
	}
	return 0, io.EOF
}
