package qcow

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/archdisk/archdisk/qcow/disk"
)

// Bits of refcount table entries. Spec: qcow2, Refcount table.
const (
	reftableOffset   = 0xffff_ffff_ffff_fe00 // bits 9 to 63
	reftableReserved = 1<<9 - 1
)

// maxFile bounds the offsets of tables; QEMU cannot read further.
const maxFile = math.MaxInt64 &^ (1<<30 - 1)

// refcounts are the refcounts as the image states them: a table of offsets of blocks, each
// a cluster full of counters.
type refcounts struct {
	bits  uint32 // of the cluster size
	order uint32 // a counter has 1 << order bits
	size  int64  // of the file
	table []uint64
	cache []storedBlock // block i is kept in place i modulo their number
	read  func(p []byte, off int64) error
}

// storedBlock is a block in memory.
type storedBlock struct {
	number   int64
	counters []byte
}

// perBlock returns how many counters a block holds.
func (s *refcounts) perBlock() int64 { return 1 << (s.bits + 3 - s.order) }

// block returns the counters of block i until the next call: nil where there is no block
// or it is behind the end of the file, so that all of them are 0. It is not ok for an offset
// at which no block can stand.
func (s *refcounts) block(i int64) (counters []byte, ok bool, err error) {
	if i >= int64(len(s.table)) {
		return nil, true, nil
	}
	off := s.table[i] & reftableOffset
	if off&(1<<s.bits-1) != 0 || off > maxFile {
		return nil, false, nil
	}
	if off == 0 || off >= uint64(s.size) {
		return nil, true, nil
	}
	b := &s.cache[i%int64(len(s.cache))]
	if b.counters == nil {
		b.counters = make([]byte, 1<<s.bits)
	} else if b.number == i {
		return b.counters, true, nil
	}
	b.number = -1 // until it is read
	if err := s.read(b.counters, int64(off)); err != nil {
		return nil, false, err
	}
	b.number = i
	return b.counters, true, nil
}

// get returns the stored refcount of a host cluster; not ok if its block cannot be found.
func (s *refcounts) get(cluster int64) (n uint64, ok bool, err error) {
	p, ok, err := s.block(cluster / s.perBlock())
	if p == nil {
		return 0, ok, err
	}
	return counter(p, s.order, cluster%s.perBlock()), true, nil
}

// counter returns the i-th counter of a block. Those of less than a byte begin at the
// byte's least significant bit. Spec: qcow2, Refcount block.
func counter(block []byte, order uint32, i int64) uint64 {
	switch order {
	case 0, 1, 2:
		perByte := int64(8 >> order)
		return uint64(block[i/perByte]) >> (i % perByte << order) & (1<<(1<<order) - 1)
	case 3:
		return uint64(block[i])
	case 4:
		return uint64(binary.BigEndian.Uint16(block[2*i:]))
	case 5:
		return uint64(binary.BigEndian.Uint32(block[4*i:]))
	}
	return binary.BigEndian.Uint64(block[8*i:])
}

// references are the refcounts as they should be: how often each host cluster is referred
// to, and as what. Chunks exist where there are references; a chunk grows its counters
// when one byte each is too little.
type references struct {
	chunks  map[int64]*referenceChunk
	last    *referenceChunk // the one used last, number lastAt
	lastAt  int64
	max     uint64 // where counters stop
	reserve func(n int64, what string) error
}

type referenceChunk struct {
	small [chunkClusters]uint8
	uses  [chunkClusters]usage
	large []uint32 // instead of small, once one of them is full
}

const (
	chunkClusters = 1024
	// What a chunk costs in memory, the map's share included, and what its large counters do.
	chunkCost = 2*chunkClusters + 128
	largeCost = 4 * chunkClusters
)

// usage says what a host cluster is referred to as.
type usage uint8

const (
	usedTable  usage = 1 << iota // any metadata but L2 tables
	usedL2                       // L2 table, which snapshots share
	usedData                     // plain or preallocated cluster
	usedPacked                   // compressed data, which several clusters share
	usedActive                   // as data, by the active state
	usedTold                     // a finding about it exists
)

// clash says whether a reference as u stands against what was there before.
func (u usage) clash(was usage) bool {
	if was&usedActive != 0 && u&usedActive != 0 {
		return true
	}
	const kinds = usedTable | usedL2 | usedData | usedPacked
	was, u = was&kinds, u&kinds
	return was != 0 && (was != u || u == usedTable)
}

func (u usage) String() string {
	switch {
	case u&usedTable != 0:
		return "metadata"
	case u&usedL2 != 0:
		return "a L2 table"
	case u&usedPacked != 0:
		return "compressed data"
	case u&usedData != 0:
		return "a data cluster"
	}
	return fmt.Sprintf("use %#x", uint8(u))
}

func (c *referenceChunk) at(j int64) uint64 {
	if c.large != nil {
		return uint64(c.large[j])
	}
	return uint64(c.small[j])
}

// at returns the counter of cluster i.
func (m *references) at(i int64) uint64 {
	if c := m.chunks[i/chunkClusters]; c != nil {
		return c.at(i % chunkClusters)
	}
	return 0
}

// add counts n references to cluster i as u. over is by how much they are more than a
// counter can hold, and was what the cluster had been used as.
func (m *references) add(i int64, n uint64, u usage) (over uint64, was usage, err error) {
	c, j := m.last, i%chunkClusters
	if c == nil || m.lastAt != i/chunkClusters {
		c = m.chunks[i/chunkClusters]
	}
	if c == nil {
		if err := m.reserve(chunkCost, "refcounts"); err != nil {
			return 0, 0, err
		}
		c = new(referenceChunk)
		m.chunks[i/chunkClusters] = c
	}
	m.last, m.lastAt = c, i/chunkClusters
	was = c.uses[j]
	c.uses[j] |= u
	if u.clash(was) {
		c.uses[j] |= usedTold
	}
	v := c.at(j) + n
	if v > m.max {
		over, v = v-m.max, m.max
	}
	v = min(v, math.MaxUint32) // wider counters are not told apart beyond that
	if c.large == nil && v > math.MaxUint8 {
		if err := m.reserve(largeCost, "refcounts"); err != nil {
			return 0, 0, err
		}
		c.large = make([]uint32, chunkClusters)
		for k, s := range c.small {
			c.large[k] = uint32(s)
		}
	}
	if c.large != nil {
		c.large[j] = uint32(v)
	} else {
		c.small[j] = uint8(v)
	}
	return over, was, nil
}

// loadReftable reads the refcount table; zeros at its end, and behind the file's, are left off.
func (c *checker) loadReftable(ctx context.Context) error {
	h := c.h
	n := h.RefcountTableClusters << h.ClusterBits / 8
	n = min(n, max(c.size-h.RefcountTableOffset+7, 0)/8)
	if err := c.reserve(n*8, "the refcount table"); err != nil {
		return err
	}
	table, last := make([]uint64, n), int64(0)
	err := c.eachEntry(ctx, h.RefcountTableOffset, n, func(i int64, entry uint64) error {
		table[i], last = entry, i+1
		return nil
	})
	if err != nil {
		return err
	}
	// Blocks are kept for the copied flags, which ask for refcounts in the disk's order.
	keep := max(min(last, min(16<<20, c.o.Budget.Left()/4)>>h.ClusterBits), 1)
	if err := c.reserve(keep<<h.ClusterBits, "refcount blocks"); err != nil {
		return err
	}
	c.stored = refcounts{bits: h.ClusterBits, order: h.RefcountOrder, size: c.size, table: table[:last],
		cache: make([]storedBlock, keep), read: c.read}
	return nil
}

// refcountBlocks counts the refcount blocks. It comes last: a block that anything else
// refers to as well is corrupt.
func (c *checker) refcountBlocks(ctx context.Context) error {
	h := c.h
	for i, entry := range c.stored.table {
		if err := ctx.Err(); err != nil {
			return err
		}
		at := h.RefcountTableOffset + int64(i)*8
		off := entry & reftableOffset
		switch {
		case entry == 0:
		case entry&reftableReserved != 0:
			c.found(Corruption, FoundReservedBits, 1, at, -1, "refcount table entry %#x", entry)
		case off&uint64(h.ClusterSize()-1) != 0:
			c.found(Corruption, FoundUnaligned, 1, at, -1, "refcount table entry %#x names a block at no multiple of the cluster size", entry)
		case off>>h.ClusterBits >= uint64(c.clusters):
			c.found(Corruption, FoundOutOfRange, 1, at, -1, "refcount block at %#x, file ends at %#x", off, c.size)
		default:
			if err := c.refer(disk.Range{Off: int64(off), Len: h.ClusterSize()}, 1, usedTable, at, -1); err != nil {
				return err
			}
			if n := c.refs.at(int64(off) >> h.ClusterBits); n != 1 {
				c.found(Corruption, FoundRefcountBlock, 1, at, -1, "refcount block at %#x has %d references", off, n)
			}
		}
	}
	return nil
}

// compare holds the stored refcounts against the references counted.
func (c *checker) compare(ctx context.Context) error {
	bits, perBlock := c.h.ClusterBits, c.stored.perBlock()
	used := int64(0) // the last cluster in use
	for i := int64(0); i < c.clusters; {
		if err := ctx.Err(); err != nil {
			return err
		}
		end := min(c.clusters, (i/perBlock+1)*perBlock, (i/chunkClusters+1)*chunkClusters)
		chunk := c.refs.chunks[i/chunkClusters]
		block, ok, err := c.stored.block(i / perBlock)
		if err != nil {
			return err
		}
		if ok && block == nil && chunk == nil {
			i = end
			continue
		}
		for ; i < end; i++ {
			stored, want := uint64(0), uint64(0)
			if block != nil {
				stored = counter(block, c.stored.order, i%perBlock)
			}
			if chunk != nil {
				want = chunk.at(i % chunkClusters)
			}
			if !ok {
				c.found(CheckError, FoundRefcountUnknown, 1, i<<bits, -1, "the refcount block of this cluster cannot be read")
				continue
			}
			if stored > 0 || want > 0 {
				used = i
			}
			switch {
			case stored > want:
				c.found(Leak, FoundRefcountTooHigh, 1, i<<bits, -1, "refcount %d of cluster %d, which has %d references", stored, i, want)
			case stored < want:
				c.found(Corruption, FoundRefcountTooLow, 1, i<<bits, -1, "refcount %d of cluster %d, which has %d references", stored, i, want)
			}
		}
	}
	c.result.ImageEndOffset = (used + 1) << bits
	return nil
}
