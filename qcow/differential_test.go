package qcow_test

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/archdisk/archdisk/internal/peer"
	"github.com/archdisk/archdisk/qcow"
	"github.com/archdisk/archdisk/qcow/disk"
	"github.com/archdisk/archdisk/qcow/disk/disktest"
	"github.com/stretchr/testify/require"
)

// qcowCase is a case of the conformance test for a QCOW2 file.
func qcowCase(file, want []byte) disktest.Case {
	return disktest.Case{
		File:      file,
		Want:      want,
		NewLayout: func(head []byte) (disk.Layout, error) { return qcow.NewLayout(head, disk.Limits{}) },
		Open: func(r io.ReaderAt, size int64) (disktest.Image, error) {
			return qcow.Open(r, size, qcow.OpenOptions{})
		},
	}
}

// guest returns a disk with text, noise, zeros and holes in no tidy places.
func guest(size int, seed uint64) []byte {
	rnd := rand.New(rand.NewPCG(seed, 0))
	p := make([]byte, size)
	for range 24 {
		off := rnd.IntN(size)
		n := min(rnd.IntN(size/16+1), size-off)
		switch part := p[off : off+n]; rnd.IntN(3) {
		case 0:
			for i := range part {
				part[i] = byte(rnd.Uint32())
			}
		case 1:
			copy(part, bytes.Repeat([]byte(fmt.Sprintf("line %d of some text\n", off)), n/16+1))
		default:
			clear(part)
		}
	}
	return p
}

// TestDifferential: what qemu-img writes, with each cluster size, version and compression,
// reads back as what it was given.
func TestDifferential(t *testing.T) {
	qemu := peer.Require(t, "qemu-img")
	size := 3<<20 + 512*7
	if testing.Short() {
		size = 1<<20 + 512*7
	}
	type variant struct{ compat, compression string }
	variants := []variant{{"0.10", ""}, {"1.1", ""}, {"0.10", "zlib"}, {"1.1", "zlib"}, {"1.1", "zstd"}}
	for _, cs := range []string{"512", "1k", "4k", "64k", "2M"} {
		for i, v := range variants {
			t.Run(fmt.Sprintf("%s-%s-%s", cs, v.compat, v.compression), func(t *testing.T) {
				dir := t.TempDir()
				raw := guest(size, uint64(i))
				require.NoError(t, os.WriteFile(filepath.Join(dir, "in.raw"), raw, 0o600))
				opts := "cluster_size=" + cs + ",compat=" + v.compat
				args := []string{"convert", "-f", "raw", "-O", "qcow2"}
				if v.compression != "" {
					args = append(args, "-c")
				}
				if v.compression == "zstd" {
					opts += ",compression_type=zstd"
				}
				out := filepath.Join(dir, "out.qcow2")
				peer.Run(t, qemu, append(args, "-o", opts, filepath.Join(dir, "in.raw"), out)...)
				file, err := os.ReadFile(out)
				require.NoError(t, err)
				disktest.TestDisk(t, qcowCase(file, raw))
			})
		}
	}
}

// TestOutOfOrder: images whose clusters were compressed in no order, so that a cluster may
// share a sector with neighbours that are known long before it.
func TestOutOfOrder(t *testing.T) {
	qemu, qemuIO := peer.Require(t, "qemu-img"), peer.Require(t, "qemu-io")
	check := func(t *testing.T, image string) {
		t.Helper()
		raw := filepath.Join(t.TempDir(), "out.raw")
		peer.Run(t, qemu, "convert", "-O", "raw", image, raw)
		want, err := os.ReadFile(raw)
		require.NoError(t, err)
		file, err := os.ReadFile(image)
		require.NoError(t, err)
		disktest.TestDisk(t, qcowCase(file, want))
	}
	t.Run("between two known ones", func(t *testing.T) {
		image := filepath.Join(t.TempDir(), "m.qcow2")
		peer.Run(t, qemu, "create", "-q", "-f", "qcow2", "-o", "cluster_size=4k", image, "8M")
		peer.Run(t, qemuIO, "-f", "qcow2", "-c", "write -q -c -P 1 0 4k", "-c", "write -q -c -P 2 2M 4k", "-c", "write -q -c -P 3 4k 4k", image)
		check(t, image)
	})
	seeds := 12
	if testing.Short() {
		seeds = 2
	}
	base := seedOf(t)
	for i := range seeds {
		compression := []string{"zlib", "zstd"}[i%2]
		t.Run(fmt.Sprintf("random writes %d", i), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(base, uint64(i)))
			image := filepath.Join(t.TempDir(), "m.qcow2")
			size := int64(4096) << rnd.IntN(5)
			peer.Run(t, qemu, "create", "-q", "-f", "qcow2", "-o", fmt.Sprintf("cluster_size=%d,compression_type=%s", size, compression), image, "8M")
			args, used := []string{"-f", "qcow2"}, map[int64]bool{}
			for range 60 {
				at := rnd.Int64N(8<<20/size) * size
				if !used[at] { // a cluster is compressed once
					used[at] = true
					args = append(args, "-c", fmt.Sprintf("write -q -c -P %d %d %d", 1+rnd.IntN(255), at, size))
				}
			}
			peer.Run(t, qemuIO, append(args, image)...)
			check(t, image)
		})
		t.Run(fmt.Sprintf("convert -W %d", i), func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(dir, "in.raw"), guest(4<<20, base+uint64(i)), 0o600))
			image := filepath.Join(dir, "m.qcow2")
			peer.Run(t, qemu, "convert", "-f", "raw", "-O", "qcow2", "-c", "-W", "-m", "16", "-o", "cluster_size=4k,compression_type="+compression,
				filepath.Join(dir, "in.raw"), image)
			check(t, image)
		})
	}
}
