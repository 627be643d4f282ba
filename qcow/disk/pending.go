package disk

import (
	"cmp"
	"container/heap"
	"slices"
)

// extentSize is what one waiting extent costs in memory, for the budget.
const extentSize = 56

// pending holds the extents that the walk has not reached, in the order of the file.
// Extents come in batches, one a table, each nearly sorted: so it is a heap of batches.
type pending struct {
	batches batchHeap
	count   int
}

type batchHeap [][]Extent

func (h batchHeap) Len() int           { return len(h) }
func (h batchHeap) Less(i, j int) bool { return h[i][0].File.Off < h[j][0].File.Off }
func (h batchHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *batchHeap) Push(x any)        { *h = append(*h, x.([]Extent)) }
func (h *batchHeap) Pop() any {
	last := (*h)[len(*h)-1]
	(*h)[len(*h)-1] = nil
	*h = (*h)[:len(*h)-1]
	return last
}

// add takes over batch, sorts it and queues it.
func (p *pending) add(batch []Extent) {
	if len(batch) == 0 {
		return
	}
	byOffset := func(a, b Extent) int { return cmp.Compare(a.File.Off, b.File.Off) }
	if !slices.IsSortedFunc(batch, byOffset) {
		slices.SortStableFunc(batch, byOffset)
	}
	p.count += len(batch)
	heap.Push(&p.batches, batch)
}

// peek returns the extent that starts first.
func (p *pending) peek() (Extent, bool) {
	if len(p.batches) == 0 {
		return Extent{}, false
	}
	return p.batches[0][0], true
}

// pop removes what peek returns.
func (p *pending) pop() {
	p.count--
	if p.batches[0] = p.batches[0][1:]; len(p.batches[0]) == 0 {
		heap.Pop(&p.batches)
		return
	}
	heap.Fix(&p.batches, 0)
}
