package disk

import (
	"fmt"
	"io"

	"github.com/archdisk/archdisk/internal/inflate"
	"github.com/klauspost/compress/zstd"
)

// maxWindow is the largest zstd window accepted inside an image. Clusters end at 2 MiB.
const maxWindow = 8 << 20

// Decoder decodes the compressed pieces of disk images. It keeps its buffers from one
// piece to the next. The zero value is ready; it is not safe for concurrent use.
type Decoder struct {
	flate *inflate.Decoder
	zstd  *zstd.Decoder
}

// Decode fills dst from src, which must decode to at least len(dst) bytes of DEFLATE, or
// to whole Zstandard frames of exactly len(dst) bytes together. Whatever follows in src
// is ignored: it is padding, or the next piece's. Never reads past src. It returns how much
// of src is this piece's.
func (d *Decoder) Decode(c Codec, dst, src []byte) (used int, err error) {
	switch c {
	case Plain:
		if len(src) < len(dst) {
			return 0, io.ErrUnexpectedEOF
		}
		return copy(dst, src), nil
	case Deflate:
		return d.inflate(dst, src)
	case Zstd:
		return d.unzstd(dst, src)
	}
	return 0, fmt.Errorf("unknown codec %d", c)
}

// Close frees the decoder's resources. It may be used again afterwards.
func (d *Decoder) Close() {
	if d.zstd != nil {
		d.zstd.Close()
	}
	*d = Decoder{}
}

// inflate decodes as much of a stream as there is room for, and is content with it: QEMU ignores
// what else it has, a missing end too.
func (d *Decoder) inflate(dst, src []byte) (used int, err error) {
	if d.flate == nil {
		d.flate = new(inflate.Decoder)
	}
	n, used, err := d.flate.Inflate(dst, src)
	if n == len(dst) {
		return used, nil
	}
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	return used, err
}

// unzstd decodes frame by frame, since each must end inside dst: a frame that goes on
// behind it is a damaged cluster, while a further frame is the next cluster's.
func (d *Decoder) unzstd(dst, src []byte) (used int, err error) {
	if d.zstd == nil {
		dec, err := zstd.NewReader(nil,
			zstd.WithDecoderConcurrency(1),
			zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(maxWindow),
			zstd.WithDecodeAllCapLimit(true))
		if err != nil {
			return 0, err
		}
		d.zstd = dec
	}
	out := dst[:0:len(dst)]
	for len(out) < len(dst) {
		n, skip, err := zstdFrame(src[used:])
		if err != nil {
			return used, err
		}
		if !skip {
			if out, err = d.zstd.DecodeAll(src[used:used+n], out); err != nil {
				return used, err
			}
		}
		used += n
	}
	if len(out) > 0 && &out[0] != &dst[0] {
		copy(dst, out) // the cap limit keeps it in place; stale bytes must not depend on that
	}
	return used, nil
}
