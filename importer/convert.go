package importer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/archdisk/archdisk/importer/archive"
	"github.com/archdisk/archdisk/qcow/disk"
	"github.com/archdisk/archdisk/qcow/formats"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// ImportReader brings a disk from a stream or a file to dst: an upload, a local image. r
// is read from front to back; one that can be read at any offset as well, and knows its size
// (as an [io.SectionReader] does), is read in parallel. Compression is unwrapped, and of a
// tar archive the only file is taken, or the one at o.Path. An image of a disk of size zero
// is allowed; no bytes at all are [ErrEmptyDisk].
//
// It ends as [Import] does. Options about references and platforms are not used.
func ImportReader(ctx context.Context, r io.Reader, dst Target, o Options) (*Result, error) {
	run := newRun(dst, o)
	run.empty = true
	return run.finish(ctx, func(ctx context.Context) error {
		switch {
		case r == nil:
			return at(StageResolve, missing("reader"))
		case dst == nil:
			return at(StageResolve, missing("target"))
		}
		return at(StageUnpack, run.reader(ctx, r))
	})
}

// randomAccess is what a reader is if it need not be read from front to back.
type randomAccess interface {
	io.ReaderAt
	Size() int64
}

func (r *run) reader(ctx context.Context, in io.Reader) error {
	defer r.timer.enter(StageUnpack)()
	if file, ok := in.(randomAccess); ok {
		r.length = file.Size()
		head := make([]byte, min(archive.HeadSize, file.Size()))
		if _, err := io.ReadFull(io.NewSectionReader(file, 0, int64(len(head))), head); err != nil {
			return at(StageFetch, err)
		}
		if archive.Detect(head) == archive.None && !tarHead(head) && r.o.ExpectFileDigest == "" && r.o.Path == "" {
			r.count.fetchTotal.Store(file.Size())
			return r.decode(ctx, head, disk.File(file, file.Size()))
		}
		r.passes = maxPasses
		for {
			r.count.fetchTotal.Add(file.Size())
			err := r.file(ctx, io.NewSectionReader(file, 0, file.Size()))
			if !r.mayRestart(err) && (err != nil || !r.more) {
				return err
			}
		}
	}
	return r.file(ctx, in)
}

// file reads a stream that is a disk image file or holds one.
func (r *run) file(ctx context.Context, in io.Reader) error {
	in, check, err := r.expectFile(readCounter{in, r})
	if err != nil {
		return err
	}
	archived := false
	err = r.unwrap(in, func(s *archive.Stream, head []byte) error {
		if archived = tarHead(head); archived {
			return r.archive(ctx, s)
		}
		if r.o.Path != "" {
			return fmt.Errorf("archive: %w at %q: this is no tar archive", archive.ErrNoDisk, r.o.Path)
		}
		return r.image(ctx, s, head)
	})
	if err != nil || archived {
		return err
	}
	return check()
}

// unwrap decompresses file and hands on what comes out, and the first bytes of that.
func (r *run) unwrap(file io.Reader, use func(s *archive.Stream, head []byte) error) error {
	s, err := archive.Decompress(file, r.o.Budget)
	if err != nil {
		return err
	}
	defer s.Close()
	if s.Compression != archive.None {
		r.length = -1
	}
	head, err := s.Head()
	if err != nil {
		return err
	}
	return use(s, head)
}

// archive takes the disk from a tar archive that is no layer of an image.
func (r *run) archive(ctx context.Context, s io.Reader) error {
	p := pass{run: r, find: archive.NewFinder(archive.Search{Want: r.o.Path, Exact: r.o.Path != ""})}
	p.find.NextLayer()
	if err := p.tar(ctx, s, ocispec.Descriptor{}); err != nil {
		return err
	}
	if err := drain(s); err != nil {
		return err
	}
	entry, next, err := p.find.Result()
	if next != nil {
		err = fmt.Errorf("%w: %q is a link", archive.ErrNotAFile, entry)
	}
	return err
}

// tarHead says that head is a tar archive. One of zeros is a disk here.
func tarHead(head []byte) bool {
	return len(head) > 0 && head[0] != 0 && archive.IsTar(head)
}

// readCounter counts what is read of a stream as fetched.
type readCounter struct {
	io.Reader
	run *run
}

func (c readCounter) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.run.count.fetched.Add(int64(n))
	return n, err
}

// convert decodes the disk image file in a stream, which may be compressed once more, and
// reads the stream to its end.
func (r *run) convert(ctx context.Context, file io.Reader) error {
	file, check, err := r.expectFile(file)
	if err != nil {
		return err
	}
	err = r.unwrap(file, func(s *archive.Stream, head []byte) error { return r.image(ctx, s, head) })
	if err != nil {
		return err
	}
	return check()
}

// image decodes a disk image and reads its stream to the end.
func (r *run) image(ctx context.Context, s *archive.Stream, head []byte) error {
	if err := r.decode(ctx, head, disk.Stream(s)); err != nil {
		return err
	}
	return drain(s)
}

// drain reads r to its end: what follows the part that was used has checksums, too.
func drain(r io.Reader) error {
	_, err := io.Copy(io.Discard, struct{ io.Reader }{r})
	return err
}

// expectFile returns file so that the digest that the image file must have can be checked
// once what was wanted of it has been read.
func (r *run) expectFile(file io.Reader) (hashed io.Reader, check func() error, err error) {
	want := r.o.ExpectFileDigest
	if want == "" {
		return file, func() error { return nil }, nil
	}
	sum, err := newHash(want)
	if err != nil {
		return nil, nil, err
	}
	hashed = io.TeeReader(file, sum)
	return hashed, func() error {
		if err := drain(hashed); err != nil {
			return err
		}
		got := digest.NewDigest(want.Algorithm(), sum)
		r.res.FileDigest = got.String()
		if got != want {
			return at(StageVerify, &DigestError{What: "disk image file", Want: want.String(), Got: got.String()})
		}
		return nil
	}, nil
}

// decode judges an image by its first bytes and, if nothing speaks against it, writes its
// disk to the target: all of it, unless r.more says that another pass is needed.
func (r *run) decode(ctx context.Context, head []byte, src disk.Source) error {
	if r.more {
		return r.pass(ctx, src)
	}
	if err := r.judge(head); err != nil {
		return err
	}
	layout, err := formats.NewLayout(head, r.o.Limits)
	if err != nil {
		return at(StageProbe, err)
	}
	size := r.res.VirtualSize
	if r.res.Format == formats.Raw {
		size = r.length
		if size >= 0 { // then what is wrong with it can be told before a disk is begun
			if _, err := layout.End(size); err != nil {
				return at(StageConvert, r.tooLarge(err))
			}
		}
	}
	r.count.diskSize.Store(size)
	if r.o.Size > 0 {
		size = r.o.Size // the image is no larger, and is grown to it
	}
	if r.begun { // by what a link in the same layer then proved not to be the disk
		r.closeConversion()
		if err := r.dst.Abort(); err != nil {
			return at(StageWrite, err)
		}
	}
	if err := r.begin(ctx, size); err != nil {
		return err
	}
	r.conv = disk.NewConverter(r.out.WriterAt, layout, disk.ConvertOptions{
		Workers: r.o.Workers, Budget: r.o.Budget, VirtualSize: r.o.Limits.VirtualSize, Counters: &r.count.disk,
		Scratch: r.o.Scratch, Passes: r.passes, NoGuess: r.noGuess,
	})
	return r.pass(ctx, src)
}

// pass hands the image file to the conversion.
func (r *run) pass(ctx context.Context, src disk.Source) (err error) {
	defer r.timer.enter(StageConvert)()
	r.more, err = r.conv.Pass(ctx, src)
	stats := r.conv.Stats()
	r.res.Passes++
	r.res.PeakParked = stats.PeakParked
	if err != nil {
		return at(StageConvert, r.tooLarge(err))
	}
	if r.more {
		return nil
	}
	r.size, r.res.VirtualSize = stats.Size, stats.Size
	r.count.diskSize.Store(stats.Size)
	if err := r.out.finish(ctx, stats.Size, max(stats.Size, r.o.Size)); err != nil {
		return err
	}
	if w := r.out.image; w != nil { // which looks for zeros itself
		data := min(w.Stats().Data*clusterSize, stats.Size)
		r.count.disk.Written.Store(data)
		r.count.disk.Zeroed.Store(stats.Size - data)
	}
	return nil
}

// tooLarge turns the disk package's word for a disk beyond the limit into ours, which has
// both figures.
func (r *run) tooLarge(err error) error {
	var format *disk.FormatError
	if errors.As(err, &format) && format.Reason == disk.VirtualSizeTooLarge {
		return &TooLargeError{Need: int64(min(format.Value, math.MaxInt64)), Have: r.o.Limits.VirtualSize}
	}
	return err
}

// verify reads the finished disk back where something is expected of it.
func (r *run) verify(ctx context.Context) error {
	if r.o.ExpectSHA256 == "" && !r.o.HashDisk {
		return nil
	}
	defer r.timer.enter(StageVerify)()
	finished, done, err := r.out.disk(r.dst)
	if err != nil {
		return at(StageVerify, err)
	}
	defer done()
	sum := sha256.New()
	buf := make([]byte, readChunk)
	for off := int64(0); off < r.size; {
		if err := ctx.Err(); err != nil {
			return at(StageVerify, err)
		}
		p := buf[:min(int64(len(buf)), r.size-off)]
		n, err := finished.ReadAt(p, off)
		if err == io.EOF { // nothing was written from here on: the length comes with the commit
			clear(p[n:])
			n = len(p)
		}
		if n < len(p) {
			return at(StageVerify, fmt.Errorf("target at %#x: %w", off+int64(n), err))
		}
		sum.Write(p)
		off += int64(len(p))
	}
	r.res.SHA256 = hex.EncodeToString(sum.Sum(nil))
	if want := strings.ToLower(r.o.ExpectSHA256); want != "" && want != r.res.SHA256 {
		return at(StageVerify, &DigestError{What: "decoded disk", Want: "sha256:" + want, Got: "sha256:" + r.res.SHA256})
	}
	return nil
}
