package qcow

import (
	"encoding/binary"
	"fmt"

	"github.com/archdisk/archdisk/qcow/disk"
)

// l2Table is a L2 table in the making.
type l2Table struct {
	bytes   []byte // nil before the first cluster has a place
	covered int64  // bytes of the disk of which it is known what becomes of them
}

// recordCost is what one entry of a map of small records costs.
const recordCost = 128

// plain returns the host offset for guest offset off, in a cluster that is not compressed.
func (w *Writer) plain(off int64) (int64, error) {
	slot, err := w.slotOf(off)
	if err != nil {
		return 0, err
	}
	entry := binary.BigEndian.Uint64(slot)
	if entry&entryCompressed != 0 {
		return 0, fmt.Errorf("qcow: %w: disk offset %#x", errTwice, off)
	}
	if entry == 0 {
		host, err := w.alloc.take(1)
		if err != nil {
			return 0, err
		}
		entry = plainEntry(host)
		binary.BigEndian.PutUint64(slot, entry)
		w.stats.Data++
	}
	return int64(entry&entryOffset) + off&(w.h.ClusterSize()-1), nil
}

// packed returns the host offset for the cluster at guest offset off, compressed to n bytes.
func (w *Writer) packed(off, n int64) (int64, error) {
	slot, err := w.slotOf(off)
	if err != nil {
		return 0, err
	}
	if binary.BigEndian.Uint64(slot) != 0 {
		return 0, fmt.Errorf("qcow: %w: disk offset %#x", errTwice, off)
	}
	host, final, err := w.alloc.pack(n)
	if err != nil {
		return 0, err
	}
	w.out = append(w.out, final...)
	binary.BigEndian.PutUint64(slot, w.h.compressedEntry(host, n))
	w.stats.Data++
	w.stats.Compressed++
	return host, nil
}

// slotOf returns where the L2 entry of the cluster at guest offset off stands. Its table gets
// its place before any cluster that it maps.
func (w *Writer) slotOf(off int64) ([]byte, error) {
	index := off / w.h.span()
	t, err := w.table(index)
	if err != nil {
		return nil, err
	}
	if t.bytes == nil {
		if w.l1[index] != 0 {
			return nil, fmt.Errorf("qcow: %w: disk offset %#x", errTwice, off)
		}
		if err := w.budget.reserve(w.h.ClusterSize(), "L2 tables that are not complete"); err != nil {
			return nil, err
		}
		t.bytes = make([]byte, w.h.ClusterSize())
		if w.l1[index], err = w.alloc.take(1); err != nil {
			return nil, err
		}
	}
	i := off >> w.h.ClusterBits & (1<<w.h.l2Bits() - 1) * 8
	return t.bytes[i : i+8], nil
}

func (w *Writer) table(index int64) (*l2Table, error) {
	t := w.tables[index]
	if t == nil {
		if err := w.budget.reserve(recordCost, "L2 tables that are not complete"); err != nil {
			return nil, err
		}
		t = new(l2Table)
		w.tables[index] = t
	}
	return t, nil
}

// settle notes that it is known what becomes of a range of the disk, and hands out the L2
// tables that this completes.
func (w *Writer) settle(r disk.Range) error {
	span := w.h.span()
	for r.Len > 0 {
		index := r.Off / span
		whole := min(span, w.h.Size-index*span)
		n := min(r.Len, index*span+whole-r.Off)
		if w.tables[index] != nil || n < whole {
			t, err := w.table(index)
			if err != nil {
				return err
			}
			t.covered += n
			switch {
			case t.covered > whole:
				return fmt.Errorf("qcow: %w: %s", errTwice, r)
			case t.covered == whole:
				w.retire(index, t)
			}
		}
		r.Off, r.Len = r.Off+n, r.Len-n
	}
	return nil
}

// retire hands out a L2 table and forgets it.
func (w *Writer) retire(index int64, t *l2Table) {
	delete(w.tables, index)
	w.budget.giveBack(recordCost)
	if t.bytes != nil {
		w.budget.giveBack(w.h.ClusterSize())
		w.out = append(w.out, placed{w.l1[index], t.bytes})
	}
}
