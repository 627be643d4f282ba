package importer_test

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/archdisk/archdisk/importer"
	"github.com/archdisk/archdisk/importer/archive"
	"github.com/archdisk/archdisk/internal/golden"
	"github.com/archdisk/archdisk/qcow/disk"
	"github.com/archdisk/archdisk/testdata"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/require"
)

// skippable is an empty skippable frame of zstd's, with four bytes in it.
var skippable = []byte("\x50\x2a\x4d\x18\x04\x00\x00\x00skip")

// TestCompression: a layer's bytes say how it is compressed, its media type does not.
func TestCompression(t *testing.T) {
	content := body("a")
	layer := golden.Tar(golden.DiskEntries(content)...)
	half := len(layer) / 2
	gz := golden.Compress(golden.Gzip, layer)
	zst := golden.Compress(golden.Zstd, layer)
	forms := map[string][]byte{
		"none":              layer,
		"gzip":              gz,
		"zstd":              zst,
		"gzip, two members": append(golden.Compress(golden.Gzip, layer[:half]), golden.Compress(golden.Gzip, layer[half:])...),
		"zstd, two frames":  append(golden.Compress(golden.Zstd, layer[:half]), golden.Compress(golden.Zstd, layer[half:])...),
		"zstd, skippable":   append(bytes.Clone(skippable), zst...),
		"no end of archive": layer[:len(layer)-1024],
		"zeros behind":      append(bytes.Clone(layer), make([]byte, 10<<10)...),
	}
	types := []string{
		ocispec.MediaTypeImageLayer, ocispec.MediaTypeImageLayerGzip, ocispec.MediaTypeImageLayerZstd,
		golden.MediaTypeDockerLayerGzip, "application/octet-stream", "",
	}
	for name, p := range forms {
		for _, mediaType := range types {
			t.Run(name+"/"+mediaType, func(t *testing.T) {
				src, _ := layered(blobLayer(mediaType, p))
				var dst memory
				_, err := run(t.Context(), t, src, &dst, importer.Options{})
				require.NoError(t, err)
				require.Equal(t, sha(content), dst.sum(t))
			})
		}
	}
}

// TestXZLayer: no runtime makes these, but a layer is what its bytes are. The archive in
// the fixture is a raw disk, which a layer by itself is only with a media type that says so.
func TestXZLayer(t *testing.T) {
	for _, f := range testdata.Fixtures() {
		if f.Format != "raw" {
			continue
		}
		t.Run(f.File, func(t *testing.T) {
			src, _ := layered(blobLayer("application/vnd.kubevirt.disk.raw+zstd", testdata.Read(f.File)))
			var dst memory
			_, err := run(t.Context(), t, src, &dst, importer.Options{Budget: disk.NewBudget(128 << 20)})
			require.NoError(t, err)
			require.Equal(t, f.SHA256, dst.sum(t))
		})
	}
}

// TestSmallLayers: layers of a few bytes beside the one with the disk.
func TestSmallLayers(t *testing.T) {
	content := body("a")
	empty := golden.Tar()
	for name, p := range map[string][]byte{
		"no bytes": {}, "empty tar": empty, "one block": empty[:512], "gzip of nothing": golden.Compress(golden.Gzip, nil),
		"gzip of empty tar": golden.Compress(golden.Gzip, empty), "zstd of nothing": append([]byte(nil), "\x28\xb5\x2f\xfd\x24\x00\x01\x00\x00\x99\xe9\xd8\x51"...),
		"zstd of empty tar": golden.Compress(golden.Zstd, empty), "skippable only": skippable,
	} {
		t.Run(name, func(t *testing.T) {
			src, _ := layered(diskLayer(golden.None, content), blobLayer(ocispec.MediaTypeImageLayerGzip, p))
			var dst memory
			_, err := run(t.Context(), t, src, &dst, importer.Options{})
			require.NoError(t, err)
			require.Equal(t, sha(content), dst.sum(t))
		})
	}
	for name, p := range map[string]string{
		"a byte": "x", "text": "hello, world", "gzip magic": "\x1f\x8b\x08", "zstd magic": "\x28\xb5\x2f\xfd", "xz magic": "\xfd7zXZ\x00",
		"block of text": strings.Repeat("x", 512), "skippable's half": "\x50\x2a\x4d\x18\x04\x00",
	} {
		t.Run(name, func(t *testing.T) {
			src, _ := layered(diskLayer(golden.None, content), blobLayer(ocispec.MediaTypeImageLayerGzip, []byte(p)))
			_, err := run(t.Context(), t, src, new(memory), importer.Options{})
			code := "damaged-archive"
			if archive.Detect([]byte(p)) == archive.None {
				code = "unsupported"
			}
			wantError(t, err, importer.StageUnpack, importer.Permanent, code)
		})
	}
}

// TestDiskLayer: layers that are disks and no archives.
func TestDiskLayer(t *testing.T) {
	raw := body("raw")
	q := golden.Disks()[0]
	annotated := func(mediaType string, p []byte, name string) func(*golden.Builder) ocispec.Descriptor {
		return func(b *golden.Builder) ocispec.Descriptor {
			d := b.Blob(mediaType, p)
			d.Annotations = map[string]string{"io.kubevirt.disk.name": name, "io.kubevirt.disk.size": fmt.Sprint(len(raw))}
			return d
		}
	}
	const rawZstd = "application/vnd.kubevirt.disk.raw+zstd"
	boot := make([]byte, 4096)
	copy(boot[510:], "\x55\xaa")
	gpt := make([]byte, 4096)
	copy(gpt[:3], "\xeb\x63\x90")
	copy(gpt[512:], "EFI PART")
	export := golden.ImageOptions{
		Arch: "amd64", ArtifactType: "application/vnd.kubevirt.virtualmachine.v1",
	}
	for name, test := range map[string]struct {
		image  golden.ImageOptions
		layers []func(*golden.Builder) ocispec.Descriptor
		path   string
		sum    string
		entry  string
		is     error
	}{
		"kubevirt export":                 {export, []func(*golden.Builder) ocispec.Descriptor{annotated(rawZstd, golden.Compress(golden.Zstd, raw), "rootdisk")}, "", sha(raw), "rootdisk", nil},
		"kubevirt export, not compressed": {export, []func(*golden.Builder) ocispec.Descriptor{annotated(rawZstd, raw, "rootdisk")}, "", sha(raw), "rootdisk", nil},
		"two disks": {export, []func(*golden.Builder) ocispec.Descriptor{
			annotated(rawZstd, raw, "data"), annotated(rawZstd, golden.Compress(golden.Zstd, raw), "root")}, "", "", "", archive.ErrSeveral},
		"one of two disks": {export, []func(*golden.Builder) ocispec.Descriptor{
			annotated(rawZstd, body("x"), "data"), annotated(rawZstd, golden.Compress(golden.Zstd, raw), "root")}, "root", sha(raw), "root", nil},
		"the other of two": {export, []func(*golden.Builder) ocispec.Descriptor{
			annotated(rawZstd, raw, "data"), annotated(rawZstd, golden.Compress(golden.Zstd, body("x")), "root")}, "data", sha(raw), "data", nil},
		"none of two":      {export, []func(*golden.Builder) ocispec.Descriptor{annotated(rawZstd, raw, "data")}, "x", "", "", archive.ErrNoDisk},
		"qcow2":            {golden.ImageOptions{Arch: "amd64"}, []func(*golden.Builder) ocispec.Descriptor{blobLayer("application/octet-stream", q.File)}, "", q.SHA256, "", nil},
		"qcow2, gzip":      {golden.ImageOptions{Arch: "amd64"}, []func(*golden.Builder) ocispec.Descriptor{blobLayer(ocispec.MediaTypeImageLayerGzip, golden.Compress(golden.Gzip, q.File))}, "", q.SHA256, "", nil},
		"boot sector":      {golden.ImageOptions{Arch: "amd64"}, []func(*golden.Builder) ocispec.Descriptor{blobLayer("", boot)}, "", "", "", nil},
		"partition table":  {golden.ImageOptions{Arch: "amd64"}, []func(*golden.Builder) ocispec.Descriptor{blobLayer("", gpt)}, "", sha(gpt), "", nil},
		"neither":          {golden.ImageOptions{Arch: "amd64"}, []func(*golden.Builder) ocispec.Descriptor{blobLayer(ocispec.MediaTypeImageLayer, raw)}, "", "", "", disk.ErrUnsupported},
		"neither, gzip":    {golden.ImageOptions{Arch: "amd64"}, []func(*golden.Builder) ocispec.Descriptor{blobLayer(ocispec.MediaTypeImageLayerGzip, golden.Compress(golden.Gzip, raw))}, "", "", "", disk.ErrUnsupported},
		"encrypted":        {golden.ImageOptions{Arch: "amd64"}, []func(*golden.Builder) ocispec.Descriptor{tarLayer(golden.LayerOptions{MediaType: ocispec.MediaTypeImageLayerGzip + "+encrypted"}, golden.DiskEntries(raw)...)}, "", "", "", disk.ErrUnsupported},
		"disk and archive": {golden.ImageOptions{Arch: "amd64"}, []func(*golden.Builder) ocispec.Descriptor{diskLayer(golden.Gzip, raw), blobLayer("", q.File)}, "", "", "", archive.ErrSeveral},
	} {
		t.Run(name, func(t *testing.T) {
			src, _ := labelled(test.image, test.layers...)
			var dst memory
			res, err := run(t.Context(), t, src, &dst, importer.Options{Path: test.path})
			if test.is != nil {
				require.ErrorIs(t, err, test.is)
				code := map[error]string{archive.ErrSeveral: "several-files", archive.ErrNoDisk: "no-disk", disk.ErrUnsupported: "unsupported"}[test.is]
				wantError(t, err, importer.StageUnpack, importer.Permanent, code)
				return
			}
			if name == "boot sector" { // begins with a block that could be an archive's end, were it not for its last two bytes
				test.sum = sha(boot)
			}
			require.NoError(t, err)
			require.Equal(t, test.sum, dst.sum(t))
			if test.entry != "" {
				require.Equal(t, test.entry, res.Entry)
			}
		})
	}
}

// TestInnerCompression: the file in /disk may be compressed, once.
func TestInnerCompression(t *testing.T) {
	q := golden.Disks()[0]
	gz, zst := golden.Compress(golden.Gzip, q.File), golden.Compress(golden.Zstd, q.File)
	for name, p := range map[string][]byte{"gz": gz, "zst": zst, "skippable": append(bytes.Clone(skippable), zst...)} {
		for _, c := range []golden.Compression{golden.None, golden.Gzip, golden.Zstd} {
			t.Run(fmt.Sprintf("%s/%d", name, c), func(t *testing.T) {
				src, _ := layered(diskLayer(c, p))
				var dst memory
				_, err := run(t.Context(), t, src, &dst, importer.Options{})
				require.NoError(t, err)
				require.Equal(t, q.SHA256, dst.sum(t))
			})
		}
	}
	for name, p := range map[string][]byte{
		"gz.gz": golden.Compress(golden.Gzip, gz), "gz.zst": golden.Compress(golden.Zstd, gz), "zst.gz": golden.Compress(golden.Gzip, zst),
		"xz.gz": golden.Compress(golden.Gzip, testdata.Read("raw/xz-multiblock.raw.xz")),
	} {
		t.Run(name, func(t *testing.T) {
			src, _ := layered(diskLayer(golden.Gzip, p))
			_, err := run(t.Context(), t, src, new(memory), importer.Options{})
			require.ErrorIs(t, err, disk.ErrUnsupported)
			wantError(t, err, importer.StageProbe, importer.Permanent, "banned-format")
			require.ErrorContains(t, err, "only one")
		})
	}
	t.Run("tar in /disk", func(t *testing.T) {
		src, _ := layered(diskLayer(golden.Gzip, golden.Tar(file("x", q.File))))
		_, err := run(t.Context(), t, src, new(memory), importer.Options{})
		wantError(t, err, importer.StageProbe, importer.Permanent, "banned-format")
	})
	t.Run("damaged", func(t *testing.T) {
		for i := 20; i < len(gz); i += len(gz) / few(40, 8) {
			p := bytes.Clone(gz)
			p[i] ^= 0xff
			src, _ := layered(diskLayer(golden.None, p))
			_, err := run(t.Context(), t, src, new(memory), importer.Options{})
			require.Error(t, err, "byte %d", i)
			require.Equal(t, importer.Permanent, importer.ClassOf(err))
		}
	})
}

// TestTarVariants: what writers other than Go's put into an archive.
func TestTarVariants(t *testing.T) {
	q := golden.Disks()[0]
	long := "disk/" + strings.Repeat("long/", 50) + "x" // by a PAX record
	for name, layer := range map[string][]byte{
		"pax":        golden.Tar(golden.Entry{Name: "disk/x", Body: q.File, PAX: map[string]string{"SCHILY.xattr.user.x": "y"}}),
		"long name":  golden.Tar(file(long, q.File)),
		"gnu sparse": gnuSparse("disk/x", q.File),
		"pax sparse": paxSparse("disk/x", q.File),
		"global pax": append(special(tar.TypeXGlobalHeader, "13 comment=x\n"), golden.Tar(file("disk/x", q.File))...),
	} {
		t.Run(name, func(t *testing.T) {
			src, _ := layered(blobLayer(ocispec.MediaTypeImageLayerGzip, golden.Compress(golden.Gzip, layer)))
			var dst memory
			_, err := run(t.Context(), t, src, &dst, importer.Options{})
			require.NoError(t, err)
			require.Equal(t, q.SHA256, dst.sum(t))
		})
	}
}

// gnuSparse returns an old GNU sparse archive: p between two holes that are cut to nothing,
// and a second map entry for its last half.
func gnuSparse(name string, p []byte) []byte {
	var h [512]byte
	octal := func(off, n int, v int64) { copy(h[off:off+n], fmt.Sprintf("%0*o", n-1, v)) }
	half := int64(len(p)) / 2
	copy(h[:], name)
	octal(100, 8, 0o444)
	octal(108, 8, 0)
	octal(116, 8, 0)
	octal(124, 12, int64(len(p)))
	octal(136, 12, 0)
	h[156] = 'S'
	copy(h[257:], "ustar  \x00")
	octal(386, 12, 0)
	octal(398, 12, half)
	octal(410, 12, half)
	octal(422, 12, int64(len(p))-half)
	octal(483, 12, int64(len(p)))
	sumHeader(h[:])
	return append(pad(append(h[:], p...)), make([]byte, 1024)...)
}

func pad(p []byte) []byte { return append(p, make([]byte, -len(p)&511)...) }

// paxSparse returns a PAX sparse archive, version 0.1.
func paxSparse(name string, p []byte) []byte {
	half := len(p) / 2
	record := func(key, value string) string {
		size := len(key) + len(value) + 3
		size += len(fmt.Sprint(size + len(fmt.Sprint(size))))
		return fmt.Sprintf("%d %s=%s\n", size, key, value)
	}
	records := record("GNU.sparse.major", "0") + record("GNU.sparse.minor", "1") + record("GNU.sparse.name", name) +
		record("GNU.sparse.numblocks", "2") + record("GNU.sparse.size", fmt.Sprint(len(p))) +
		record("GNU.sparse.map", fmt.Sprintf("0,%d,%d,%d", half, half, len(p)-half))
	return append(special(tar.TypeXHeader, records), golden.Tar(golden.Entry{Name: "GNUSparseFile.0/x", Body: p})...)
}

// special returns an entry that is about the archive or the next entry.
func special(flag byte, records string) []byte {
	body := pad([]byte(records))
	x := golden.Tar(golden.Entry{Name: "PaxHeaders.0/x", Body: []byte(records)})[:512+len(body)]
	x[156] = flag
	sumHeader(x[:512])
	return x
}

func sumHeader(h []byte) {
	copy(h[148:156], "        ")
	var sum int64
	for _, b := range h {
		sum += int64(b)
	}
	copy(h[148:156], fmt.Sprintf("%06o\x00 ", sum))
}

func TestBootc(t *testing.T) {
	for label, refused := range map[string]bool{"containers.bootc=1": true, "ostree.bootable=1": true, "ostree.bootable=true": true, "containers.bootc=0": false} {
		key, value, _ := strings.Cut(label, "=")
		src, layers := labelled(golden.ImageOptions{Arch: "arm64", Labels: map[string]string{key: value}}, diskLayer(golden.Gzip, body("a")))
		var dst memory
		_, err := run(t.Context(), t, src, &dst, importer.Options{})
		if !refused {
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, err, importer.ErrBootc)
		wantError(t, err, importer.StagePolicy, importer.Permanent, "bootc")
		require.Zero(t, src.Count(layers[0].Digest))
		require.Zero(t, dst.begins)
	}
}

// TestWindow: a decoder's window must fit the budget, whatever the compression.
func TestWindow(t *testing.T) {
	// A zstd frame of one segment whose content size is 20 MiB, of zeros in blocks of 128 KiB.
	const size = 20 << 20
	frame := binary.LittleEndian.AppendUint32([]byte("\x28\xb5\x2f\xfd\xa0"), size)
	for left := size; left > 0; left -= 128 << 10 {
		block := uint32(128<<10)<<3 | 1<<1
		if left == 128<<10 {
			block |= 1
		}
		frame = append(frame, byte(block), byte(block>>8), byte(block>>16), 0)
	}
	src, _ := layered(blobLayer("application/vnd.kubevirt.disk.raw+zstd", frame))
	var dst memory
	_, err := run(t.Context(), t, src, &dst, importer.Options{})
	require.NoError(t, err)
	require.EqualValues(t, size, dst.size)
	_, err = run(t.Context(), t, src, new(memory), importer.Options{Budget: disk.NewBudget(16 << 20)})
	require.ErrorIs(t, err, disk.ErrLimit)
	wantError(t, err, importer.StageUnpack, importer.Permanent, "limit-exceeded")
}
