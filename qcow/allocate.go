package qcow

import (
	"encoding/binary"

	"github.com/archdisk/archdisk/qcow/disk"
)

// placed is bytes with their place in the image file.
type placed struct {
	off int64
	p   []byte
}

// allocator gives out host clusters from the front to the back and counts references. Each
// refcount block stands at the first chance after the range that it counts begins.
type allocator struct {
	h       *Header
	budget  *reservation
	charged int64 // of the budget, for blocks

	end    int64 // host clusters given out
	blocks []refcountBlock

	// What is compressed is packed from next on, up to limit. As in QEMU's files the rest of
	// a cluster is given up only when something does not fit and the next one is not free.
	next, limit int64
	// counts is the refcount block of the clusters packed last; those before are final.
	// Plain clusters and tables have one reference each, and need no note.
	counts  []byte
	current int64 // the number of that block, -1 for none yet
}

type refcountBlock struct {
	off  int64 // in the file
	done bool  // its bytes have been handed out
}

func newAllocator(h *Header, b *reservation) *allocator {
	return &allocator{h: h, budget: b, current: -1}
}

// take returns the host offset of n new clusters that follow each other.
func (a *allocator) take(n int64) (int64, error) {
	at := a.end
	a.end += n
	for int64(len(a.blocks))*a.h.perBlock() < a.end {
		if need := int64(len(a.blocks)+1) * 32; need > a.charged {
			if err := a.budget.reserve(a.h.ClusterSize(), "refcounts"); err != nil {
				return 0, err
			}
			a.charged += a.h.ClusterSize()
		}
		a.blocks = append(a.blocks, refcountBlock{off: a.end << a.h.ClusterBits})
		a.end++
	}
	if int64(len(a.blocks))*8 > maxReftable {
		return 0, fault(disk.LimitExceeded, "refcount_table_clusters", -1, uint64(len(a.blocks))*8>>a.h.ClusterBits,
			"clusters of %d bytes are too small for so much data", a.h.ClusterSize())
	}
	return at << a.h.ClusterBits, nil
}

// pack returns the host offset for n compressed bytes, fewer than a cluster, and the refcount
// block that has become final by that, if one has.
func (a *allocator) pack(n int64) (off int64, final []placed, err error) {
	if a.limit-a.next < n {
		at, err := a.take(1)
		if err != nil {
			return 0, nil, err
		}
		if at != a.limit {
			a.next = at
		}
		a.limit = at + a.h.ClusterSize()
	}
	off = a.next
	a.next += n
	// No cluster holds 65536 compressed ones: the least that a cluster of 2 MiB other than
	// zeros comes to is above 64 bytes, with either codec.
	for c := off >> a.h.ClusterBits; c <= (off+n-1)>>a.h.ClusterBits; c++ {
		if b := c / a.h.perBlock(); b != a.current {
			if a.current >= 0 {
				final = append(final, a.block(a.current))
			}
			a.current, a.counts = b, make([]byte, a.h.ClusterSize())
		}
		i := c % a.h.perBlock() * refcountBytes
		binary.BigEndian.PutUint16(a.counts[i:], binary.BigEndian.Uint16(a.counts[i:])+1)
	}
	return off, final, nil
}

// size returns where the file ends: with its last cluster, or with the last sector of what
// is packed there, as in QEMU's files.
func (a *allocator) size() int64 {
	if end := a.end << a.h.ClusterBits; a.limit != end {
		return end
	}
	return (a.next + disk.SectorSize - 1) &^ (disk.SectorSize - 1)
}

// block returns the refcount block b, of which all clusters have been given out, or
// nothing more will be.
func (a *allocator) block(b int64) placed {
	p := make([]byte, a.h.ClusterSize())
	if b == a.current {
		p, a.counts = a.counts, nil
	}
	first := b * a.h.perBlock()
	for c := first; c < min(first+a.h.perBlock(), a.end); c++ {
		i := (c - first) * refcountBytes
		if p[i] == 0 && p[i+1] == 0 {
			p[i+1] = 1
		}
	}
	a.blocks[b].done = true
	return placed{a.blocks[b].off, p}
}

// table places the refcount table for all that has a place, and more clusters yet to come.
func (a *allocator) table(more int64) (off, clusters int64, err error) {
	n := int64(1)
	for a.tableClusters(more+n) > n {
		n++
	}
	off, err = a.take(n)
	return off, n, err
}

// tableClusters returns how many clusters the refcount table would take if there were more
// clusters than now.
func (a *allocator) tableClusters(more int64) int64 {
	end, blocks := a.end+more, int64(len(a.blocks))
	if short := end - blocks*a.h.perBlock(); short > 0 {
		n := (short + a.h.perBlock() - 2) / (a.h.perBlock() - 1) // each block counts itself, too
		blocks += n
	}
	return a.h.clusters(blocks * 8)
}

// tableBytes returns the refcount table.
func (a *allocator) tableBytes() []byte {
	p := make([]byte, 0, len(a.blocks)*8)
	for _, b := range a.blocks {
		p = binary.BigEndian.AppendUint64(p, uint64(b.off))
	}
	return append(p, make([]byte, a.h.clusters(int64(len(p)))<<a.h.ClusterBits-int64(len(p)))...)
}
