package main

import (
	"context"
	"io"
	"sync"
)

// interruptible returns a reader whose Read ends when ctx does. in is read ahead of it by a
// goroutine, from the first Read on; one that then blocks for ever, on a terminal or a silent
// pipe, is left to the end of the process.
func interruptible(ctx context.Context, in io.Reader) io.Reader {
	started := sync.OnceValue(func() io.Reader {
		r, w := io.Pipe()
		context.AfterFunc(ctx, func() { w.CloseWithError(ctx.Err()) })
		go func() {
			_, err := io.CopyBuffer(w, struct{ io.Reader }{in}, make([]byte, 64<<10))
			w.CloseWithError(err)
		}()
		return r
	})
	return readFunc(func(p []byte) (int, error) { return started().Read(p) })
}

type readFunc func(p []byte) (int, error)

func (f readFunc) Read(p []byte) (int, error) { return f(p) }
