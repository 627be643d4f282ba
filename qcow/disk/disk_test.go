package disk_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"testing"

	"github.com/archdisk/archdisk/qcow/disk"
	"github.com/archdisk/archdisk/qcow/disk/disktest"
	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
)

func rawCase(file []byte) disktest.Case {
	return disktest.Case{
		File: file, Want: file, AnyLength: true,
		NewLayout: func([]byte) (disk.Layout, error) { return disk.NewRawLayout(disk.Limits{}), nil },
		Open: func(r io.ReaderAt, size int64) (disktest.Image, error) {
			return disk.OpenRaw(r, size, disk.Limits{})
		},
	}
}

func TestRaw(t *testing.T) {
	file := bytes.Repeat([]byte("0123456789abcdef"), 3<<20/16+512/16)
	clear(file[100_000:1_200_000])
	disktest.TestDisk(t, rawCase(file))
}

func TestRawSizes(t *testing.T) {
	c := rawCase(nil)
	for n, ok := range map[int]bool{0: true, 512: true, 1 << 20: true, 1<<20 + 512: true, 511: false, 1000: false, 1<<20 - 1: false} {
		file := make([]byte, n)
		for _, src := range []disk.Source{disk.Stream(bytes.NewReader(file)), disk.File(bytes.NewReader(file), int64(n))} {
			stats, err := c.Convert(t.Context(), file, src, new(disktest.Memory), disk.ConvertOptions{})
			if !ok {
				require.ErrorIs(t, err, disk.ErrCorrupt, "%d bytes", n)
				continue
			}
			require.NoError(t, err)
			require.EqualValues(t, n, stats.Size)
		}
	}
}

// TestRawLimit: a stream of unknown length is stopped when it passes the limit, not at its end.
func TestRawLimit(t *testing.T) {
	endless := &repeat{}
	_, err := disk.Convert(t.Context(), new(disktest.Memory), disk.NewRawLayout(disk.Limits{}), disk.Stream(endless),
		disk.ConvertOptions{VirtualSize: 10 << 20})
	require.ErrorIs(t, err, disk.ErrLimit)
	require.Less(t, endless.n, 20<<20)
}

type repeat struct{ n int }

func (r *repeat) Read(p []byte) (int, error) { r.n += len(p); return len(p), nil }

// TestStreamErrorIsNoEnd: a stream that breaks off is its own error, io.ErrUnexpectedEOF
// included, and never taken for the end of a disk.
func TestStreamErrorIsNoEnd(t *testing.T) {
	for _, broken := range []error{io.ErrUnexpectedEOF, errors.New("reset")} {
		src := io.MultiReader(bytes.NewReader(make([]byte, 1<<20)), &failReader{broken})
		_, err := disk.Convert(t.Context(), new(disktest.Memory), disk.NewRawLayout(disk.Limits{}), disk.Stream(src), disk.ConvertOptions{})
		require.ErrorIs(t, err, broken)
	}
}

type failReader struct{ err error }

func (f *failReader) Read([]byte) (int, error) { return 0, f.err }

func TestConvertCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	m := &disktest.Memory{FailWrite: func(n int) error {
		if n == 3 {
			cancel()
		}
		return nil
	}}
	_, err := disk.Convert(ctx, m, disk.NewRawLayout(disk.Limits{}), disk.Stream(&repeat{}), disk.ConvertOptions{})
	require.ErrorIs(t, err, context.Canceled)
}

func TestBudget(t *testing.T) {
	b := disk.NewBudget(100)
	require.NoError(t, b.Reserve(60, "one"))
	err := b.Reserve(41, "two")
	require.ErrorIs(t, err, disk.ErrLimit)
	require.ErrorContains(t, err, "two: 41 bytes of memory needed, 40 of 100 left")
	require.ErrorIs(t, b.Reserve(-1, "three"), disk.ErrLimit)
	require.ErrorIs(t, b.Reserve(math.MaxInt64, "four"), disk.ErrLimit)
	require.NoError(t, b.Reserve(40, "five"))
	b.Release(100)
	require.EqualValues(t, 100, b.Left())
}

func deflate(t testing.TB, p []byte) []byte {
	var buf bytes.Buffer
	w, err := flate.NewWriter(&buf, 6)
	require.NoError(t, err)
	_, err = w.Write(p)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return buf.Bytes()
}

func zstdFrame(t testing.TB, p []byte, o ...zstd.EOption) []byte {
	w, err := zstd.NewWriter(nil, o...)
	require.NoError(t, err)
	return w.EncodeAll(p, nil)
}

// TestDecode: the rules for compressed clusters: the output is exact, the input is never
// passed, what follows is ignored; zstd frames may be several and skippable, and end in the output.
func TestDecode(t *testing.T) {
	data := bytes.Repeat([]byte("some text that compresses; "), 4096/27+1)[:4096]
	half := data[:2048]
	sum := zstd.WithEncoderCRC(true)
	checksummed := zstdFrame(t, data, sum)
	wrongSum := bytes.Clone(checksummed)
	wrongSum[len(wrongSum)-1] ^= 1
	skippable := []byte{0x5f, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 'a', 'b', 'c'}
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	for _, tt := range []struct {
		name  string
		codec disk.Codec
		src   []byte
		ok    bool
	}{
		{"plain", disk.Plain, data, true},
		{"plain short", disk.Plain, half, false},
		{"deflate", disk.Deflate, deflate(t, data), true},
		{"deflate, padding", disk.Deflate, join(deflate(t, data), make([]byte, 300)), true},
		{"deflate, next cluster", disk.Deflate, join(deflate(t, data), deflate(t, half)), true},
		{"deflate, longer than a cluster", disk.Deflate, deflate(t, join(data, half)), true},
		{"deflate, shorter than a cluster", disk.Deflate, deflate(t, half), false},
		{"deflate cut", disk.Deflate, deflate(t, data)[:20], false},
		{"deflate with zlib header", disk.Deflate, join([]byte{0x78, 0x9c}, deflate(t, data)), false},
		{"deflate of nothing", disk.Deflate, nil, false},
		{"zstd", disk.Zstd, zstdFrame(t, data), true},
		{"zstd, padding", disk.Zstd, join(zstdFrame(t, data), make([]byte, 300)), true},
		{"zstd, next cluster", disk.Zstd, join(zstdFrame(t, data), zstdFrame(t, half)), true},
		{"zstd, two frames", disk.Zstd, join(zstdFrame(t, half), zstdFrame(t, data[2048:])), true},
		{"zstd, skippable frames", disk.Zstd, join(skippable, zstdFrame(t, half), skippable, zstdFrame(t, data[2048:])), true},
		{"zstd, checksum", disk.Zstd, checksummed, true},
		{"zstd, wrong checksum", disk.Zstd, wrongSum, false},
		{"zstd, no content size", disk.Zstd, zstdStream(t, data), true},
		{"zstd, frame longer than a cluster", disk.Zstd, zstdFrame(t, join(data, half)), false},
		{"zstd, stream frame longer than a cluster", disk.Zstd, zstdStream(t, join(data, half)), false},
		{"zstd, second frame too long", disk.Zstd, join(zstdFrame(t, half), zstdFrame(t, data)), false},
		{"zstd, shorter than a cluster", disk.Zstd, zstdFrame(t, half), false},
		{"zstd cut", disk.Zstd, zstdFrame(t, data)[:20], false},
		{"zstd, skippable frames only", disk.Zstd, bytes.Repeat(skippable, 50), false},
		{"zstd, skippable frame past the end", disk.Zstd, []byte{0x50, 0x2a, 0x4d, 0x18, 0xff, 0xff, 0xff, 0xff, 0}, false},
		{"zstd, window over the cap", disk.Zstd, bigWindow(t, data), false},
		{"unknown codec", disk.Codec(9), data, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var d disk.Decoder
			defer d.Close()
			for range 2 { // a decoder is used again
				dst := make([]byte, len(data))
				_, err := d.Decode(tt.codec, dst, tt.src)
				if !tt.ok {
					require.Error(t, err)
					continue
				}
				require.NoError(t, err)
				require.Equal(t, data, dst)
			}
			used, err := d.Decode(disk.Deflate, make([]byte, len(data)), append(deflate(t, data), "next"...))
			require.NoError(t, err, "and after an error")
			require.Equal(t, len(deflate(t, data)), used, "not a byte more than the piece has")
			used, err = d.Decode(disk.Zstd, make([]byte, len(data)), append(checksummed[:len(checksummed):len(checksummed)], "next"...))
			require.NoError(t, err)
			require.Equal(t, len(checksummed), used)
		})
	}
}

// zstdStream compresses without a content size in the frame header.
func zstdStream(t testing.TB, p []byte) []byte {
	var buf bytes.Buffer
	w, err := zstd.NewWriter(&buf)
	require.NoError(t, err)
	for len(p) > 0 {
		n := min(len(p), 1000)
		_, err = w.Write(p[:n])
		require.NoError(t, err)
		require.NoError(t, w.Flush())
		p = p[n:]
	}
	require.NoError(t, w.Close())
	return buf.Bytes()
}

// bigWindow patches a frame's window descriptor to 64 MiB.
func bigWindow(t testing.TB, p []byte) []byte {
	frame := zstdStream(t, p)
	require.Zero(t, frame[4]>>5&1, "has a window descriptor")
	frame[5] = 16 << 3
	return frame
}

func FuzzDecode(f *testing.F) {
	data := bytes.Repeat([]byte("some text that compresses; "), 40)[:1024]
	f.Add(deflate(f, data), byte(disk.Deflate))
	f.Add(zstdFrame(f, data), byte(disk.Zstd))
	f.Add(append(zstdFrame(f, data[:512]), zstdFrame(f, data[512:])...), byte(disk.Zstd))
	f.Fuzz(func(t *testing.T, src []byte, codec byte) {
		var d disk.Decoder
		defer d.Close()
		whole := make([]byte, 1024+64)
		for i := range whole {
			whole[i] = 0xa5
		}
		_, err := d.Decode(disk.Codec(codec%3), whole[:1024], src)
		for _, b := range whole[1024:] {
			require.EqualValues(t, 0xa5, b, "wrote past its output")
		}
		again := make([]byte, 1024)
		_, err2 := d.Decode(disk.Codec(codec%3), again, src)
		require.Equal(t, err == nil, err2 == nil)
		if err == nil {
			require.Equal(t, whole[:1024], again)
		}
	})
}
