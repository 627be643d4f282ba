package qcow

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/archdisk/archdisk/endian"
	"github.com/archdisk/archdisk/qcow/disk"
)

// Snapshot is an internal snapshot: an earlier state of the disk, and perhaps of the
// machine's memory, kept in the same file. Spec: qcow2, Snapshots.
type Snapshot struct {
	ID          string // unique, by habit a number; any bytes
	Name        string // any bytes: print it with %q
	Size        int64  // of the disk in bytes, then
	VMStateSize int64  // of the saved machine state in bytes, 0 for none
	Date        time.Time
	VMClock     time.Duration // the guest's running time
	L1Offset    int64         // of its L1 table
	L1Size      int64         // entries of it
}

// Limits of QEMU on the snapshot table.
const (
	maxSnapshotExtra = 1024
	maxSnapshotTable = 64 << 20
	snapshotEntryLen = 40
	snapshotCost     = 256 // memory for an entry in the list, its strings not counted
)

// snapshotEntry is an entry of the snapshot table.
type snapshotEntry struct {
	Snapshot        // but for L1Offset
	sound    bool   // what Snapshot says is possible
	l1Offset uint64 // as it stands in the file
	extraLen uint32 // bytes of extra data
	at       int64  // in the file
}

// snapshotTable reads the entries of a snapshot table one by one. Behind the end of the
// file it goes on with zeros.
type snapshotTable struct {
	in       *bufio.Reader
	start    int64
	pos      int64
	diskSize int64
}

func newSnapshotTable(f padded, off, diskSize int64) *snapshotTable {
	in := io.NewSectionReader(f, off, math.MaxInt64-off)
	return &snapshotTable{in: bufio.NewReaderSize(in, 32<<10), start: off, pos: off, diskSize: diskSize}
}

// take reads n bytes: 131070 at most, since lengths of strings have 16 bits.
func (t *snapshotTable) take(n int64) ([]byte, error) {
	p := make([]byte, n)
	m, err := io.ReadFull(t.in, p)
	t.pos += int64(m)
	return p, err
}

// next reads an entry.
func (t *snapshotTable) next() (e snapshotEntry, err error) {
	if _, err = t.take(-t.pos & 7); err != nil {
		return e, err
	}
	e.at = t.pos
	p, err := t.take(snapshotEntryLen)
	if err != nil {
		return e, err
	}
	d := endian.Big(p, e.at)
	e.l1Offset = d.U64("l1_table_offset")
	e.L1Size = int64(d.U32("l1_size"))
	idLen := int64(d.U16("id_str_size"))
	nameLen := int64(d.U16("name_size"))
	seconds := int64(d.U32("date_sec"))
	e.Date = time.Unix(seconds, int64(d.U32("date_nsec"))).UTC()
	e.VMClock = time.Duration(min(d.U64("vm_clock_nsec"), math.MaxInt64))
	vmState := uint64(d.U32("vm_state_size"))
	e.extraLen = d.U32("extra_data_size")
	diskSize := uint64(t.diskSize)
	if e.extraLen > maxSnapshotExtra {
		return e, fault(disk.LimitExceeded, "extra_data_size", e.at+36, uint64(e.extraLen), "extra data of a snapshot, at most %d bytes", maxSnapshotExtra)
	}
	if p, err = t.take(int64(e.extraLen)); err != nil {
		return e, err
	}
	d = endian.Big(p, e.at+snapshotEntryLen)
	if e.extraLen >= 8 {
		vmState = d.U64("vm_state_size_large")
	}
	if e.extraLen >= 16 {
		diskSize = d.U64("disk_size")
	}
	if t.pos-t.start+idLen+nameLen > maxSnapshotTable {
		return e, fault(disk.LimitExceeded, "nb_snapshots", 60, 0, "a snapshot table of more than %d bytes", maxSnapshotTable)
	}
	if p, err = t.take(idLen + nameLen); err != nil {
		return e, err
	}
	e.ID, e.Name = string(p[:idLen]), string(p[idLen:])
	e.VMStateSize, e.Size = int64(vmState), int64(diskSize)
	e.sound = e.VMStateSize >= 0 && e.Size >= 0
	return e, nil
}

// Snapshots lists the internal snapshots.
//
// Errors: a [*disk.FormatError], or the reader's.
func (img *Image) Snapshots() ([]Snapshot, error) {
	h := img.h
	table := newSnapshotTable(padded{img.r, img.size}, h.SnapshotsOffset, h.Size)
	var list []Snapshot
	held := int64(0)
	for range h.Snapshots {
		e, err := table.next()
		if err != nil {
			return nil, err
		}
		if table.pos > img.size {
			return nil, &disk.FormatError{Format: "qcow2", Reason: disk.Truncated, Offset: img.size, Detail: fmt.Sprintf("file ends before snapshot %d of %d", len(list)+1, h.Snapshots)}
		}
		if held += snapshotCost + int64(len(e.ID)+len(e.Name)); held > img.limits.Metadata {
			return nil, fault(disk.LimitExceeded, "nb_snapshots", 60, uint64(h.Snapshots), "IDs and names of snapshots take more than %d bytes", img.limits.Metadata)
		}
		if e.L1Offset, err = h.place("l1_table_offset", e.at, e.l1Offset, e.L1Size*8); err != nil && e.L1Size > 0 {
			return nil, err
		}
		if !e.sound {
			return nil, fault(disk.BadEntry, "disk_size", e.at, uint64(e.Size), "of snapshot %s", quote(e.Name))
		}
		list = append(list, e.Snapshot)
	}
	return list, nil
}

// OpenSnapshot returns the disk as s, one of [Image.Snapshots], has it. It reads through img,
// which must stay open, and has caches of its own of the same size.
//
// Errors: a [*disk.FormatError], or the reader's.
func (img *Image) OpenSnapshot(s Snapshot) (*Image, error) {
	h := *img.h
	h.Size, h.L1Size, h.L1TableOffset = s.Size, s.L1Size, s.L1Offset
	switch {
	case s.Size%disk.SectorSize != 0:
		return nil, fault(disk.VirtualSizeUnaligned, "disk_size", -1, uint64(s.Size), "of snapshot %s: no multiple of %d", quote(s.Name), disk.SectorSize)
	case s.Size > img.limits.VirtualSize:
		return nil, fault(disk.VirtualSizeTooLarge, "disk_size", -1, uint64(s.Size), "snapshot %s of %d bytes, %d allowed", quote(s.Name), s.Size, img.limits.VirtualSize)
	case h.l1Needed() > s.L1Size:
		return nil, fault(disk.BadEntry, "l1_size", -1, uint64(s.L1Size), "of snapshot %s: %d entries are needed for its size", quote(s.Name), h.l1Needed())
	case h.l1Needed()*8 > img.limits.Metadata:
		return nil, fault(disk.LimitExceeded, "l1_size", -1, uint64(s.L1Size), "a L1 table of %d bytes, %d allowed", h.l1Needed()*8, img.limits.Metadata)
	}
	snap := &Image{h: &h, r: img.r, size: img.size, limits: img.limits, data: img.data, backing: img.backing,
		l2: newCache[[]byte](img.l2.limit), decoded: newCache[[]byte](img.decoded.limit)}
	if err := snap.readL1(); err != nil {
		return nil, err
	}
	return snap, nil
}

// snapshots counts the snapshot table and what it leads to.
func (c *checker) snapshots(ctx context.Context) error {
	h := c.h
	n, offset := binary.BigEndian.Uint32(c.head[60:]), binary.BigEndian.Uint64(c.head[64:])
	if n > maxSnapshots {
		c.found(CheckError, FoundBadSnapshot, 1, 60, -1, "nb_snapshots = %d, at most %d", n, maxSnapshots)
		return nil
	}
	if offset&uint64(h.ClusterSize()-1) != 0 || offset > maxFile {
		c.found(CheckError, FoundBadSnapshot, 1, 64, -1, "snapshots_offset = %#x of %d snapshots", offset, n)
		return nil
	}
	if n == 0 {
		return nil
	}
	if c.h.hasDataFile() {
		c.found(Corruption, FoundBadSnapshot, 1, 60, -1, "%d snapshots in an image with an external data file", n)
	}
	table := newSnapshotTable(c.file, int64(offset), h.Size)
	for range n {
		if err := ctx.Err(); err != nil {
			return err
		}
		e, err := table.next()
		if err != nil {
			return c.fault(err, FoundBadSnapshot)
		}
		if err := c.reserve(snapshotCost+int64(len(e.ID)+len(e.Name)), "the list of snapshots"); err != nil {
			return err
		}
		if h.Version >= 3 && e.extraLen < 16 {
			c.found(Corruption, FoundBadSnapshot, 1, e.at+36, -1, "snapshot %s has %d bytes of extra data, version 3 wants 16", quote(e.Name), e.extraLen)
		}
		if err := c.snapshotL1(ctx, e); err != nil {
			return err
		}
	}
	return c.refer(disk.Range{Off: int64(offset), Len: table.pos - int64(offset)}, 1, usedTable, 64, -1)
}

// snapshotL1 walks the L1 table of a snapshot, and lists the snapshot if it has one.
func (c *checker) snapshotL1(ctx context.Context, e snapshotEntry) error {
	switch {
	case e.l1Offset&uint64(c.h.ClusterSize()-1) != 0:
		c.found(Corruption, FoundUnaligned, 1, e.at, -1, "L1 table of snapshot %s at %#x", quote(e.Name), e.l1Offset)
		return nil
	case e.L1Size*8 > maxL1Bytes:
		c.found(Corruption, FoundBadSnapshot, 1, e.at+8, -1, "L1 table of snapshot %s has %d entries", quote(e.Name), e.L1Size)
		return nil
	case e.L1Size > 0 && e.l1Offset > maxFile:
		c.found(CheckError, FoundOutOfRange, 1, e.at, -1, "L1 table of snapshot %s at %#x", quote(e.Name), e.l1Offset)
		return nil
	}
	if e.L1Size > 0 {
		e.L1Offset = int64(e.l1Offset)
	}
	if e.sound && (e.L1Size == 0 || e.L1Offset > 0) {
		c.result.Snapshots = append(c.result.Snapshots, e.Snapshot)
	}
	return c.walkL1(ctx, e.L1Offset, e.L1Size, 0)
}

// quote makes a name from an image fit for a message.
func quote(name string) string {
	const most = 64
	if len(name) > most {
		return fmt.Sprintf("%q and %d bytes more", name[:most], len(name)-most)
	}
	return fmt.Sprintf("%q", name)
}
