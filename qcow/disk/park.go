package disk

import "sort"

// parking keeps bytes of a stream that have passed before their place was known.
// Segments stand in the order of the stream and never overlap.
type parking struct {
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
		return needsParking(off, k.held+n, k.limit)
	}
	if err := k.budget.Reserve(n, "parked data"); err != nil {
		return &FormatError{Format: "disk", Reason: NeedsParking, Offset: off, Err: err}
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
