package qcow

import (
	"encoding/binary"
	"fmt"

	"github.com/archdisk/archdisk/qcow/disk"
)

// Bits of L1 and L2 entries. Spec: qcow2, Cluster mapping.
const (
	entryOffset     = 0x00ff_ffff_ffff_fe00 // bits 9 to 55
	entryCopied     = 1 << 63               // the refcount is exactly one
	entryCompressed = 1 << 62
	entryZero       = 1 << 0 // version 3, standard clusters, not with extended entries
)

const subclusters = 32 // of a cluster, with extended L2 entries

// l2Table returns the offset of the L2 table that an L1 entry names, 0 for none. at is
// the entry's own offset in the file. Reserved bits are ignored, as QEMU does.
func (h *Header) l2Table(entry uint64, at int64) (int64, error) {
	off := int64(entry & entryOffset)
	if off&(h.ClusterSize()-1) != 0 {
		return 0, fault(disk.TableUnaligned, "L1 entry", at, entry, "L2 table at no multiple of the cluster size %d", h.ClusterSize())
	}
	return off, nil
}

// l2Entry is one entry of a L2 table.
type l2Entry struct {
	value  uint64
	bitmap uint64 // of the subclusters, in extended entries
	at     int64  // its offset in the file
}

// l2Entry returns the ith entry of the L2 table p that stands at off.
func (h *Header) l2Entry(p []byte, off, i int64) l2Entry {
	i <<= h.entryBits()
	e := l2Entry{value: binary.BigEndian.Uint64(p[i:]), at: off + i}
	if h.Extended() {
		e.bitmap = binary.BigEndian.Uint64(p[i+8:])
	}
	return e
}

// extents appends to list what e says of the cluster at guest offset guest, and returns the
// file bytes that the cluster takes. It is the one place where an entry gets its meaning: the
// forward pass and the random-access reader both call it.
func (h *Header) extents(list []disk.Extent, e l2Entry, guest int64) ([]disk.Extent, disk.Range, error) {
	size := h.ClusterSize()
	x := disk.Extent{Guest: disk.Range{Off: guest, Len: min(size, h.Size-guest)}}
	if e.value&entryCompressed != 0 {
		x, err := h.compressed(x, e)
		return append(list, x), x.File, err
	}
	off := int64(e.value & entryOffset)
	// An offset of zero is a place only in another file.
	host, used := disk.Range{Off: off, Len: size}, off != 0 || h.hasDataFile() && e.value&entryCopied != 0
	if !used {
		host.Len = 0
	}
	switch {
	case off&(size-1) != 0:
		return list, host, fault(disk.BadEntry, "L2 entry", e.at, e.value, "cluster at no multiple of the cluster size %d, for disk offset %#x", size, guest)
	case h.hasDataFile() && used && off != guest:
		return list, host, fault(disk.BadEntry, "L2 entry", e.at, e.value, "cluster at another offset of the data file than disk offset %#x", guest)
	case h.Extended():
		list, err := h.subclusters(list, x, e, host)
		return list, host, err
	case e.value&entryZero != 0 && h.Version < 3:
		return list, host, fault(disk.BadEntry, "L2 entry", e.at, e.value, "zero cluster in a version 2 image, for disk offset %#x", guest)
	case e.value&entryZero != 0:
		x.Kind, x.File = disk.Zero, host
	case !used:
		x.Kind = disk.Hole
	default:
		x.Kind, x.File = disk.Data, disk.Range{Off: off, Len: x.Guest.Len}
	}
	return disk.Append(list, x), host, nil
}

// subclusters appends what the bitmap of an extended entry says: bit i, that subcluster i is
// in the host cluster, bit 32+i, that it is zeros. Spec: qcow2, Extended L2 Entries.
func (h *Header) subclusters(list []disk.Extent, x disk.Extent, e l2Entry, host disk.Range) ([]disk.Extent, error) {
	allocated, zero := uint32(e.bitmap), uint32(e.bitmap>>subclusters)
	switch {
	case allocated&zero != 0:
		return list, fault(disk.BadEntry, "subcluster bitmap", e.at+8, e.bitmap, "subclusters both allocated and zero, for disk offset %#x", x.Guest.Off)
	case allocated != 0 && host.Len == 0:
		return list, fault(disk.BadEntry, "subcluster bitmap", e.at+8, e.bitmap, "subclusters allocated and no cluster, for disk offset %#x", x.Guest.Off)
	}
	size := h.ClusterSize() / subclusters
	for i := int64(0); i*size < x.Guest.Len; i++ {
		s := disk.Extent{Kind: disk.Hole, Guest: disk.Range{Off: x.Guest.Off + i*size, Len: min(size, x.Guest.Len-i*size)}}
		if host.Len > 0 {
			s.File = disk.Range{Off: host.Off + i*size, Len: s.Guest.Len}
		}
		switch {
		case allocated>>i&1 != 0:
			s.Kind = disk.Data
		case zero>>i&1 != 0:
			s.Kind = disk.Zero
		}
		list = disk.Append(list, s)
	}
	return list, nil
}

// compressed decodes the descriptor of a compressed cluster: its offset takes the lower x
// bits, x = 62 - (cluster_bits - 8), and above it stands the number of further sectors.
// Spec: qcow2, Compressed Clusters Descriptor.
func (h *Header) compressed(x disk.Extent, e l2Entry) (disk.Extent, error) {
	file := h.packedRange(e.value)
	switch {
	case h.hasDataFile():
		return x, fault(disk.BadEntry, "L2 entry", e.at, e.value, "compressed cluster in an image with a data file, for disk offset %#x", x.Guest.Off)
	case file.Off < h.ClusterSize():
		return x, fault(disk.BadEntry, "L2 entry", e.at, e.value, "compressed cluster inside the header, for disk offset %#x", x.Guest.Off)
	case file.Off >= 1<<56:
		return x, fault(disk.BadEntry, "L2 entry", e.at, e.value, "compressed cluster beyond 2^56, for disk offset %#x", x.Guest.Off)
	}
	x.Kind, x.Codec, x.Unit, x.File = disk.Data, h.Compression, h.ClusterSize(), file
	return x, nil
}

// packedRange returns the file bytes that a compressed cluster's entry names.
func (h *Header) packedRange(entry uint64) disk.Range {
	sectorBits := h.ClusterBits - 8
	x := 62 - sectorBits
	off := int64(entry & (1<<x - 1))
	sectors := int64(entry >> x & (1<<sectorBits - 1))
	return disk.Range{Off: off, Len: (sectors+1)*disk.SectorSize - off&(disk.SectorSize-1)}
}

// claims remembers which host clusters are in use and for what, so that two uses of one
// are found: a table that another table or data stands on, a cluster mapped twice.
// Compressed clusters may share host clusters among themselves.
type claims struct {
	bits   uint32 // of the cluster size
	chunks map[int64]*[claimChunk]use
	limit  int   // chunks allowed
	shared bool  // clusters may be used twice
	packed int64 // host clusters that hold compressed ones
}

type use uint8

const (
	free use = iota
	metadata
	cluster
	packed // holds compressed clusters
)

const (
	claimChunk = 1024
	// claimCost is what one chunk costs in memory, the map's share included.
	claimCost = claimChunk + 64
)

func newClaims(h *Header, limits disk.Limits) claims {
	return claims{bits: h.ClusterBits, chunks: map[int64]*[claimChunk]use{}, limit: int(limits.Metadata / claimCost), shared: limits.Lenient}
}

func (c *claims) memory() int64 { return int64(len(c.chunks)) * claimCost }

// claim marks the host clusters of r as used for u. field and at say who claims.
func (c *claims) claim(r disk.Range, u use, field string, at int64, entry uint64) error {
	for i := r.Off >> c.bits; i <= (r.End()-1)>>c.bits; i++ {
		chunk := c.chunks[i/claimChunk]
		if chunk == nil {
			if len(c.chunks) >= c.limit {
				return fault(disk.LimitExceeded, field, at, entry, "the image's clusters are scattered over too large a file")
			}
			chunk = new([claimChunk]use)
			c.chunks[i/claimChunk] = chunk
		}
		was := chunk[i%claimChunk]
		if was == free || was == packed && u == packed || c.shared {
			chunk[i%claimChunk] = u
			if was == free && u == packed {
				c.packed++
			}
			continue
		}
		reason := disk.SharedCluster
		if was == metadata || u == metadata {
			reason = disk.OverlapsMetadata
		}
		return fault(reason, field, at, entry, "host cluster at %#x is in use already, as %s", i<<c.bits, was)
	}
	return nil
}

func (u use) String() string {
	switch u {
	case free:
		return "free"
	case metadata:
		return "metadata"
	case cluster:
		return "a data cluster"
	case packed:
		return "compressed data"
	}
	return fmt.Sprintf("use %d", uint8(u))
}
