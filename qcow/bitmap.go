package qcow

import (
	"context"

	"github.com/archdisk/archdisk/endian"
	"github.com/archdisk/archdisk/qcow/disk"
)

// Bitmap is a persistent bitmap: which parts of the disk were written since some moment.
// Spec: qcow2, Bitmaps.
type Bitmap struct {
	Name        string // unique in the image; any bytes: print it with %q
	Granularity int64  // bytes of the disk for one bit
	Flags       BitmapFlags
	TableOffset int64
	TableSize   int64 // entries of the bitmap table
}

// BitmapFlags say what state a bitmap is in.
type BitmapFlags uint32

// The flags of bitmaps.
const (
	BitmapInUse BitmapFlags = 1 << iota // not saved properly: its content means nothing
	BitmapAuto                          // to be kept up while the disk is written
)

// Limits of QEMU on bitmaps.
const (
	maxBitmaps         = 65535
	maxBitmapDirectory = maxBitmaps * (bitmapEntryLen + 1023 + 1)
	maxBitmapTable     = 0x8000000   // entries
	maxBitmapBytes     = 0x2000_0000 // of one bitmap's data
	maxBitmapName      = 1023
	bitmapExtensionLen = 24
	bitmapEntryLen     = 24
	bitmapCost         = 192 // memory for an entry in the lists, its name not counted
)

// Bits of bitmap table entries. Spec: qcow2, Bitmap table.
const (
	bitmapOffset   = 0x00ff_ffff_ffff_fe00
	bitmapReserved = 0xff00_0000_0000_01fe
	bitmapOnes     = 1 << 0 // with no offset
)

// directory is where the bitmap directory stands.
type directory struct {
	bitmaps uint32
	place   disk.Range
}

// parseBitmapExtension checks the content of the bitmaps extension. Spec: qcow2, Bitmaps extension.
func parseBitmapExtension(h *Header, at int64, p []byte) (directory, error) {
	var none directory
	d := endian.Big(p, at)
	n, reserved, size, offset := d.U32("nb_bitmaps"), d.U32("reserved"), d.U64("bitmap_directory_size"), d.U64("bitmap_directory_offset")
	switch {
	case reserved != 0:
		return none, fault(disk.BadHeader, "bitmaps extension", at+4, uint64(reserved), "reserved field is not zero")
	case n == 0 || n > maxBitmaps:
		return none, fault(disk.BadHeader, "nb_bitmaps", at, uint64(n), "1 to %d are allowed", maxBitmaps)
	case size == 0 || size > maxBitmapDirectory:
		return none, fault(disk.LimitExceeded, "bitmap_directory_size", at+8, size, "1 to %d bytes are allowed", maxBitmapDirectory)
	}
	off, err := h.place("bitmap_directory_offset", at+16, offset, int64(size))
	return directory{bitmaps: n, place: disk.Range{Off: off, Len: int64(size)}}, err
}

// checkBitmaps refuses a bitmaps extension that QEMU refuses: one of another length, or, where
// the bitmaps count, of impossible content.
func (h *Header) checkBitmaps(e Extension, p []byte) (directory, error) {
	switch {
	case e.Data.Len != bitmapExtensionLen:
		return directory{}, fault(disk.BadHeader, e.String(), e.Data.Off-8, extensionBitmaps, "%d bytes long instead of %d", e.Data.Len, bitmapExtensionLen)
	case h.Autoclear&autoclearBitmaps == 0 || p == nil:
		return directory{}, nil
	}
	return parseBitmapExtension(h, e.Data.Off, p)
}

// parseDirectory checks the bitmap directory p. Spec: qcow2, Bitmap directory.
func parseDirectory(h *Header, dir directory, p []byte) ([]Bitmap, error) {
	list, names := make([]Bitmap, 0, dir.bitmaps), make(map[string]bool, dir.bitmaps)
	for at := dir.place.Off; len(p) > 0; {
		b, n, err := parseBitmap(h, at, p)
		if err != nil {
			return nil, err
		}
		if len(list) == int(dir.bitmaps) {
			return nil, fault(disk.BadEntry, "nb_bitmaps", at, uint64(dir.bitmaps), "the directory holds more bitmaps")
		}
		if names[b.Name] {
			return nil, fault(disk.BadEntry, "name", at, 0, "a second bitmap %s", quote(b.Name))
		}
		names[b.Name] = true
		list, p, at = append(list, b), p[n:], at+n
	}
	if len(list) != int(dir.bitmaps) {
		return nil, fault(disk.BadEntry, "nb_bitmaps", dir.place.End(), uint64(dir.bitmaps), "the directory holds %d bitmaps", len(list))
	}
	return list, nil
}

// parseBitmap reads the entry at the start of p, which stands at file offset at, and
// returns its length.
func parseBitmap(h *Header, at int64, p []byte) (b Bitmap, n int64, err error) {
	d := endian.Big(p, at)
	offset := d.U64("bitmap_table_offset")
	entries := d.U32("bitmap_table_size")
	flags := d.U32("flags")
	kind := d.U8("type")
	bits := d.U8("granularity_bits")
	nameLen := d.U16("name_size")
	extra := d.U32("extra_data_size")
	n = (bitmapEntryLen + int64(nameLen) + int64(extra) + 7) &^ 7
	if d.Err() != nil || n > int64(len(p)) {
		return b, 0, fault(disk.BadEntry, "bitmap directory", at, 0, "an entry ends behind the directory")
	}
	name := string(p[bitmapEntryLen+int64(extra):][:nameLen])
	bad := func(field string, delta int64, v uint64) (Bitmap, int64, error) {
		return b, 0, fault(disk.BadEntry, field, at+delta, v, "of bitmap %s", quote(name))
	}
	data := uint64(entries) << h.ClusterBits
	inUse := BitmapFlags(flags)&BitmapInUse != 0
	switch {
	case extra != 0:
		return bad("extra_data_size", 20, uint64(extra))
	case entries == 0 || entries > maxBitmapTable || data > maxBitmapBytes:
		return bad("bitmap_table_size", 8, uint64(entries))
	case flags&^uint32(BitmapInUse|BitmapAuto) != 0:
		return bad("flags", 12, uint64(flags))
	case kind != 1:
		return bad("type", 16, uint64(kind))
	case bits < 9 || bits > 31:
		return bad("granularity_bits", 17, uint64(bits))
	case nameLen > maxBitmapName:
		return bad("name_size", 18, uint64(nameLen))
	case !inUse && int64(entries) != h.bitmapClusters(bits):
		return bad("bitmap_table_size", 8, uint64(entries)) // the disk needs more, or fewer
	}
	off, err := h.place("bitmap_table_offset", at, offset, int64(entries)*8)
	return Bitmap{Name: name, Granularity: 1 << bits, Flags: BitmapFlags(flags), TableOffset: off, TableSize: int64(entries)}, n, err
}

// bitmapClusters returns how many clusters a bitmap of the whole disk fills.
func (h *Header) bitmapClusters(granularityBits uint8) int64 {
	span := granularityBits + 3 + uint8(h.ClusterBits) // 31 + 3 + 21 at most
	return h.Size>>span + min(h.Size&(1<<span-1), 1)
}

// Bitmaps lists the persistent bitmaps, none if the image was last written by a program that
// knows no bitmaps: those that it has are then out of date.
//
// Errors: a [*disk.FormatError], or the reader's.
func (img *Image) Bitmaps() ([]Bitmap, error) {
	if img.h.Autoclear&autoclearBitmaps == 0 {
		return nil, nil
	}
	var dir directory
	for _, e := range img.h.Extensions {
		if e.Type != extensionBitmaps {
			continue
		}
		p, err := img.file(e.Data, "the bitmaps extension")
		if err == nil {
			dir, err = img.h.checkBitmaps(e, p)
		}
		if err != nil {
			return nil, err
		}
	}
	need := 2*dir.place.Len + int64(dir.bitmaps)*bitmapCost
	if need > img.limits.Metadata || int64(dir.bitmaps)*bitmapEntryLen > dir.place.Len {
		return nil, fault(disk.LimitExceeded, "bitmap_directory_size", dir.place.Off, uint64(dir.place.Len), "of %d bitmaps; %d bytes of memory are allowed for it", dir.bitmaps, img.limits.Metadata)
	}
	p, err := img.file(dir.place, "the bitmap directory")
	if err != nil || dir.bitmaps == 0 {
		return nil, err
	}
	return parseDirectory(img.h, dir, p)
}

// extensions counts what the header extensions lead to. Of two of a kind the last counts.
func (c *checker) extensions(ctx context.Context) error {
	var dir directory
	var crypto disk.Range
	found := false
	err := c.h.eachExtension(c.head, func(e Extension, data []byte) (err error) {
		switch e.Type {
		case extensionBackingFormat:
			err = e.checkBackingFormat()
		case extensionCrypto:
			found = true
			crypto, err = c.cryptoHeader(e.Data.Off, data)
		case extensionBitmaps:
			dir, err = c.h.checkBitmaps(e, data)
			if err == nil && c.h.Autoclear&autoclearBitmaps == 0 {
				c.found(Note, FoundBadBitmap, 0, e.Data.Off, -1, "written by a program that knows no bitmaps: those of the image do not count")
			}
		}
		return err
	})
	if err == nil && !found && c.h.CryptMethod == cryptLUKS {
		err = fault(disk.BadHeader, "crypt_method", 32, cryptLUKS, "no encryption header is named")
	}
	if err != nil {
		return c.fault(err, FoundBadHeader)
	}
	if err := c.refer(crypto, 1, usedTable, 0, -1); err != nil {
		return err
	}
	if dir.bitmaps == 0 {
		return nil
	}
	return c.bitmaps(ctx, dir)
}

// cryptoHeader returns where the LUKS header stands. Spec: qcow2, Full disk encryption
// header pointer.
func (c *checker) cryptoHeader(at int64, p []byte) (disk.Range, error) {
	d := endian.Big(p, at)
	off, n := d.U64("offset"), d.U64("length")
	if len(p) != 16 || c.h.CryptMethod != cryptLUKS || off > maxFile || n > maxFile || off&uint64(c.h.ClusterSize()-1) != 0 {
		return disk.Range{}, fault(disk.BadHeader, "encryption header", at, off, "%d bytes long, for encryption method %d", n, c.h.CryptMethod)
	}
	return disk.Range{Off: int64(off), Len: int64(n)}, nil
}

// bitmaps counts the bitmap directory, and tables and data of its bitmaps.
func (c *checker) bitmaps(ctx context.Context, dir directory) error {
	if err := c.refer(dir.place, 1, usedTable, 0, -1); err != nil {
		return err
	}
	if dir.place.Len > c.size || int64(dir.bitmaps)*bitmapEntryLen > dir.place.Len {
		c.found(CheckError, FoundBadBitmap, 1, dir.place.Off, -1, "directory of %d bitmaps in %d bytes, of a file of %d", dir.bitmaps, dir.place.Len, c.size)
		return nil
	}
	if err := c.reserve(2*dir.place.Len+int64(dir.bitmaps)*bitmapCost, "the bitmap directory"); err != nil {
		return err
	}
	p := make([]byte, dir.place.Len)
	if err := c.read(p, dir.place.Off); err != nil {
		return err
	}
	list, err := parseDirectory(c.h, dir, p)
	if err != nil {
		return c.fault(err, FoundBadBitmap)
	}
	c.result.Bitmaps = list
	for _, b := range list {
		if err := c.refer(disk.Range{Off: b.TableOffset, Len: b.TableSize * 8}, 1, usedTable, b.TableOffset, -1); err != nil {
			return err
		}
		err := c.eachEntry(ctx, b.TableOffset, b.TableSize, func(i int64, entry uint64) error {
			at, off := b.TableOffset+i*8, int64(entry&bitmapOffset)
			if entry&bitmapReserved != 0 || off&(c.h.ClusterSize()-1) != 0 || off != 0 && entry&bitmapOnes != 0 {
				c.found(CheckError, FoundBadBitmap, 1, at, -1, "table entry %#x of bitmap %s", entry, quote(b.Name))
				return nil
			}
			if off == 0 {
				return nil // all zeros, or all ones
			}
			return c.refer(disk.Range{Off: off, Len: c.h.ClusterSize()}, 1, usedTable, at, -1)
		})
		if err != nil {
			return err
		}
	}
	return nil
}
