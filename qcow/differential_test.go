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
