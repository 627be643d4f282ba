package importer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/archdisk/archdisk/importer/archive"
	"github.com/archdisk/archdisk/platform"
	"github.com/archdisk/archdisk/qcow/disk"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Import brings the disk of the image ref from src to dst. It ends in dst.Commit or in
// dst.Abort, never in neither; dst stays the caller's to close.
//
// Errors: an [*Error] that names stage and class. The result is returned with it, as far as
// things came.
func Import(ctx context.Context, src Source, ref string, dst Target, o Options) (*Result, error) {
	r := newRun(dst, o)
	r.res.Reference = ref
	return r.finish(ctx, func(ctx context.Context) error {
		if dst == nil {
			return at(StageResolve, missing("target"))
		}
		found, err := r.choose(ctx, src, ref)
		if err != nil {
			return err
		}
		return r.layers(ctx, src, ref, found.Manifest.Layers)
	})
}

// run is one import in progress. It belongs to one goroutine; counters may be read by all.
type run struct {
	o       Options
	dst     Target
	res     *Result
	take    func(ctx context.Context, file io.Reader) error // what to do with the disk image file
	count   counters
	begun   bool
	notes   []string        // of the choice of the image; those of the disk come after them
	length  int64           // of the disk image file, -1 while not known
	conv    *disk.Converter // of the disk that was found
	out     output          // what that writes to
	passes  int             // over the image file that can be had
	more    bool            // another one is needed
	noGuess bool            // after a wrong one about what stands in the image file
	empty   bool            // an image of a disk of size zero is allowed
	size    int64           // of the decoded disk, -1 before it is known
	timer   stopwatch
	cancel  context.CancelCauseFunc
}

func newRun(dst Target, o Options) *run {
	r := &run{o: o.withDefaults(), dst: dst, size: -1, length: -1, res: &Result{VirtualSize: -1}, timer: newStopwatch()}
	r.take = r.convert
	r.count.diskSize.Store(-1)
	return r
}

// finish runs the work, then commits what it has written or undoes it.
func (r *run) finish(ctx context.Context, work func(context.Context) error) (*Result, error) {
	parent := ctx
	ctx, r.cancel = context.WithCancelCause(parent)
	defer r.cancel(nil)
	stop := r.progress()
	err := at(StageResolve, r.o.check())
	if err == nil {
		err = work(ctx)
	}
	r.closeConversion()
	if err == nil && r.begun {
		err = r.verify(ctx)
	}
	if err == nil && r.begun {
		err = r.commit(ctx)
	}
	if err != nil {
		err = because(ctx, parent, at(StageConvert, err))
	}
	if err != nil && r.dst != nil {
		if undo := r.dst.Abort(); undo != nil {
			err = about("the target could not be cleared ("+undo.Error()+") after", err)
		}
	}
	stop()
	r.res.BytesFetched = r.count.read()
	r.res.BytesWritten = r.count.disk.Written.Load()
	r.res.BytesZeroed = r.count.disk.Zeroed.Load()
	r.res.Seconds = r.timer.seconds()
	if err == nil {
		r.o.Log.Debug("import done", r.attrs()...)
		return r.res, nil
	}
	r.o.Log.Debug("import failed", append(r.attrs(), "error", err)...)
	return r.res, err
}

// attrs are what every log line carries.
func (r *run) attrs() []any {
	a := []any{"reference", r.res.Reference, "manifest", r.res.ManifestDigest}
	if p := r.res.Platform; p != nil {
		a = append(a, "architecture", p.Architecture)
	}
	return a
}

// choose resolves the image and has it judged before any layer is fetched.
func (r *run) choose(ctx context.Context, src Source, ref string) (*platform.Selection, error) {
	defer r.timer.enter(StageResolve)()
	m, err := resolve(ctx, src, ref, r.o.resolve())
	if err != nil {
		return nil, at(StageResolve, err)
	}
	sel := m.Selection
	r.res.IndexDigest, r.res.ManifestDigest = m.IndexDigest.String(), m.Digest.String()
	r.res.Platform = &Platform{OS: sel.Platform.OS, Architecture: sel.Platform.Architecture, Variant: sel.Platform.Variant}
	r.notes = sel.Notes
	r.res.Notes = r.notes
	r.res.Labels = labels(sel.Config)
	if err := checkKind(sel.Config); err != nil {
		return nil, at(StagePolicy, err)
	}
	if r.o.Policy != nil {
		err := r.o.Policy.Check(ctx, Subject{Reference: ref, IndexDigest: r.res.IndexDigest, ManifestDigest: r.res.ManifestDigest, Manifest: sel.Raw})
		if err != nil {
			return nil, at(StagePolicy, fmt.Errorf("%w: %w", ErrDenied, err))
		}
	}
	r.o.Log.Debug("image chosen", r.attrs()...)
	return sel, nil
}

// maxPasses bounds how often a disk image file is read: for its first table, for the tables
// that names, for the data.
const maxPasses = 3

// maxLinks bounds the links that are followed from the wanted path to its file.
const maxLinks = 8

// layers walks the image's layers, the top one first, as often as links lead elsewhere.
func (r *run) layers(ctx context.Context, src Source, ref string, layers []ocispec.Descriptor) error {
	search := archive.Search{Want: DiskDir}
	if r.o.Path != "" {
		search = archive.Search{Want: r.o.Path, Exact: true}
	}
	r.passes = maxPasses
	for range maxLinks {
		p := pass{run: r, src: src, ref: ref, find: archive.NewFinder(search)}
		next, err := p.walk(ctx, layers)
		if r.mayRestart(err) {
			p.find = archive.NewFinder(search)
			next, err = p.walk(ctx, layers)
		}
		if err == nil && next == nil {
			return r.again(ctx, p, layers)
		}
		if err != nil {
			return err
		}
		search = *next
	}
	return at(StageUnpack, fmt.Errorf("%w: %.200q: more than %d links from one to the next", archive.ErrNotAFile, search.Want, maxLinks))
}

// mayRestart says that err calls for a new beginning, with no guess about tables this time.
func (r *run) mayRestart(err error) bool {
	if !errors.Is(err, disk.ErrWrongGuess) || r.passes < 2 {
		return false
	}
	r.o.Log.Debug("a guess was wrong: again from the start", r.attrs()...)
	r.noGuess, r.more = true, false
	return true
}

// again walks to the disk that p has found as often as its conversion needs it. Every byte is
// verified as in the first walk.
func (r *run) again(ctx context.Context, p pass, layers []ocispec.Descriptor) error {
	for search := p.find.Again(); r.more; {
		r.o.Log.Debug("another pass", append(r.attrs(), "layer", r.res.LayerDigest, "entry", r.res.Entry)...)
		p.find = archive.NewFinder(search)
		if _, err := p.walk(ctx, layers); err != nil {
			return err
		}
	}
	return nil
}

// commit makes the disk visible, grown to the size that was asked for.
func (r *run) commit(ctx context.Context) error {
	defer r.timer.enter(StageCommit)()
	if err := ctx.Err(); err != nil {
		return at(StageCommit, err)
	}
	if err := r.dst.Commit(ctx, r.out.length); err != nil {
		return at(StageCommit, err)
	}
	r.res.Size = max(r.size, r.o.Size)
	r.res.FileSize = r.out.length
	return nil
}

// stopwatch adds up the time spent in each stage.
type stopwatch struct {
	spent map[Stage]time.Duration
	stage Stage
	since time.Time
}

func newStopwatch() stopwatch { return stopwatch{spent: map[Stage]time.Duration{}} }

// enter starts a stage; the function it returns ends it and resumes the one before.
func (w *stopwatch) enter(s Stage) (leave func()) {
	before := w.stage
	w.turn(s)
	return func() { w.turn(before) }
}

func (w *stopwatch) turn(s Stage) {
	now := time.Now()
	if w.stage != "" {
		w.spent[w.stage] += now.Sub(w.since)
	}
	w.stage, w.since = s, now
}

func (w *stopwatch) seconds() map[Stage]float64 {
	s := map[Stage]float64{}
	for stage, d := range w.spent {
		s[stage] = d.Seconds()
	}
	return s
}
