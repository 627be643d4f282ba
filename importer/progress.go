package importer

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/archdisk/archdisk/qcow/disk"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// counters are the figures of a running import.
type counters struct {
	fetched    atomic.Int64
	fetchTotal atomic.Int64
	diskSize   atomic.Int64
	disk       disk.Counters
}

// expect adds a blob that is about to be fetched to the total.
func (c *counters) expect(d ocispec.Descriptor) { c.fetchTotal.Add(d.Size) }

// read returns the bytes fetched. A file is not fetched; its reading position says as much.
func (c *counters) read() int64 {
	if n := c.fetched.Load(); n > 0 {
		return n
	}
	return c.disk.Read.Load()
}

const progressInterval = 100 * time.Millisecond

// progress reports until the function that it returns is called, which reports once more.
func (r *run) progress() (stop func()) {
	if r.o.Progress == nil {
		return func() {}
	}
	report := func() {
		r.o.Progress(Progress{
			Fetched:    r.count.read(),
			FetchTotal: r.count.fetchTotal.Load(),
			Done:       r.count.disk.Written.Load() + r.count.disk.Zeroed.Load(),
			DiskSize:   r.count.diskSize.Load(),
		})
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(progressInterval)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				report()
			case <-done:
				return
			}
		}
	})
	return func() {
		close(done)
		wg.Wait()
		report()
	}
}
