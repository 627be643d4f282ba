package qcow

import (
	"fmt"

	"github.com/archdisk/archdisk/qcow/disk"
)

// Bits of L1 and L2 entries. Spec: qcow2, Cluster mapping.
const (
	entryOffset     = 0x00ff_ffff_ffff_fe00 // bits 9 to 55
	entryCompressed = 1 << 62
	entryZero       = 1 << 0 // version 3, standard clusters
)

// l2Table returns the offset of the L2 table that an L1 entry names, 0 for none. at is
// the entry's own offset in the file. Reserved bits are ignored, as QEMU does.
func (h *Header) l2Table(entry uint64, at int64) (int64, error) {
	off := int64(entry & entryOffset)
	if off&(h.ClusterSize()-1) != 0 {
		return 0, fault(disk.TableUnaligned, "L1 entry", at, entry, "L2 table at no multiple of the cluster size %d", h.ClusterSize())
	}
	return off, nil
}

// extent returns what the L2 entry at file offset at says of the cluster that starts at
// guest offset guest. It is the one place where an entry gets its meaning: the forward pass
// and the random-access reader both call it.
func (h *Header) extent(entry uint64, at, guest int64) (disk.Extent, error) {
	size := h.ClusterSize()
	e := disk.Extent{Guest: disk.Range{Off: guest, Len: min(size, h.Size-guest)}}
	if entry&entryCompressed != 0 {
		return h.compressed(e, entry, at)
	}
	off := int64(entry & entryOffset)
	if off&(size-1) != 0 {
		return e, fault(disk.BadEntry, "L2 entry", at, entry, "cluster at no multiple of the cluster size %d, for disk offset %#x", size, guest)
	}
	switch {
	case entry&entryZero != 0 && h.Version < 3:
		return e, fault(disk.BadEntry, "L2 entry", at, entry, "zero cluster in a version 2 image, for disk offset %#x", guest)
	case entry&entryZero != 0 || off == 0:
		e.Kind = disk.Zero
		if off != 0 {
			e.File = disk.Range{Off: off, Len: size}
		}
	default:
		e.Kind = disk.Data
		e.File = disk.Range{Off: off, Len: e.Guest.Len}
	}
	return e, nil
}

// compressed decodes the descriptor of a compressed cluster: its offset takes the lower x
// bits, x = 62 - (cluster_bits - 8), and above it stands the number of further sectors.
// Spec: qcow2, Compressed Clusters Descriptor.
func (h *Header) compressed(e disk.Extent, entry uint64, at int64) (disk.Extent, error) {
	sectorBits := h.ClusterBits - 8
	x := 62 - sectorBits
	off := int64(entry & (1<<x - 1))
	sectors := int64(entry >> x & (1<<sectorBits - 1))
	if off < h.ClusterSize() {
		return e, fault(disk.BadEntry, "L2 entry", at, entry, "compressed cluster inside the header, for disk offset %#x", e.Guest.Off)
	}
	if off >= 1<<56 {
		return e, fault(disk.BadEntry, "L2 entry", at, entry, "compressed cluster beyond 2^56, for disk offset %#x", e.Guest.Off)
	}
	e.Kind, e.Codec, e.Unit = disk.Data, h.Compression, h.ClusterSize()
	e.File = disk.Range{Off: off, Len: (sectors+1)*disk.SectorSize - off&(disk.SectorSize-1)}
	return e, nil
}

// claims remembers which host clusters are in use and for what, so that two uses of one
// are found: a table that another table or data stands on, a cluster mapped twice.
// Compressed clusters may share host clusters among themselves.
type claims struct {
	bits   uint32 // of the cluster size
	chunks map[int64]*[claimChunk]use
	limit  int   // chunks allowed
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
	return claims{bits: h.ClusterBits, chunks: map[int64]*[claimChunk]use{}, limit: int(limits.Metadata / claimCost)}
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
		if was == free || was == packed && u == packed {
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
