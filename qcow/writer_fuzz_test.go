package qcow_test

import (
	"bytes"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/archdisk/archdisk/internal/peer"
	"github.com/archdisk/archdisk/qcow"
	"github.com/archdisk/archdisk/qcow/disk"
	"github.com/stretchr/testify/require"
)

// FuzzRoundTrip: any disk, in any clusters and pieces, comes back, and both forms and any
// number of workers agree on it.
func FuzzRoundTrip(f *testing.F) {
	f.Add([]byte("some data"), uint8(0), uint8(0), uint64(1))
	f.Add(prose(3000), uint8(3), uint8(1), uint64(2))
	f.Add(noise(3000, 9), uint8(7), uint8(2), uint64(3))
	f.Fuzz(func(t *testing.T, seed []byte, bits, codec uint8, shape uint64) {
		rnd := rand.New(rand.NewPCG(shape, 0))
		raw := make([]byte, rnd.IntN(200)*512)
		for i := 0; len(seed) > 0 && len(raw) > 0 && i < 20; i++ {
			off := rnd.IntN(len(raw))
			n := min(1+rnd.IntN(10<<10), len(raw)-off)
			for j := range raw[off : off+n] {
				raw[off+j] = seed[j%len(seed)]
			}
		}
		o := qcow.CreateOptions{ClusterSize: 512 << (bits % 10), Compression: disk.Codec(codec % 3), Workers: 1 + int(shape%3)}
		var stream bytes.Buffer
		_, err := qcow.Encode(t.Context(), &stream, bytes.NewReader(raw), o)
		require.NoError(t, err)
		imageIs(t, stream.Bytes(), raw)
		forward(t, stream.Bytes())

		var first []byte
		for _, workers := range []int{1, 3} {
			var file memFile
			w, err := qcow.Create(&file, int64(len(raw)), o)
			require.NoError(t, err)
			require.NoError(t, put(t.Context(), w, raw, cutUp(raw, 512<<(shape%9), shape, shape%2 == 0), workers))
			require.NoError(t, w.Finish(t.Context()))
			w.Close()
			image := file.bytes()
			imageIs(t, image, raw)
			forward(t, image)
			if first == nil {
				first = image
			}
			require.Equal(t, sum(first), sum(image))
		}
	})
}

// BenchmarkWrite compares with qemu-img convert on the same disk, from file to file.
func BenchmarkWrite(b *testing.B) {
	dir := b.TempDir()
	part := program(b, 16<<20)
	var raw []byte
	for i := range 12 {
		raw = append(raw, part...)
		raw = append(raw, prose(4<<20)...)
		raw = append(raw, noise(2<<20, uint64(i))...)
		raw = append(raw, make([]byte, 8<<20)...)
	}
	in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
	require.NoError(b, os.WriteFile(in, raw, 0o600))
	src, err := os.Open(in)
	require.NoError(b, err)
	defer src.Close()
	for _, codec := range codecs() {
		b.Run(codec.String()+"/archdisk", func(b *testing.B) {
			b.SetBytes(int64(len(raw)))
			b.ReportAllocs()
			for b.Loop() {
				os.Remove(out)
				dst, err := os.Create(out)
				require.NoError(b, err)
				_, err = qcow.EncodeAt(b.Context(), dst, io.NewSectionReader(src, 0, int64(len(raw))), qcow.CreateOptions{Compression: codec})
				require.NoError(b, err)
				require.NoError(b, dst.Close())
			}
		})
		b.Run(codec.String()+"/archdisk-stream", func(b *testing.B) {
			b.SetBytes(int64(len(raw)))
			b.ReportAllocs()
			for b.Loop() {
				os.Remove(out)
				dst, err := os.Create(out)
				require.NoError(b, err)
				_, err = qcow.Encode(b.Context(), dst, io.NewSectionReader(src, 0, int64(len(raw))), qcow.CreateOptions{Compression: codec})
				require.NoError(b, err)
				require.NoError(b, dst.Close())
			}
		})
		for _, args := range [][]string{{}, {"-W", "-m", "16"}} {
			b.Run(codec.String()+"/qemu-img"+strings.Join(args, ""), func(b *testing.B) {
				qemu := peer.Require(b, "qemu-img")
				args := append([]string{"convert", "-t", "unsafe", "-f", "raw", "-O", "qcow2"}, args...)
				switch codec {
				case disk.Deflate:
					args = append(args, "-c")
				case disk.Zstd:
					args = append(args, "-c", "-o", "compression_type=zstd")
				}
				b.SetBytes(int64(len(raw)))
				for b.Loop() {
					os.Remove(out)
					peer.Run(b, qemu, append(args, in, out)...)
				}
			})
		}
	}
}
