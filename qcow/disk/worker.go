package disk

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
)

// job is one write: what to read or decode, and where it belongs.
type job struct {
	n     int64 // its number in the order of the walk
	zero  bool
	guest Range
	codec Codec
	unit  int64
	buf   []byte // file bytes from a stream; nil: read them from file
	file  Range
	// compressed pieces only
	short Reason // why buf may lack bytes of the piece: Truncated or NeedsParking; "" if it does not
	spare Range  // file bytes behind the piece's true end may be another's, and are parked
}

// workers decode and write what the walker finds. Buffers go round between the two, so
// their number bounds both memory and queue.
type workers struct {
	format   string // for errors
	dst      io.WriterAt
	zeroer   Zeroer    // nil: dst reads as zeros where nothing is written
	sequence Sequencer // nil: dst does not care about the order
	src      Source
	workers  int
	chunk    int64
	jobs     chan job
	sent     *int64 // jobs numbered, those of earlier passes included
	free     chan []byte
	park     *parking
	budget   *Budget
	reserved int64
	count    *Counters
}

// newWorkers sizes the pool so that it fits half of what the budget has left: fewer
// workers first, then smaller chunks.
func (c *Converter) newWorkers(src Source) (*workers, error) {
	dst, state, o := c.dst, c.layout.State(), c.o
	p := &workers{format: state.Format, dst: dst, src: src, workers: o.Workers, chunk: chunkSize, park: &c.park, sent: &c.sent, budget: o.Budget, count: o.Counters}
	p.zeroer, _ = dst.(Zeroer)
	p.sequence, _ = dst.(Sequencer)
	if p.workers <= 0 {
		p.workers = defaultWorkers()
	}
	buffers := func() int { return 2*p.workers + 1 }
	cost := func() int64 {
		in := max(p.chunk, 2*state.Unit+SectorSize)
		return int64(buffers())*in + int64(p.workers)*state.Unit
	}
	room := o.Budget.Left() / 2
	for cost() > room && p.workers > 1 {
		p.workers--
	}
	for cost() > room && p.chunk > parkSize {
		p.chunk /= 2
	}
	p.reserved = cost()
	if err := o.Budget.Reserve(p.reserved, "buffers of the conversion"); err != nil {
		return nil, &FormatError{Format: state.Format, Reason: LimitExceeded, Offset: -1, Err: err}
	}
	p.free = make(chan []byte, buffers())
	for range buffers() {
		p.free <- nil // made on first use
	}
	p.jobs = make(chan job, buffers())
	return p, nil
}

func (p *workers) release() { p.budget.Release(p.reserved) }

// buffer returns a buffer of n bytes, waiting until one is free.
func (p *workers) buffer(ctx context.Context, n int64) ([]byte, error) {
	select {
	case b := <-p.free:
		if int64(cap(b)) < n {
			b = make([]byte, max(n, parkSize))
		}
		return b[:n], nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p *workers) send(ctx context.Context, j job) error {
	if j.guest.Len == 0 {
		p.recycle(j.buf)
		return nil
	}
	j.n = *p.sent
	*p.sent++
	select {
	case p.jobs <- j:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// idle waits until no job of a stream is under way: each holds a buffer.
func (p *workers) idle(ctx context.Context) error {
	all := make([][]byte, 0, cap(p.free))
	for range cap(p.free) {
		b, err := p.buffer(ctx, 0)
		if err != nil {
			return err
		}
		all = append(all, b)
	}
	for _, b := range all {
		p.free <- b
	}
	return nil
}

func (p *workers) recycle(b []byte) {
	if b != nil {
		p.free <- b[:0]
	}
}

// work runs one worker until the walker is done or something failed.
func (p *workers) work(ctx context.Context) error {
	var dec Decoder
	defer dec.Close()
	var out []byte
	for {
		var j job
		var ok bool
		select {
		case <-ctx.Done():
			return ctx.Err()
		case j, ok = <-p.jobs:
		}
		if !ok {
			return nil
		}
		if j.zero {
			if err := p.put(ctx, j, nil); err != nil {
				return err
			}
			continue
		}
		if j.buf == nil {
			buf, err := p.buffer(ctx, j.file.Len)
			if err != nil {
				return err
			}
			j.buf = buf
			if n, err := p.src.file.ReadAt(buf, j.file.Off); n < len(buf) {
				return fmt.Errorf("image file at %#x: %w", j.file.Off+int64(n), noEOF(err))
			}
		}
		data := j.buf
		if j.codec != Plain {
			if int64(cap(out)) < j.unit {
				out = make([]byte, j.unit)
			}
			used, err := dec.Decode(j.codec, out[:j.unit], j.buf)
			if err != nil {
				return &FormatError{Format: p.format, Reason: cmp.Or(j.short, DecompressFailed), Offset: j.file.Off,
					Detail: fmt.Sprintf("%s piece for disk offset %#x", j.codec, j.guest.Off), Err: err}
			}
			data = out[:j.guest.Len]
			if from := max(j.file.Off+int64(used), j.spare.Off); from < j.spare.End() {
				if err := p.park.put(from, bytes.Clone(j.buf[from-j.file.Off:j.spare.End()-j.file.Off])); err != nil {
					return err
				}
			}
		}
		if err := p.put(ctx, j, data); err != nil {
			return err
		}
		p.recycle(j.buf)
	}
}

func noEOF(err error) error {
	if err == nil || err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// put hands on what a job has come to, nil for zeros.
func (p *workers) put(ctx context.Context, j job, data []byte) error {
	switch {
	case p.sequence == nil && data == nil:
		return p.zeroRange(j.guest)
	case p.sequence == nil:
		return p.write(data, j.guest.Off)
	}
	if err := p.sequence.PutAt(ctx, j.n, j.guest, data); err != nil {
		if errors.Is(err, ctx.Err()) {
			return err // the end of something else, not its own
		}
		return &WriteError{Offset: j.guest.Off, Len: j.guest.Len, Err: err}
	}
	p.count.Written.Add(int64(len(data)))
	if data == nil {
		p.count.Zeroed.Add(j.guest.Len)
	}
	return nil
}

// write writes what is not zero and zeroes the rest, in blocks aligned to the disk.
func (p *workers) write(data []byte, off int64) error {
	for len(data) > 0 {
		n, zero := run(data, off)
		var err error
		if zero {
			err = p.zeroRange(Range{off, int64(n)})
		} else if _, err = p.dst.WriteAt(data[:n], off); err == nil {
			p.count.Written.Add(int64(n))
		} else {
			err = &WriteError{Offset: off, Len: int64(n), Err: err}
		}
		if err != nil {
			return err
		}
		data, off = data[n:], off+int64(n)
	}
	return nil
}

// run returns the length of the first run of blocks that are alike: all zero, or none.
func run(data []byte, off int64) (n int, zero bool) {
	for n < len(data) {
		block := data[n:min(len(data), n+zeroBlock-int(off+int64(n))&(zeroBlock-1))]
		z := block[0] == 0 && bytes.Equal(block[1:], block[:len(block)-1])
		if n > 0 && z != zero {
			break
		}
		zero = z
		n += len(block)
	}
	return n, zero
}

func (p *workers) zeroRange(r Range) error {
	if p.zeroer != nil {
		if err := p.zeroer.ZeroRange(r.Off, r.Len); err != nil {
			return &WriteError{Offset: r.Off, Len: r.Len, Err: err}
		}
	}
	p.count.Zeroed.Add(r.Len)
	return nil
}
