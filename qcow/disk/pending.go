package disk

import (
	"cmp"
	"container/heap"
	"slices"
)

// extentSize is what one extent costs in memory.
const extentSize = 48

// pending holds the extents that the walk has not reached, in the order of the file, and
// the part of the budget that they take. Extents come in batches, one a table, each nearly
// sorted: so it is a heap of batches.
type pending struct {
	budget  *Budget
	batches batchHeap
}

// batch is one table's extents, those from next on still waiting.
type batch struct {
	list []Extent
	next int
}

func (b batch) memory() int64 { return int64(cap(b.list)) * extentSize }

type batchHeap []batch

func (h batchHeap) Len() int { return len(h) }
func (h batchHeap) Less(i, j int) bool {
	return h[i].list[h[i].next].File.Off < h[j].list[h[j].next].File.Off
}
func (h batchHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *batchHeap) Push(x any)   { *h = append(*h, x.(batch)) }
func (h *batchHeap) Pop() any {
	last := (*h)[len(*h)-1]
	(*h)[len(*h)-1] = batch{}
	*h = (*h)[:len(*h)-1]
	return last
}

// add takes over list, sorts it and queues it. The error is the budget's.
func (p *pending) add(list []Extent) error {
	if len(list) == 0 {
		return nil
	}
	if cap(list) > 2*len(list) {
		list = slices.Clone(list)
	}
	b := batch{list: list}
	if err := p.budget.Reserve(b.memory(), "tables"); err != nil {
		return err
	}
	byOffset := func(a, b Extent) int { return cmp.Compare(a.File.Off, b.File.Off) }
	if !slices.IsSortedFunc(list, byOffset) {
		slices.SortStableFunc(list, byOffset)
	}
	heap.Push(&p.batches, b)
	return nil
}

// peek returns the extent that starts first.
func (p *pending) peek() (Extent, bool) {
	if len(p.batches) == 0 {
		return Extent{}, false
	}
	return p.batches[0].list[p.batches[0].next], true
}

// pop removes what peek returns. A batch gives its memory back by halves.
func (p *pending) pop() {
	b := &p.batches[0]
	b.next++
	switch left := len(b.list) - b.next; {
	case left == 0:
		p.budget.Release(b.memory())
		heap.Pop(&p.batches)
		return
	case 2*left < cap(b.list):
		before := b.memory()
		b.list, b.next = append(make([]Extent, 0, left), b.list[b.next:]...), 0
		p.budget.Release(before - b.memory())
	}
	heap.Fix(&p.batches, 0)
}

// metaEnd returns where the last metadata that is waited for ends.
func (p *pending) metaEnd() (end int64) {
	for _, b := range p.batches {
		for _, e := range b.list[b.next:] {
			if e.Kind == Meta {
				end = max(end, e.File.End())
			}
		}
	}
	return end
}

// release gives back what is still waiting.
func (p *pending) release() {
	for _, b := range p.batches {
		p.budget.Release(b.memory())
	}
	p.batches = nil
}
