package disk

import (
	"fmt"
	"slices"
	"sort"
	"sync"
)

// parking keeps bytes of a stream that have passed before their place was known.
// Segments stand in the order of the stream and never overlap. The walker puts them, and
// workers, which find where compressed pieces end.
type parking struct {
	mu     sync.Mutex
	format string // for errors
	budget *Budget
	limit  int64
	segs   []segment
	held   int64
	peak   int64
}

type segment struct {
	off int64
	p   []byte
}

func (s segment) end() int64 { return s.off + int64(len(s.p)) }

// put keeps p, which it takes over, as the bytes at off.
func (k *parking) put(off int64, p []byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := int64(len(p))
	if k.held+n > k.limit {
		return k.refuse(off, k.held+n)
	}
	if err := k.budget.Reserve(n, "parked data"); err != nil {
		return &FormatError{Format: k.format, Reason: NeedsParking, Offset: off, Err: err}
	}
	k.held += n
	k.peak = max(k.peak, k.held)
	k.segs = slices.Insert(k.segs, k.find(off), segment{off, p})
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
func (k *parking) read(off int64, p []byte) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	i, n := k.find(off), 0
	for ; i < len(k.segs) && n < len(p) && k.segs[i].off <= off; i++ {
		c := copy(p[n:], k.segs[i].p[off-k.segs[i].off:])
		n += c
		off += int64(c)
	}
	return n
}

// clear drops everything: nothing parked can be needed any more.
func (k *parking) clear() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.budget.Release(k.held)
	k.segs, k.held = nil, 0
}

// refuse returns the error for bytes at off that are needed and cannot be kept, need of them
// by now, or that are gone already.
func (k *parking) refuse(off, need int64) error {
	detail := "its bytes have passed and were not kept"
	if need > 0 {
		detail = fmt.Sprintf("%d bytes have passed whose place is not known yet, %d may be kept", need, k.limit)
	}
	return &FormatError{Format: k.format, Reason: NeedsParking, Offset: off, Detail: detail}
}
