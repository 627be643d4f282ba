package target

import (
	"os"
	"sync"
	"sync/atomic"
)

// writebackStep is how many bytes are written before they are pushed out.
const writebackStep = 8 << 20

// writeback has what is written to a file put on disk while more is written, so that the
// flush at the end finds little to do. It is no promise: errors show in that flush.
type writeback struct {
	behind atomic.Int64 // bytes written since the last push
	busy   atomic.Bool
	wait   sync.WaitGroup
}

// wrote notes n bytes written to file, and starts a push where enough have come together
// and none is under way.
func (w *writeback) wrote(file *os.File, n int) {
	if w.behind.Add(int64(n)) < writebackStep || !w.busy.CompareAndSwap(false, true) {
		return
	}
	w.behind.Store(0)
	w.wait.Go(func() {
		defer w.busy.Store(false)
		startWriteback(file)
	})
}

// stop waits for a push under way: the file may be closed then.
func (w *writeback) stop() { w.wait.Wait() }
