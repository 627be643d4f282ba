package qcow

import (
	"bytes"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/zstd"

	"github.com/archdisk/archdisk/qcow/disk"
)

// The levels are the fastest whose files are within 2 % of those of qemu-img, which uses the
// default levels of zlib, with a window of 4 KiB, and of zstd. Small clusters need higher ones,
// and come to within 4 %. Changing them changes the bytes of every image.
const (
	smallCluster   = 16 << 10 // the largest that is small
	flateLevel     = 6
	flateLevelHigh = 8
	zstdLevel      = zstd.SpeedDefault
	zstdLevelHigh  = zstd.SpeedBetterCompression
)

// compressor compresses clusters. What it makes of one does not depend on those before.
// Not safe for concurrent use.
type compressor struct {
	codec disk.Codec
	size  int64 // of a cluster
	pad   []byte
	buf   bytes.Buffer
	flate *flate.Writer
	zstd  *zstd.Encoder
}

// compressorCost is what a compressor holds for clusters of size bytes.
func compressorCost(c disk.Codec, size int64) int64 {
	switch c {
	case disk.Deflate:
		return 1<<20 + 2*size
	case disk.Zstd:
		if size <= smallCluster {
			return 5 << 20
		}
		return 3<<19 + 3*size
	}
	return 0
}

// append appends data, a cluster or the shorter last one of a disk, compressed to out. It
// returns out as it was if the cluster does not become smaller.
func (c *compressor) append(out, data []byte) ([]byte, error) {
	if c.codec == disk.Plain {
		return out, nil
	}
	if int64(len(data)) < c.size { // a decoder wants whole clusters
		c.pad = append(append(c.pad[:0], data...), make([]byte, c.size-int64(len(data)))...)
		data = c.pad
	}
	had := len(out)
	switch c.codec {
	case disk.Deflate:
		c.buf.Reset()
		if c.flate == nil {
			level := flateLevel
			if c.size <= smallCluster {
				level = flateLevelHigh
			}
			var err error
			if c.flate, err = flate.NewWriter(nil, level); err != nil {
				return out, err
			}
		}
		c.flate.Reset(&c.buf)
		if _, err := c.flate.Write(data); err != nil {
			return out, err
		}
		if err := c.flate.Close(); err != nil {
			return out, err
		}
		if int64(c.buf.Len()) < c.size {
			out = append(out, c.buf.Bytes()...)
		}
	case disk.Zstd:
		if c.zstd == nil {
			level := zstdLevel
			if c.size <= smallCluster {
				level = zstdLevelHigh
			}
			var err error
			if c.zstd, err = zstd.NewWriter(nil,
				zstd.WithEncoderConcurrency(1),
				zstd.WithEncoderLevel(level),
				zstd.WithAllLitEntropyCompression(true), // else the level decides
				zstd.WithWindowSize(int(max(c.size, zstd.MinWindowSize))),
				zstd.WithEncoderCRC(false),
				zstd.WithSingleSegment(true),
				zstd.WithLowerEncoderMem(true)); err != nil {
				return out, err
			}
		}
		out = c.zstd.EncodeAll(data, out)
		if int64(len(out)-had) >= c.size {
			out = out[:had]
		}
	}
	return out, nil
}

const zeroStep = 4 << 10 // bytes looked at before it may stop

// isZero says that p holds nothing but zeros.
func isZero(p []byte) bool {
	for len(p) > 0 {
		n := min(len(p), zeroStep)
		if p[0] != 0 || !bytes.Equal(p[1:n], p[:n-1]) {
			return false
		}
		p = p[n:]
	}
	return true
}
