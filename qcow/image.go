package qcow

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"sync"

	"github.com/archdisk/archdisk/qcow/disk"
)

// OpenOptions adjusts [Open]. The zero value is ready.
type OpenOptions struct {
	Limits disk.Limits
	Cache  int64 // memory for L2 tables and decoded clusters in bytes; default 8 MiB
	// Files opens backing files and external data files; nil refuses images that need one.
	Files OpenFunc
}

// Image is the guest's disk in a QCOW2 image, to be read at any offset. Entries are
// checked as they are used; that clusters do not overlap is checked by [Layout] only, which
// sees them all. Safe for concurrent use.
type Image struct {
	h       *Header
	r       io.ReaderAt
	size    int64 // of the file
	limits  disk.Limits
	data    File // where plain clusters are: the image file, or another
	backing File
	closers []func() error
	l1      []int64

	mu       sync.Mutex
	l2       *cache[[]byte]
	decoded  *cache[[]byte]
	decoders []*disk.Decoder
}

const headSize = 64 << 10

// Open reads the header and the L1 table of the image in the first size bytes of r, which
// stays the caller's and must outlive the Image.
func Open(r io.ReaderAt, size int64, o OpenOptions) (*Image, error) {
	if o.Cache <= 0 {
		o.Cache = 8 << 20
	}
	return open(r, size, o, nil)
}

func open(r io.ReaderAt, size int64, o OpenOptions, seen []string) (*Image, error) {
	head := make([]byte, min(headSize, max(size, 0)))
	if err := readFull(r, head, 0); err != nil {
		return nil, err
	}
	h, err := ParseHeader(head, o.Limits)
	if err != nil {
		return nil, err
	}
	if err := h.readable(o.Limits, o.Files); err != nil {
		return nil, err
	}
	if h.BackingFileOffset != 0 {
		o.Cache /= 2 // the other half is for what stands below
	}
	img := &Image{h: h, r: r, size: size, limits: o.Limits.WithDefaults(), data: File{ReaderAt: r, Size: size},
		l2:      newCache[[]byte](int(o.Cache / 2 / h.ClusterSize())),
		decoded: newCache[[]byte](int(o.Cache / 2 / h.ClusterSize()))}
	if err := img.readL1(); err != nil {
		return nil, err
	}
	if err := img.openOthers(o, seen); err != nil {
		return nil, errors.Join(err, img.Close())
	}
	return img, nil
}

func readFull(r io.ReaderAt, p []byte, off int64) error {
	if len(p) == 0 {
		return nil
	}
	n, err := r.ReadAt(p, off)
	if n == len(p) {
		return nil
	}
	if err == nil || err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("qcow: read of %d bytes at %#x: %w", len(p), off, err)
}

func (img *Image) readL1() error {
	h := img.h
	n := h.l1Needed()
	table, err := img.file(disk.Range{Off: h.L1TableOffset, Len: n * 8}, "the L1 table")
	if err != nil {
		return err
	}
	img.l1 = make([]int64, n)
	for i := range img.l1 {
		img.l1[i], err = h.l2Table(binary.BigEndian.Uint64(table[i*8:]), h.L1TableOffset+int64(i)*8)
		if err != nil {
			return err
		}
	}
	return nil
}

// file reads bytes of the image file that must be there.
func (img *Image) file(r disk.Range, what string) ([]byte, error) {
	if r.Len > 0 && r.Off > img.size-r.Len {
		return nil, &disk.FormatError{Format: "qcow2", Reason: disk.Truncated, Offset: img.size,
			Detail: fmt.Sprintf("file ends before %s %s", what, r)}
	}
	p := make([]byte, r.Len)
	if err := readFull(img.r, p, r.Off); err != nil {
		return nil, err
	}
	return p, nil
}

// Header returns the image's header.
func (img *Image) Header() *Header { return img.h }

// Size returns the virtual size in bytes.
func (img *Image) Size() int64 { return img.h.Size }

// Close frees the image's memory and closes what its [OpenFunc] opened. The reader stays open:
// it is the caller's.
func (img *Image) Close() error {
	img.mu.Lock()
	defer img.mu.Unlock()
	for _, d := range img.decoders {
		d.Close()
	}
	img.decoders, img.l2, img.decoded = nil, newCache[[]byte](1), newCache[[]byte](1)
	var errs []error
	for _, f := range slices.Backward(img.closers) {
		errs = append(errs, f())
	}
	img.closers = nil
	return errors.Join(errs...)
}

// ReadAt reads from the guest's disk. It returns [io.EOF] only where the disk ends.
func (img *Image) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("qcow: read at negative offset %d", off)
	}
	if len(p) == 0 {
		return 0, nil
	}
	if off >= img.h.Size {
		return 0, io.EOF
	}
	var end error
	if left := img.h.Size - off; int64(len(p)) > left {
		p, end = p[:left], io.EOF
	}
	n := 0
	for n < len(p) {
		inside := (off + int64(n)) & (img.h.ClusterSize() - 1)
		part := p[n:min(len(p), n+int(img.h.ClusterSize()-inside))]
		if err := img.readCluster(part, off+int64(n)-inside, inside); err != nil {
			return n, err
		}
		n += len(part)
	}
	return n, end
}

// readCluster fills p from the cluster at guest, from its byte inside on.
func (img *Image) readCluster(p []byte, guest, inside int64) error {
	var buf [subclusters]disk.Extent
	list, err := img.lookup(buf[:0], guest)
	if err != nil {
		return err
	}
	for _, e := range list {
		from := max(guest+inside, e.Guest.Off)
		n := min(guest+inside+int64(len(p)), e.Guest.End()) - from
		if n <= 0 {
			continue
		}
		if err := img.readExtent(p[:n], e, from-e.Guest.Off); err != nil {
			return err
		}
		p, inside = p[n:], inside+n
	}
	return nil
}

// readExtent fills p from byte inside of e on.
func (img *Image) readExtent(p []byte, e disk.Extent, inside int64) error {
	switch {
	case e.Kind == disk.Zero:
		clear(p)
		return nil
	case e.Kind == disk.Hole:
		return img.readBacking(p, e.Guest.Off+inside)
	case e.Codec == disk.Plain:
		if off := e.File.Off + inside; off > img.data.Size-int64(len(p)) {
			return &disk.FormatError{Format: "qcow2", Reason: disk.Truncated, Offset: img.data.Size,
				Detail: fmt.Sprintf("file ends before data for disk offset %#x", e.Guest.Off)}
		}
		return readFull(img.data, p, e.File.Off+inside)
	}
	data, err := img.decode(e)
	if err == nil {
		copy(p, data[inside:])
	}
	return err
}

// lookup appends the extents of the cluster at guest to list.
func (img *Image) lookup(list []disk.Extent, guest int64) ([]disk.Extent, error) {
	h := img.h
	table := img.l1[guest>>h.spanBits()]
	if table == 0 {
		return append(list, disk.Extent{Kind: disk.Hole, Guest: disk.Range{Off: guest, Len: min(h.ClusterSize(), h.Size-guest)}}), nil
	}
	l2, err := img.l2Table(table)
	if err != nil {
		return list, err
	}
	list, _, err = h.extents(list, h.l2Entry(l2, table, guest>>h.ClusterBits&(1<<h.l2Bits()-1)), guest)
	return list, err
}

// l2Table returns the L2 table at off.
func (img *Image) l2Table(off int64) ([]byte, error) {
	img.mu.Lock()
	l2, ok := img.l2.get(off)
	img.mu.Unlock()
	if ok {
		return l2, nil
	}
	l2, err := img.file(disk.Range{Off: off, Len: img.h.ClusterSize()}, "L2 table")
	if err != nil {
		return nil, err
	}
	img.mu.Lock()
	img.l2.put(off, l2)
	img.mu.Unlock()
	return l2, nil
}

// Extents returns what the image says of its disk, in the order of the disk, from the cluster
// that holds guest offset from: data with its place in the file, compressed data one cluster at
// a time, zeros, and holes, which nothing in this image says anything of. Neighbours that are
// one run are one extent. The iteration ends with the first error.
func (img *Image) Extents(from int64) iter.Seq2[disk.Extent, error] {
	return func(yield func(disk.Extent, error) bool) {
		h := img.h
		var list []disk.Extent
		for at := max(from, 0) &^ (h.ClusterSize() - 1); at < h.Size; {
			if i := at >> h.spanBits(); img.l1[i] == 0 {
				end := min((i+1)<<h.spanBits(), h.Size)
				list = disk.Append(list, disk.Extent{Kind: disk.Hole, Guest: disk.Range{Off: at, Len: end - at}})
				at = end
			} else {
				var err error
				if list, err = img.lookup(list, at); err != nil {
					yield(disk.Extent{}, err)
					return
				}
				at += h.ClusterSize()
			}
			for ; len(list) > 1; list = list[1:] {
				if !yield(list[0], nil) {
					return
				}
			}
		}
		for _, e := range list {
			if !yield(e, nil) {
				return
			}
		}
	}
}

// decode returns the whole cluster of a compressed extent.
func (img *Image) decode(e disk.Extent) ([]byte, error) {
	img.mu.Lock()
	data, ok := img.decoded.get(e.Guest.Off)
	img.mu.Unlock()
	if ok {
		return data, nil
	}
	cut := e.File.Len > img.size-e.File.Off
	e.File.Len = max(min(e.File.Len, img.size-e.File.Off), 0)
	src, err := img.file(e.File, "compressed cluster")
	if err != nil {
		return nil, err
	}
	dec := img.takeDecoder()
	defer img.putDecoder(dec)
	data = make([]byte, e.Unit)
	if _, err := dec.Decode(e.Codec, data, src); err != nil {
		reason := disk.DecompressFailed
		if cut {
			reason = disk.Truncated
		}
		return nil, &disk.FormatError{Format: "qcow2", Reason: reason, Offset: e.File.Off,
			Detail: fmt.Sprintf("%s cluster for disk offset %#x", e.Codec, e.Guest.Off), Err: err}
	}
	img.mu.Lock()
	img.decoded.put(e.Guest.Off, data)
	img.mu.Unlock()
	return data, nil
}

func (img *Image) takeDecoder() *disk.Decoder {
	img.mu.Lock()
	defer img.mu.Unlock()
	n := len(img.decoders)
	if n == 0 {
		return new(disk.Decoder)
	}
	d := img.decoders[n-1]
	img.decoders = img.decoders[:n-1]
	return d
}

func (img *Image) putDecoder(d *disk.Decoder) {
	img.mu.Lock()
	defer img.mu.Unlock()
	img.decoders = append(img.decoders, d)
}
