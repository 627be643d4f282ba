package importer_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/archdisk/archdisk/importer"
	"github.com/archdisk/archdisk/internal/golden"
	"github.com/archdisk/archdisk/platform"
	"github.com/archdisk/archdisk/qcow/disk"
	"github.com/archdisk/archdisk/qcow/formats"
	"github.com/archdisk/archdisk/testdata"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/require"
)

// TestGolden imports every architecture of both golden images into a file.
func TestGolden(t *testing.T) {
	for kind, image := range map[string]*golden.Image{"oci": golden.OCI(), "docker": golden.Docker()} {
		for i, want := range golden.Disks() {
			t.Run(kind+"/"+want.Arch, func(t *testing.T) {
				src := golden.NewSource(image)
				dst, path := newFile(t, []byte("old"))
				budget := disk.NewBudget(0)
				res, err := importer.Import(t.Context(), src, ref, dst, importer.Options{
					Arch: parse(t, want.Arch), Budget: budget, HashDisk: true, ExpectSHA256: strings.ToUpper(want.SHA256),
				})
				require.NoError(t, err)
				require.EqualValues(t, disk.DefaultMemory, budget.Left())
				require.Zero(t, src.Open())

				content, err := os.ReadFile(path)
				require.NoError(t, err)
				require.Equal(t, want.SHA256, sha(content))
				onlyFile(t, path, content)

				child := image.Children(image.Root)[i]
				layer := image.Children(child)[1]
				require.Equal(t, image.Root.Digest.String(), res.IndexDigest)
				require.Equal(t, child.Digest.String(), res.ManifestDigest)
				require.Equal(t, &importer.Platform{OS: "linux", Architecture: want.Arch}, res.Platform)
				require.Equal(t, layer.Digest.String(), res.LayerDigest)
				require.Equal(t, "disk/disk.img", res.Entry)
				require.Equal(t, formats.QCOW2, res.Format)
				require.Equal(t, want.VirtualSize, res.VirtualSize)
				require.Equal(t, want.VirtualSize, res.Size)
				require.Equal(t, layer.Size, res.BytesFetched)
				require.Equal(t, want.VirtualSize, res.BytesWritten+res.BytesZeroed)
				require.Equal(t, 1, res.Passes)
				require.Equal(t, want.SHA256, res.SHA256)
				require.Equal(t, ref, res.Reference)
				require.Equal(t, map[string]string{
					"instancetype.kubevirt.io/default-instancetype": "u1.small",
					"instancetype.kubevirt.io/default-preference":   "linux",
				}, res.Labels)
				require.Equal(t, 1, src.Count(layer.Digest))
				require.Contains(t, res.Seconds, importer.StageCommit)
			})
		}
	}
}

// TestFixtures imports every fixture that can be read, in a layer of each compression.
func TestFixtures(t *testing.T) {
	for _, f := range testdata.Fixtures() {
		if f.Refused != "" || f.VirtualSize == 0 || f.VirtualSize > int64(few(1<<30, 4<<20)) {
			continue
		}
		t.Run(f.File, func(t *testing.T) {
			for _, c := range []golden.Compression{golden.None, golden.Gzip, golden.Zstd} {
				if c != golden.Gzip && f.VirtualSize > 64<<20 {
					continue // to hash it takes longer than all others together
				}
				src, _ := layered(diskLayer(c, testdata.Read(f.File)))
				var dst memory
				res, err := run(t.Context(), t, src, &dst, importer.Options{Budget: disk.NewBudget(128 << 20)})
				require.NoError(t, err)
				require.Equal(t, f.VirtualSize, dst.size)
				require.EqualValues(t, f.Format, res.Format)
				require.Equal(t, f.SHA256, dst.sum(t))
			}
		})
	}
}

// TestTargetIsReused: after an abort, and after a commit, a target takes the next disk.
func TestTargetIsReused(t *testing.T) {
	dst, path := newFile(t, nil)
	image := golden.OCI()
	for i, want := range golden.Disks() {
		src := golden.NewSource(image)
		layer := image.Children(image.Children(image.Root)[i])[1]
		src.Fault(layer.Digest, golden.FlipByte(layer.Size-1))
		_, err := importer.Import(t.Context(), src, ref, dst, importer.Options{Arch: parse(t, want.Arch)})
		require.ErrorIs(t, err, importer.ErrDigest)
		src.Fault(layer.Digest, nil)
		_, err = importer.Import(t.Context(), src, ref, dst, importer.Options{Arch: parse(t, want.Arch)})
		require.NoError(t, err)
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, want.SHA256, sha(content))
	}
}

func TestSize(t *testing.T) {
	f := golden.Disks()[0]
	raw := body("raw")
	raw = append(raw[:len(raw):len(raw)], make([]byte, 64<<10)...) // a tail of zeros that nobody writes
	for name, test := range map[string]struct {
		file []byte
		size int64
		sum  string // of the image's own content
	}{
		"qcow2": {f.File, f.VirtualSize, f.SHA256},
		"raw":   {raw, int64(len(raw)), sha(raw)},
	} {
		for _, grow := range []int64{0, 512, 1 << 20} {
			t.Run(name, func(t *testing.T) {
				src, _ := layered(diskLayer(golden.Gzip, test.file))
				o := importer.Options{Size: test.size + grow, ExpectSHA256: test.sum}
				var dst memory
				res, err := run(t.Context(), t, src, &dst, o)
				require.NoError(t, err)
				require.Equal(t, test.size+grow, dst.size)
				require.Equal(t, test.size, res.VirtualSize)

				file, path := newFile(t, nil)
				_, err = importer.Import(t.Context(), src, ref, file, o)
				require.NoError(t, err)
				content, err := os.ReadFile(path)
				require.NoError(t, err)
				require.Len(t, content, int(test.size+grow))
				require.Equal(t, test.sum, sha(content[:test.size]))
				require.Empty(t, bytes.Trim(content[test.size:], "\x00"))
			})
		}
	}
}

func TestExpected(t *testing.T) {
	f := golden.Disks()[2]
	right256, right512 := digest.SHA256.FromBytes(f.File), digest.SHA512.FromBytes(f.File)
	wrong256, wrong512 := digest.SHA256.FromString("x"), digest.SHA512.FromString("x")
	gz := golden.Compress(golden.Gzip, f.File)
	for name, test := range map[string]struct {
		file []byte
		o    importer.Options
		bad  bool
	}{
		"disk right":        {f.File, importer.Options{ExpectSHA256: f.SHA256}, false},
		"disk wrong":        {f.File, importer.Options{ExpectSHA256: sha(nil)}, true},
		"file sha256 right": {f.File, importer.Options{ExpectFileDigest: right256}, false},
		"file sha256 wrong": {f.File, importer.Options{ExpectFileDigest: wrong256}, true},
		"file sha512 right": {f.File, importer.Options{ExpectFileDigest: right512}, false},
		"file sha512 wrong": {f.File, importer.Options{ExpectFileDigest: wrong512}, true},
		"as it stands":      {gz, importer.Options{ExpectFileDigest: digest.SHA256.FromBytes(gz)}, false},
		"not unpacked":      {gz, importer.Options{ExpectFileDigest: right256}, true},
	} {
		t.Run(name, func(t *testing.T) {
			src, _ := layered(diskLayer(golden.None, test.file))
			var dst memory
			_, err := run(t.Context(), t, src, &dst, test.o)
			if !test.bad {
				require.NoError(t, err)
				require.Equal(t, f.SHA256, dst.sum(t))
				return
			}
			require.ErrorIs(t, err, importer.ErrDigest)
			wantError(t, err, importer.StageVerify, importer.Permanent, "digest")

			// The same from a stream, and from a file.
			for _, r := range readers(test.file) {
				var dst memory
				_, err = settle(t, nil, &dst, test.o, func(o importer.Options) (*importer.Result, error) {
					return importer.ImportReader(t.Context(), r(), &dst, o)
				})
				wantError(t, err, importer.StageVerify, importer.Permanent, "digest")
			}
		})
	}
}

type policyFunc func(context.Context, importer.Subject) error

func (f policyFunc) Check(ctx context.Context, s importer.Subject) error { return f(ctx, s) }

func TestPolicy(t *testing.T) {
	image := golden.OCI()
	child := image.Children(image.Root)[1]
	var told importer.Subject
	why := errors.New("no signature")
	var answer error
	o := importer.Options{Arch: parse(t, "arm64"), Policy: policyFunc(func(_ context.Context, s importer.Subject) error {
		told = s
		return answer
	})}
	src := golden.NewSource(image)
	var dst memory
	_, err := run(t.Context(), t, src, &dst, o)
	require.NoError(t, err)
	raw, _ := image.Get(child.Digest)
	require.Equal(t, importer.Subject{
		Reference: ref, IndexDigest: image.Root.Digest.String(), ManifestDigest: child.Digest.String(), Manifest: raw,
	}, told)

	answer = why
	src = golden.NewSource(image)
	dst = memory{}
	_, err = run(t.Context(), t, src, &dst, o)
	require.ErrorIs(t, err, importer.ErrDenied)
	require.ErrorIs(t, err, why)
	wantError(t, err, importer.StagePolicy, importer.Permanent, "denied")
	require.Zero(t, src.Count(image.Children(child)[1].Digest))
	require.Zero(t, dst.begins)

	_, err = importer.Probe(t.Context(), src, ref, importer.ProbeOptions{Arch: o.Arch, Policy: o.Policy})
	wantError(t, err, importer.StagePolicy, importer.Permanent, "denied")
}

func TestProgress(t *testing.T) {
	f := golden.Disks()[1]
	src, layers := layered(diskLayer(golden.Gzip, f.File))
	var running atomic.Int32
	var last importer.Progress
	calls := 0
	_, err := run(t.Context(), t, src, new(memory), importer.Options{Progress: func(p importer.Progress) {
		if !running.CompareAndSwap(0, 1) {
			t.Error("two calls at once")
		}
		if p.Fetched < last.Fetched || p.Done < last.Done {
			t.Errorf("from %+v back to %+v", last, p)
		}
		last = p
		calls++
		running.Store(0)
	}})
	require.NoError(t, err)
	require.NotZero(t, calls)
	require.Equal(t, importer.Progress{
		Fetched: layers[0].Size, FetchTotal: layers[0].Size, Done: f.VirtualSize, DiskSize: f.VirtualSize,
	}, last)

	var dst memory
	_, err = settle(t, nil, &dst, importer.Options{Progress: func(p importer.Progress) { last = p }}, func(o importer.Options) (*importer.Result, error) {
		return importer.ImportReader(t.Context(), bytes.NewReader(f.File), &dst, o)
	})
	require.NoError(t, err)
	size := int64(len(f.File))
	require.Equal(t, importer.Progress{Fetched: size, FetchTotal: size, Done: f.VirtualSize, DiskSize: f.VirtualSize}, last)
}

func TestLog(t *testing.T) {
	image := golden.Docker()
	child := image.Children(image.Root)[2]
	var lines bytes.Buffer
	log := slog.New(slog.NewTextHandler(&lines, &slog.HandlerOptions{Level: slog.LevelDebug}))
	_, err := run(t.Context(), t, golden.NewSource(image), new(memory), importer.Options{Arch: parse(t, "s390x"), Log: log})
	require.NoError(t, err)
	require.NotEmpty(t, lines.String())
	for line := range strings.Lines(lines.String()) {
		require.Contains(t, line, "level=DEBUG")
		require.Contains(t, line, "architecture=s390x")
		require.Contains(t, line, "manifest="+child.Digest.String())
	}
}

func TestResolve(t *testing.T) {
	image := golden.OCI()
	src := golden.NewSource(image)
	for i, d := range golden.Disks() {
		m, err := importer.Resolve(t.Context(), src, ref, importer.ResolveOptions{Arch: parse(t, d.Arch)})
		require.NoError(t, err)
		require.Equal(t, image.Root.Digest, m.IndexDigest)
		require.Equal(t, image.Children(image.Root)[i].Digest, m.Digest)
	}
	_, err := importer.Resolve(t.Context(), src, ref, importer.ResolveOptions{Arch: parse(t, "riscv64")})
	wantError(t, err, importer.StageResolve, importer.Permanent, "no-match")

	root, list, err := importer.Platforms(t.Context(), src, ref)
	require.NoError(t, err)
	require.Equal(t, image.Root.Digest, root)
	require.Len(t, list, 3)
	require.Zero(t, src.Open())

	single, _ := layered(diskLayer(golden.None, body("x")))
	m, err := importer.Resolve(t.Context(), single, ref, importer.ResolveOptions{})
	require.NoError(t, err)
	require.Equal(t, m.IndexDigest, m.Digest)

	for _, d := range []ocispec.Descriptor{image.Root, image.Children(image.Root)[0]} {
		src.Fault(d.Digest, golden.FlipByte(20))
		_, err = importer.Resolve(t.Context(), src, ref, importer.ResolveOptions{Arch: parse(t, "amd64")})
		require.ErrorIs(t, err, platform.ErrDigest)
		wantError(t, err, importer.StageResolve, importer.Permanent, "digest")
		src.Fault(d.Digest, nil)
	}
	src.Fault(image.Root.Digest, golden.FailAfter(10, trouble{}))
	_, _, err = importer.Platforms(t.Context(), src, ref)
	wantError(t, err, importer.StageResolve, importer.Transient, "resolve")
}

// TestLabels: the rule by which an image's environment becomes labels.
func TestLabels(t *testing.T) {
	src, _ := labelled(golden.ImageOptions{Arch: "amd64", Env: []string{
		"PATH=/bin", "INSTANCETYPE_KUBEVIRT_IO_DEFAULT_INSTANCETYPE=u1.small", "A_B_KUBEVIRT_IO_C_D=Value_Kept=1",
		"KUBEVIRT_IO_X=top", "NOT_KUBEVIRT=1", "KUBEVIRT_IO_WITHOUT_VALUE",
	}}, diskLayer(golden.None, body("x")))
	res, err := run(t.Context(), t, src, new(memory), importer.Options{})
	require.NoError(t, err)
	require.Equal(t, map[string]string{
		"instancetype.kubevirt.io/default-instancetype": "u1.small",
		"a.b.kubevirt.io/c-d":                           "Value_Kept=1",
		"kubevirt.io/x":                                 "top",
	}, res.Labels)
}
