package qcow

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/archdisk/archdisk/qcow/disk"
)

// Writer writes a QCOW2 image, version 3, of which the caller writes the disk: it is a
// destination for [disk.Convert]. [Writer.Finish] completes the image.
//
// Clusters are placed in the order of the calls, or of the source where [Writer.PutAt] tells
// it: the same pieces in the same order give the same file, whatever the number of goroutines.
// In guest order the sizes of the pieces do not count either. Each byte of the disk may be written or zeroed once; what never is
// reads as zeros. Safe for concurrent use. After an error a Writer is of no use.
type Writer struct {
	w      io.WriterAt
	h      *Header
	o      CreateOptions
	lanes  chan *lane
	budget reservation
	high   atomic.Int64 // the end of the file as written

	*turns
	calls     int64              // pieces numbered by WriteAt and ZeroRange
	piece     int64              // the piece whose turn it is
	slots     int64              // clusters on their way through compression
	slot      int64              // the one whose turn it is to be placed
	alloc     *allocator         // from here on guarded by mu
	l1        []int64            // offsets of L2 tables
	tables    map[int64]*l2Table // the L2 tables that are not complete, by index
	partial   map[int64]*partial // clusters to be compressed, and not there as a whole; by guest offset
	assembled int64              // bytes in buffers of those
	out       []placed           // to be written by who holds mu, when it no longer does
	stats     Stats
	closed    bool
	finished  bool
}

var errTwice = errors.New("a part of the disk is written twice")

// Create begins an image of a disk of size bytes, a multiple of 512, on w, which must read as
// zeros where nothing is written and stays the caller's. Until [Writer.Finish] succeeds, w
// begins with zeros, and is no image.
//
// Compression needs whole clusters. A cluster that arrives in several pieces is kept until it
// is complete, in at most 8 MiB; while those are full, further such clusters are stored without
// compression.
//
// Memory, taken from the budget: the L1 table, 8 bytes for each L2 table; one cluster for each
// L2 table that has been begun and is not complete, which are two while data comes in guest
// order; what compression needs.
//
// Errors: a [*disk.FormatError] for a size that cannot be; [disk.ErrLimit] if the budget does
// not reach; those of w.
func Create(w io.WriterAt, size int64, o CreateOptions) (*Writer, error) {
	o = o.withDefaults()
	h, err := o.header(size)
	if err != nil {
		return nil, err
	}
	x := &Writer{w: w, h: h, o: o, turns: newTurns(), budget: reservation{b: o.Budget},
		tables: map[int64]*l2Table{}, partial: map[int64]*partial{}, stats: Stats{Size: size}}
	if err := x.begin(); err != nil {
		x.budget.release()
		return nil, err
	}
	return x, nil
}

func (w *Writer) begin() error {
	h, cs := w.h, w.h.ClusterSize()
	if err := w.budget.reserve(h.L1Size*8+2*cs+pieceSize, "tables of the image"); err != nil {
		return err
	}
	if w.o.Compression != disk.Plain {
		if err := w.budget.reserve(assembly, "clusters that arrive in pieces"); err != nil {
			return err
		}
		n, err := w.budget.share(w.o.Workers, compressorCost(w.o.Compression, cs)+max(pieceSize, cs)+4*cs, "compression")
		if err != nil {
			return err
		}
		w.lanes = make(chan *lane, n)
		for range n {
			w.lanes <- &lane{compressor: compressor{codec: w.o.Compression, size: cs}}
		}
	}
	w.l1 = make([]int64, h.L1Size)
	w.alloc = newAllocator(h, &w.budget)
	if _, err := w.alloc.take(1); err != nil { // the header's cluster
		return err
	}
	if h.L1Size > 0 {
		var err error
		if h.L1TableOffset, err = w.alloc.take(h.clusters(h.L1Size * 8)); err != nil {
			return err
		}
	}
	// Where the refcount table of the largest file that can come takes one cluster, it gets
	// it here; else it is placed once its size is known, at the end.
	most := (h.Size+cs-1)>>h.ClusterBits + h.L1Size
	if w.alloc.tableClusters(most+1) == 1 {
		if err := w.placeRefcountTable(most); err != nil {
			return err
		}
	}
	return w.write([]placed{{0, make([]byte, disk.SectorSize)}})
}

func (w *Writer) placeRefcountTable(more int64) (err error) {
	w.h.RefcountTableOffset, w.h.RefcountTableClusters, err = w.alloc.table(more)
	return err
}

// WriteAt writes p to the disk at off.
func (w *Writer) WriteAt(p []byte, off int64) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if err := w.PutAt(context.Background(), w.number(), disk.Range{Off: off, Len: int64(len(p))}, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// ZeroRange says that n bytes of the disk at off are zeros.
func (w *Writer) ZeroRange(off, n int64) error {
	return w.PutAt(context.Background(), w.number(), disk.Range{Off: off, Len: n}, nil)
}

func (w *Writer) number() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := max(w.calls, w.piece)
	w.calls = n + 1
	return n
}

// PutAt implements [disk.Sequencer]. WriteAt and ZeroRange may be used before its first call
// or after the last has returned, not between: they give numbers of their own.
func (w *Writer) PutAt(ctx context.Context, n int64, guest disk.Range, p []byte) error {
	var err error
	switch {
	case guest.Off < 0 || guest.Len < 0 || guest.Off > w.h.Size-guest.Len:
		err = fmt.Errorf("qcow: write to %s of a disk of %d bytes", guest, w.h.Size)
	case p != nil && int64(len(p)) != guest.Len:
		err = fmt.Errorf("qcow: %d bytes for %s", len(p), guest)
	case len(p) == 0:
		err = w.putZeros(ctx, n, guest)
	default:
		err = w.putData(ctx, n, guest, p)
	}
	if err != nil {
		return w.fail(err)
	}
	return nil
}

func (w *Writer) putZeros(ctx context.Context, n int64, guest disk.Range) error {
	if w.o.Compression != disk.Plain {
		return w.putCompressed(ctx, n, n+1, guest, nil)
	}
	return w.inTurn(ctx, &w.piece, n, func() error {
		w.pass(&w.piece, n+1)
		return w.settle(guest)
	})
}

// inTurn waits until *next is n, calls f with mu held, and then writes what f has handed out.
func (w *Writer) inTurn(ctx context.Context, next *int64, n int64, f func() error) error {
	list, err := func() ([]placed, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if err := w.await(ctx, next, n); err != nil {
			return nil, err
		}
		if w.closed || w.finished {
			return nil, errors.New("qcow: write to a closed image")
		}
		err := f()
		list := w.out
		w.out = nil
		return list, err
	}()
	if err != nil {
		return err
	}
	return w.write(list)
}

// putData takes a piece in parts of a bounded size, the turn being passed on with the last.
func (w *Writer) putData(ctx context.Context, n int64, guest disk.Range, p []byte) error {
	step := max(pieceSize, w.h.ClusterSize())
	for len(p) > 0 {
		part := disk.Range{Off: guest.Off, Len: min(int64(len(p)), step-guest.Off&(step-1))}
		next := n
		if part.Len == int64(len(p)) {
			next = n + 1
		}
		var err error
		if w.o.Compression == disk.Plain {
			err = w.putPlain(ctx, n, next, part, p[:part.Len])
		} else {
			err = w.putCompressed(ctx, n, next, part, p[:part.Len])
		}
		if err != nil {
			return err
		}
		p, guest.Off = p[part.Len:], part.End()
	}
	return nil
}

// putPlain gives each cluster its place with the first bytes of it that are not zeros, and
// writes outside of the turn.
func (w *Writer) putPlain(ctx context.Context, n, next int64, guest disk.Range, p []byte) error {
	zeros := w.zeros(guest, p)
	return w.inTurn(ctx, &w.piece, n, func() error {
		for i, rest := 0, guest; rest.Len > 0; i++ {
			part := w.inCluster(rest)
			if !zeros[i] {
				host, err := w.plain(part.Off)
				if err != nil {
					return err
				}
				at := part.Off - guest.Off
				w.out = join(w.out, host, p[at:at+part.Len])
			}
			rest.Off, rest.Len = part.End(), rest.Len-part.Len
		}
		w.pass(&w.piece, next)
		return w.settle(guest)
	})
}

// join adds p at off to a list, as one write with the last if p follows it in both the file
// and memory.
func join(list []placed, off int64, p []byte) []placed {
	if len(list) > 0 {
		last := &list[len(list)-1]
		if n := len(last.p); last.off+int64(n) == off && cap(last.p) >= n+len(p) && &last.p[:n+1][n] == &p[0] {
			last.p = last.p[:n+len(p)]
			return list
		}
	}
	return append(list, placed{off, p})
}

func (w *Writer) write(list []placed) error {
	for _, x := range list {
		if _, err := w.w.WriteAt(x.p, x.off); err != nil {
			return fmt.Errorf("qcow: write of %d bytes at %#x of the image: %w", len(x.p), x.off, err)
		}
		for end := x.off + int64(len(x.p)); ; {
			if was := w.high.Load(); was >= end || w.high.CompareAndSwap(was, end) {
				break
			}
		}
	}
	return nil
}

// Finish writes what is left of clusters and tables and, last of all, the header. It is to
// be called once, when all calls of the other methods have returned. Nothing is flushed:
// that is the caller's.
func (w *Writer) Finish(ctx context.Context) error {
	if w.finished || w.closed {
		return errors.New("qcow: finish of a closed image")
	}
	if w.err != nil {
		return w.err
	}
	if err := w.finish(ctx); err != nil {
		return w.fail(err)
	}
	w.finished = true
	return nil
}

func (w *Writer) finish(ctx context.Context) error {
	for _, off := range slices.Sorted(maps.Keys(w.partial)) {
		cells, err := w.complete(w.cluster(off), w.partial[off], nil)
		if err == nil && len(cells) > 0 {
			l := <-w.lanes
			err = w.compress(ctx, l, w.slots, cells)
			w.slots++
			w.lanes <- l
		}
		if err != nil {
			return err
		}
	}
	for _, index := range slices.Sorted(maps.Keys(w.tables)) {
		w.retire(index, w.tables[index])
	}
	if err := w.write(w.out); err != nil {
		return err
	}
	if w.h.RefcountTableOffset == 0 {
		if err := w.placeRefcountTable(0); err != nil {
			return err
		}
	}
	for b := range w.alloc.blocks {
		if w.alloc.blocks[b].done {
			continue
		}
		if err := errors.Join(ctx.Err(), w.write([]placed{w.alloc.block(int64(b))})); err != nil {
			return err
		}
	}
	if err := w.writeL1(); err != nil {
		return err
	}
	last := []placed{{w.h.RefcountTableOffset, w.alloc.tableBytes()}}
	w.stats.FileSize = w.alloc.size()
	if w.high.Load() < w.stats.FileSize { // the last cluster's end has never been written
		last = append(last, placed{w.stats.FileSize - 1, make([]byte, 1)})
	}
	head := append(w.h.encode(), make([]byte, disk.SectorSize)...)[:disk.SectorSize]
	return w.write(append(last, placed{0, head}))
}

func (w *Writer) writeL1() error {
	const step = pieceSize / 8
	p := make([]byte, 0, min(pieceSize, len(w.l1)*8))
	for i := 0; i < len(w.l1); i += step {
		p = p[:0]
		for _, off := range w.l1[i:min(len(w.l1), i+step)] {
			entry := uint64(0)
			if off != 0 {
				entry = plainEntry(off)
			}
			p = binary.BigEndian.AppendUint64(p, entry)
		}
		if err := w.write([]placed{{w.h.L1TableOffset + int64(i)*8, p}}); err != nil {
			return err
		}
	}
	return nil
}

// Stats says what became of the disk, once [Writer.Finish] has succeeded.
func (w *Writer) Stats() Stats { return w.stats }

// Close frees the memory. Without [Writer.Finish] before it, what has been written is no
// image. The destination stays open: it is the caller's.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.budget.release()
	return nil
}
