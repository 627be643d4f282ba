package qcow

import (
	"encoding/binary"
	"fmt"
	"io"
	"sync"

	"github.com/archdisk/archdisk/qcow/disk"
)

// OpenOptions adjusts [Open]. The zero value is ready.
type OpenOptions struct {
	Limits disk.Limits
	Cache  int64 // memory for L2 tables and decoded clusters in bytes; default 8 MiB
}

// Image is the guest's disk in a QCOW2 image, to be read at any offset. Entries are
// checked as they are used; that clusters do not overlap is checked by [Layout] only, which
// sees them all. Safe for concurrent use.
type Image struct {
	h    *Header
	r    io.ReaderAt
	size int64 // of the file
	l1   []int64

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
	head := make([]byte, min(headSize, max(size, 0)))
	if err := readFull(r, head, 0); err != nil {
		return nil, err
	}
	h, err := ParseHeader(head, o.Limits)
	if err != nil {
		return nil, err
	}
	img := &Image{h: h, r: r, size: size,
		l2:      newCache[[]byte](int(o.Cache / 2 / h.ClusterSize())),
		decoded: newCache[[]byte](int(o.Cache / 2 / h.ClusterSize()))}
	if err := img.readL1(); err != nil {
		return nil, err
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

// Close frees the image's memory; it may be read all the same. The reader stays open: it is
// the caller's.
func (img *Image) Close() error {
	img.mu.Lock()
	defer img.mu.Unlock()
	for _, d := range img.decoders {
		d.Close()
	}
	img.decoders, img.l2, img.decoded = nil, newCache[[]byte](1), newCache[[]byte](1)
	return nil
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
	e, err := img.lookup(guest)
	if err != nil {
		return err
	}
	switch {
	case e.Kind == disk.Zero:
		clear(p)
		return nil
	case e.Codec == disk.Plain:
		if off := e.File.Off + inside; off > img.size-int64(len(p)) {
			return &disk.FormatError{Format: "qcow2", Reason: disk.Truncated, Offset: img.size,
				Detail: fmt.Sprintf("file ends before data for disk offset %#x", guest)}
		}
		return readFull(img.r, p, e.File.Off+inside)
	}
	data, err := img.decode(e)
	if err == nil {
		copy(p, data[inside:])
	}
	return err
}

// lookup finds the extent of the cluster at guest.
func (img *Image) lookup(guest int64) (disk.Extent, error) {
	h := img.h
	table := img.l1[guest>>(h.ClusterBits+h.l2Bits())]
	if table == 0 {
		return disk.Extent{Kind: disk.Zero}, nil
	}
	img.mu.Lock()
	l2, ok := img.l2.get(table)
	img.mu.Unlock()
	if !ok {
		var err error
		if l2, err = img.file(disk.Range{Off: table, Len: h.ClusterSize()}, "L2 table"); err != nil {
			return disk.Extent{}, err
		}
		img.mu.Lock()
		img.l2.put(table, l2)
		img.mu.Unlock()
	}
	i := guest >> h.ClusterBits & (1<<h.l2Bits() - 1) * 8
	return h.extent(binary.BigEndian.Uint64(l2[i:]), table+i, guest)
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
