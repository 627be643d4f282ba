package qcow

import (
	"encoding/binary"
	"math"

	"github.com/archdisk/archdisk/qcow/disk"
)

// guess is a L1 table that was the image's until a later one was written behind the data, as
// qemu-img resize does. QEMU frees the old one and lets it stand, so that it still says where the
// data is, unless its clusters have been used for something else since.
type guess struct {
	next   int64   // where the walk through the old table is
	lowest int64   // the first L2 table that it names
	tables []int64 // what its entries say, 0 for nothing
	used   bool    // extents were handed out
}

// Guess implements [disk.Guesser]. The old table is looked for where qemu-img create puts it,
// behind the refcount table and its first block.
func (l *Layout) Guess(reach int64) []disk.Extent {
	h := l.h
	at := h.RefcountTableOffset + (h.RefcountTableClusters+1)<<h.ClusterBits
	if h.l1Needed() == 0 || at < 0 || h.L1TableOffset <= max(reach, at) { // at may overflow
		return nil
	}
	l.guess = &guess{next: at, lowest: math.MaxInt64}
	return l.peek()
}

// peek asks for the next cluster of the old table.
func (l *Layout) peek() []disk.Extent {
	return []disk.Extent{{Kind: disk.Peek, File: disk.Range{Off: l.guess.next, Len: l.h.ClusterSize()}}}
}

// feedGuess takes a cluster of the old L1 table. The table ends before the first of the L2
// tables that it names; something else that stands there is told by entries that no L1 table has.
func (l *Layout) feedGuess(p []byte) ([]disk.Extent, error) {
	h, g := l.h, l.guess
	if g == nil {
		return nil, nil
	}
	g.next += h.ClusterSize()
	for ; len(p) >= 8 && int64(len(g.tables)) < h.l1Needed(); p = p[8:] {
		entry := binary.BigEndian.Uint64(p)
		table, err := h.l2Table(entry, 0)
		if err != nil || entry&^(entryOffset|entryCopied) != 0 || table != 0 && (table < g.next || table == h.L1TableOffset) {
			l.guess = nil
			return nil, nil //nolint:nilerr // no guess, that is all
		}
		if table != 0 {
			g.lowest = min(g.lowest, table)
		}
		g.tables = append(g.tables, table)
	}
	if int64(len(g.tables)) < h.l1Needed() && g.next < min(g.lowest, h.L1TableOffset) {
		if int64(len(g.tables))*8 >= l.limits.Metadata {
			l.guess = nil
			return nil, nil
		}
		return l.peek(), nil
	}
	var list []disk.Extent
	for i, table := range g.tables {
		if table != 0 {
			e := l.l2Meta(int64(i), table)
			if err := l.claims.claim(e.File, metadata, "L1 entry", -1, uint64(table)); err != nil {
				return nil, disk.ErrWrongGuess
			}
			list = append(list, e)
			l.l2Left++
			g.used = true
		}
	}
	return list, nil
}

// l2Meta returns the extent of the L2 table at off, which the ith L1 entry names.
func (l *Layout) l2Meta(i, off int64) disk.Extent {
	span := l.h.span()
	return disk.Extent{Kind: disk.Meta, File: disk.Range{Off: off, Len: l.h.ClusterSize()},
		Guest: disk.Range{Off: i * span, Len: min(span, l.h.Size-i*span)}}
}
