package disk

import (
	"bytes"
	"fmt"
	"io"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/zstd"
)

// maxWindow is the largest zstd window accepted inside an image. Clusters end at 2 MiB.
const maxWindow = 8 << 20

// Decoder decodes the compressed pieces of disk images. It keeps its buffers from one
// piece to the next. The zero value is ready; it is not safe for concurrent use.
type Decoder struct {
	in    bytes.Reader
	flate io.ReadCloser
	zstd  *zstd.Decoder
}

// Decode fills dst from src, which must decode to at least len(dst) bytes of DEFLATE, or
// to whole Zstandard frames of exactly len(dst) bytes together. Whatever follows in src
// is ignored: it is padding, or the next piece's. Never reads past src.
func (d *Decoder) Decode(c Codec, dst, src []byte) error {
	switch c {
	case Plain:
		if len(src) < len(dst) {
			return io.ErrUnexpectedEOF
		}
		copy(dst, src)
		return nil
	case Deflate:
		return d.inflate(dst, src)
	case Zstd:
		return d.unzstd(dst, src)
	}
	return fmt.Errorf("unknown codec %d", c)
}

// Close frees the decoder's resources. It may be used again afterwards.
func (d *Decoder) Close() {
	if d.zstd != nil {
		d.zstd.Close()
	}
	*d = Decoder{}
}

func (d *Decoder) inflate(dst, src []byte) error {
	d.in.Reset(src)
	if d.flate == nil {
		d.flate = flate.NewReader(&d.in)
	} else if err := d.flate.(flate.Resetter).Reset(&d.in, nil); err != nil {
		return err
	}
	_, err := io.ReadFull(d.flate, dst)
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// unzstd decodes frame by frame, since each must end inside dst: a frame that goes on
// behind it is a damaged cluster, while a further frame is the next cluster's.
func (d *Decoder) unzstd(dst, src []byte) error {
	if d.zstd == nil {
		dec, err := zstd.NewReader(nil,
			zstd.WithDecoderConcurrency(1),
			zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(maxWindow),
			zstd.WithDecodeAllCapLimit(true))
		if err != nil {
			return err
		}
		d.zstd = dec
	}
	out := dst[:0:len(dst)]
	for len(out) < len(dst) {
		n, skip, err := zstdFrame(src)
		if err != nil {
			return err
		}
		if !skip {
			if out, err = d.zstd.DecodeAll(src[:n], out); err != nil {
				return err
			}
		}
		src = src[n:]
	}
	return nil
}
