package importer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"

	"github.com/archdisk/archdisk/importer"
	"github.com/archdisk/archdisk/importer/archive"
	"github.com/archdisk/archdisk/internal/golden"
	"github.com/archdisk/archdisk/platform"
	"github.com/archdisk/archdisk/qcow/disk"
	"github.com/archdisk/archdisk/testdata"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/require"
)

// refused imports into memory, and into a file that must stay as it is.
func refused(t *testing.T, src *golden.Source, o importer.Options) error {
	t.Helper()
	_, err := run(t.Context(), t, src, new(memory), o)
	require.Error(t, err)
	for _, old := range [][]byte{[]byte("old"), nil} {
		dst, path := newFile(t, old)
		_, again := importer.Import(t.Context(), src, ref, dst, o)
		require.Error(t, again)
		require.Equal(t, importer.ClassOf(err), importer.ClassOf(again))
		onlyFile(t, path, old)
		require.Zero(t, src.Open())
	}
	return err
}

func TestNoMatch(t *testing.T) {
	image := golden.OCI()
	src := golden.NewSource(image)
	err := refused(t, src, importer.Options{Arch: parse(t, "riscv64")})
	require.ErrorIs(t, err, platform.ErrNoMatch)
	wantError(t, err, importer.StageResolve, importer.Permanent, "no-match")
	var none *platform.NoMatchError
	require.ErrorAs(t, err, &none)
	require.Len(t, none.Have, 3)
	require.False(t, none.Ambiguous)
	for _, d := range golden.Disks() {
		require.ErrorContains(t, err, "linux/"+d.Arch)
	}

	err = refused(t, src, importer.Options{})
	wantError(t, err, importer.StageResolve, importer.Permanent, "no-match")
	require.ErrorAs(t, err, &none)
	require.True(t, none.Ambiguous)
	require.Len(t, none.Have, 3)

	// An index that names another architecture than its image does.
	b := golden.NewBuilder()
	child := b.Image(golden.ImageOptions{Arch: "arm64", ConfigArch: "amd64"}, b.Layer(golden.LayerOptions{}, golden.DiskEntries(body("a"))...))
	src = golden.NewSource(b.Build(b.Index(golden.IndexOptions{}, child)))
	err = refused(t, src, importer.Options{Arch: parse(t, "arm64"), Strict: true})
	wantError(t, err, importer.StageResolve, importer.Permanent, "platform-mismatch")
}

// TestRefusedImages: disks that must not be read, each with its reason as the code.
func TestRefusedImages(t *testing.T) {
	for _, f := range testdata.Fixtures() {
		if f.Refused == "" {
			continue
		}
		t.Run(f.File, func(t *testing.T) {
			src, _ := layered(diskLayer(golden.Gzip, testdata.Read(f.File)))
			err := refused(t, src, importer.Options{})
			require.ErrorIs(t, err, disk.ErrUnsupported)
			wantError(t, err, importer.StageProbe, importer.Permanent, f.Refused)
		})
	}
}

func TestBadDisks(t *testing.T) {
	q := golden.Disks()[0]
	raw := body("raw")
	for name, test := range map[string]struct {
		entries []golden.Entry
		o       importer.Options
		is      error
		stage   importer.Stage
		code    string
	}{
		"no disk":          {entries{file("etc/x", raw)}, importer.Options{}, archive.ErrNoDisk, importer.StageUnpack, "no-disk"},
		"several":          {entries{file("disk/a", q.File), file("disk/b", raw)}, importer.Options{}, archive.ErrSeveral, importer.StageUnpack, "several-files"},
		"cut qcow2":        {golden.DiskEntries(q.File[:len(q.File)*2/3]), importer.Options{}, disk.ErrTruncated, importer.StageConvert, "truncated"},
		"cut header":       {golden.DiskEntries(q.File[:50]), importer.Options{}, disk.ErrTruncated, importer.StageProbe, "truncated"},
		"entry goes on":    {entries{{Name: "disk/x", Body: raw, Size: 1 << 40}}, importer.Options{}, io.ErrUnexpectedEOF, importer.StageUnpack, "damaged-archive"},
		"empty raw":        {golden.DiskEntries(nil), importer.Options{}, importer.ErrEmptyDisk, importer.StageProbe, "empty-disk"},
		"empty qcow2":      {golden.DiskEntries(testdata.Read("qcow2/qemu-size-0.qcow2")), importer.Options{}, importer.ErrEmptyDisk, importer.StageProbe, "empty-disk"},
		"half a sector":    {golden.DiskEntries(raw[:700]), importer.Options{}, disk.ErrCorrupt, importer.StageConvert, "virtual-size-unaligned"},
		"larger than size": {golden.DiskEntries(q.File), importer.Options{Size: q.VirtualSize - 512}, importer.ErrTooLarge, importer.StageProbe, "disk-too-large"},
		"beyond limits":    {golden.DiskEntries(q.File), importer.Options{Limits: disk.Limits{VirtualSize: 1 << 20}}, importer.ErrTooLarge, importer.StageProbe, "disk-too-large"},
		"raw too large":    {golden.DiskEntries(raw), importer.Options{Size: 4096}, importer.ErrTooLarge, importer.StageConvert, "disk-too-large"},
		"vmdk":             {golden.DiskEntries(append([]byte("KDMV"), raw...)), importer.Options{}, disk.ErrUnsupported, importer.StageProbe, "banned-format"},
		"little memory":    {golden.DiskEntries(q.File), importer.Options{Budget: disk.NewBudget(1 << 20)}, disk.ErrLimit, importer.StageFetch, "limit-exceeded"},
	} {
		t.Run(name, func(t *testing.T) {
			src, _ := layered(tarLayer(golden.LayerOptions{Compression: golden.Gzip}, test.entries...))
			err := refused(t, src, test.o)
			require.ErrorIs(t, err, test.is)
			wantError(t, err, test.stage, importer.Permanent, test.code)
			if test.is == importer.ErrTooLarge && test.o.Size > 4096 {
				var large *importer.TooLargeError
				require.ErrorAs(t, err, &large)
				require.Equal(t, importer.TooLargeError{Need: q.VirtualSize, Have: test.o.Size}, *large)
			}
		})
	}
}

// TestTooLargeEndsDownload: what is too large is not fetched to its end.
func TestTooLargeEndsDownload(t *testing.T) {
	q := golden.Disks()[0]
	big := noise("big", few(16<<20, 8<<20))
	for name, es := range map[string]entries{
		"qcow2": append(golden.DiskEntries(q.File), file("z", big)), "raw": golden.DiskEntries(big),
	} {
		t.Run(name, func(t *testing.T) {
			src, layers := layered(tarLayer(golden.LayerOptions{}, es...))
			res, err := run(t.Context(), t, src, new(memory), importer.Options{Size: 1 << 20, Budget: disk.NewBudget(8 << 20), Workers: 1})
			require.ErrorIs(t, err, importer.ErrTooLarge)
			require.Less(t, res.BytesFetched, layers[0].Size*3/4)
			var large *importer.TooLargeError
			require.ErrorAs(t, err, &large)
			require.EqualValues(t, 1<<20, large.Have)
			require.Greater(t, large.Need, large.Have)
		})
	}
}

// TestFlippedByte: whichever byte of a blob is wrong, the digest is what is reported, and
// nothing is committed.
func TestFlippedByte(t *testing.T) {
	q := golden.Disks()[2]
	content := entries{file("etc/before", body("b")), golden.Entry{Name: "disk/"}, file("disk/disk.img", q.File), file("var/after", body("c"))}
	causes := 0
	for name, c := range map[string]golden.Compression{"none": golden.None, "gzip": golden.Gzip, "zstd": golden.Zstd} {
		t.Run(name, func(t *testing.T) {
			src, layers := layered(tarLayer(golden.LayerOptions{Compression: c}, content...))
			dst, path := newFile(t, []byte("old"))
			for _, at := range steps(layers[0].Size, few(250, 25)) {
				src.Fault(layers[0].Digest, golden.FlipByte(at))
				_, err := importer.Import(t.Context(), src, ref, dst, importer.Options{})
				require.ErrorIs(t, err, importer.ErrDigest, "byte %d", at)
				e := wantError(t, err, importer.StageFetch, importer.Permanent, "digest")
				var bad *importer.DigestError
				require.ErrorAs(t, err, &bad)
				require.Equal(t, layers[0].Digest.String(), bad.Want)
				if e.Cause != nil {
					causes++
					require.ErrorIs(t, err, e.Cause)
					require.ErrorContains(t, err, e.Cause.Error())
				}
				onlyFile(t, path, []byte("old"))
				require.Zero(t, src.Open())
			}
		})
	}
	require.NotZero(t, causes, "no flipped byte broke the content")

	// A size beyond the limit is no judgement on the content, and ends the download.
	head := bytes.Index(golden.Tar(content...), q.File[:64])
	src, layers := layered(tarLayer(golden.LayerOptions{}, content...))
	src.Fault(layers[0].Digest, golden.FlipByte(int64(head)+24))
	require.ErrorIs(t, refused(t, src, importer.Options{}), importer.ErrTooLarge)
}

// TestCause: an error found in content of a wrong digest is the cause beside it.
func TestCause(t *testing.T) {
	q := golden.Disks()[0]
	layer := golden.Tar(golden.DiskEntries(q.File)...)
	gz := golden.Compress(golden.Gzip, layer)
	for name, test := range map[string]struct {
		blob []byte
		at   int
		is   func(error) bool
	}{
		"deflate":  {gz, 10, func(err error) bool { var e *archive.Error; return errors.As(err, &e) }},
		"gzip sum": {gz, len(gz) - 6, func(err error) bool { var e *archive.Error; return errors.As(err, &e) }},
		"tar":      {layer, 512 + 124, func(err error) bool { return strings.Contains(err.Error(), "tar") }},
		"qcow2":    {layer, 1024 + 7, func(err error) bool { return errors.Is(err, disk.ErrUnsupported) }},
	} {
		t.Run(name, func(t *testing.T) {
			src, layers := layered(blobLayer("", test.blob))
			src.Fault(layers[0].Digest, golden.FlipByte(int64(test.at)))
			err := refused(t, src, importer.Options{})
			e := wantError(t, err, importer.StageFetch, importer.Permanent, "digest")
			require.ErrorIs(t, e.Err, importer.ErrDigest)
			require.Error(t, e.Cause)
			require.True(t, test.is(e.Cause), "%v", e.Cause)
		})
	}
}

func TestWrongLength(t *testing.T) {
	for _, c := range []golden.Compression{golden.None, golden.Gzip, golden.Zstd} {
		src, layers := layered(diskLayer(c, golden.Disks()[1].File))
		d := layers[0]
		for _, n := range append(steps(d.Size, few(60, 8)), d.Size-2, d.Size-1) {
			t.Run(fmt.Sprintf("%d/cut at %d", c, n), func(t *testing.T) {
				src.Fault(d.Digest, golden.Truncate(min(n, d.Size-1)))
				err := refused(t, src, importer.Options{})
				require.ErrorIs(t, err, importer.ErrDigest)
				wantError(t, err, importer.StageFetch, importer.Permanent, "digest")
				var size *importer.SizeError
				require.ErrorAs(t, err, &size)
				require.Equal(t, d.Size, size.Want)
			})
		}
		for name, p := range map[string][]byte{"byte": {0}, "tail": make([]byte, 10_000), "more": noise("more", 2<<20)} {
			t.Run(fmt.Sprintf("%d/with a %s behind", c, name), func(t *testing.T) {
				src.Fault(d.Digest, golden.Append(p))
				err := refused(t, src, importer.Options{})
				require.ErrorIs(t, err, importer.ErrDigest)
				wantError(t, err, importer.StageFetch, importer.Permanent, "digest")
			})
		}
	}
}

func TestBrokenStream(t *testing.T) {
	for _, c := range []golden.Compression{golden.None, golden.Gzip, golden.Zstd} {
		src, layers := layered(diskLayer(c, golden.Disks()[1].File))
		d := layers[0]
		for _, n := range append(steps(d.Size, few(40, 6)), d.Size) {
			src.Fault(d.Digest, golden.FailAfter(n, trouble{}))
			err := refused(t, src, importer.Options{})
			require.ErrorIs(t, err, trouble{}, "after %d", n)
			require.NotErrorIs(t, err, importer.ErrDigest)
			wantError(t, err, importer.StageFetch, importer.Transient, "fetch")

			src.Fault(d.Digest, golden.FailAfter(n, io.ErrUnexpectedEOF))
			wantError(t, refused(t, src, importer.Options{}), importer.StageFetch, importer.Transient, "fetch")
			src.Fault(d.Digest, golden.FailAfter(n, errors.New("of no known kind")))
			wantError(t, refused(t, src, importer.Options{}), importer.StageFetch, importer.Permanent, "fetch")
		}
	}
}

// TestWrongDocuments: manifests and configs are verified as well.
func TestWrongDocuments(t *testing.T) {
	image := golden.OCI()
	child := image.Children(image.Root)[0]
	config := image.Children(child)[0]
	for name, d := range map[string]ocispec.Descriptor{"index": image.Root, "manifest": child, "config": config} {
		src := golden.NewSource(image)
		for fault, f := range map[string]golden.Fault{
			"flip": golden.FlipByte(d.Size / 2), "cut": golden.Truncate(d.Size - 1), "more": golden.Append([]byte(" ")),
		} {
			t.Run(name+"/"+fault, func(t *testing.T) {
				src.Fault(d.Digest, f)
				err := refused(t, src, importer.Options{Arch: parse(t, "amd64")})
				require.ErrorIs(t, err, platform.ErrDigest)
				wantError(t, err, importer.StageResolve, importer.Permanent, "digest")
				require.Zero(t, src.Count(image.Children(child)[1].Digest), "no layer is fetched")
			})
		}
		t.Run(name+"/broken off", func(t *testing.T) {
			src.Fault(d.Digest, golden.FailAfter(10, trouble{}))
			wantError(t, refused(t, src, importer.Options{Arch: parse(t, "amd64")}), importer.StageResolve, importer.Transient, "resolve")
		})
	}
}

// TestDigestOnce: one digest, one mention, whether the source names it or not.
func TestDigestOnce(t *testing.T) {
	src, layers := layered(diskLayer(golden.None, golden.Disks()[0].File))
	d := layers[0].Digest
	for name, fault := range map[string]golden.Fault{
		"named":     golden.FailAfter(10, fmt.Errorf("blob disks/vm@%s: %w", d, trouble{})),
		"not named": golden.FailAfter(10, trouble{}),
	} {
		t.Run(name, func(t *testing.T) {
			src.Fault(d, fault)
			require.Equal(t, 1, strings.Count(refused(t, src, importer.Options{}).Error(), d.String()))
		})
	}
	image := golden.OCI()
	child := image.Children(image.Root)[0].Digest
	src = golden.NewSource(image)
	src.Fault(child, golden.FailAfter(10, fmt.Errorf("manifest disks/vm@%s: %w", child, trouble{})))
	require.Equal(t, 1, strings.Count(refused(t, src, importer.Options{Arch: parse(t, "amd64")}).Error(), child.String()))
}

// TestLoopNamesLink: whoever built the image is told which link leads nowhere.
func TestLoopNamesLink(t *testing.T) {
	src, _ := layered(tarLayer(golden.LayerOptions{}, symlink("disk/d", "../1"), symlink("1", "disk/d")))
	require.ErrorContains(t, refused(t, src, importer.Options{}), `"disk/d": more than 8 links`)
}

// TestMissing: what a manifest names and the registry has not got.
func TestMissing(t *testing.T) {
	b := golden.NewBuilder()
	d := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: "sha256:" + ocispec.DescriptorEmptyJSON.Digest[7:], Size: 2}
	src := golden.NewSource(b.Build(b.Image(golden.ImageOptions{Arch: "amd64"}, d)))
	wantError(t, refused(t, src, importer.Options{}), importer.StageFetch, importer.Permanent, "fetch")
	for name, d := range map[string]ocispec.Descriptor{
		"no digest": {Size: 1}, "md5": {Digest: "md5:d41d8cd98f00b204e9800998ecf8427e", Size: 1}, "negative": {Digest: d.Digest, Size: -1},
	} {
		t.Run(name, func(t *testing.T) {
			b := golden.NewBuilder()
			src := golden.NewSource(b.Build(b.Image(golden.ImageOptions{Arch: "amd64"}, d)))
			require.Equal(t, importer.Permanent, importer.ClassOf(refused(t, src, importer.Options{})))
		})
	}
}

func TestClassOf(t *testing.T) {
	for err, want := range map[error]importer.Class{
		nil:                      importer.Permanent,
		errors.New("?"):          importer.Permanent,
		syscall.ENOSPC:           importer.Transient,
		syscall.EIO:              importer.Transient,
		syscall.EROFS:            importer.Permanent,
		syscall.ENOTDIR:          importer.Permanent,
		syscall.ENAMETOOLONG:     importer.Permanent,
		syscall.ELOOP:            importer.Permanent,
		syscall.EINVAL:           importer.Permanent,
		syscall.EFBIG:            importer.Permanent,
		syscall.ECONNRESET:       importer.Transient,
		context.Canceled:         importer.Transient,
		context.DeadlineExceeded: importer.Transient,
		trouble{}:                importer.Transient,
		importer.ErrDigest:       importer.Permanent,
	} {
		require.Equal(t, want, importer.ClassOf(err), "%v", err)
	}
}
