package importer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/archdisk/archdisk/importer/archive"
	"github.com/archdisk/archdisk/qcow/formats"
)

// errProbed ends the walk over an image once its disk's first bytes have been judged.
var errProbed = errors.New("probed")

// Probe looks at the first bytes of an image's disk: its format, whether it may be read,
// its virtual size where the first bytes tell it. Little more than them is fetched; so digests
// of layers are not checked, nor that no second file stands beside the disk.
//
// Errors: an [*Error]. The result is returned with it, as far as things came.
func Probe(ctx context.Context, src Source, ref string, o ProbeOptions) (*Result, error) {
	r := newRun(nil, o.options())
	r.res.Reference = ref
	r.take = r.peek
	return r.finish(ctx, probed(func(ctx context.Context) error {
		sel, err := r.choose(ctx, src, ref)
		if err != nil {
			return err
		}
		return r.layers(ctx, src, ref, sel.Manifest.Layers)
	}))
}

// ProbeReader looks at the first bytes of a disk in a stream or a file; see [ImportReader].
func ProbeReader(ctx context.Context, in io.Reader, o ProbeOptions) (*Result, error) {
	r := newRun(nil, o.options())
	r.empty = true
	r.take = r.peek
	return r.finish(ctx, probed(func(ctx context.Context) error {
		if in == nil {
			return at(StageResolve, missing("reader"))
		}
		return at(StageUnpack, r.unwrap(in, func(s *archive.Stream, head []byte) error {
			if tarHead(head) {
				return r.archive(ctx, s)
			}
			return r.judge(head)
		}))
	}))
}

// probed is work without the error that ends it well.
func probed(work func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		err := work(ctx)
		if errors.Is(err, errProbed) {
			return nil
		}
		return err
	}
}

// peek judges a disk image file by its first bytes; it takes the place of convert.
func (r *run) peek(_ context.Context, file io.Reader) error {
	return r.unwrap(file, func(_ *archive.Stream, head []byte) error {
		if err := r.judge(head); err != nil {
			return err
		}
		return errProbed
	})
}

// judge says from an image's first bytes whether it may be read.
func (r *run) judge(head []byte) error {
	defer r.timer.enter(StageProbe)()
	info, err := formats.Probe(head, r.o.Limits)
	r.res.Format, r.res.VirtualSize = info.Format, info.VirtualSize
	r.res.Notes = slices.Concat(r.notes, info.Notes) // and no word of what was judged before: a link's file, a guess
	switch {
	case len(head) == 0:
		err = fmt.Errorf("%w: there are no bytes", ErrEmptyDisk)
	case err == nil && info.VirtualSize == 0 && !r.empty:
		err = ErrEmptyDisk
	}
	return at(StageProbe, r.tooLarge(err))
}
