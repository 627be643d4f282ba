package disk

import (
	"fmt"
	"slices"
	"sort"
	"sync"
)

// parking keeps bytes of a stream that have passed before their place was known: in memory up
// to a limit, then in scratch, if there is any. What fits neither is missed, and counted.
// Segments stand in the order of the stream and never overlap. The walker puts them, and
// workers, which find where compressed pieces end.
type parking struct {
	mu      sync.Mutex
	format  string // for errors
	budget  *Budget
	limit   int64 // of memory
	scratch Scratch

	segs   []segment
	held   int64 // of the budget
	memory int64 // bytes in it
	spilt  int64 // bytes in scratch, and where the next go
	missed int64
	need   int64 // most that was or should have been parked at a time
	peak   int64 // most that was
}

// segment is a run of parked bytes.
type segment struct {
	off, n int64
	p      []byte // in memory, or
	at     int64  // in scratch
}

// segmentCost is what a segment takes in memory beside its bytes.
const segmentCost = 64

func (s segment) end() int64 { return s.off + s.n }

// put keeps p, which it takes over, as the bytes at off.
func (k *parking) put(off int64, p []byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := int64(len(p))
	defer func() {
		k.peak = max(k.peak, k.memory+k.spilt)
		k.need = max(k.need, k.memory+k.spilt+k.missed)
	}()
	i := k.find(off)
	if k.memory+n <= k.limit && k.budget.Reserve(n+segmentCost, "parked data") == nil {
		k.held += n + segmentCost
		k.memory += n
		k.segs = slices.Insert(k.segs, i, segment{off: off, n: n, p: p})
		return nil
	}
	if k.scratch == nil {
		k.missed += n
		return nil
	}
	if _, err := k.scratch.WriteAt(p, k.spilt); err != nil {
		return fmt.Errorf("scratch: %w", err)
	}
	if i > 0 && k.segs[i-1].p == nil && k.segs[i-1].end() == off && k.segs[i-1].at+k.segs[i-1].n == k.spilt {
		k.segs[i-1].n += n
	} else {
		if err := k.budget.Reserve(segmentCost, "parked data"); err != nil {
			return &FormatError{Format: k.format, Reason: NeedsParking, Offset: off, Err: err}
		}
		k.held += segmentCost
		k.segs = slices.Insert(k.segs, i, segment{off: off, n: n, at: k.spilt})
	}
	k.spilt += n
	return nil
}

// find returns the index of the first segment that ends behind off.
func (k *parking) find(off int64) int {
	return sort.Search(len(k.segs), func(i int) bool { return k.segs[i].end() > off })
}

// has returns how many bytes at off are parked in one run, at most n.
func (k *parking) has(off, n int64) int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	at := off
	for i := k.find(at); i < len(k.segs) && at < off+n && k.segs[i].off <= at; i++ {
		at = k.segs[i].end()
	}
	return min(at-off, n)
}

// read fills p with the parked bytes at off and returns how many there are in one run.
func (k *parking) read(off int64, p []byte) (n int, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := k.find(off); i < len(k.segs) && n < len(p) && k.segs[i].off <= off; i++ {
		s := k.segs[i]
		part := p[n:min(int64(len(p)), int64(n)+s.end()-off)]
		if s.p != nil {
			copy(part, s.p[off-s.off:])
		} else if m, err := k.scratch.ReadAt(part, s.at+off-s.off); m < len(part) {
			return n, fmt.Errorf("scratch at %#x: %w", s.at+off-s.off+int64(m), noEOF(err))
		}
		n += len(part)
		off += int64(len(part))
	}
	return n, nil
}

// clear drops everything: nothing parked can be needed any more.
func (k *parking) clear() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.budget.Release(k.held)
	k.segs, k.held, k.memory, k.spilt = nil, 0, 0, 0
}

// forget drops everything, as another pass begins.
func (k *parking) forget() {
	k.clear()
	k.missed = 0
}

// late holds the extents whose bytes had passed and were not parked, for the next pass.
type late struct {
	budget *Budget
	held   int64
	list   []Extent
}

func (l *late) add(e Extent) error {
	if len(l.list) == cap(l.list) {
		l.list = slices.Grow(l.list, 64+len(l.list))
		need := int64(cap(l.list))*extentSize - l.held
		if err := l.budget.Reserve(need, "extents for another pass"); err != nil {
			return err
		}
		l.held += need
	}
	l.list = append(l.list, e)
	return nil
}

// requeue hands everything over to p.
func (l *late) requeue(p *pending) error {
	list := l.list
	l.release()
	return p.add(list)
}

func (l *late) release() {
	l.budget.Release(l.held)
	l.list, l.held = nil, 0
}
