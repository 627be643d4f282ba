package qcow

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/archdisk/archdisk/qcow/disk"
)

// Layout is the [disk.Layout] of a QCOW2 image.
type Layout struct {
	h         *Header
	limits    disk.Limits
	claims    claims
	l1Read    bool
	l2Left    int           // L2 tables named and not read yet
	refblocks int64         // named
	packed    int64         // bytes of compressed clusters; see overlap
	scratch   []disk.Extent // one L2 table's
	guess     *guess        // nil for none
}

const extentSize = 48 // of a disk.Extent in memory, in bytes

// NewLayout parses the header from the first bytes of an image; see [ParseHeader].
func NewLayout(head []byte, limits disk.Limits) (*Layout, error) {
	h, err := ParseHeader(head, limits)
	if err != nil {
		return nil, err
	}
	if err := h.Readable(limits); err != nil {
		return nil, err
	}
	limits = limits.WithDefaults()
	return &Layout{h: h, limits: limits, claims: newClaims(h, limits)}, nil
}

// Header returns the image's header.
func (l *Layout) Header() *Header { return l.h }

// State implements [disk.Layout].
func (l *Layout) State() disk.State {
	return disk.State{Format: "qcow2", Size: l.h.Size, Unit: l.h.ClusterSize(), Complete: l.l1Read && l.l2Left == 0,
		Memory: l.claims.memory() + int64(cap(l.scratch))*extentSize, Guessing: l.guess != nil && l.guess.used}
}

// Start names the header's cluster, the refcount table and the L1 table. The refcount table is
// read for the places of the refcount blocks alone.
func (l *Layout) Start() ([]disk.Extent, error) {
	h := l.h
	header := disk.Range{Off: 0, Len: h.ClusterSize()}
	reftable := disk.Range{Off: h.RefcountTableOffset, Len: h.RefcountTableClusters << h.ClusterBits}
	if err := l.claims.claim(header, metadata, "header", 0, 0); err != nil {
		return nil, err
	}
	if err := l.claims.claim(reftable, metadata, "refcount_table_offset", 48, uint64(reftable.Off)); err != nil {
		return nil, err
	}
	list := append(l.reftable(reftable), disk.Extent{Kind: disk.Drop, File: header})
	if h.l1Needed() == 0 {
		l.l1Read = true
		return list, nil
	}
	// Entries beyond the virtual size belong to saved machine states, not to the disk.
	l1 := disk.Range{Off: h.L1TableOffset, Len: h.l1Needed() * 8}
	whole := (h.L1Size*8 + h.ClusterSize() - 1) &^ (h.ClusterSize() - 1)
	if err := l.claims.claim(disk.Range{Off: l1.Off, Len: whole}, metadata, "l1_table_offset", 40, uint64(l1.Off)); err != nil {
		return nil, err
	}
	return append(list,
		disk.Extent{Kind: disk.Meta, File: l1},
		disk.Extent{Kind: disk.Drop, File: disk.Range{Off: l1.End(), Len: whole - l1.Len}}), nil
}

// Feed takes the refcount table, the L1 table and each L2 table. A L2 table's extent carries the
// guest range that it maps.
func (l *Layout) Feed(meta disk.Extent, p []byte) ([]disk.Extent, error) {
	h := l.h
	switch {
	case meta.File.Off >= h.RefcountTableOffset && meta.File.End() <= h.RefcountTableOffset+h.RefcountTableClusters<<h.ClusterBits:
		return l.feedReftable(meta.File.Off, p)
	case meta.Kind == disk.Peek:
		return l.feedGuess(p)
	case meta.File.Off == h.L1TableOffset && !l.l1Read:
		l.l1Read = true
		return l.feedL1(meta.File.Off, p)
	}
	l.l2Left--
	return l.feedL2(meta, p)
}

// reftable returns the refcount table in pieces that can be looked at one by one.
func (l *Layout) reftable(r disk.Range) (list []disk.Extent) {
	if l.limits.Lenient {
		return []disk.Extent{{Kind: disk.Drop, File: r}}
	}
	piece := max(l.h.ClusterSize(), 64<<10)
	for off := r.Off; off < r.End(); off += piece {
		list = append(list, disk.Extent{Kind: disk.Peek, File: disk.Range{Off: off, Len: min(piece, r.End()-off)}})
	}
	return list
}

// feedReftable names the refcount blocks, so that a stream's need not be parked. Counts that
// are wrong are not the disk's concern: entries that make no sense are passed over.
func (l *Layout) feedReftable(off int64, p []byte) ([]disk.Extent, error) {
	var list []disk.Extent
	for ; len(p) >= 8; p, off = p[8:], off+8 {
		entry := binary.BigEndian.Uint64(p)
		block := disk.Range{Off: int64(entry & entryOffset), Len: l.h.ClusterSize()}
		if block.Off == 0 || block.Off&(block.Len-1) != 0 || l.refblocks*extentSize >= l.limits.Metadata/4 {
			continue
		}
		l.refblocks++
		if err := l.claims.claim(block, metadata, "refcount table entry", off, entry); err != nil {
			return nil, err
		}
		list = append(list, disk.Extent{Kind: disk.Drop, File: block})
	}
	return list, nil
}

func (l *Layout) feedL1(off int64, p []byte) ([]disk.Extent, error) {
	h := l.h
	n := l1Extents(p)
	if n*extentSize > l.limits.Metadata {
		return nil, fault(disk.LimitExceeded, "l1_size", 36, uint64(h.L1Size), "the L1 table at %#x has %d runs, %d bytes of memory are allowed for it", off, n, l.limits.Metadata)
	}
	list := make([]disk.Extent, 0, n)
	var guessed []int64
	if l.guess != nil {
		guessed, l.guess = l.guess.tables, nil
	}
	for i := int64(0); i < int64(len(p))/8; i++ {
		entry, at := binary.BigEndian.Uint64(p[i*8:]), off+i*8
		table, err := h.l2Table(entry, at)
		if err != nil {
			return nil, err
		}
		if i < int64(len(guessed)) && guessed[i] != 0 {
			if table != guessed[i] {
				return nil, disk.ErrWrongGuess
			}
			continue // its table has been read
		}
		e := l.l2Meta(i, table)
		if table == 0 {
			list = disk.Append(list, disk.Extent{Kind: disk.Hole, Guest: e.Guest})
			continue
		}
		if err := l.claims.claim(e.File, metadata, "L1 entry", at, entry); err != nil {
			return nil, err
		}
		list = append(list, e)
		l.l2Left++
	}
	return list, nil
}

// l1Extents counts the extents that a L1 table gives, before memory is taken for them.
func l1Extents(p []byte) (n int64) {
	hole := false
	for ; len(p) >= 8; p = p[8:] {
		was := hole
		hole = binary.BigEndian.Uint64(p)&entryOffset == 0
		if !hole || !was {
			n++
		}
	}
	return n
}

func (l *Layout) feedL2(meta disk.Extent, p []byte) ([]disk.Extent, error) {
	h := l.h
	list := l.scratch[:0]
	for done := int64(0); done < meta.Guest.Len; done += h.ClusterSize() {
		e := h.l2Entry(p, meta.File.Off, done>>h.ClusterBits)
		var file disk.Range
		var err error
		if list, file, err = h.extents(list, e, meta.Guest.Off+done); err != nil {
			return nil, err
		}
		if file.Len == 0 {
			continue
		}
		u := cluster
		if e.value&entryCompressed != 0 {
			u = packed
			l.packed += max(0, file.Len-2*disk.SectorSize)
		}
		if err := l.claims.claim(file, u, "L2 entry", e.at, e.value); err != nil {
			return nil, err
		}
	}
	l.scratch = list
	if err := l.overlap(meta.File.Off); err != nil {
		return nil, err
	}
	return slices.Clone(list), nil
}

// overlap refuses images whose compressed clusters stand on each other, so that few bytes
// of a file cannot ask for much work. Neighbours share their first and last sectors at most,
// so what is between those, summed up, fits the host clusters that they are in.
func (l *Layout) overlap(table int64) error {
	if room := l.claims.packed << l.h.ClusterBits; l.packed > room && !l.limits.Lenient {
		return &disk.FormatError{Format: "qcow2", Reason: disk.SharedCluster, Offset: table,
			Detail: fmt.Sprintf("compressed clusters named up to this L2 table have %d bytes in %d bytes of the file", l.packed, room)}
	}
	return nil
}

// End has nothing to add: all of QCOW2's metadata is named from the front. If the file ends
// before its L1 table, that is so whatever an older table says.
func (l *Layout) End(size int64) ([]disk.Extent, error) {
	if end := l.h.L1TableOffset + l.h.l1Needed()*8; !l.l1Read && end > size {
		l.guess = nil
		return nil, &disk.FormatError{Format: "qcow2", Reason: disk.Truncated, Offset: size,
			Detail: fmt.Sprintf("the file ends before the L1 table [%#x, %#x)", l.h.L1TableOffset, end)}
	}
	return nil, nil
}
