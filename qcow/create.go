package qcow

import (
	"fmt"
	"math/bits"
	"runtime"

	"github.com/archdisk/archdisk/endian"
	"github.com/archdisk/archdisk/qcow/disk"
)

// CreateOptions says what kind of image to write. The zero value is ready.
type CreateOptions struct {
	ClusterSize int64          // a power of two from 512 to 2 MiB; default 64 KiB
	Compression disk.Codec     // of clusters that become smaller by it; default [disk.Plain]
	Workers     int            // goroutines that read and compress; default GOMAXPROCS, at most 16
	Budget      *disk.Budget   // memory; default a budget of [disk.DefaultMemory] for this image alone
	Counters    *disk.Counters // of [Encode] and [EncodeAt], told of progress; optional
}

// Stats is what became of a disk.
type Stats struct {
	Size       int64 // virtual size in bytes
	FileSize   int64 // of the image in bytes
	Data       int64 // number of clusters that hold data, compressed ones included
	Compressed int64 // number of clusters that are compressed
}

const (
	headerLenWritten = 112     // with compression_type and its padding, as QEMU writes it
	refcountBytes    = 2       // refcount_order 4
	pieceSize        = 1 << 20 // what is read, compressed and written at once
)

// withDefaults returns o with its zero fields replaced.
func (o CreateOptions) withDefaults() CreateOptions {
	if o.ClusterSize == 0 {
		o.ClusterSize = 64 << 10
	}
	if o.Workers <= 0 {
		o.Workers = min(runtime.GOMAXPROCS(0), 16)
	}
	if o.Budget == nil {
		o.Budget = disk.NewBudget(0)
	}
	if o.Counters == nil {
		o.Counters = new(disk.Counters)
	}
	return o
}

// header returns the header of an image of size bytes, its tables not placed yet.
func (o CreateOptions) header(size int64) (*Header, error) {
	cs := o.ClusterSize
	h := &Header{Version: 3, Size: size, RefcountOrder: 4, HeaderLength: headerLenWritten, Compression: disk.Deflate}
	switch {
	case cs < 1<<minClusterBits || cs > 1<<maxClusterBits || cs&(cs-1) != 0:
		return nil, fmt.Errorf("qcow: cluster size %d: a power of two from %d to %d is needed", cs, 1<<minClusterBits, 1<<maxClusterBits)
	case size < 0 || size%disk.SectorSize != 0:
		return nil, fault(disk.VirtualSizeUnaligned, "size", -1, uint64(size), "no multiple of %d", disk.SectorSize)
	case size > 64<<40:
		return nil, fault(disk.VirtualSizeTooLarge, "size", -1, uint64(size), "at most 64 TiB are written")
	}
	switch o.Compression {
	case disk.Plain, disk.Deflate:
	case disk.Zstd:
		h.Compression = disk.Zstd
		h.Incompatible |= incompatCompression
	default:
		return nil, fmt.Errorf("qcow: %s compression is not part of the format", o.Compression)
	}
	h.ClusterBits = uint32(bits.TrailingZeros64(uint64(cs)))
	h.L1Size = h.l1Needed()
	if h.L1Size*8 > maxL1Bytes {
		return nil, fault(disk.LimitExceeded, "l1_size", -1, uint64(h.L1Size), "clusters of %d bytes are too small for a disk of %d", cs, size)
	}
	return h, nil
}

// encode returns the header's bytes, the end of the list of extensions included.
// Spec: qcow2, Header; Header extensions.
func (h *Header) encode() []byte {
	e := endian.NewBig(nil)
	e.Raw([]byte(Magic))
	e.U32(h.Version)
	e.U64(0) // backing_file_offset
	e.U32(0) // backing_file_size
	e.U32(h.ClusterBits)
	e.U64(uint64(h.Size))
	e.U32(0) // crypt_method
	e.U32(uint32(h.L1Size))
	e.U64(uint64(h.L1TableOffset))
	e.U64(uint64(h.RefcountTableOffset))
	e.U32(uint32(h.RefcountTableClusters))
	e.U32(0) // nb_snapshots
	e.U64(0) // snapshots_offset
	e.U64(h.Incompatible)
	e.U64(h.Compatible)
	e.U64(h.Autoclear)
	e.U32(h.RefcountOrder)
	e.U32(h.HeaderLength)
	compressionType := uint8(0)
	if h.Compression == disk.Zstd {
		compressionType = 1
	}
	e.U8(compressionType)
	e.Zero(int(h.HeaderLength) - len(e.Bytes()))
	e.U32(extensionEnd)
	e.U32(0)
	return e.Bytes()
}

// plainEntry returns the L2 entry of a cluster at host offset off.
func plainEntry(off int64) uint64 { return uint64(off) | entryCopied }

// compressedEntry returns the L2 entry of n compressed bytes at host offset off: the
// inverse of [Header.compressed].
func (h *Header) compressedEntry(off, n int64) uint64 {
	x := 62 - (h.ClusterBits - 8)
	further := (off+n-1)/disk.SectorSize - off/disk.SectorSize
	return entryCompressed | uint64(further)<<x | uint64(off)
}

// clusters returns how many clusters n bytes take.
func (h *Header) clusters(n int64) int64 { return (n + h.ClusterSize() - 1) >> h.ClusterBits }

// span returns how many bytes of the disk one L2 table maps.
func (h *Header) span() int64 { return 1 << h.spanBits() }

// perBlock returns how many clusters one refcount block counts.
func (h *Header) perBlock() int64 { return h.ClusterSize() / refcountBytes }
