package disk

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
)

// Zeroer is an optional ability of a destination: to make a range read as zeros faster
// than by writing them, or by doing nothing where it does already.
type Zeroer interface {
	ZeroRange(off, n int64) error
}

// ConvertOptions adjusts [Convert]. The zero value is ready.
type ConvertOptions struct {
	Workers     int       // goroutines that decode and write; default GOMAXPROCS or 16, the lesser
	Budget      *Budget   // memory; default a budget of DefaultMemory for this call alone
	MaxParked   int64     // memory for parked data; default half the budget, an eighth with Scratch
	Scratch     Scratch   // for data parked beyond that; nil: none
	Passes      int       // passes over a stream that the caller can give; default 1
	NoGuess     bool      // wait for tables that stand behind the data, whatever could be guessed
	VirtualSize int64     // largest disk accepted; default that of the Layout
	Counters    *Counters // told of progress while the conversion runs; optional
}

// Scratch is a place for data of a stream that is not known yet to belong anywhere, as large as
// the stream at most. It stays the caller's.
type Scratch interface {
	io.ReaderAt
	io.WriterAt
}

// Counters are the figures of a running conversion, in bytes. Safe to read at any time.
type Counters struct {
	Read    atomic.Int64 // of the image file, from the front, in this pass
	Written atomic.Int64 // to the destination
	Zeroed  atomic.Int64 // of the disk that are zeros and were not written as data
}

// Stats is what a conversion has done, in bytes.
type Stats struct {
	Size       int64 // virtual size
	Read       int64 // image file bytes passed, in the last pass
	Written    int64
	Zeroed     int64
	PeakParked int64 // most that was parked at a time, in memory and in scratch
	Passes     int
}

const (
	chunkSize = 1 << 20  // plain data is written in pieces of this size
	zeroBlock = 4 << 10  // granularity at which data is looked at for zeros
	parkSize  = 64 << 10 // bytes parked at a time
)

// Convert walks src once from front to back and writes to dst the disk that layout says
// is in it: a [Converter] with one pass.
func Convert(ctx context.Context, dst io.WriterAt, layout Layout, src Source, o ConvertOptions) (Stats, error) {
	o.Passes = 1
	c := NewConverter(dst, layout, o)
	defer c.Close()
	_, err := c.Pass(ctx, src)
	return c.Stats(), err
}

// Converter writes to a destination the disk that a Layout says is in an image file.
//
// The destination must read as zeros where nothing is written, or be a [Zeroer]; it must take
// concurrent writes to ranges that do not overlap. Data is written at its guest offset, in
// no order. Nothing is flushed: that is the caller's.
type Converter struct {
	dst      io.WriterAt
	layout   Layout
	o        ConvertOptions
	limit    int64
	pending  pending
	reserved int64 // of the budget, for what the layout holds
	park     parking
	late     late
	sent     int64 // pieces given to workers
	stats    Stats
}

// NewConverter returns a Converter. Close it.
func NewConverter(dst io.WriterAt, layout Layout, o ConvertOptions) *Converter {
	if o.Budget == nil {
		o.Budget = NewBudget(0)
	}
	if o.Counters == nil {
		o.Counters = new(Counters)
	}
	if o.MaxParked <= 0 {
		o.MaxParked = o.Budget.Left() / 2
		if o.Scratch != nil { // which leaves the memory to tables, that have no other place
			o.MaxParked = o.Budget.Left() / 8
		}
	}
	state := layout.State()
	c := &Converter{
		dst:     dst,
		layout:  layout,
		o:       o,
		limit:   o.VirtualSize,
		pending: pending{budget: o.Budget},
		park:    parking{format: state.Format, budget: o.Budget, limit: o.MaxParked, scratch: o.Scratch},
		late:    late{budget: o.Budget},
	}
	if state.MaxSize > 0 && (c.limit <= 0 || state.MaxSize < c.limit) {
		c.limit = state.MaxSize
	}
	return c
}

// Pass walks src from front to back. more says that the disk is not whole yet, since data of
// a stream had passed before its place was known and was not parked: the caller hands over the
// same bytes again, options allowing at most Passes of them.
//
// Errors: a [*FormatError] for what is wrong with the image, a [*WriteError] for the
// destination's, the context's, or src's own as they came. The destination is then in no defined
// state, and the Converter of no use.
func (c *Converter) Pass(ctx context.Context, src Source) (more bool, err error) {
	if src.stream == nil && src.file == nil {
		return false, errors.New("disk: Pass: a Source of nothing")
	}
	if c.stats.Passes > 0 {
		c.park.forget()
		if err := c.late.requeue(&c.pending); err != nil {
			return false, c.tooMuch(0, err)
		}
	}
	c.stats.Passes++
	pool, err := c.newWorkers(src)
	if err != nil {
		return false, err
	}
	defer pool.release()
	group, ctx := errgroup.WithContext(ctx)
	w := &walker{Converter: c, ctx: ctx, src: src, stream: forward{r: src.stream}, pool: pool}
	for range pool.workers {
		group.Go(func() error { return pool.work(ctx) })
	}
	group.Go(func() error {
		defer close(pool.jobs)
		return w.walk()
	})
	err = group.Wait()
	guessing := c.layout.State().Guessing
	c.stats.Read = w.pos
	if fe := (*FormatError)(nil); guessing && errors.As(err, &fe) || errors.Is(err, ErrWrongGuess) {
		err = w.needsParking(ErrWrongGuess)
	}
	return err == nil && len(c.late.list) > 0, err
}

// Stats returns what has been done so far.
func (c *Converter) Stats() Stats {
	s := c.stats
	s.Size = c.layout.State().Size
	s.Written, s.Zeroed = c.o.Counters.Written.Load(), c.o.Counters.Zeroed.Load()
	s.PeakParked = c.park.peak
	return s
}

// Close gives back the Converter's part of the budget.
func (c *Converter) Close() {
	c.pending.release()
	c.late.release()
	c.park.clear()
	c.o.Budget.Release(c.reserved)
	c.reserved = 0
}

func (c *Converter) format() string { return c.layout.State().Format }

func (c *Converter) tooMuch(at int64, err error) error {
	return &FormatError{Format: c.format(), Reason: LimitExceeded, Offset: at, Err: err}
}

// walker takes the extents of one file in the order of the file.
type walker struct {
	*Converter
	ctx    context.Context // of this one pass
	src    Source
	stream forward
	pos    int64 // everything before it has passed
	data   Range // of the file, that a Mapper has told
	pool   *workers
}

func (w *walker) walk() error {
	if w.stats.Passes == 1 {
		first, err := w.layout.Start()
		if err == nil {
			err = w.accept(append(first, w.guess()...))
		}
		if err != nil {
			return err
		}
	}
	for {
		if err := w.ctx.Err(); err != nil {
			return err
		}
		next, ok := w.pending.peek()
		complete := w.layout.State().Complete
		if late := ok && next.File.Off < w.pos; complete && !late {
			w.park.clear() // nothing parked can be asked for any more
			if w.lastPass() && len(w.late.list) > 0 {
				return w.needsParking(nil)
			}
		}
		var err error
		switch {
		case ok && next.File.Off <= w.pos:
			w.pending.pop()
			err = w.take(next)
		case ok && complete:
			err = w.drop(next.File.Off - w.pos)
		case ok:
			err = w.gap(next.File.Off - w.pos)
		case !complete:
			err = w.gap(math.MaxInt64 - w.pos)
		default:
			return w.end()
		}
		if err == io.EOF {
			return w.end()
		}
		if err != nil {
			return err
		}
		w.o.Counters.Read.Store(w.pos)
	}
}

// guess asks the layout for a guess where the tables stand behind more of a stream than may be
// parked.
func (w *walker) guess() []Extent {
	g, ok := w.layout.(Guesser)
	if !ok || w.src.file != nil || w.o.Scratch != nil || w.o.NoGuess {
		return nil
	}
	return g.Guess(w.park.limit)
}

func (w *walker) lastPass() bool { return w.stats.Passes >= w.o.Passes }

// needsParking is the error where no further pass can be had, or a guess was wrong.
func (w *walker) needsParking(cause error) error {
	need := w.park.need
	if cause != nil {
		need = max(need, w.pos, w.pending.metaEnd())
	}
	return &FormatError{Format: w.format(), Reason: NeedsParking, Offset: w.pos, Value: uint64(need), Err: cause,
		Detail: fmt.Sprintf("up to %d bytes have to be kept until it is known where they belong, %d may be", need, w.park.limit)}
}

// accept queues what the layout has said, zeros aside: those are done at once.
func (w *walker) accept(extents []Extent) error {
	kept := extents[:0]
	for _, e := range extents {
		if w.limit > 0 && (e.Kind.zeros() || e.Kind == Data) && e.Guest.End() > w.limit {
			return tooLarge(w.format(), e.Guest.End(), w.limit)
		}
		if e.Kind.zeros() {
			if err := w.pool.send(w.ctx, job{zero: true, guest: e.Guest}); err != nil {
				return err
			}
			if e.File.Len == 0 {
				continue
			}
			e.Kind = Drop // allocated all the same
		}
		kept = append(kept, e)
	}
	if err := w.pending.add(kept); err != nil {
		return w.tooMuch(w.pos, err)
	}
	if need := w.layout.State().Memory - w.reserved; need > 0 {
		if err := w.o.Budget.Reserve(need, "tables"); err != nil {
			return w.tooMuch(w.pos, err)
		}
		w.reserved += need
	}
	return nil
}

// gap passes over n bytes at pos that no extent has named yet: a stream's are parked.
// What a file has passed over can be read later.
func (w *walker) gap(n int64) error {
	if w.src.file != nil {
		return w.drop(n)
	}
	buf := make([]byte, min(n, parkSize))
	got, err := w.stream.read(buf)
	if got > 0 {
		if err := w.park.put(w.pos, buf[:got:got]); err != nil {
			return err
		}
	}
	w.pos = w.stream.pos
	return err
}

// drop passes over n bytes at pos for good. io.EOF says that there were fewer.
func (w *walker) drop(n int64) error {
	if n <= 0 {
		return nil
	}
	if w.src.file != nil {
		if n > w.src.size-w.pos {
			w.pos = max(w.pos, w.src.size)
			return io.EOF
		}
		w.pos += n
		return nil
	}
	for n > 0 {
		if err := w.ctx.Err(); err != nil {
			return err
		}
		step := min(n, chunkSize)
		_, err := io.CopyN(io.Discard, readerFunc(w.stream.read), step)
		w.pos = w.stream.pos
		w.o.Counters.Read.Store(w.pos)
		if err != nil {
			return err
		}
		n -= step
	}
	return nil
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// take does what e asks for. e starts at pos, or before it: then its bytes have passed, and
// what was not parked of them is there in the next pass.
func (w *walker) take(e Extent) error {
	if e.Kind == Drop {
		return w.drop(e.File.End() - w.pos)
	}
	if w.src.file == nil {
		if kept, err := w.kept(e); err != nil || !kept {
			return cmp.Or(err, w.late.add(e))
		}
	}
	switch {
	case e.Kind == Meta, e.Kind == Peek:
		return w.feed(e)
	case e.Codec != Plain:
		return w.compressed(e)
	default:
		return w.plain(e)
	}
}

// kept says whether the bytes of e that have passed are parked. Those of a compressed piece may
// end early: where the next piece began, which is before its stated end, perhaps, but behind
// its true one.
func (w *walker) kept(e Extent) (bool, error) {
	passed := min(e.File.Len, w.pos-e.File.Off)
	if passed <= 0 || w.park.has(e.File.Off, passed) == passed {
		return true, nil
	}
	if err := w.pool.idle(w.ctx); err != nil { // a worker may be about to park it
		return false, err
	}
	have := w.park.has(e.File.Off, passed)
	return have == passed || have > 0 && e.Codec != Plain && w.park.missed == 0, nil
}

// feed reads a piece of metadata. What it gives is the layout's to bound: it stands outside
// the budget until accept has counted it.
func (w *walker) feed(e Extent) error {
	if w.src.file != nil && e.File.End() > w.src.size && e.Kind == Meta {
		return w.truncated(w.src.size, e.String())
	}
	if err := w.o.Budget.Reserve(e.File.Len, "metadata"); err != nil {
		return w.tooMuch(e.File.Off, err)
	}
	defer w.o.Budget.Release(e.File.Len)
	buf := make([]byte, e.File.Len)
	n, err := w.fill(buf, e.File.Off)
	if err == nil && n < len(buf) && e.Kind == Meta {
		err = w.truncated(e.File.Off+int64(n), e.String())
	}
	if err != nil {
		return err
	}
	if e.Kind == Peek && w.src.file == nil {
		if err := w.park.put(e.File.Off, bytes.Clone(buf[:n])); err != nil {
			return err
		}
	}
	w.pos = max(w.pos, e.File.Off+int64(n))
	if n < len(buf) {
		return nil
	}
	more, err := w.layout.Feed(e, buf)
	if err != nil {
		return err
	}
	return w.accept(more)
}

// plain hands data over as it is, in chunks.
func (w *walker) plain(e Extent) error {
	open := e.File.Len == ToEnd
	for done := int64(0); open || done < e.File.Len; {
		n := w.pool.chunk
		if !open {
			n = min(n, e.File.Len-done)
		}
		j := job{guest: Range{e.Guest.Off + done, n}, file: Range{e.File.Off + done, n}}
		if w.src.file != nil {
			left := w.src.size - j.file.Off
			if !open {
				if e.File.End() > w.src.size {
					return w.truncated(w.src.size, e.String())
				}
				left = e.File.Len - done
			}
			hole, err := w.hole(j.file.Off, left)
			if err != nil {
				return err
			}
			j.zero = hole > 0
			if j.zero {
				n = hole // as it is: no piece is made of it
			}
			j.guest.Len = min(n, max(left, 0))
			j.file.Len = j.guest.Len
		} else {
			buf, err := w.pool.buffer(w.ctx, n)
			if err != nil {
				return err
			}
			m, err := w.fill(buf, j.file.Off)
			if err == nil && int64(m) < n && !open {
				err = w.truncated(j.file.Off+int64(m), e.String())
			}
			if err != nil {
				return err
			}
			j.buf, j.guest.Len = buf[:m], int64(m)
		}
		if open && w.limit > 0 && j.guest.End() > w.limit {
			return tooLarge(w.format(), j.guest.End(), w.limit)
		}
		if err := w.pool.send(w.ctx, j); err != nil {
			return err
		}
		done += j.guest.Len
		w.pos = max(w.pos, e.File.Off+done)
		if j.guest.Len < n {
			return io.EOF // of an open extent
		}
		w.o.Counters.Read.Store(w.pos)
	}
	return nil
}

// hole returns how many of the next n bytes at off the file says are zeros.
func (w *walker) hole(off, n int64) (int64, error) {
	m, ok := w.src.file.(Mapper)
	if !ok || n <= 0 {
		return 0, nil
	}
	if off < w.data.Off || off >= w.data.End() {
		r, err := m.NextData(off)
		if err == nil && (r.Off < off || r.Len < 0) {
			err = fmt.Errorf("disk: the file says that data after %#x is at %s", off, r)
		}
		if err != nil {
			return 0, err
		}
		w.data = r
	}
	return min(max(w.data.Off-off, 0), n), nil
}

// compressed hands one compressed piece over. Its stated end is an upper bound, and the
// next piece may begin before it: then the walk goes on from there. What stands between its
// true end, which only its worker finds, and that place may belong to a piece that no table
// has named yet, so until all are named the worker parks it.
func (w *walker) compressed(e Extent) error {
	j := job{guest: e.Guest, file: e.File, codec: e.Codec, unit: e.Unit}
	end := e.File.End()
	if next, ok := w.pending.peek(); ok && next.File.Off < end {
		end = max(next.File.Off, e.File.Off)
	}
	if w.src.file != nil {
		if e.File.Off >= w.src.size {
			return w.truncated(w.src.size, e.String())
		}
		if left := w.src.size - e.File.Off; left < j.file.Len {
			j.file.Len, j.short = left, Truncated
		}
		w.pos = max(w.pos, end)
		return w.pool.send(w.ctx, j)
	}
	want, before := e.File.Len, w.pos
	if passed := min(want, before-e.File.Off); passed > 0 {
		if have := w.park.has(e.File.Off, passed); have < passed {
			want, j.short = have, NeedsParking
		}
	}
	buf, err := w.pool.buffer(w.ctx, want)
	if err != nil {
		return err
	}
	n, err := w.fill(buf, e.File.Off)
	if err != nil {
		return err
	}
	if int64(n) < want {
		j.short = Truncated
	}
	if n == 0 {
		return &FormatError{Format: w.format(), Reason: j.short, Offset: e.File.Off, Detail: e.String() + " is not there"}
	}
	j.buf = buf[:n]
	resume := max(before, min(end, w.stream.pos))
	w.stream.unread(j.buf, resume)
	w.pos = resume
	if from := max(e.File.Off, before); from < resume && !w.layout.State().Complete {
		j.spare = Range{from, resume - from}
	}
	return w.pool.send(w.ctx, j)
}

// fill reads the file's bytes at off into p, from what is parked as far as they have
// passed. It returns fewer without an error only at the end of the file.
func (w *walker) fill(p []byte, off int64) (int, error) {
	if w.src.file != nil {
		n := min(int64(len(p)), max(w.src.size-off, 0))
		m, err := w.src.file.ReadAt(p[:n], off)
		if int64(m) == n {
			err = nil
		}
		return m, err
	}
	n := 0
	if off < w.pos {
		passed := min(int64(len(p)), w.pos-off)
		var err error
		if n, err = w.park.read(off, p[:passed]); err != nil {
			return n, err
		}
		if int64(n) < passed {
			return n, &FormatError{Format: w.format(), Reason: NeedsParking, Offset: off + int64(n), Detail: "its bytes have passed and were not kept"}
		}
	}
	if n == len(p) {
		return n, nil
	}
	m, err := w.stream.read(p[n:])
	if err == io.EOF {
		err = nil
	}
	return n + m, err
}

// end finishes the pass at the end of the file.
func (w *walker) end() error {
	size := w.pos
	if w.src.file != nil {
		size = w.src.size
	}
	if w.stats.Passes == 1 {
		more, err := w.layout.End(size)
		if err == nil {
			err = w.accept(more)
		}
		if err != nil {
			return err
		}
	}
	for {
		next, ok := w.pending.peek()
		if !ok {
			break
		}
		if next.File.Off >= size && next.Kind != Drop && next.Kind != Peek {
			return w.truncated(size, next.String())
		}
		w.pending.pop()
		if err := w.take(next); err != nil && err != io.EOF {
			return err
		}
	}
	if len(w.late.list) > 0 {
		if w.lastPass() {
			return w.needsParking(nil)
		}
		return nil
	}
	if s := w.layout.State(); !s.Complete || s.Size < 0 {
		return w.truncated(size, "all its tables have been named")
	}
	return nil
}

func (w *walker) truncated(at int64, what string) error {
	return &FormatError{Format: w.format(), Reason: Truncated, Offset: at, Detail: "the file ends before " + what}
}

// defaultWorkers is the number of workers that nobody has stated.
func defaultWorkers() int { return min(runtime.GOMAXPROCS(0), 16) }
