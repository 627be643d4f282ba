package qcow

import (
	"fmt"

	"github.com/archdisk/archdisk/endian"
	"github.com/archdisk/archdisk/qcow/disk"
)

// Magic is how every QCOW image begins.
const Magic = "QFI\xfb"

const (
	headerLenV2     = 72  // the fixed length of a version 2 header
	headerLenV3     = 104 // the least length of a version 3 header
	minClusterBits  = 9
	minExtendedBits = 14       // with extended L2 entries: a subcluster has 512 bytes or more
	maxClusterBits  = 21       // QEMU's limit: 2 MiB
	maxL1Bytes      = 32 << 20 // QEMU's limit for the active L1 table
	maxReftable     = 8 << 20  // QEMU's limit for the refcount table
	maxSnapshots    = 65536    // QEMU's limit
	maxBackingName  = 1023
)

// Bits of incompatible_features. Spec: qcow2, Header.
const (
	incompatDirty       = 1 << 0
	incompatCorrupt     = 1 << 1
	incompatDataFile    = 1 << 2
	incompatCompression = 1 << 3
	incompatExtendedL2  = 1 << 4
	incompatKnown       = 1<<5 - 1
)

// Bits of autoclear_features. Spec: qcow2, Header.
const (
	autoclearBitmaps = 1 << 0 // those of the image are up to date
	autoclearRawData = 1 << 1 // the external data file is a raw image
)

// Values of crypt_method. Spec: qcow2, Header.
const (
	cryptAES  = 1
	cryptLUKS = 2
)

// Header is the header of a QCOW2 image that has been found sound. Whether the image can be
// read by itself is said by [Header.Readable]. Offsets and sizes are in bytes.
type Header struct {
	Version               uint32 // 2 or 3
	ClusterBits           uint32 // the cluster size is 1 << ClusterBits
	Size                  int64  // virtual size
	CryptMethod           uint32 // 0 none, 1 AES, 2 LUKS
	L1Size                int64  // entries of the active L1 table
	L1TableOffset         int64
	RefcountTableOffset   int64
	RefcountTableClusters int64
	Snapshots             uint32 // number of internal snapshots
	SnapshotsOffset       int64
	Incompatible          uint64
	Compatible            uint64
	Autoclear             uint64
	RefcountOrder         uint32
	HeaderLength          uint32
	Compression           disk.Codec // of compressed clusters
	BackingFileOffset     int64      // 0 for none
	// Names that the image has for other files: any bytes, never opened without being asked.
	BackingFile   string
	BackingFormat string // "" where the image does not say
	DataFile      string
	Extensions    []Extension // in the order of the file, unknown ones too
}

// ClusterSize returns the size of a cluster in bytes.
func (h *Header) ClusterSize() int64 { return 1 << h.ClusterBits }

// Dirty says that refcounts may be wrong, which does not matter for reading.
func (h *Header) Dirty() bool { return h.Incompatible&incompatDirty != 0 }

// Extended says that L2 entries have 16 bytes and tell of subclusters.
func (h *Header) Extended() bool { return h.Incompatible&incompatExtendedL2 != 0 }

func (h *Header) hasDataFile() bool { return h.Incompatible&incompatDataFile != 0 }

// entryBits: a L2 entry has 1 << entryBits bytes.
func (h *Header) entryBits() uint32 {
	if h.Extended() {
		return 4
	}
	return 3
}

// l2Bits: a L2 table fills one cluster with 1 << l2Bits entries.
func (h *Header) l2Bits() uint32 { return h.ClusterBits - h.entryBits() }

// spanBits: a L1 entry maps 1 << spanBits bytes of the disk.
func (h *Header) spanBits() uint32 { return h.ClusterBits + h.l2Bits() }

// l1Needed returns how many L1 entries map the virtual size.
func (h *Header) l1Needed() int64 {
	if h.Size == 0 {
		return 0
	}
	return (h.Size-1)>>h.spanBits() + 1
}

// fault builds the error for one field of the header.
func fault(r disk.Reason, field string, offset int64, value uint64, format string, args ...any) error {
	return &disk.FormatError{Format: "qcow2", Reason: r, Field: field, Offset: offset, Value: value,
		Detail: fmt.Sprintf(format, args...)}
}

// ParseHeader reads the header from the first bytes of an image and checks all that can
// be checked there. p should hold the first cluster, or as much of it as there is: extensions
// and names are looked for in what p has.
//
// Errors: a [*disk.FormatError] with the field's offset and value.
func ParseHeader(p []byte, limits disk.Limits) (*Header, error) {
	limits = limits.WithDefaults()
	d := endian.Big(p, 0)
	if magic := d.Bytes(4, "magic"); string(magic) != Magic {
		return nil, &disk.FormatError{Format: "qcow2", Reason: disk.UnknownFormat, Offset: 0, Field: "", Detail: "no QFI magic"}
	}
	h := &Header{HeaderLength: headerLenV2, RefcountOrder: 4}
	h.Version = d.U32("version")
	backingOffset := d.U64("backing_file_offset")
	backingSize := d.U32("backing_file_size")
	h.ClusterBits = d.U32("cluster_bits")
	size := d.U64("size")
	h.CryptMethod = d.U32("crypt_method")
	l1Size := d.U32("l1_size")
	l1Offset := d.U64("l1_table_offset")
	reftableOffset := d.U64("refcount_table_offset")
	reftableClusters := d.U32("refcount_table_clusters")
	h.Snapshots = d.U32("nb_snapshots")
	snapshotsOffset := d.U64("snapshots_offset")
	compressionType := uint8(0)
	if h.Version >= 3 {
		h.Incompatible = d.U64("incompatible_features")
		h.Compatible = d.U64("compatible_features")
		h.Autoclear = d.U64("autoclear_features")
		h.RefcountOrder = d.U32("refcount_order")
		h.HeaderLength = d.U32("header_length")
		if h.HeaderLength > headerLenV3 {
			compressionType = d.U8("compression_type")
		}
	}
	if err := d.Err(); err != nil {
		return nil, &disk.FormatError{Format: "qcow2", Reason: disk.Truncated, Offset: int64(len(p)), Err: err}
	}

	if h.Version != 2 && h.Version != 3 {
		return nil, fault(disk.UnsupportedVersion, "version", 4, uint64(h.Version), "2 and 3 are read")
	}
	if h.ClusterBits < minClusterBits || h.ClusterBits > maxClusterBits {
		return nil, fault(disk.BadClusterSize, "cluster_bits", 20, uint64(h.ClusterBits), "%d to %d are allowed", minClusterBits, maxClusterBits)
	}
	if h.CryptMethod > cryptLUKS {
		return nil, fault(disk.Encrypted, "crypt_method", 32, uint64(h.CryptMethod), "unknown encryption method")
	}
	if backingOffset > uint64(h.ClusterSize()) {
		return nil, fault(disk.BackingFile, "backing_file_offset", 8, backingOffset, "the name of a backing file, outside the header's cluster")
	}
	h.BackingFileOffset = int64(backingOffset)
	if backingOffset != 0 && int64(backingSize) > min(maxBackingName, h.ClusterSize()-h.BackingFileOffset) {
		return nil, fault(disk.BackingFile, "backing_file_size", 16, uint64(backingSize), "the name of a backing file, longer than %d bytes or than its cluster", maxBackingName)
	}
	if end := h.BackingFileOffset + int64(backingSize); backingOffset != 0 && end <= int64(len(p)) {
		h.BackingFile = string(p[backingOffset:end])
	}
	if h.Version >= 3 && (h.HeaderLength < headerLenV3 || int64(h.HeaderLength) > h.ClusterSize()) {
		return nil, fault(disk.BadHeader, "header_length", 100, uint64(h.HeaderLength), "at least %d and at most a cluster", headerLenV3)
	}
	names, err := h.readExtensions(p)
	if err != nil {
		return nil, err
	}
	if backingSize == 0 { // the place of no name, which only ends the extensions
		h.BackingFileOffset = 0
	}
	if unknown := h.Incompatible &^ incompatKnown; unknown != 0 {
		return nil, fault(disk.UnknownFeature, "incompatible_features", 72, h.Incompatible, "%s", unknownFeatures(names, unknown))
	}
	if err := h.checkFeatures(compressionType); err != nil {
		return nil, err
	}
	if err := h.checkTables(tables{size, l1Size, l1Offset, reftableOffset, reftableClusters, snapshotsOffset}, limits); err != nil {
		return nil, err
	}
	return h, nil
}

// Readable returns why the image cannot be read by itself, nil if it can: it is encrypted, or
// most of it is in another file, or its last user marked it as corrupt and l is not Lenient.
//
// Errors: a [*disk.FormatError].
func (h *Header) Readable(l disk.Limits) error { return h.readable(l, nil) }

// readable is Readable for a caller who opens other files, if open is not nil.
func (h *Header) readable(l disk.Limits, open OpenFunc) error {
	switch {
	case h.hasDataFile() && open == nil:
		return fault(disk.ExternalDataFile, "incompatible_features", 72, h.Incompatible, "the data is in another file%s, which is not opened", named(h.DataFile))
	case h.BackingFileOffset != 0 && open == nil:
		return fault(disk.BackingFile, "backing_file_offset", 8, uint64(h.BackingFileOffset), "the image is only what differs from another file%s, which is not opened", named(h.BackingFile))
	case h.Incompatible&incompatCorrupt != 0 && !l.Lenient:
		return fault(disk.CorruptBit, "incompatible_features", 72, h.Incompatible, "its last user marked the image as corrupt")
	case h.CryptMethod == cryptAES:
		return fault(disk.Encrypted, "crypt_method", 32, cryptAES, "AES-encrypted, its key would be needed")
	case h.CryptMethod == cryptLUKS:
		return fault(disk.Encrypted, "crypt_method", 32, cryptLUKS, "LUKS-encrypted, its passphrase would be needed")
	}
	return nil
}

func named(name string) string {
	if name == "" {
		return ""
	}
	return fmt.Sprintf(" (%q)", name)
}

// checkFeatures judges the version 3 fields.
func (h *Header) checkFeatures(compressionType uint8) error {
	if h.Version < 3 {
		h.Compression = disk.Deflate
		return nil
	}
	if h.RefcountOrder > 6 {
		return fault(disk.BadHeader, "refcount_order", 96, uint64(h.RefcountOrder), "at most 6")
	}
	if h.Extended() && h.ClusterBits < minExtendedBits {
		return fault(disk.BadClusterSize, "cluster_bits", 20, uint64(h.ClusterBits), "at least %d with extended L2 entries", minExtendedBits)
	}
	if h.Autoclear&autoclearRawData != 0 && !h.hasDataFile() {
		return fault(disk.BadHeader, "autoclear_features", 88, h.Autoclear, "a raw external data file is said to be there, and none is")
	}
	if (compressionType != 0) != (h.Incompatible&incompatCompression != 0) {
		return fault(disk.BadHeader, "compression_type", 104, uint64(compressionType), "contradicts the compression bit of incompatible_features")
	}
	switch compressionType {
	case 0:
		h.Compression = disk.Deflate
	case 1:
		h.Compression = disk.Zstd
	default:
		return fault(disk.UnknownFeature, "compression_type", 104, uint64(compressionType), "0 (zlib) and 1 (zstd) are known")
	}
	return nil
}

// tables are the header's fields about size and places, as they stand in the file.
type tables struct {
	size             uint64
	l1Size           uint32
	l1Offset         uint64
	reftableOffset   uint64
	reftableClusters uint32
	snapshotsOffset  uint64
}

// checkTables takes over the fields that lead on into the file.
func (h *Header) checkTables(t tables, limits disk.Limits) error {
	if t.size%disk.SectorSize != 0 {
		return fault(disk.VirtualSizeUnaligned, "size", 24, t.size, "no multiple of %d", disk.SectorSize)
	}
	if t.size > uint64(limits.VirtualSize) {
		return fault(disk.VirtualSizeTooLarge, "size", 24, t.size, "disk of %d bytes, %d allowed", t.size, limits.VirtualSize)
	}
	h.Size = int64(t.size)
	if int64(t.l1Size)*8 > maxL1Bytes {
		return fault(disk.LimitExceeded, "l1_size", 36, uint64(t.l1Size), "a L1 table of more than %d bytes", maxL1Bytes)
	}
	h.L1Size = int64(t.l1Size)
	if need := h.l1Needed(); h.L1Size < need {
		return fault(disk.BadHeader, "l1_size", 36, uint64(t.l1Size), "%d entries are needed for the virtual size", need)
	} else if need*8 > limits.Metadata {
		return fault(disk.LimitExceeded, "l1_size", 36, uint64(t.l1Size), "a L1 table of %d bytes, %d allowed", need*8, limits.Metadata)
	}
	var err error
	if h.L1Size > 0 || t.l1Offset != 0 {
		if h.L1TableOffset, err = h.place("l1_table_offset", 40, t.l1Offset, h.L1Size*8); err != nil {
			return err
		}
	}
	if t.reftableClusters == 0 {
		return fault(disk.BadHeader, "refcount_table_clusters", 56, 0, "an image has a refcount table")
	}
	h.RefcountTableClusters = int64(t.reftableClusters)
	reftable := h.RefcountTableClusters << h.ClusterBits
	if reftable > maxReftable {
		return fault(disk.LimitExceeded, "refcount_table_clusters", 56, uint64(t.reftableClusters), "a refcount table of more than %d bytes", maxReftable)
	}
	if h.RefcountTableOffset, err = h.place("refcount_table_offset", 48, t.reftableOffset, reftable); err != nil {
		return err
	}
	if h.Snapshots > maxSnapshots {
		return fault(disk.LimitExceeded, "nb_snapshots", 60, uint64(h.Snapshots), "at most %d", maxSnapshots)
	}
	if h.Snapshots > 0 || t.snapshotsOffset != 0 { // QEMU looks at the place of a table of nothing too
		h.SnapshotsOffset, err = h.place("snapshots_offset", 64, t.snapshotsOffset, 0)
	}
	return err
}

// place checks the offset of a table of n bytes: on a cluster, behind the header, in range.
func (h *Header) place(field string, at int64, offset uint64, n int64) (int64, error) {
	if offset&uint64(h.ClusterSize()-1) != 0 {
		return 0, fault(disk.TableUnaligned, field, at, offset, "no multiple of the cluster size %d", h.ClusterSize())
	}
	if offset == 0 {
		return 0, fault(disk.TableOutOfRange, field, at, offset, "the table would stand on the header")
	}
	off, err := endian.Int64(offset)
	if err == nil {
		_, err = endian.Add(off, n)
	}
	if err != nil {
		return 0, fault(disk.TableOutOfRange, field, at, offset, "table of %d bytes would end past the largest file", n)
	}
	return off, nil
}
