package qcow

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/archdisk/archdisk/endian"
	"github.com/archdisk/archdisk/qcow/disk"
)

// Magic is how every QCOW image begins.
const Magic = "QFI\xfb"

const (
	headerLenV2    = 72  // the fixed length of a version 2 header
	headerLenV3    = 104 // the least length of a version 3 header
	minClusterBits = 9
	maxClusterBits = 21       // QEMU's limit: 2 MiB
	maxL1Bytes     = 32 << 20 // QEMU's limit for the active L1 table
	maxReftable    = 8 << 20  // QEMU's limit for the refcount table
	maxSnapshots   = 65536    // QEMU's limit
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

// Header is the header of a QCOW2 image that has been found sound and readable.
// Offsets and sizes are in bytes.
type Header struct {
	Version               uint32 // 2 or 3
	ClusterBits           uint32 // the cluster size is 1 << ClusterBits
	Size                  int64  // virtual size
	L1Size                int64  // entries of the active L1 table
	L1TableOffset         int64
	RefcountTableOffset   int64
	RefcountTableClusters int64
	Snapshots             uint32 // number of internal snapshots
	Incompatible          uint64
	Compatible            uint64
	Autoclear             uint64
	RefcountOrder         uint32
	HeaderLength          uint32
	Compression           disk.Codec // of compressed clusters
}

// ClusterSize returns the size of a cluster in bytes.
func (h *Header) ClusterSize() int64 { return 1 << h.ClusterBits }

// Dirty says that refcounts may be wrong, which does not matter for reading.
func (h *Header) Dirty() bool { return h.Incompatible&incompatDirty != 0 }

// l2Bits: a L2 table fills one cluster with entries of 8 bytes.
func (h *Header) l2Bits() uint32 { return h.ClusterBits - 3 }

// l1Needed returns how many L1 entries map the virtual size.
func (h *Header) l1Needed() int64 {
	if h.Size == 0 {
		return 0
	}
	return (h.Size-1)>>(h.ClusterBits+h.l2Bits()) + 1
}

// fault builds the error for one field of the header.
func fault(r disk.Reason, field string, offset int64, value uint64, format string, args ...any) error {
	return &disk.FormatError{Format: "qcow2", Reason: r, Field: field, Offset: offset, Value: value,
		Detail: fmt.Sprintf(format, args...)}
}

// ParseHeader reads the header from the first bytes of an image and checks all that can
// be checked there. p should hold the first cluster, or as much of it as there is: names of
// unknown features are looked for in what p has.
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
	d.U32("backing_file_size")
	h.ClusterBits = d.U32("cluster_bits")
	size := d.U64("size")
	crypt := d.U32("crypt_method")
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
	if err := h.checkFeatures(p, compressionType); err != nil {
		return nil, err
	}
	if backingOffset != 0 {
		return nil, fault(disk.BackingFile, "backing_file_offset", 8, backingOffset, "the image is only what differs from another file, which is not opened")
	}
	switch crypt {
	case 0:
	case 1:
		return nil, fault(disk.Encrypted, "crypt_method", 32, 1, "AES-encrypted, its key would be needed")
	case 2:
		return nil, fault(disk.Encrypted, "crypt_method", 32, 2, "LUKS-encrypted, its passphrase would be needed")
	default:
		return nil, fault(disk.Encrypted, "crypt_method", 32, uint64(crypt), "unknown encryption method")
	}
	if err := h.checkTables(tables{size, l1Size, l1Offset, reftableOffset, reftableClusters, snapshotsOffset}, limits); err != nil {
		return nil, err
	}
	return h, nil
}

// checkFeatures judges the version 3 fields.
func (h *Header) checkFeatures(p []byte, compressionType uint8) error {
	if h.Version < 3 {
		return nil
	}
	if h.HeaderLength < headerLenV3 || int64(h.HeaderLength) > h.ClusterSize() {
		return fault(disk.BadHeader, "header_length", 100, uint64(h.HeaderLength), "at least %d and at most a cluster", headerLenV3)
	}
	if h.RefcountOrder > 6 {
		return fault(disk.BadHeader, "refcount_order", 96, uint64(h.RefcountOrder), "at most 6")
	}
	if unknown := h.Incompatible &^ incompatKnown; unknown != 0 {
		return fault(disk.UnknownFeature, "incompatible_features", 72, h.Incompatible, "%s", featureNames(p, h, unknown))
	}
	switch {
	case h.Incompatible&incompatDataFile != 0:
		return fault(disk.ExternalDataFile, "incompatible_features", 72, h.Incompatible, "the data is in another file, which is not opened")
	case h.Incompatible&incompatCorrupt != 0:
		return fault(disk.CorruptBit, "incompatible_features", 72, h.Incompatible, "its last user marked the image as corrupt")
	case h.Incompatible&incompatExtendedL2 != 0:
		return fault(disk.ExtendedL2, "incompatible_features", 72, h.Incompatible, "extended L2 entries (subclusters) are not read")
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
	if h.Version == 2 {
		h.Compression = disk.Deflate
	}
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
	if h.L1Size > 0 {
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
	if h.Snapshots > 0 {
		_, err = h.place("snapshots_offset", 64, t.snapshotsOffset, 0)
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

const (
	extensionEnd      = 0
	extensionFeatures = 0x6803f857
)

// featureNames describes incompatible bits nobody knows, by the image's own name table if
// the header area at hand has one. Spec: qcow2, Feature name table.
func featureNames(p []byte, h *Header, bits uint64) string {
	names := map[int]string{}
	end := min(int64(len(p)), h.ClusterSize())
	for off := int64(h.HeaderLength); off+8 <= end; {
		d := endian.Big(p[off:end], off)
		kind, size := d.U32("type"), int64(d.U32("length"))
		if kind == extensionEnd || size > end-off-8 {
			break
		}
		for kind == extensionFeatures && size >= 48 {
			class, bit, name := d.U8("feature type"), d.U8("bit"), d.Bytes(46, "name")
			if d.Err() != nil {
				break
			}
			if class == 0 && bit < 64 {
				name, _, _ = bytes.Cut(name, []byte{0})
				names[int(bit)] = string(name)
			}
			size -= 48
		}
		off += 8 + (int64(endian.Big(p[off+4:off+8], off).U32("length"))+7)&^7
	}
	var list []string
	for bit := range 64 {
		if bits>>bit&1 == 0 {
			continue
		}
		s := fmt.Sprintf("bit %d", bit)
		if name, ok := names[bit]; ok {
			s += fmt.Sprintf(" %q", name)
		}
		list = append(list, s)
	}
	return "features nobody here knows: " + strings.Join(list, ", ")
}
