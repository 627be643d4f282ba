package qcow_test

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
)

// craft builds images by hand, field by field as the specification has them: the header, a
// refcount table and its block, L1, one L2 table, then data, one cluster each.
type craft struct {
	bits     uint32 // of the cluster size; default 12
	size     uint64 // of the disk; default four clusters
	version  uint32 // default 3
	zstd     bool   // compressed clusters are
	extended bool   // L2 entries are
	entries  []uint64
	bitmaps  []uint64 // of the entries, if they are extended
	data     []byte   // at dataAt; the file ends with it
	noL2     bool     // the file ends with the L1 table's one entry
}

func (c craft) cluster() int64 { return 1 << c.clusterBits() }

func (c craft) clusterBits() uint32 {
	if c.bits == 0 {
		return 12
	}
	return c.bits
}

// dataAt is where the data stands.
func (c craft) dataAt() int64 { return 5 * c.cluster() }

// l2At is where the L2 table stands.
func (c craft) l2At() int64 { return 4 * c.cluster() }

// packed is the entry of a compressed cluster of n bytes that stands at byte off of the data.
func (c craft) packed(off, n int64) uint64 {
	at := c.dataAt() + off
	return c.packedSectors(off, (at%512+n-1)/512)
}

// packedSectors is such an entry with so many further sectors.
func (c craft) packedSectors(off, sectors int64) uint64 {
	return 1<<62 | uint64(sectors)<<(62-(c.clusterBits()-8)) | uint64(c.dataAt()+off)
}

// plain is the entry of the nth cluster of the data.
func (c craft) plain(n int64) uint64 { return 1<<63 | uint64(c.dataAt()+n*c.cluster()) }

func (c craft) build() []byte {
	be, cs := binary.BigEndian, uint64(c.cluster())
	if c.size == 0 {
		c.size = 4 * cs
	}
	if c.version == 0 {
		c.version = 3
	}
	file := make([]byte, 5*cs)
	copy(file, "QFI\xfb")
	be.PutUint32(file[4:], c.version)
	be.PutUint32(file[20:], c.clusterBits())
	be.PutUint64(file[24:], c.size)
	be.PutUint32(file[36:], 1) // l1_size
	be.PutUint64(file[40:], 3*cs)
	be.PutUint64(file[48:], cs) // refcounts
	be.PutUint32(file[56:], 1)
	if c.version >= 3 {
		if c.zstd {
			file[104] = 1
			file[79] |= 1 << 3
		}
		if c.extended {
			file[79] |= 1 << 4
		}
		be.PutUint32(file[96:], 4)    // refcount_order
		be.PutUint32(file[100:], 112) // header_length
	}
	be.PutUint64(file[cs:], 2*cs)
	for i := range 5 + (uint64(len(c.data))+cs-1)/cs {
		if at := 2*cs + 2*i; at < 3*cs {
			be.PutUint16(file[at:], 1)
		}
	}
	if c.noL2 {
		return file[:3*cs+8]
	}
	be.PutUint64(file[3*cs:], 1<<63|4*cs)
	for i, e := range c.entries {
		at := 4*cs + 8*uint64(i)
		if c.extended {
			at = 4*cs + 16*uint64(i)
			be.PutUint64(file[at+8:], c.bitmaps[i])
		}
		be.PutUint64(file[at:], e)
	}
	return append(file, c.data...)
}

// text returns n bytes of which compression takes about half away.
func text(n int, seed uint64) []byte {
	rnd, p := rand.New(rand.NewPCG(seed, 1)), make([]byte, n)
	for i := range p {
		p[i] = "0123456789abcdef"[rnd.IntN(16)]
	}
	return p
}

// disk4 returns a disk of four clusters, of which the first begin with what parts have.
func disk4(cluster int, parts ...[]byte) []byte {
	p := make([]byte, 4*cluster)
	for i, part := range parts {
		copy(p[i*cluster:], part)
	}
	return p
}

// deflated compresses data; unless it is final, no block says that it is the last.
func deflated(t *testing.T, data []byte, final bool) []byte {
	var b bytes.Buffer
	w, err := flate.NewWriter(&b, flate.BestCompression)
	require.NoError(t, err)
	_, err = w.Write(data)
	require.NoError(t, err)
	if final {
		require.NoError(t, w.Close())
	} else {
		require.NoError(t, w.Flush())
	}
	return b.Bytes()
}

// zstandard compresses data to one frame.
func zstandard(t *testing.T, data []byte, o ...zstd.EOption) []byte {
	w, err := zstd.NewWriter(nil, append([]zstd.EOption{zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(false)}, o...)...)
	require.NoError(t, err)
	defer w.Close()
	return w.EncodeAll(data, nil)
}

// frame builds a Zstandard frame by hand: its descriptor and what goes with that, then one last
// block of the type (0 raw, 1 RLE, 3 reserved) and size given. Spec: RFC 8878, 3.1.1.
func frame(head []byte, kind, size int, content ...byte) []byte {
	block := 1 | kind<<1 | size<<3
	p := append([]byte{0x28, 0xb5, 0x2f, 0xfd}, head...)
	return append(append(p, byte(block), byte(block>>8), byte(block>>16)), content...)
}

// skippable builds a skippable frame.
func skippable(content ...byte) []byte {
	return append(binary.LittleEndian.AppendUint32([]byte{0x5a, 0x2a, 0x4d, 0x18}, uint32(len(content))), content...)
}

// concat joins without touching its arguments.
func concat(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
