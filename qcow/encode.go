package qcow

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"

	"github.com/archdisk/archdisk/qcow/disk"
)

// EncodeAt writes the disk of src as an image to w, in one pass over src in guest order. It
// is [Create], the writes, and [Writer.Finish]; see there for what w must be.
//
// Same disk and options, same bytes, whatever the number of workers.
func EncodeAt(ctx context.Context, w io.WriterAt, src Source, o CreateOptions) (Stats, error) {
	o = o.withDefaults()
	x, err := Create(w, src.Size(), o)
	if err != nil {
		return Stats{}, err
	}
	defer x.Close()
	readers := reservation{b: o.Budget}
	defer readers.release()
	workers, err := readers.share(o.Workers, max(pieceSize, o.ClusterSize), "reading")
	if err != nil {
		return Stats{}, err
	}
	err = feed(ctx, src, pieces(src, x.h), workers, func(ctx context.Context, _ int, p piece, data []byte) error {
		if err := x.PutAt(ctx, p.n, p.guest, data); err != nil {
			return err
		}
		o.Counters.Read.Add(int64(len(data)))
		if p.zero {
			o.Counters.Zeroed.Add(p.guest.Len)
		}
		return nil
	})
	if err == nil {
		err = x.Finish(ctx)
	}
	if err != nil {
		return Stats{}, err
	}
	o.Counters.Written.Store(x.Stats().FileSize)
	return x.Stats(), nil
}

// errChanged is for a source that is not the same in the second pass.
var errChanged = errors.New("qcow: the source changed while it was read")

// Encode writes the disk of src as an image to a stream, all tables before all data. A header
// that comes first needs to know all sizes, so src is read twice: once to find zeros and, if
// o says so, to compress, and once more to write. To write to a file use [EncodeAt], which
// does all of that once. After an error the stream holds a part of an image, header included.
//
// Memory: one bit for each cluster of data, four bytes if it is compressed, in whole L2
// tables' worth. Same disk and options, same bytes, whatever the number of workers.
func Encode(ctx context.Context, w io.Writer, src Source, o CreateOptions) (Stats, error) {
	o = o.withDefaults()
	h, err := o.header(src.Size())
	if err != nil {
		return Stats{}, err
	}
	e := &encoding{h: h, o: o, src: src, budget: reservation{b: o.Budget}, turns: newTurns(), spans: map[int64]*spanPlan{}}
	defer e.budget.release()
	if err := e.prepare(); err != nil {
		return Stats{}, err
	}
	if err := e.plan(ctx); err != nil {
		return Stats{}, err
	}
	if err := e.layout(); err != nil {
		return Stats{}, err
	}
	out := bufio.NewWriterSize(w, pieceSize)
	for _, part := range []func(context.Context, *bufio.Writer) error{e.tables, e.packedData, e.plainData} {
		if err := part(ctx, out); err != nil {
			return Stats{}, err
		}
	}
	if err := out.Flush(); err != nil {
		return Stats{}, fmt.Errorf("qcow: write of the image: %w", err)
	}
	o.Counters.Written.Store(e.stats.FileSize)
	return e.stats, nil
}

// encoding is one call of Encode.
type encoding struct {
	h      *Header
	o      CreateOptions
	src    Source
	lanes  []lane
	budget reservation

	*turns
	next  int64 // the piece whose turn it is
	spans map[int64]*spanPlan
	order []int64 // the keys of spans, in guest order
	stats Stats

	// The image: header, refcount table, refcount blocks, L1 table, L2 tables, packed
	// compressed clusters, plain clusters.
	blocks, blocksAt   int64 // refcount blocks, and their host offset
	l2At               int64
	packedAt, packed   int64 // packed is in bytes
	plainAt, plainSize int64
}

// spanPlan is what has been found out about the clusters of one L2 table: one or the other.
type spanPlan struct {
	data []uint64 // a bit for each that is not zeros, if there is no compression
	size []uint32 // of each as it is stored, if there is
}

// lengthOf returns how many bytes cluster k takes, up to full for one that is plain.
func (s *spanPlan) lengthOf(k, full int64) int64 {
	if s.size != nil {
		return int64(s.size[k])
	}
	return int64(s.data[k/64]>>(k%64)&1) * full
}

func (e *encoding) prepare() error {
	cs := e.h.ClusterSize()
	if err := e.budget.reserve(pieceSize+4*cs, "tables of the image"); err != nil {
		return err
	}
	cost := 2*max(pieceSize, cs) + compressorCost(e.o.Compression, cs) + 2*cs
	n, err := e.budget.share(e.o.Workers, cost, "reading and compression")
	e.lanes = make([]lane, n)
	for i := range e.lanes {
		e.lanes[i].compressor = compressor{codec: e.o.Compression, size: cs}
	}
	return err
}

// plan is the first pass.
func (e *encoding) plan(ctx context.Context) error {
	return feed(ctx, e.src, pieces(e.src, e.h), len(e.lanes), func(ctx context.Context, i int, x piece, p []byte) error {
		l, cs := &e.lanes[i], e.h.ClusterSize()
		sizes := make([]int64, 0, int64(len(p))/cs+1)
		for len(p) > 0 {
			data := p[:min(int64(len(p)), cs)]
			p = p[len(data):]
			n := int64(0)
			if !isZero(data) {
				out, err := l.append(l.out[:0], data)
				if err != nil {
					return e.fail(err)
				}
				l.out = out
				if n = int64(len(out)); n == 0 {
					n = cs
				}
			}
			sizes = append(sizes, n)
		}
		return e.inOrder(ctx, x, func() error {
			for k, n := range sizes {
				if n > 0 {
					if err := e.note(x.guest.Off+int64(k)*cs, n); err != nil {
						return err
					}
				}
			}
			return nil
		})
	})
}

// inOrder calls f when it is the turn of x.
func (e *encoding) inOrder(ctx context.Context, x piece, f func() error) error {
	err := func() error {
		e.mu.Lock()
		defer e.mu.Unlock()
		if err := e.await(ctx, &e.next, x.n); err != nil {
			return err
		}
		if err := f(); err != nil {
			return err
		}
		e.pass(&e.next, x.n+1)
		return nil
	}()
	if err != nil {
		return e.fail(err)
	}
	return nil
}

// note plans n bytes for the cluster at guest offset off.
func (e *encoding) note(off, n int64) error {
	index := off / e.h.span()
	perTable := int64(1) << e.h.l2Bits()
	s := e.spans[index]
	if s == nil {
		cost := perTable / 8
		if e.o.Compression != disk.Plain {
			cost = perTable * 4
		}
		if err := e.budget.reserve(cost+recordCost, "the plan of the image"); err != nil {
			return err
		}
		if s = new(spanPlan); e.o.Compression != disk.Plain {
			s.size = make([]uint32, perTable)
		} else {
			s.data = make([]uint64, perTable/64)
		}
		e.spans[index] = s
		e.order = append(e.order, index)
	}
	k := off >> e.h.ClusterBits & (perTable - 1)
	if s.size != nil {
		s.size[k] = uint32(n)
	} else {
		s.data[k/64] |= 1 << (k % 64)
	}
	e.stats.Data++
	if n < e.h.ClusterSize() {
		e.packed += n
		e.stats.Compressed++
	} else {
		e.plainSize += n
	}
	return nil
}

// layout gives each part of the image its place.
func (e *encoding) layout() error {
	h := e.h
	l1, l2 := h.clusters(h.L1Size*8), int64(len(e.order))
	others := 1 + l1 + l2 + h.clusters(e.packed) + e.plainSize>>h.ClusterBits
	var table, blocks int64
	for {
		total := others + table + blocks
		b := (total + h.perBlock() - 1) / h.perBlock()
		t := h.clusters(b * 8)
		if b == blocks && t == table {
			break
		}
		blocks, table = b, t
	}
	if table<<h.ClusterBits > maxReftable {
		return fault(disk.LimitExceeded, "refcount_table_clusters", -1, uint64(table), "clusters of %d bytes are too small for so much data", h.ClusterSize())
	}
	at := int64(0)
	place := func(clusters int64) int64 {
		off := at
		at += clusters << h.ClusterBits
		return off
	}
	place(1)
	h.RefcountTableOffset, h.RefcountTableClusters = place(table), table
	e.blocks, e.blocksAt = blocks, place(blocks)
	if l1 > 0 {
		h.L1TableOffset = place(l1)
	}
	e.l2At = place(l2)
	e.packedAt = place(h.clusters(e.packed))
	e.plainAt = place(e.plainSize >> h.ClusterBits)
	e.stats.Size, e.stats.FileSize = h.Size, at
	if e.plainSize == 0 && e.packed > 0 { // it ends with a sector, as QEMU's files do
		e.stats.FileSize = e.packedAt + (e.packed+disk.SectorSize-1)&^(disk.SectorSize-1)
	}
	return nil
}

// runs cuts the clusters that are stored plain, or those that are not, into pieces.
func (e *encoding) runs(want func(n int64) bool) iter.Seq2[piece, error] {
	h := e.h
	step := max(pieceSize, h.ClusterSize())
	return func(yield func(piece, error) bool) {
		var x piece
		for _, index := range e.order {
			for k := range int64(1) << h.l2Bits() {
				n := e.spans[index].lengthOf(k, h.ClusterSize())
				if n == 0 || !want(n) {
					continue
				}
				off := index*h.span() + k<<h.ClusterBits
				if x.guest.Len > 0 && (x.guest.End() != off || x.guest.Len >= step) {
					if !yield(x, nil) {
						return
					}
					x = piece{n: x.n + 1}
				}
				if x.guest.Len == 0 {
					x.guest.Off = off
				}
				x.guest.Len += min(h.ClusterSize(), h.Size-off)
			}
		}
		if x.guest.Len > 0 {
			yield(x, nil)
		}
	}
}

// packedData writes the compressed clusters, compressing them again.
func (e *encoding) packedData(ctx context.Context, w *bufio.Writer) error {
	if e.packed == 0 {
		return nil
	}
	cs := e.h.ClusterSize()
	e.next = 0
	err := feed(ctx, e.src, e.runs(func(n int64) bool { return n < cs }), len(e.lanes), func(ctx context.Context, i int, x piece, p []byte) error {
		l := &e.lanes[i]
		if need := int64(len(p)) + 2*cs; int64(cap(l.out)) < need {
			l.out = make([]byte, 0, need)
		}
		out := l.out[:0]
		for off := x.guest.Off; len(p) > 0; off += cs {
			data := p[:min(int64(len(p)), cs)]
			p = p[len(data):]
			had := len(out)
			var err error
			if out, err = l.append(out, data); err != nil {
				return e.fail(err)
			}
			if e.planned(off) != int64(len(out)-had) {
				return e.fail(errChanged)
			}
		}
		return e.emit(ctx, w, x, out)
	})
	if err != nil {
		return err
	}
	return fill(w, min(e.plainAt, e.stats.FileSize)-e.packedAt-e.packed)
}

func (e *encoding) planned(off int64) int64 {
	return e.spans[off/e.h.span()].lengthOf(off>>e.h.ClusterBits&(1<<e.h.l2Bits()-1), e.h.ClusterSize())
}

// plainData writes the other clusters, the last one of the disk filled up with zeros.
func (e *encoding) plainData(ctx context.Context, w *bufio.Writer) error {
	if e.plainSize == 0 {
		return nil
	}
	e.next = 0
	cs := e.h.ClusterSize()
	return feed(ctx, e.src, e.runs(func(n int64) bool { return n == cs }), len(e.lanes), func(ctx context.Context, _ int, x piece, p []byte) error {
		if n := int64(len(p)) & (cs - 1); n > 0 {
			p = append(p, make([]byte, cs-n)...)
		}
		return e.emit(ctx, w, x, p)
	})
}

func (e *encoding) emit(ctx context.Context, w *bufio.Writer, x piece, p []byte) error {
	return e.inOrder(ctx, x, func() error {
		_, err := w.Write(p)
		e.o.Counters.Read.Add(x.guest.Len)
		e.o.Counters.Written.Add(int64(len(p)))
		return writeFailed(err)
	})
}
