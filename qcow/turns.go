package qcow

import (
	"context"
	"sync"
)

// turns lets goroutines pass one after the other in the order of their numbers. Its first
// error is for all of them. The mutex guards what the user of turns keeps beside it, too.
type turns struct {
	mu      sync.Mutex
	changed sync.Cond
	err     error
}

func newTurns() *turns {
	t := new(turns)
	t.changed.L = &t.mu
	return t
}

// await waits, with mu held, until *next is n.
func (t *turns) await(ctx context.Context, next *int64, n int64) error {
	if *next < n && t.err == nil {
		stop := context.AfterFunc(ctx, func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.changed.Broadcast()
		})
		defer stop()
	}
	for *next < n && t.err == nil && ctx.Err() == nil {
		t.changed.Wait()
	}
	if t.err != nil {
		return t.err
	}
	return ctx.Err()
}

// pass, with mu held, moves *next to n, and lets others look.
func (t *turns) pass(next *int64, n int64) {
	*next = n
	t.changed.Broadcast()
}

// fail makes err the error of all, unless there was one before, and returns which it is.
func (t *turns) fail(err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err == nil {
		t.err = err
		t.changed.Broadcast()
	}
	return t.err
}
