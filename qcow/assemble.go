package qcow

import (
	"context"
	"fmt"

	"github.com/archdisk/archdisk/qcow/disk"
)

// partial is a cluster that arrives in pieces.
type partial struct {
	covered int64  // bytes that have arrived
	buf     []byte // nil: zeros so far
	plain   int64  // where it is written without compression, if it is
}

// lane is what one goroutine needs to compress the clusters of one piece.
type lane struct {
	compressor
	out []byte
}

// cell is a whole cluster on its way: compressed, then placed.
type cell struct {
	guest disk.Range
	data  []byte
	small []byte // data compressed; nil if it is stored as it is
}

// assembly bounds the buffers of clusters that arrive in pieces. A fixed number, so that nothing
// but the order decides what is stored without compression.
const assembly = 8 << 20

// putCompressed passes two turns: one in the order of the pieces, to find the clusters that
// are whole, and, when they are compressed, one in the order of the clusters, to place them.
func (w *Writer) putCompressed(ctx context.Context, n, next int64, guest disk.Range, p []byte) error {
	var zeros []bool
	if p != nil {
		zeros = w.zeros(guest, p)
	}
	var cells []cell
	var first int64
	err := w.inTurn(ctx, &w.piece, n, func() (err error) {
		if p == nil {
			cells, err = w.sortZeros(guest)
		} else {
			cells, err = w.sortData(guest, p, zeros)
		}
		if err != nil {
			return err
		}
		first = w.slots
		w.slots += int64(len(cells))
		if len(cells) == 0 {
			w.pass(&w.piece, next)
		}
		return nil
	})
	if err != nil || len(cells) == 0 {
		return err
	}
	// The lane is taken before the turn is passed on: so those that wait for their turn
	// to place, with lanes in hand, wait for others that have lanes, too.
	var l *lane
	select {
	case l = <-w.lanes:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { w.lanes <- l }()
	w.mu.Lock()
	w.pass(&w.piece, next)
	w.mu.Unlock()
	return w.compress(ctx, l, first, cells)
}

// sortData finds the clusters of a piece that are whole, and keeps the parts of others.
func (w *Writer) sortData(guest disk.Range, p []byte, zeros []bool) (cells []cell, err error) {
	for i, rest := 0, guest; rest.Len > 0; i++ {
		part := w.inCluster(rest)
		at := part.Off - guest.Off
		data := p[at : at+part.Len]
		switch {
		case part != w.cluster(part.Off):
			if zeros[i] {
				data = nil
			}
			cells, err = w.assemble(part, data, cells)
		case zeros[i]:
			err = w.settle(part)
		default:
			cells = append(cells, cell{guest: part, data: data})
		}
		if err != nil {
			return nil, err
		}
		rest.Off, rest.Len = part.End(), rest.Len-part.Len
	}
	return cells, nil
}

// sortZeros does so for zeros, of which only the first and the last part can be less than
// whole clusters.
func (w *Writer) sortZeros(rest disk.Range) (cells []cell, err error) {
	for rest.Len > 0 {
		part := w.inCluster(rest)
		if part != w.cluster(part.Off) {
			cells, err = w.assemble(part, nil, cells)
		} else {
			if whole := rest.Len &^ (w.h.ClusterSize() - 1); whole > 0 {
				part.Len = whole
			}
			err = w.settle(part)
		}
		if err != nil {
			return nil, err
		}
		rest.Off, rest.Len = part.End(), rest.Len-part.Len
	}
	return cells, nil
}

// cluster returns the cluster at guest offset off, cut to the disk.
func (w *Writer) cluster(off int64) disk.Range {
	off &^= w.h.ClusterSize() - 1
	return disk.Range{Off: off, Len: min(w.h.ClusterSize(), w.h.Size-off)}
}

// inCluster returns the part of r that is in its first cluster.
func (w *Writer) inCluster(r disk.Range) disk.Range {
	return disk.Range{Off: r.Off, Len: min(r.Len, w.cluster(r.Off).End()-r.Off)}
}

// zeros says for each cluster that guest touches whether p has only zeros for it.
func (w *Writer) zeros(guest disk.Range, p []byte) []bool {
	list := make([]bool, 0, guest.Len>>w.h.ClusterBits+2)
	for guest.Len > 0 {
		part := w.inCluster(guest)
		list = append(list, isZero(p[:part.Len]))
		p = p[part.Len:]
		guest.Off, guest.Len = part.End(), guest.Len-part.Len
	}
	return list
}

// assemble takes a part of a cluster, data or nil for zeros. A cluster that is complete by
// it becomes a cell.
func (w *Writer) assemble(part disk.Range, data []byte, cells []cell) ([]cell, error) {
	whole := w.cluster(part.Off)
	a := w.partial[whole.Off]
	if a == nil {
		if err := w.budget.reserve(recordCost, "clusters that arrive in pieces"); err != nil {
			return cells, err
		}
		a = new(partial)
		w.partial[whole.Off] = a
	}
	if data != nil {
		at := part.Off - whole.Off
		if a.plain == 0 && a.buf == nil {
			if w.assembled+whole.Len <= assembly {
				a.buf = make([]byte, whole.Len)
				w.assembled += whole.Len
			} else {
				var err error
				if a.plain, err = w.plain(whole.Off); err != nil {
					return cells, err
				}
			}
		}
		if a.plain != 0 {
			w.out = append(w.out, placed{a.plain + at, data})
		} else {
			copy(a.buf[at:], data)
		}
	}
	a.covered += part.Len
	switch {
	case a.covered > whole.Len:
		return cells, fmt.Errorf("qcow: %w: %s", errTwice, part)
	case a.covered < whole.Len:
		return cells, nil
	}
	return w.complete(whole, a, cells)
}

// complete ends the assembly of a cluster: what has not arrived is zeros.
func (w *Writer) complete(whole disk.Range, a *partial, cells []cell) ([]cell, error) {
	delete(w.partial, whole.Off)
	w.budget.giveBack(recordCost)
	if a.buf == nil {
		return cells, w.settle(whole)
	}
	w.assembled -= whole.Len
	return append(cells, cell{guest: whole, data: a.buf}), nil
}

// compress compresses cells, of which the first has the number first, and writes them.
func (w *Writer) compress(ctx context.Context, l *lane, first int64, cells []cell) error {
	if need := (len(cells) + 1) << w.h.ClusterBits; cap(l.out) < need {
		l.out = make([]byte, 0, need)
	}
	out := l.out[:0]
	for i := range cells {
		had := len(out)
		var err error
		if out, err = l.append(out, cells[i].data); err != nil {
			return err
		}
		if len(out) > had {
			cells[i].small = out[had:]
		}
	}
	return w.inTurn(ctx, &w.slot, first, func() error {
		for _, c := range cells {
			if err := w.place(c); err != nil {
				return err
			}
		}
		w.pass(&w.slot, first+int64(len(cells)))
		return nil
	})
}

// place gives a cell its place and hands its bytes out.
func (w *Writer) place(c cell) error {
	p, host, err := c.data, int64(0), error(nil)
	if c.small == nil {
		host, err = w.plain(c.guest.Off)
	} else {
		p = c.small
		host, err = w.packed(c.guest.Off, int64(len(p)))
	}
	if err != nil {
		return err
	}
	w.out = join(w.out, host, p)
	return w.settle(c.guest)
}
