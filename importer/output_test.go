package importer_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/archdisk/archdisk/importer"
	"github.com/archdisk/archdisk/internal/golden"
	"github.com/archdisk/archdisk/internal/peer"
	"github.com/archdisk/archdisk/qcow"
	"github.com/archdisk/archdisk/qcow/disk"
	"github.com/archdisk/archdisk/qcow/formats"
	"github.com/stretchr/testify/require"
)

// TestQCOW2Output: the disk becomes a QCOW2 image that is clean and holds it, the same bytes
// each time.
func TestQCOW2Output(t *testing.T) {
	for _, q := range golden.Disks() {
		for _, codec := range []disk.Codec{disk.Plain, disk.Deflate, disk.Zstd} {
			t.Run(fmt.Sprintf("%s %s", q.Arch, codec), func(t *testing.T) {
				src, _ := layered(diskLayer(golden.Gzip, q.File))
				var first []byte
				for _, workers := range []int{1, 4} {
					dst, path := newFile(t, []byte("old"))
					res, err := importer.Import(t.Context(), src, ref, dst, importer.Options{Format: formats.QCOW2, Compression: codec, Workers: workers,
						Size: q.VirtualSize + 1<<20, ExpectSHA256: q.SHA256})
					require.NoError(t, err)
					file, err := os.ReadFile(path)
					require.NoError(t, err)
					require.EqualValues(t, len(file), res.FileSize)
					require.Equal(t, q.VirtualSize+1<<20, res.Size)
					if first == nil {
						first = file
					}
					require.True(t, bytes.Equal(first, file), "the same whatever the workers")
				}
				check, err := qcow.Check(t.Context(), bytes.NewReader(first), int64(len(first)), qcow.CheckOptions{})
				require.NoError(t, err)
				require.Equal(t, qcow.Clean, check.Verdict())
				img, err := qcow.Open(bytes.NewReader(first), int64(len(first)), qcow.OpenOptions{})
				require.NoError(t, err)
				defer img.Close()
				require.Equal(t, q.VirtualSize+1<<20, img.Size())
				got := make([]byte, img.Size())
				_, err = img.ReadAt(got, 0)
				require.NoError(t, err)
				require.Equal(t, q.SHA256, sha(got[:q.VirtualSize]))
				require.Equal(t, make([]byte, 1<<20), got[q.VirtualSize:])
				if !testing.Short() {
					qemu := peer.Require(t, "qemu-img")
					path := filepath.Join(t.TempDir(), "x.qcow2")
					require.NoError(t, os.WriteFile(path, first, 0o600))
					peer.Run(t, qemu, "check", path)
				}
			})
		}
	}
}

// TestQCOW2OutputOf: what is known of the size of a raw source, and images read in passes.
func TestQCOW2OutputOf(t *testing.T) {
	content := noise("x", 4<<20)
	convert := func(t *testing.T, do func(dst importer.Target, o importer.Options) (*importer.Result, error)) {
		t.Helper()
		dst, path := newFile(t, nil)
		_, err := do(dst, importer.Options{Format: formats.QCOW2, Compression: disk.Zstd, HashDisk: true})
		require.NoError(t, err)
		f, err := os.Open(path)
		require.NoError(t, err)
		defer f.Close()
		info, err := f.Stat()
		require.NoError(t, err)
		img, err := qcow.Open(f, info.Size(), qcow.OpenOptions{})
		require.NoError(t, err)
		defer img.Close()
		got := make([]byte, img.Size())
		_, err = img.ReadAt(got, 0)
		require.NoError(t, err)
		require.Equal(t, sha(content), sha(got))
	}
	for name, p := range map[string][]byte{"raw": content, "late tables": lateQCOW2(content, false)} {
		t.Run(name+" in a layer", func(t *testing.T) {
			src, _ := layered(diskLayer(golden.Gzip, p))
			convert(t, func(dst importer.Target, o importer.Options) (*importer.Result, error) {
				o.Budget = disk.NewBudget(48 << 20)
				res, err := importer.Import(t.Context(), src, ref, dst, o)
				require.Equal(t, sha(content), res.SHA256)
				return res, err
			})
		})
		t.Run(name+" in a file", func(t *testing.T) {
			convert(t, func(dst importer.Target, o importer.Options) (*importer.Result, error) {
				return importer.ImportReader(t.Context(), bytes.NewReader(p), dst, o)
			})
		})
	}
	stream := func(o importer.Options) (string, error) {
		dst, path := newFile(t, []byte("old"))
		o.Format = formats.QCOW2
		_, err := importer.ImportReader(t.Context(), io.MultiReader(bytes.NewReader(content)), dst, o)
		return path, err
	}
	path, err := stream(importer.Options{})
	require.ErrorIs(t, err, importer.ErrOptions)
	onlyFile(t, path, []byte("old"))
	_, err = stream(importer.Options{Size: 8 << 20})
	require.NoError(t, err)
	path, err = stream(importer.Options{Size: 2 << 20})
	require.ErrorIs(t, err, importer.ErrTooLarge)
	onlyFile(t, path, []byte("old"))
	for _, o := range []importer.Options{{Format: "vmdk"}, {Compression: disk.Zstd}, {Format: formats.QCOW2, Compression: 9}} {
		dst, _ := newFile(t, nil)
		_, err := importer.ImportReader(t.Context(), bytes.NewReader(content), dst, o)
		require.Error(t, err)
	}
}
