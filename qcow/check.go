package qcow

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/archdisk/archdisk/endian"
	"github.com/archdisk/archdisk/qcow/disk"
)

// CheckOptions adjusts [Check]. The zero value is ready.
type CheckOptions struct {
	Budget      *disk.Budget // memory for tables, counters and lists; nil for one of [disk.DefaultMemory]
	MaxFindings int          // findings kept in the result; default 256
}

// Check counts all references to the clusters of the image in the first size bytes of r,
// compares them with the stored refcounts, and looks at every entry of the tables on the
// way: those of the active state, of internal snapshots, and of persistent bitmaps. It
// repairs nothing and judges as QEMU does, so that counts and verdict are those of qemu-img
// check; what QEMU does not look for is a [Note].
//
// Images that cannot be read for what they need or are (backing file, data file,
// encryption, extended L2 entries, corrupt bit) can be checked: other files are not opened,
// guest data is not read.
//
// A damaged image is no error: errors are the context's, the reader's, and
// [*disk.FormatError] where the header leads nowhere, more memory than the budget has left is
// needed ([disk.ErrLimit]), or tables would be read over and over (the same). Memory goes
// with the clusters referred to, two to six bytes for each, and time with the file's size.
func Check(ctx context.Context, r io.ReaderAt, size int64, o CheckOptions) (*CheckResult, error) {
	if o.Budget == nil {
		o.Budget = disk.NewBudget(0)
	}
	if o.MaxFindings <= 0 {
		o.MaxFindings = 256
	}
	c := &checker{o: o, size: max(size, 0), result: new(CheckResult)}
	c.file = padded{r, c.size}
	defer func() { o.Budget.Release(c.held) }()
	if err := c.check(ctx); err != nil {
		return nil, err
	}
	return c.result, nil
}

// checker is the state of one check.
type checker struct {
	o      CheckOptions
	h      *Header
	head   []byte // the first cluster, as far as the file has it
	file   padded
	size   int64 // of the file
	result *CheckResult
	held   int64 // of the budget
	work   int64 // bytes of tables that may still be read
	stop   error // the first limit exceeded, which ends the check

	clusters int64 // that are compared: those of the file, and one more if it is referred to
	stored   refcounts
	refs     references
	l2       []l2Use
}

// padded is a file that goes on with zeros behind its end, which is how QEMU sees it.
type padded struct {
	r    io.ReaderAt
	size int64
}

// ReadAt never comes to an end.
func (f padded) ReadAt(p []byte, off int64) (int, error) {
	n := min(max(f.size-off, 0), int64(len(p)))
	clear(p[n:])
	if err := readFull(f.r, p[:n], off); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (c *checker) reserve(n int64, what string) error {
	if err := c.o.Budget.Reserve(n, what); err != nil {
		c.stop = &disk.FormatError{Format: "qcow2", Reason: disk.LimitExceeded, Offset: -1, Err: err}
		return c.stop
	}
	c.held += n
	return nil
}

func (c *checker) giveBack(n int64) {
	c.o.Budget.Release(n)
	c.held -= n
}

// read reads a part of a table. All such reads together are bounded, so that tables which
// overlap each other, or entries that ask for ever another refcount block, cannot keep the
// check busy for ever. A sound image has no cluster in two tables, and asks for one refcount
// block, of a cluster, for each cluster of its disk at the very most.
func (c *checker) read(p []byte, off int64) error {
	if c.work -= int64(len(p)); c.work < 0 {
		c.stop = &disk.FormatError{Format: "qcow2", Reason: disk.LimitExceeded, Offset: -1,
			Detail: "the same tables would have to be read too often"}
		return c.stop
	}
	return readFull(c.file, p, off)
}

// found counts a finding n times and keeps it if there is room.
func (c *checker) found(s Severity, k FindingKind, n, off, guest int64, format string, args ...any) {
	switch s {
	case Corruption:
		c.result.Corruptions += n
	case Leak:
		c.result.Leaks += n
	case CheckError:
		c.result.CheckErrors += n
	case Note:
		n = 0
	}
	if len(c.result.Findings) >= c.o.MaxFindings {
		c.result.Omitted++
		return
	}
	c.result.Findings = append(c.result.Findings, Finding{s, k, n, off, guest, fmt.Sprintf(format, args...)})
}

// fault turns an error about the image's content into a finding; others are returned.
func (c *checker) fault(err error, k FindingKind) error {
	var fe *disk.FormatError
	if c.stop != nil || !errors.As(err, &fe) {
		return err // nothing of the image's: it ends the check
	}
	c.found(CheckError, k, 1, fe.Offset, -1, "%v", fe)
	return nil
}

// check takes the refcount blocks last, as QEMU does: they are judged by what else refers to
// them, and by how far the image reaches then.
func (c *checker) check(ctx context.Context) error {
	if err := c.open(); err != nil {
		return err
	}
	c.notes()
	for _, step := range []func(context.Context) error{
		c.loadReftable, c.activeState, c.snapshots, c.walkL2Tables, c.extensions, c.refcountBlocks, c.compare,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// open reads the header.
func (c *checker) open() error {
	head := make([]byte, min(headSize, c.size))
	if err := readFull(c.file.r, head, 0); err != nil {
		return err
	}
	h, err := parseLeniently(head)
	if err != nil {
		return err
	}
	c.h = h
	if n := min(h.ClusterSize(), c.size); n > headSize {
		if err := c.reserve(n, "the header cluster"); err != nil {
			return err
		}
		head = make([]byte, n)
		if err := readFull(c.file.r, head, 0); err != nil {
			return err
		}
	}
	c.head = head[:min(int64(len(head)), h.ClusterSize())]
	c.clusters = c.size>>h.ClusterBits + min(c.size&(h.ClusterSize()-1), 1)
	if c.clusters > math.MaxInt32 { // QEMU's limit
		return fault(disk.LimitExceeded, "file size", -1, uint64(c.size), "%d clusters, at most %d", c.clusters, math.MaxInt32)
	}
	c.work = 4*c.size + 64<<20
	c.result.TotalClusters = h.Size>>h.ClusterBits + min(h.Size&(h.ClusterSize()-1), 1)
	c.refs = references{chunks: map[int64]*referenceChunk{}, max: math.MaxUint64 >> (64 - uint(1)<<h.RefcountOrder), reserve: c.reserve}
	return nil
}

// parseLeniently gives [ParseHeader] a header without the fields that keep an image from
// being read and not from being checked, and puts them back into the result.
func parseLeniently(head []byte) (*Header, error) {
	unlimited := disk.Limits{VirtualSize: math.MaxInt64, Metadata: math.MaxInt64}
	if len(head) < headerLenV2 {
		return ParseHeader(head, unlimited) // which says what is missing
	}
	const anywhere = 1 << maxClusterBits // an offset that is right for any cluster size
	be, p := binary.BigEndian, slices.Clone(head)
	backing := be.Uint64(p[8:])
	be.PutUint64(p[8:], 0)
	size := be.Uint64(p[24:])
	be.PutUint64(p[24:], size&^(disk.SectorSize-1))
	l1, reftable := be.Uint64(p[40:]), be.Uint64(p[48:])
	if l1 == 0 || be.Uint32(p[36:]) == 0 { // no table, or none that matters
		be.PutUint64(p[40:], anywhere)
	}
	if reftable == 0 {
		be.PutUint64(p[48:], anywhere)
	}
	reftableClusters := be.Uint32(p[56:])
	if reftableClusters == 0 {
		be.PutUint32(p[56:], 1)
	}
	be.PutUint32(p[60:], 0) // snapshots
	be.PutUint64(p[64:], 0)
	fixed, autoclear := int64(headerLenV2), uint64(0)
	extensions := fixed
	if be.Uint32(p[4:]) >= 3 && len(p) >= headerLenV3 {
		fixed = headerLenV3
		autoclear, extensions = be.Uint64(p[88:]), int64(be.Uint32(p[100:]))
		be.PutUint64(p[88:], autoclear&^autoclearRawData)
	}
	if extensions >= fixed && extensions <= int64(len(p))-8 {
		clear(p[extensions:][:8]) // none: they are checked later
	}
	h, err := ParseHeader(p, unlimited)
	if err != nil {
		return nil, err
	}
	h.Autoclear, h.RefcountTableClusters = autoclear, int64(reftableClusters)
	if l1 == 0 {
		h.L1TableOffset = 0
	}
	if reftable == 0 {
		h.RefcountTableOffset = 0
	}
	if backing < uint64(h.ClusterSize()) {
		h.BackingFileOffset = int64(backing)
	}
	h.Size = int64(size) // which QEMU rounds down, but not here
	if need := h.l1Needed(); h.L1Size < need {
		return nil, fault(disk.BadHeader, "l1_size", 36, uint64(h.L1Size), "%d entries are needed for the virtual size", need)
	}
	h.Size &^= disk.SectorSize - 1
	return h, nil
}

// notes says what a reader would stumble over, and what QEMU refuses in the header.
func (c *checker) notes() {
	h, be := c.h, binary.BigEndian
	if backing, length := be.Uint64(c.head[8:]), be.Uint32(c.head[16:]); backing != 0 {
		c.found(Note, FoundState, 0, 8, -1, "needs a backing file, which is not checked")
		if room := uint64(h.ClusterSize()); backing > room || uint64(length) > min(1023, room-backing) {
			c.found(CheckError, FoundBadHeader, 1, 8, -1, "the backing file's name of %d bytes at %#x is not in the header's cluster, or too long", length, backing)
		}
	}
	if l1 := be.Uint64(c.head[40:]); h.L1Size == 0 && (l1&uint64(h.ClusterSize()-1) != 0 || l1 > math.MaxInt64) {
		c.found(CheckError, FoundBadHeader, 1, 40, -1, "l1_table_offset = %#x of no table", l1)
	}
	if c.h.CryptMethod != 0 {
		c.found(Note, FoundState, 0, 32, -1, "encrypted: the data is not looked at")
	}
	if h.Dirty() {
		c.found(Note, FoundState, 0, 72, -1, "dirty bit: the image was not closed, refcounts may be wrong")
	}
	if h.Incompatible&incompatCorrupt != 0 {
		c.found(Note, FoundState, 0, 72, -1, "corrupt bit: its last user marked the image as corrupt")
	}
	if c.h.hasDataFile() {
		c.found(Note, FoundState, 0, 72, -1, "the data is in another file, which is not checked")
	} else if h.Autoclear&autoclearRawData != 0 {
		c.found(CheckError, FoundBadHeader, 1, 88, -1, "claims a raw external data file and has none")
	}
}

// refer counts n references to each host cluster of r. at and guest say who refers.
func (c *checker) refer(r disk.Range, n int64, u usage, at, guest int64) error {
	if r.Len <= 0 || n == 0 {
		return nil
	}
	bits := c.h.ClusterBits
	// The last cluster of a file need not be whole. QEMU counts the file in sectors.
	file := (c.size + disk.SectorSize - 1) &^ (disk.SectorSize - 1)
	if end, err := endian.Add(r.Off, r.Len); err != nil || end-file >= c.h.ClusterSize() {
		c.found(Corruption, FoundOutOfRange, n, at, guest, "%s at %s, file ends at %#x", u, r, c.size)
		return nil //nolint:nilerr // a finding
	}
	for i := r.Off >> bits; i <= (r.End()-1)>>bits; i++ {
		over, was, err := c.refs.add(i, uint64(n), u)
		if err != nil {
			return err
		}
		c.clusters = max(c.clusters, i+1)
		if over > 0 {
			c.found(Corruption, FoundRefcountOverflow, int64(over), i<<bits, guest, "more than %d references", c.refs.max)
		}
		if u.clash(was) && was&usedTold == 0 {
			c.found(Note, FoundOverlap, 0, i<<bits, guest, "%s and also %s, which the entry at %#x names", was, u, at)
		}
	}
	return nil
}
