package qcow

import (
	"context"
	"fmt"
	"io"
	"iter"

	"golang.org/x/sync/errgroup"

	"github.com/archdisk/archdisk/qcow/disk"
)

// Source is a disk to be written as an image: a raw file, an [*Image], any other image
// opened for reading. ReadAt must be safe for concurrent use. One that is a [disk.Mapper] is not
// read where it has nothing.
type Source interface {
	io.ReaderAt
	Size() int64
}

// NextData implements [disk.Mapper]. Holes over a backing file are data.
func (img *Image) NextData(off int64) (disk.Range, error) {
	r := disk.Range{Off: img.h.Size}
	for e, err := range img.Extents(off) {
		if err != nil {
			return r, err
		}
		zero := e.Kind == disk.Zero || e.Kind == disk.Hole && img.backing.ReaderAt == nil
		switch {
		case r.Len >= pieceSize, zero && r.Len > 0:
			return r, nil
		case zero || e.Guest.End() <= off:
		case r.Len == 0:
			r.Off = max(off, e.Guest.Off)
			fallthrough
		default:
			r.Len = e.Guest.End() - r.Off
		}
	}
	return r, nil
}

// piece is a part of a source: data, or zeros of any length.
type piece struct {
	n     int64
	guest disk.Range
	zero  bool
}

// pieces cuts a source into pieces, in guest order. Data comes in whole clusters and at most
// pieceSize, or one cluster if that is more.
func pieces(src Source, h *Header) iter.Seq2[piece, error] {
	next := func(off int64) (disk.Range, error) { return disk.Range{Off: off, Len: h.Size - off}, nil }
	if m, ok := src.(disk.Mapper); ok {
		next = m.NextData
	}
	mask := h.ClusterSize() - 1
	step := max(pieceSize, h.ClusterSize())
	return func(yield func(piece, error) bool) {
		for n, at := int64(0), int64(0); at < h.Size; {
			r, err := next(at)
			if err == nil && (r.Off < at || r.Len == 0 && r.Off < h.Size || r.Len < 0) {
				err = fmt.Errorf("qcow: the source says that data after %#x is at %s", at, r)
			}
			if err != nil {
				yield(piece{}, err)
				return
			}
			start, end := h.Size, h.Size
			if r.Off < h.Size {
				start = max(r.Off&^mask, at)
				end = min((r.Off+min(r.Len, h.Size-r.Off)+mask)&^mask, h.Size)
			}
			if start > at {
				if !yield(piece{n, disk.Range{Off: at, Len: start - at}, true}, nil) {
					return
				}
				n++
			}
			for at = start; at < end; n++ {
				part := disk.Range{Off: at, Len: min(end-at, step-at&(step-1))}
				if !yield(piece{n, part, false}, nil) {
					return
				}
				at = part.End()
			}
		}
	}
}

// feed reads pieces with several workers and calls do with each, concurrently; worker counts
// them from 0. The bytes are do's for the call only, and nil for zeros.
func feed(ctx context.Context, src Source, list iter.Seq2[piece, error], workers int,
	do func(ctx context.Context, worker int, x piece, p []byte) error) error {
	group, ctx := errgroup.WithContext(ctx)
	todo := make(chan piece)
	group.Go(func() error {
		defer close(todo)
		for x, err := range list {
			if err != nil {
				return err
			}
			select {
			case todo <- x:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	for i := range workers {
		group.Go(func() error {
			var buf []byte
			for x := range todo {
				var p []byte
				if !x.zero {
					if int64(cap(buf)) < x.guest.Len {
						buf = make([]byte, max(x.guest.Len, pieceSize))
					}
					p = buf[:x.guest.Len]
					if err := readFull(src, p, x.guest.Off); err != nil {
						return err
					}
				}
				if err := do(ctx, i, x, p); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}
