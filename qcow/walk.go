package qcow

import (
	"cmp"
	"context"
	"encoding/binary"
	"math"
	"slices"

	"github.com/archdisk/archdisk/qcow/disk"
)

const (
	l1Reserved = 0x7f00_0000_0000_01ff
	l2Reserved = 0x3f00_0000_0000_01fe
	// The lower half of a subcluster bitmap; the upper one says which read as zeros.
	// Spec: qcow2, Extended L2 Entries.
	subclustersAllocated = 1<<32 - 1
)

// l2Use is a L2 table that L1 entries name.
type l2Use struct {
	off    int64
	guest  int64 // disk offset that the first entry maps
	active int64 // entries of the active L1 table
	total  int64 // entries of all L1 tables
}

const l2UseCost = 32

// eachEntry reads a table of n entries and calls f for those that are not 0. Tables go on
// with zeros behind the end of the file.
func (c *checker) eachEntry(ctx context.Context, off, n int64, f func(i int64, entry uint64) error) error {
	n = min(n, max(c.size-off+7, 0)/8)
	p := make([]byte, min(n*8, 64<<10))
	for i := int64(0); i < n; {
		if err := ctx.Err(); err != nil {
			return err
		}
		p = p[:min(int64(len(p)), (n-i)*8)]
		if err := c.read(p, off+i*8); err != nil {
			return err
		}
		for q := p; len(q) > 0; i, q = i+1, q[8:] {
			if entry := binary.BigEndian.Uint64(q); entry != 0 {
				if err := f(i, entry); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// activeState counts the tables that the header names, and walks the active L1 table.
func (c *checker) activeState(ctx context.Context) error {
	h := c.h
	if err := c.refer(disk.Range{Off: 0, Len: h.ClusterSize()}, 1, usedTable, 0, -1); err != nil {
		return err
	}
	reftable := disk.Range{Off: h.RefcountTableOffset, Len: h.RefcountTableClusters << h.ClusterBits}
	if err := c.refer(reftable, 1, usedTable, 48, -1); err != nil {
		return err
	}
	return c.walkL1(ctx, h.L1TableOffset, h.L1Size, 1)
}

// walkL1 looks at a L1 table and remembers the L2 tables that it names. active is 1 for
// the active state's table, otherwise 0.
func (c *checker) walkL1(ctx context.Context, off, n, active int64) error {
	h := c.h
	if err := c.refer(disk.Range{Off: off, Len: n * 8}, 1, usedTable, off, -1); err != nil {
		return err
	}
	return c.eachEntry(ctx, off, n, func(i int64, entry uint64) error {
		at := off + i*8
		guest := int64(math.MaxInt64)
		if i <= guest>>h.spanBits() {
			guest = i << h.spanBits()
		}
		if entry&l1Reserved != 0 {
			c.found(Corruption, FoundReservedBits, 1, at, guest, "L1 entry %#x", entry)
		}
		table := int64(entry & entryOffset)
		if err := c.refer(disk.Range{Off: table, Len: h.ClusterSize()}, 1, usedL2, at, guest); err != nil {
			return err
		}
		if table&(h.ClusterSize()-1) != 0 {
			c.found(Corruption, FoundUnaligned, 1, at, guest, "L1 entry %#x names a L2 table at no multiple of the cluster size", entry)
		}
		if table != 0 {
			if err := c.copied(entry, table, active, at, guest, "L1 entry"); err != nil {
				return err
			}
		}
		if table >= c.size {
			return nil // reads as zeros
		}
		return c.remember(l2Use{off: table, guest: guest, active: active, total: 1})
	})
}

// copied checks the flag of an entry that names the cluster at off and stands for n entries.
func (c *checker) copied(entry uint64, off, n, at, guest int64, what string) error {
	if n == 0 {
		return nil
	}
	count, ok, err := c.stored.get(off >> c.h.ClusterBits)
	if err != nil || !ok {
		return err
	}
	if (count == 1) != (entry&entryCopied != 0) {
		c.found(Corruption, FoundCopiedFlag, n, at, guest, "%s %#x, and the refcount is %d", what, entry, count)
	}
	return nil
}

// remember adds a use of a L2 table. Uses of one table are joined before the list grows.
func (c *checker) remember(u l2Use) error {
	if len(c.l2) == cap(c.l2) {
		c.joinL2()
		if old := cap(c.l2); len(c.l2) >= old/2 {
			grown := max(256, 2*old)
			if err := c.reserve(int64(grown)*l2UseCost, "the list of L2 tables"); err != nil {
				return err
			}
			c.l2 = append(make([]l2Use, 0, grown), c.l2...)
			c.giveBack(int64(old) * l2UseCost)
		}
	}
	c.l2 = append(c.l2, u)
	return nil
}

// joinL2 sorts the list by offset and makes one of the uses of each table.
func (c *checker) joinL2() {
	slices.SortStableFunc(c.l2, func(a, b l2Use) int { return cmp.Compare(a.off, b.off) })
	n := 0
	for _, u := range c.l2 {
		if n > 0 && c.l2[n-1].off == u.off {
			last := &c.l2[n-1]
			if last.active == 0 && u.active > 0 {
				last.guest = u.guest
			}
			last.active += u.active
			last.total += u.total
			continue
		}
		c.l2[n] = u
		n++
	}
	c.l2 = c.l2[:n]
}

// walkL2Tables looks at each L2 table once, for all the L1 entries that name it.
func (c *checker) walkL2Tables(ctx context.Context) error {
	c.joinL2()
	size := c.h.ClusterSize()
	if err := c.reserve(size, "a L2 table"); err != nil {
		return err
	}
	p, entryLen := make([]byte, size), size>>c.h.l2Bits()
	for _, u := range c.l2 {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := c.read(p, u.off); err != nil {
			return err
		}
		if u.active > 1 {
			c.found(Note, FoundOverlap, 0, u.off, u.guest, "%d L1 entries name this L2 table", u.active)
		}
		w := l2Walk{l2Use: u}
		// QEMU does not check the flags of a table whose own refcount cannot be read, nor those of
		// the header taken for a table.
		if _, ok, err := c.stored.get(u.off >> c.h.ClusterBits); err != nil {
			return err
		} else if ok && u.off != 0 {
			w.flags = u.active
		}
		for i := int64(0); i < size; i += entryLen {
			entry, bitmap := binary.BigEndian.Uint64(p[i:]), uint64(0)
			if c.h.Extended() {
				bitmap = binary.BigEndian.Uint64(p[i+8:])
			}
			if entry == 0 && bitmap == 0 {
				continue
			}
			if err := c.l2Entry(&w, i/entryLen, u.off+i, entry, bitmap); err != nil {
				return err
			}
		}
	}
	return nil
}

// l2Walk is the way through one L2 table.
type l2Walk struct {
	l2Use
	flags int64 // how often the entries' copied flags count
	next  int64 // where the next cluster is if the disk is in one piece, 0 for anywhere
}

// l2Entry looks at entry i, for all the L1 entries that name its table. bitmap is that of
// its subclusters, if it has any.
func (c *checker) l2Entry(w *l2Walk, i, at int64, entry, bitmap uint64) error {
	h := c.h
	guest := int64(math.MaxInt64)
	if i<<h.ClusterBits <= guest-w.guest {
		guest = w.guest + i<<h.ClusterBits
	}
	if entry&entryCompressed != 0 {
		return c.packedEntry(w, at, guest, entry, bitmap)
	}
	if entry&l2Reserved != 0 {
		c.found(Corruption, FoundReservedBits, w.total, at, guest, "L2 entry %#x", entry)
	}
	off := int64(entry & entryOffset)
	zero := entry&entryZero != 0 && !h.Extended()
	if off == 0 && (zero || !c.h.hasDataFile() || entry&entryCopied == 0) {
		if bitmap&subclustersAllocated != 0 {
			c.found(Corruption, FoundBadSubclusters, w.total, at, guest, "subclusters %#x of no cluster are allocated", bitmap)
		}
		return nil
	}
	if bitmap>>32&bitmap != 0 {
		c.found(Corruption, FoundBadSubclusters, w.total, at, guest, "subclusters %#x are allocated and zero at once", bitmap)
	}
	if off&(h.ClusterSize()-1) != 0 {
		c.found(Corruption, FoundUnaligned, w.total, at, guest, "L2 entry %#x names a cluster at no multiple of the cluster size", entry)
	}
	if w.active > 0 {
		c.result.AllocatedClusters += w.active
		if w.next != 0 && off != w.next {
			c.result.FragmentedClusters += w.active
		}
		w.next = off + h.ClusterSize()
	}
	if c.h.hasDataFile() {
		// Clusters of a data file have no refcounts and belong to this image alone.
		if w.flags > 0 && entry&entryCopied == 0 {
			c.found(Corruption, FoundCopiedFlag, w.flags, at, guest, "L2 entry %#x of a cluster in the data file", entry)
		}
		return nil
	}
	use := usedData
	if w.active > 0 {
		use |= usedActive
	}
	if err := c.refer(disk.Range{Off: off, Len: h.ClusterSize()}, w.total, use, at, guest); err != nil {
		return err
	}
	return c.copied(entry, off, w.flags, at, guest, "L2 entry")
}

// packedEntry looks at the entry of a compressed cluster.
func (c *checker) packedEntry(w *l2Walk, at, guest int64, entry, bitmap uint64) error {
	if entry&entryCopied != 0 {
		c.found(Corruption, FoundCopiedFlag, w.total, at, guest, "L2 entry %#x of a compressed cluster", entry)
	}
	switch {
	case c.h.hasDataFile():
		c.found(Corruption, FoundBadCompressed, w.total, at, guest, "L2 entry %#x in an image with an external data file", entry)
		return nil
	case bitmap != 0:
		c.found(Corruption, FoundBadCompressed, w.total, at, guest, "L2 entry %#x with subclusters %#x", entry, bitmap)
		return nil
	}
	c.result.AllocatedClusters += w.active
	c.result.CompressedClusters += w.active
	c.result.FragmentedClusters += w.active
	return c.refer(c.h.packedRange(entry), w.total, usedPacked, at, guest)
}
