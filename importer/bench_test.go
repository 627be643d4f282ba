package importer_test

import (
	"context"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/archdisk/archdisk/importer"
	"github.com/archdisk/archdisk/importer/registry"
	"github.com/archdisk/archdisk/importer/target"
	"github.com/archdisk/archdisk/internal/golden"
	"github.com/archdisk/archdisk/internal/peer"
	distribution "github.com/google/go-containerregistry/pkg/registry"
	"github.com/stretchr/testify/require"
)

// benchDisk returns a raw disk: half of it is data that compresses about as well as the
// files of a system do, in runs of 1 MiB with holes between them.
func benchDisk(size int) []byte {
	const part = 1 << 20
	text := noise("words", 64<<10)
	p := make([]byte, size)
	for off := 0; off < size; off += 2 * part {
		run := p[off : off+part]
		pick := noise("order", len(run)/16)
		for i := 0; i < len(run); i += 16 {
			if pick[i/16]&1 == 0 {
				copy(run[i:i+16], text[int(pick[i/16])*256:])
			} else {
				copy(run[i:i+16], text[(off+i)%(63<<10):])
			}
		}
	}
	return p
}

// BenchmarkImport measures the whole road: a registry on loopback, a disk in a gzip layer,
// and a target in memory that forgets, or a file.
func BenchmarkImport(b *testing.B) {
	raw := benchDisk(few(64<<20, 8<<20))
	b.Run("raw", func(b *testing.B) { benchImport(b, raw, int64(len(raw))) })
	b.Run("qcow2-zlib", func(b *testing.B) { benchImport(b, convert(b, raw, "-c"), int64(len(raw))) })
	b.Run("qcow2", func(b *testing.B) { benchImport(b, convert(b, raw), int64(len(raw))) })
}

// convert returns raw as a qcow2 file of qemu-img's.
func convert(b *testing.B, raw []byte, flags ...string) []byte {
	qemu := peer.Require(b, "qemu-img")
	in, out := filepath.Join(b.TempDir(), "in"), filepath.Join(b.TempDir(), "out")
	require.NoError(b, os.WriteFile(in, raw, 0o600))
	peer.Run(b, qemu, append(append([]string{"convert", "-f", "raw", "-O", "qcow2"}, flags...), in, out)...)
	p, err := os.ReadFile(out)
	require.NoError(b, err)
	return p
}

func benchImport(b *testing.B, file []byte, size int64) {
	builder := golden.NewBuilder()
	layer := builder.Layer(golden.LayerOptions{Compression: golden.Gzip}, golden.DiskEntries(file)...)
	image := builder.Build(builder.Image(golden.ImageOptions{Arch: "amd64"}, layer))
	server := httptest.NewServer(distribution.New(distribution.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	require.NoError(b, image.Push(b.Context(), server.Client(), server.URL, "vm", "1"))
	ref := strings.TrimPrefix(server.URL, "http://") + "/vm:1"
	src := registry.New(registry.Options{})

	run := func(b *testing.B, dst importer.Target) {
		b.SetBytes(size)
		b.ReportAllocs()
		for b.Loop() {
			_, err := importer.Import(b.Context(), src, ref, dst, importer.Options{})
			require.NoError(b, err)
		}
	}
	b.Run("discard", func(b *testing.B) { run(b, discard{}) })
	b.Run("file", func(b *testing.B) {
		dst, err := target.CreateFile(filepath.Join(b.TempDir(), "disk.img"), target.FileOptions{})
		require.NoError(b, err)
		defer dst.Close()
		run(b, dst)
	})
}

// discard is a target that keeps nothing.
type discard struct{}

func (discard) Begin(context.Context, int64) error        { return nil }
func (discard) WriteAt(p []byte, _ int64) (int, error)    { return len(p), nil }
func (discard) ReadAt(p []byte, _ int64) (int, error)     { clear(p); return len(p), nil }
func (discard) Commit(ctx context.Context, _ int64) error { return ctx.Err() }
func (discard) Abort() error                              { return nil }
