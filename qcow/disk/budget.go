package disk

import (
	"fmt"
	"sync/atomic"
)

// DefaultMemory is the size of a budget that nobody has stated.
const DefaultMemory = 64 << 20

// Budget bounds the memory that the parts of one or several conversions hold together:
// read-ahead, decompression windows, buffers of workers, tables, parked data. A part
// that would exceed it is refused, not delayed. Safe for concurrent use.
type Budget struct {
	limit int64
	used  atomic.Int64
}

// BudgetError is memory that a budget has not left. It unwraps to [ErrLimit].
type BudgetError struct {
	What  string // what it is for
	Need  int64  // bytes
	Left  int64
	Limit int64 // of the whole budget
}

func (e *BudgetError) Error() string {
	return fmt.Sprintf("%s: %d bytes of memory needed, %d of %d left", e.What, e.Need, e.Left, e.Limit)
}

// Unwrap returns [ErrLimit].
func (e *BudgetError) Unwrap() error { return ErrLimit }

// NewBudget returns a budget of n bytes, [DefaultMemory] if n is not positive.
func NewBudget(n int64) *Budget {
	if n <= 0 {
		n = DefaultMemory
	}
	return &Budget{limit: n}
}

// Reserve takes n bytes for what, or returns an error that unwraps to [ErrLimit].
func (b *Budget) Reserve(n int64, what string) error {
	for {
		used := b.used.Load()
		if n < 0 || n > b.limit-used {
			return &BudgetError{What: what, Need: n, Left: b.limit - used, Limit: b.limit}
		}
		if b.used.CompareAndSwap(used, used+n) {
			return nil
		}
	}
}

// Release gives n reserved bytes back.
func (b *Budget) Release(n int64) { b.used.Add(-n) }

// Left returns the bytes not reserved at the moment.
func (b *Budget) Left() int64 { return b.limit - b.used.Load() }
