package disk

import (
	"fmt"
	"sort"
)

// parking keeps bytes of a stream that have passed before their place was known.
// Segments stand in the order of the stream and never overlap.
type parking struct {
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
	n := int64(len(p))
	if k.held+n > k.limit {
		return k.refuse(off, k.held+n)
	}
	if err := k.budget.Reserve(n, "parked data"); err != nil {
		return &FormatError{Format: k.format, Reason: NeedsParking, Offset: off, Err: err}
	}
	k.held += n
	k.peak = max(k.peak, k.held)
	k.segs = append(k.segs, segment{off, p})
	return nil
}

// read fills p with the parked bytes at off and returns how many there are in one run.
func (k *parking) read(off int64, p []byte) int {
	i := sort.Search(len(k.segs), func(i int) bool { return k.segs[i].end() > off })
	n := 0
	for ; i < len(k.segs) && n < len(p) && k.segs[i].off <= off; i++ {
		c := copy(p[n:], k.segs[i].p[off-k.segs[i].off:])
		n += c
		off += int64(c)
	}
	return n
}

// clear drops everything: nothing parked can be needed any more.
func (k *parking) clear() {
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
