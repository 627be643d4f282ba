package importer_test

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/archdisk/archdisk/importer"
	"github.com/archdisk/archdisk/importer/archive"
	"github.com/archdisk/archdisk/internal/golden"
	"github.com/archdisk/archdisk/qcow/disk"
	"github.com/archdisk/archdisk/qcow/formats"
	"github.com/archdisk/archdisk/testdata"
	"github.com/stretchr/testify/require"
)

// readers are the ways to hand a file to ImportReader.
func readers(p []byte) map[string]func() io.Reader {
	return map[string]func() io.Reader{
		"stream": func() io.Reader { return struct{ io.Reader }{bytes.NewReader(p)} },
		"file":   func() io.Reader { return io.NewSectionReader(bytes.NewReader(p), 0, int64(len(p))) },
	}
}

func importFile(t testing.TB, r io.Reader, dst *memory, o importer.Options) (*importer.Result, error) {
	t.Helper()
	return settle(t, nil, dst, o, func(o importer.Options) (*importer.Result, error) {
		return importer.ImportReader(t.Context(), r, dst, o)
	})
}

func TestImportReader(t *testing.T) {
	f := golden.Disks()[0]
	several := golden.Tar(file("a/one", body("one")), file("b.img", f.File), symlink("c", "b.img"))
	type row struct {
		file []byte
		o    importer.Options
		sum  string
	}
	tests := map[string]row{
		"raw":             {body("raw"), importer.Options{}, sha(body("raw"))},
		"zeros":           {make([]byte, 8<<10), importer.Options{}, sha(make([]byte, 8<<10))},
		"qcow2":           {f.File, importer.Options{}, f.SHA256},
		"qcow2.gz":        {golden.Compress(golden.Gzip, f.File), importer.Options{}, f.SHA256},
		"qcow2.zst":       {golden.Compress(golden.Zstd, f.File), importer.Options{}, f.SHA256},
		"size 0":          {testdata.Read("qcow2/qemu-size-0.qcow2"), importer.Options{}, sha(nil)},
		"tar":             {golden.Tar(file("x.qcow2", f.File)), importer.Options{}, f.SHA256},
		"tar.gz":          {golden.Compress(golden.Gzip, golden.Tar(file("x.qcow2", f.File))), importer.Options{}, f.SHA256},
		"tar of gz":       {golden.Tar(file("x.gz", golden.Compress(golden.Gzip, f.File))), importer.Options{}, f.SHA256},
		"tar, path":       {several, importer.Options{Path: "/b.img"}, f.SHA256},
		"tar, other path": {several, importer.Options{Path: "./a/one"}, sha(body("one"))},
		"grown":           {body("raw"), importer.Options{Size: 8192, ExpectSHA256: sha(body("raw"))}, sha(body("raw"))},
	}
	for _, x := range testdata.Fixtures() {
		if x.Format == "raw" {
			// xz -9 has a dictionary of 64 MiB, which the default has no room for.
			tests[x.File] = row{testdata.Read(x.File), importer.Options{Budget: disk.NewBudget(128 << 20)}, x.SHA256}
		}
	}
	for name, test := range tests {
		for way, r := range readers(test.file) {
			t.Run(name+"/"+way, func(t *testing.T) {
				var dst memory
				_, err := importFile(t, r(), &dst, test.o)
				require.NoError(t, err)
				require.Equal(t, test.sum, dst.sum(t))
			})
		}
	}
}

func TestImportReaderRefuses(t *testing.T) {
	f := golden.Disks()[0]
	gz := golden.Compress(golden.Gzip, f.File)
	tarGz := golden.Compress(golden.Gzip, golden.Tar(file("x", f.File)))
	backing := testdata.Read("qcow2/qemu-backing-file.qcow2")
	for name, test := range map[string]struct {
		file  []byte
		o     importer.Options
		is    error
		stage importer.Stage
		code  string
	}{
		"nothing":            {nil, importer.Options{}, importer.ErrEmptyDisk, importer.StageProbe, "empty-disk"},
		"nothing, gzip":      {golden.Compress(golden.Gzip, nil), importer.Options{}, importer.ErrEmptyDisk, importer.StageProbe, "empty-disk"},
		"an empty file":      {golden.Tar(file("x", nil)), importer.Options{}, importer.ErrEmptyDisk, importer.StageProbe, "empty-disk"},
		"nothing, grown":     {nil, importer.Options{Size: 4096}, importer.ErrEmptyDisk, importer.StageProbe, "empty-disk"},
		"several files":      {golden.Tar(file("a", body("a")), file("b", body("b"))), importer.Options{}, archive.ErrSeveral, importer.StageUnpack, "several-files"},
		"no file":            {golden.Tar(golden.Entry{Name: "d/"}), importer.Options{}, archive.ErrNoDisk, importer.StageUnpack, "no-disk"},
		"path not there":     {golden.Tar(file("a", body("a"))), importer.Options{Path: "b"}, archive.ErrNoDisk, importer.StageUnpack, "no-disk"},
		"link":               {golden.Tar(symlink("a", "b")), importer.Options{}, archive.ErrNotAFile, importer.StageUnpack, "not-a-file"},
		"cut gzip":           {gz[:len(gz)-9], importer.Options{}, io.ErrUnexpectedEOF, importer.StageUnpack, "damaged-archive"},
		"bad gzip sum":       {append(bytes.Clone(gz[:len(gz)-1]), ^gz[len(gz)-1]), importer.Options{}, nil, importer.StageUnpack, "damaged-archive"},
		"bad tar.gz sum":     {append(bytes.Clone(tarGz[:len(tarGz)-1]), ^tarGz[len(tarGz)-1]), importer.Options{}, nil, importer.StageUnpack, "damaged-archive"},
		"cut tar":            {golden.Tar(file("a", body("a")))[:2048], importer.Options{}, nil, importer.StageUnpack, "damaged-archive"},
		"cut qcow2":          {f.File[:len(f.File)/2], importer.Options{}, disk.ErrTruncated, importer.StageConvert, "truncated"},
		"backing file":       {backing, importer.Options{}, disk.ErrUnsupported, importer.StageProbe, "backing-file"},
		"too large":          {f.File, importer.Options{Size: f.VirtualSize - 512}, importer.ErrTooLarge, importer.StageProbe, "disk-too-large"},
		"raw too large":      {body("x"), importer.Options{Size: 4096}, importer.ErrTooLarge, importer.StageConvert, "disk-too-large"},
		"gzip twice":         {golden.Compress(golden.Gzip, gz), importer.Options{}, disk.ErrUnsupported, importer.StageProbe, "banned-format"},
		"not whole sectors":  {body("x")[:1000], importer.Options{}, disk.ErrCorrupt, importer.StageConvert, "virtual-size-unaligned"},
		"xz -9":              {testdata.Read("raw/xz-plain.raw.xz"), importer.Options{}, disk.ErrLimit, importer.StageUnpack, "limit-exceeded"},
		"bad file digest":    {f.File, importer.Options{ExpectFileDigest: "md5:00"}, importer.ErrOptions, importer.StageResolve, "options"},
		"size in no sectors": {f.File, importer.Options{Size: 1000}, importer.ErrOptions, importer.StageResolve, "options"},
		"bad sha256":         {f.File, importer.Options{ExpectSHA256: "abc"}, importer.ErrOptions, importer.StageResolve, "options"},
	} {
		for way, r := range readers(test.file) {
			t.Run(name+"/"+way, func(t *testing.T) {
				var dst memory
				_, err := importFile(t, r(), &dst, test.o)
				require.Error(t, err)
				if test.is != nil {
					require.ErrorIs(t, err, test.is)
				}
				wantError(t, err, test.stage, importer.Permanent, test.code)
			})
		}
	}
}

func TestImportReaderBroken(t *testing.T) {
	f := golden.Disks()[0]
	for _, n := range []int64{0, 10, int64(len(f.File)) / 2, int64(len(f.File)) - 1, int64(len(f.File))} {
		broken := io.MultiReader(bytes.NewReader(f.File[:n]), readFunc(func([]byte) (int, error) { return 0, trouble{} }))
		_, err := importFile(t, broken, new(memory), importer.Options{})
		require.ErrorIs(t, err, trouble{}, "after %d", n)
		require.Equal(t, importer.Transient, importer.ClassOf(err))
	}
}

func TestProbe(t *testing.T) {
	f := golden.Disks()[0]
	n := few(16<<20, 6<<20)
	src, layers := layered(tarLayer(golden.LayerOptions{}, file("disk/x", f.File), file("var/big", noise("big", n))))
	budget := disk.NewBudget(0)
	res, err := importer.Probe(t.Context(), src, ref, importer.ProbeOptions{Budget: budget})
	require.NoError(t, err)
	require.EqualValues(t, disk.DefaultMemory, budget.Left())
	require.Zero(t, src.Open())
	require.Equal(t, formats.QCOW2, res.Format)
	require.Equal(t, f.VirtualSize, res.VirtualSize)
	require.Equal(t, "disk/x", res.Entry)
	require.Equal(t, layers[0].Digest.String(), res.LayerDigest)
	require.Equal(t, "amd64", res.Platform.Architecture)
	require.Less(t, res.BytesFetched, int64(4<<20))
	require.Zero(t, res.BytesWritten)

	for name, test := range map[string]struct {
		file  []byte
		o     importer.ProbeOptions
		stage importer.Stage
		code  string
	}{
		"backing file": {testdata.Read("qcow2/qemu-backing-file.qcow2"), importer.ProbeOptions{}, importer.StageProbe, "backing-file"},
		"size 0":       {testdata.Read("qcow2/qemu-size-0.qcow2"), importer.ProbeOptions{}, importer.StageProbe, "empty-disk"},
		"too large":    {f.File, importer.ProbeOptions{Limits: disk.Limits{VirtualSize: 1 << 20}}, importer.StageProbe, "disk-too-large"},
		"no such path": {f.File, importer.ProbeOptions{Path: "x"}, importer.StageUnpack, "no-disk"},
		"no such arch": {f.File, importer.ProbeOptions{Arch: parse(t, "s390x")}, importer.StageResolve, "no-match"},
	} {
		t.Run(name, func(t *testing.T) {
			src, _ := layered(diskLayer(golden.Gzip, test.file))
			_, err := importer.Probe(t.Context(), src, ref, test.o)
			wantError(t, err, test.stage, importer.Permanent, test.code)
			require.Zero(t, src.Open())
		})
	}
}

func TestProbeReader(t *testing.T) {
	f := golden.Disks()[0]
	for name, p := range map[string][]byte{
		"qcow2": f.File, "gz": golden.Compress(golden.Gzip, f.File), "tar": golden.Tar(file("x", f.File)),
		"tar of gz": golden.Tar(file("x", golden.Compress(golden.Gzip, f.File))),
	} {
		t.Run(name, func(t *testing.T) {
			endless := io.MultiReader(bytes.NewReader(p), readFunc(func(p []byte) (int, error) { return len(p), nil }))
			res, err := importer.ProbeReader(t.Context(), endless, importer.ProbeOptions{})
			require.NoError(t, err)
			require.Equal(t, formats.QCOW2, res.Format)
			require.Equal(t, f.VirtualSize, res.VirtualSize)
		})
	}
	res, err := importer.ProbeReader(t.Context(), bytes.NewReader(body("x")), importer.ProbeOptions{})
	require.NoError(t, err)
	require.Equal(t, formats.Raw, res.Format)
	require.EqualValues(t, -1, res.VirtualSize)
	_, err = importer.ProbeReader(t.Context(), bytes.NewReader(testdata.Read("qcow2/qemu-size-0.qcow2")), importer.ProbeOptions{})
	require.NoError(t, err, "ImportReader takes it, too")
	_, err = importer.ProbeReader(t.Context(), bytes.NewReader(testdata.Read("qcow2/qemu-luks.qcow2")), importer.ProbeOptions{})
	wantError(t, err, importer.StageProbe, importer.Permanent, "encrypted")
	_, err = importer.ProbeReader(t.Context(), bytes.NewReader(nil), importer.ProbeOptions{})
	wantError(t, err, importer.StageProbe, importer.Permanent, "empty-disk")
}

// TestNilArguments: what is left out is an error that says so.
func TestNilArguments(t *testing.T) {
	ctx := t.Context()
	src := golden.NewSource(golden.OCI())
	for name, do := range map[string]func() error{
		"no source: import":    func() error { _, err := importer.Import(ctx, nil, ref, new(memory), importer.Options{}); return err },
		"no source: probe":     func() error { _, err := importer.Probe(ctx, nil, ref, importer.ProbeOptions{}); return err },
		"no source: resolve":   func() error { _, err := importer.Resolve(ctx, nil, ref, importer.ResolveOptions{}); return err },
		"no source: platforms": func() error { _, _, err := importer.Platforms(ctx, nil, ref); return err },
		"no target: import":    func() error { _, err := importer.Import(ctx, src, ref, nil, importer.Options{}); return err },
		"no target: reader": func() error {
			_, err := importer.ImportReader(ctx, bytes.NewReader(body("x")), nil, importer.Options{})
			return err
		},
		"no reader: import": func() error {
			_, err := importer.ImportReader(ctx, nil, new(memory), importer.Options{})
			return err
		},
		"no reader: probe": func() error { _, err := importer.ProbeReader(ctx, nil, importer.ProbeOptions{}); return err },
	} {
		t.Run(name, func(t *testing.T) {
			err := do()
			wantError(t, err, importer.StageResolve, importer.Permanent, "options")
			what, _, _ := strings.Cut(name, ":")
			require.ErrorContains(t, err, what)
		})
	}
}
