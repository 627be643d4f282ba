package importer_test

import (
	"context"
	"testing"

	"github.com/archdisk/archdisk/importer"
	"github.com/archdisk/archdisk/internal/golden"
	"github.com/archdisk/archdisk/qcow/disk"
	"github.com/archdisk/archdisk/testdata"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// FuzzLayer: a layer of any bytes, of the right digest, gives a disk or an error, within
// the limits. What holds for every import is checked by run.
func FuzzLayer(f *testing.F) {
	small := testdata.Read("qcow2/qemu-zlib-512.qcow2")
	for _, c := range []golden.Compression{golden.None, golden.Gzip, golden.Zstd} {
		f.Add(golden.Compress(c, golden.Tar(golden.DiskEntries(small)...)), false)
		f.Add(golden.Compress(c, golden.Tar(golden.DiskEntries(golden.Compress(c, body("x")))...)), false)
	}
	f.Add(golden.Tar(symlink("disk/x", "../y"), file("y", body("x")), hardlink("z", "y")), false)
	f.Add(golden.Tar(file("disk/x", testdata.Read("raw/xz-multiblock.raw.xz"))), false)
	f.Add(gnuSparse("disk/x", body("x")), false)
	f.Add(paxSparse("disk/x", body("x")), false)
	f.Add(golden.Compress(golden.Zstd, body("x")), true)
	f.Add(small, true)
	f.Add([]byte{}, true)
	f.Fuzz(func(t *testing.T, p []byte, isDisk bool) {
		mediaType := ocispec.MediaTypeImageLayer
		if isDisk {
			mediaType = "application/vnd.kubevirt.disk.raw+zstd"
		}
		src, _ := layered(blobLayer(mediaType, p))
		o := importer.Options{Limits: disk.Limits{VirtualSize: 16 << 20, Metadata: 1 << 20}, Budget: disk.NewBudget(24 << 20), Workers: 2}
		var dst memory
		res, err := run(context.Background(), t, src, &dst, o)
		if err != nil && importer.ClassOf(err) != importer.Permanent {
			t.Fatalf("content that may change: %v", err)
		}
		if dst.size > 16<<20 || res.PeakParked > 24<<20 {
			t.Fatalf("beyond the limits: %+v", res)
		}
	})
}
