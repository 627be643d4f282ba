package importer

import (
	"context"
	"fmt"
	"io"

	"github.com/archdisk/archdisk/qcow"
	"github.com/archdisk/archdisk/qcow/disk"
	"github.com/archdisk/archdisk/qcow/formats"
)

// output is where a conversion writes the disk to: the target itself, which becomes a raw disk,
// or a QCOW2 image in it.
type output struct {
	io.WriterAt
	image  *qcow.Writer // nil for a raw disk
	length int64        // of what stands in the target, once it is finished
}

// clusterSize of the images that are written, in bytes: QEMU's default.
const clusterSize = 64 << 10

// begin prepares the target for a disk of size bytes, -1 if that is not known.
func (r *run) begin(ctx context.Context, size int64) error {
	qcow2 := r.o.Format == formats.QCOW2
	length := size
	if qcow2 {
		length = -1
		if size < 0 {
			return at(StageConvert, fmt.Errorf("%w: a qcow2 image is begun with the size of its disk, which this source tells only at its end: state one", ErrOptions))
		}
	}
	r.begun = true
	if err := r.dst.Begin(ctx, length); err != nil {
		return at(StageWrite, err)
	}
	r.out = output{WriterAt: writeGuard{r}}
	if !qcow2 {
		return nil
	}
	w, err := qcow.Create(writeGuard{r}, size, qcow.CreateOptions{ClusterSize: clusterSize, Compression: r.o.Compression, Workers: r.o.Workers, Budget: r.o.Budget})
	if err != nil {
		return at(StageWrite, err)
	}
	r.out.WriterAt, r.out.image = w, w
	return nil
}

// finish completes what has been written for a disk that is have bytes long and becomes size.
func (o *output) finish(ctx context.Context, have, size int64) error {
	if o.image != nil { // it reads as zeros where nothing was written
		err := o.image.Finish(ctx)
		o.length = o.image.Stats().FileSize
		return at(StageWrite, err)
	}
	o.length = size
	z, ok := o.WriterAt.(disk.Zeroer)
	if !ok || size == have {
		return nil
	}
	if err := z.ZeroRange(have, size-have); err != nil {
		return at(StageWrite, &disk.WriteError{Offset: have, Len: size - have, Err: err})
	}
	return nil
}

// disk returns the finished disk to be read back.
func (o *output) disk(target io.ReaderAt) (io.ReaderAt, func(), error) {
	if o.image == nil {
		return target, func() {}, nil
	}
	img, err := qcow.Open(target, o.length, qcow.OpenOptions{})
	if err != nil {
		return nil, nil, err
	}
	return img, func() { img.Close() }, nil
}

func (o *output) close() {
	if o.image != nil {
		o.image.Close()
	}
}

// checkOutput refuses formats that are not written.
func (o Options) checkOutput() error {
	switch {
	case o.Format != "" && o.Format != formats.Raw && o.Format != formats.QCOW2:
		return fmt.Errorf("%w: format %q is not written", ErrOptions, o.Format)
	case o.Compression != disk.Plain && o.Format != formats.QCOW2:
		return fmt.Errorf("%w: %s compression is a qcow2 image's", ErrOptions, o.Compression)
	}
	return nil
}

// writeGuard passes writes on to the target. A failed one ends the download, which may be
// waiting for a network that has nothing to say.
type writeGuard struct{ *run }

func (g writeGuard) WriteAt(p []byte, off int64) (int, error) {
	n, err := g.dst.WriteAt(p, off)
	if err != nil {
		g.cancel(&disk.WriteError{Offset: off, Len: int64(len(p)), Err: err})
	}
	return n, err
}

func (g writeGuard) ZeroRange(off, n int64) error {
	z, ok := g.dst.(disk.Zeroer)
	if !ok {
		return nil
	}
	err := z.ZeroRange(off, n)
	if err != nil {
		g.cancel(&disk.WriteError{Offset: off, Len: n, Err: err})
	}
	return err
}

// closeConversion gives back the memory of a conversion that ended, or is given up.
func (r *run) closeConversion() {
	if r.conv != nil {
		r.conv.Close()
	}
	r.out.close()
}
