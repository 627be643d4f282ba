package qcow

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"iter"
)

// table writes entries and fills up to a cluster with zeros.
func (e *encoding) table(w *bufio.Writer, entries iter.Seq[uint64]) error {
	var p [8]byte
	n := int64(0)
	for x := range entries {
		binary.BigEndian.PutUint64(p[:], x)
		if _, err := w.Write(p[:]); err != nil {
			return writeFailed(err)
		}
		n += 8
	}
	return fill(w, e.h.clusters(n)<<e.h.ClusterBits-n)
}

func fill(w *bufio.Writer, n int64) error {
	_, err := io.CopyN(w, zeroReader{}, n)
	return writeFailed(err)
}

type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func writeFailed(err error) error {
	if err != nil {
		return fmt.Errorf("qcow: write of the image: %w", err)
	}
	return nil
}

// tables writes all that comes before the data.
func (e *encoding) tables(ctx context.Context, w *bufio.Writer) error {
	h := e.h
	head := h.encode()
	if _, err := w.Write(head); err != nil {
		return writeFailed(err)
	}
	if err := fill(w, h.ClusterSize()-int64(len(head))); err != nil {
		return err
	}
	if err := e.table(w, e.reftable()); err != nil {
		return err
	}
	if err := e.refcounts(ctx, w); err != nil {
		return err
	}
	if err := e.table(w, e.l1()); err != nil {
		return err
	}
	packedAt, plainAt := e.packedAt, e.plainAt
	for _, index := range e.order {
		if err := ctx.Err(); err != nil {
			return err
		}
		err := e.table(w, func(yield func(uint64) bool) {
			for k := range int64(1) << h.l2Bits() {
				entry := uint64(0)
				switch n := e.spans[index].lengthOf(k, h.ClusterSize()); n {
				case 0:
				case h.ClusterSize():
					entry = plainEntry(plainAt)
					plainAt += n
				default:
					entry = h.compressedEntry(packedAt, n)
					packedAt += n
				}
				if !yield(entry) {
					return
				}
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (e *encoding) reftable() iter.Seq[uint64] {
	return func(yield func(uint64) bool) {
		for i := range e.blocks {
			if !yield(uint64(e.blocksAt + i<<e.h.ClusterBits)) {
				return
			}
		}
	}
}

func (e *encoding) l1() iter.Seq[uint64] {
	return func(yield func(uint64) bool) {
		at := e.l2At
		for i := range e.h.L1Size {
			entry := uint64(0)
			if e.spans[i] != nil {
				entry = plainEntry(at)
				at += e.h.ClusterSize()
			}
			if !yield(entry) {
				return
			}
		}
	}
}

// packedSizes yields the sizes of the compressed clusters in guest order.
func (e *encoding) packedSizes() iter.Seq[int64] {
	return func(yield func(int64) bool) {
		for _, index := range e.order {
			for k := range int64(1) << e.h.l2Bits() {
				if n := e.spans[index].lengthOf(k, e.h.ClusterSize()); n > 0 && n < e.h.ClusterSize() && !yield(n) {
					return
				}
			}
		}
	}
}

// refcounts writes the refcount blocks. A host cluster counts as often as compressed clusters
// touch it.
func (e *encoding) refcounts(ctx context.Context, w *bufio.Writer) error {
	bits := e.h.ClusterBits
	next, stop := iter.Pull(e.packedSizes())
	defer stop()
	n, _ := next()
	at := e.packedAt // where the packed cluster of n bytes begins
	var p [refcountBytes]byte
	for c := range e.blocks * e.h.perBlock() {
		if c%e.h.perBlock() == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		count := uint16(1)
		start, end := c<<bits, (c+1)<<bits
		switch {
		case start >= e.stats.FileSize:
			count = 0
		case start >= e.packedAt && start < e.packedAt+e.packed:
			for count = 0; n > 0 && at < end; {
				count++
				if at+n > end {
					break // counts in the next cluster as well
				}
				at += n
				n, _ = next()
			}
		}
		binary.BigEndian.PutUint16(p[:], count)
		if _, err := w.Write(p[:]); err != nil {
			return writeFailed(err)
		}
	}
	return nil
}
