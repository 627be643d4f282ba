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
	one   [1]byte
	flate io.ReadCloser
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

func (d *Decoder) inflate(dst, src []byte) (used int, err error) {
	d.in.Reset(src)
	if d.flate == nil {
		d.flate = flate.NewReader(&d.in)
	} else if err := d.flate.(flate.Resetter).Reset(&d.in, nil); err != nil {
		return 0, err
	}
	_, err = io.ReadFull(d.flate, dst)
	switch err {
	case nil:
		_, _ = d.flate.Read(d.one[:]) // past the mark that ends the last block
	case io.EOF:
		err = io.ErrUnexpectedEOF
	}
	return len(src) - d.in.Len(), err
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
