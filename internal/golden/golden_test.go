package golden_test

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/archdisk/archdisk/internal/golden"
	"github.com/archdisk/archdisk/internal/peer"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/require"
)

// The roots pin every byte below them: fixtures, tar, compressor settings, JSON. A change here is
// to be meant.
const (
	ociRoot    = "sha256:e2b57dfc640a55b442217664ac298b0b11f0fee778d2b3ccfcbc62ecc4f3c4d4"
	dockerRoot = "sha256:0cf532b01a91d2c0b5fc235791b3a8961c95f3ba91dca1d597d7c5337e6c06fa"
)

func TestDeterministic(t *testing.T) {
	for range 2 {
		require.Equal(t, ociRoot, golden.OCI().Root.Digest.String())
		require.Equal(t, dockerRoot, golden.Docker().Root.Digest.String())
	}
}

// TestContainerdisk holds the golden images against the layout of KubeVirt's containerdisks.
func TestContainerdisk(t *testing.T) {
	tests := map[string]struct {
		image                          *golden.Image
		index, manifest, config, layer string
	}{
		"oci": {
			golden.OCI(), ocispec.MediaTypeImageIndex, ocispec.MediaTypeImageManifest,
			ocispec.MediaTypeImageConfig, ocispec.MediaTypeImageLayerGzip,
		},
		"docker": {
			golden.Docker(), golden.MediaTypeDockerList, golden.MediaTypeDockerManifest,
			golden.MediaTypeDockerConfig, golden.MediaTypeDockerLayerGzip,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			image := test.image
			require.Equal(t, test.index, image.Root.MediaType)
			children := image.Children(image.Root)
			require.Len(t, children, 3)
			for i, disk := range golden.Disks() {
				child := children[i]
				require.Equal(t, &ocispec.Platform{Architecture: disk.Arch, OS: "linux"}, child.Platform)
				require.Equal(t, test.manifest, child.MediaType)
				parts := image.Children(child)
				require.Len(t, parts, 2)
				require.Equal(t, test.config, parts[0].MediaType)
				require.Equal(t, test.layer, parts[1].MediaType)

				p, ok := image.Get(parts[1].Digest)
				require.True(t, ok)
				z, err := gzip.NewReader(bytes.NewReader(p))
				require.NoError(t, err)
				archive, err := io.ReadAll(z)
				require.NoError(t, err)

				p, ok = image.Get(parts[0].Digest)
				require.True(t, ok)
				var config ocispec.Image
				require.NoError(t, json.Unmarshal(p, &config))
				require.Equal(t, disk.Arch, config.Architecture)
				require.Equal(t, "linux", config.OS)
				require.Equal(t, []digest.Digest{digest.FromBytes(archive)}, config.RootFS.DiffIDs)
				require.Equal(t, sum(disk.File), config.Config.Labels["shasum"])
				require.Contains(t, config.Config.Env, "INSTANCETYPE_KUBEVIRT_IO_DEFAULT_INSTANCETYPE=u1.small")

				r := tar.NewReader(bytes.NewReader(archive))
				h, err := r.Next()
				require.NoError(t, err)
				require.Equal(t, "disk/", h.Name)
				require.EqualValues(t, tar.TypeDir, h.Typeflag)
				require.EqualValues(t, 0o555, h.Mode)
				h, err = r.Next()
				require.NoError(t, err)
				require.Equal(t, "disk/disk.img", h.Name)
				require.EqualValues(t, 0o444, h.Mode)
				require.Equal(t, []any{107, 107, "qemu", "qemu"}, []any{h.Uid, h.Gid, h.Uname, h.Gname})
				body, err := io.ReadAll(r)
				require.NoError(t, err)
				require.Equal(t, disk.File, body)
				_, err = r.Next()
				require.Equal(t, io.EOF, err)
			}
		})
	}
}

// TestOrder: what refers to others comes after them, and all digests and sizes are right.
func TestOrder(t *testing.T) {
	image := golden.Docker()
	seen := make(map[digest.Digest]bool)
	for _, d := range image.Descriptors() {
		p, ok := image.Get(d.Digest)
		require.True(t, ok)
		require.EqualValues(t, len(p), d.Size)
		require.Equal(t, digest.FromBytes(p), d.Digest)
		for _, c := range image.Children(d) {
			require.True(t, seen[c.Digest], "%s refers to %s, which comes later", d.Digest, c.Digest)
		}
		seen[d.Digest] = true
	}
	require.Len(t, seen, 3*3+1)
	require.True(t, seen[image.Root.Digest])
}

func TestOptions(t *testing.T) {
	b := golden.NewBuilder()
	layer := b.Layer(golden.LayerOptions{}, golden.Entry{Name: "a", Body: []byte("b")})
	config := func(d ocispec.Descriptor) (c ocispec.Image) {
		image := b.Build(d)
		p, _ := image.Get(image.Children(d)[0].Digest)
		require.NoError(t, json.Unmarshal(p, &c))
		return c
	}

	d := b.Image(golden.ImageOptions{}, layer)
	require.Nil(t, d.Platform)
	require.Equal(t, "", config(d).Architecture)

	d = b.Image(golden.ImageOptions{Arch: "arm64", Variant: "v8", NoConfigArch: true}, layer)
	require.Equal(t, &ocispec.Platform{Architecture: "arm64", OS: "linux", Variant: "v8"}, d.Platform)
	require.Equal(t, "", config(d).Architecture)

	d = b.Image(golden.ImageOptions{Arch: "arm64", ConfigArch: "amd64", NoPlatform: true}, layer)
	require.Nil(t, d.Platform)
	require.Equal(t, "amd64", config(d).Architecture)

	disk := b.Blob("application/vnd.kubevirt.disk.raw+zstd", golden.Compress(golden.Zstd, make([]byte, 4096)))
	d = b.Image(golden.ImageOptions{
		ArtifactType:    "application/vnd.kubevirt.virtualmachine.v1",
		ConfigMediaType: "application/vnd.kubevirt.virtualmachine.config.v1+json",
		Config:          []byte("{}"),
	}, disk)
	require.Equal(t, "application/vnd.kubevirt.virtualmachine.v1", d.ArtifactType)
	parts := b.Build(d).Children(d)
	require.Equal(t, "application/vnd.kubevirt.virtualmachine.config.v1+json", parts[0].MediaType)
	require.Equal(t, disk, parts[1])

	nested := b.Index(golden.IndexOptions{MediaType: "x/y"}, b.Index(golden.IndexOptions{}, d))
	require.Equal(t, "x/y", nested.MediaType)
	require.Panics(t, func() { golden.NewBuilder().Build(nested) })
}

func TestLayer(t *testing.T) {
	entries := []golden.Entry{
		{Name: "disk/"},
		{Name: "disk/a", Body: bytes.Repeat([]byte("a"), 700)},
		{Name: "disk/b", Type: tar.TypeSymlink, Link: "a"},
		{Name: "disk/.wh.c", UID: 1, GID: 2, Uname: "u", Gname: "g", Mode: 0o600},
		{Name: "disk/d", Body: []byte("short"), Size: 6000},
	}
	for name, c := range map[string]golden.Compression{"none": golden.None, "gzip": golden.Gzip, "zstd": golden.Zstd} {
		t.Run(name, func(t *testing.T) {
			b := golden.NewBuilder()
			d := b.Layer(golden.LayerOptions{Compression: c}, entries...)
			p, _ := b.Build(d).Get(d.Digest)
			var r io.Reader = bytes.NewReader(p)
			switch c {
			case golden.Gzip:
				z, err := gzip.NewReader(r)
				require.NoError(t, err)
				r = z
			case golden.Zstd:
				z, err := zstd.NewReader(r)
				require.NoError(t, err)
				defer z.Close()
				r = z
			}
			archive := tar.NewReader(r)
			for _, e := range entries {
				h, err := archive.Next()
				require.NoError(t, err)
				require.Equal(t, e.Name, h.Name)
				require.Equal(t, e.Link, h.Linkname)
				body, err := io.ReadAll(archive)
				if e.Size != 0 {
					require.Equal(t, e.Size, h.Size)
					require.ErrorIs(t, err, io.ErrUnexpectedEOF)
					return
				}
				require.NoError(t, err)
				require.Equal(t, string(e.Body), string(body))
			}
		})
	}
}

// TestWriteLayout: skopeo reads the layout, each architecture of it.
func TestWriteLayout(t *testing.T) {
	skopeo := peer.Require(t, "skopeo")
	image := golden.OCI()
	dir := filepath.Join(t.TempDir(), "layout")
	require.NoError(t, image.WriteLayout(dir, "v1"))
	want, _ := image.Get(image.Root.Digest)
	require.Equal(t, string(want), string(peer.Run(t, skopeo, "inspect", "--raw", "oci:"+dir+":v1")))
	for _, d := range golden.Disks() {
		var got struct{ Architecture string }
		out := peer.Run(t, skopeo, "--override-os=linux", "--override-arch="+d.Arch, "inspect", "oci:"+dir+":v1")
		require.NoError(t, json.Unmarshal(out, &got), "%s", out)
		require.Equal(t, d.Arch, got.Architecture)
	}
}

// TestLayoutFiles: a layout has every blob under its digest and one tag, whatever kind the root is.
func TestLayoutFiles(t *testing.T) {
	for name, image := range map[string]*golden.Image{"oci": golden.OCI(), "docker": golden.Docker()} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "layout")
			require.NoError(t, image.WriteLayout(dir, "old"))
			require.NoError(t, image.WriteLayout(dir, "v1"))
			for _, d := range image.Descriptors() {
				p, err := os.ReadFile(filepath.Join(dir, "blobs", "sha256", d.Digest.Encoded()))
				require.NoError(t, err)
				require.Equal(t, d.Digest, digest.FromBytes(p))
			}
			p, err := os.ReadFile(filepath.Join(dir, "index.json"))
			require.NoError(t, err)
			var index ocispec.Index
			require.NoError(t, json.Unmarshal(p, &index))
			require.Len(t, index.Manifests, 1)
			require.Equal(t, image.Root.Digest, index.Manifests[0].Digest)
			require.Equal(t, "v1", index.Manifests[0].Annotations[ocispec.AnnotationRefName])
			p, err = os.ReadFile(filepath.Join(dir, "oci-layout"))
			require.NoError(t, err)
			require.JSONEq(t, `{"imageLayoutVersion":"1.0.0"}`, string(p))
		})
	}
}

func TestPush(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(nopLogger())))
	defer server.Close()
	for what, image := range map[string]*golden.Image{"oci": golden.OCI(), "docker": golden.Docker()} {
		t.Run(what, func(t *testing.T) {
			require.NoError(t, image.Push(t.Context(), server.Client(), server.URL, "vm/"+what, "v1"))
			ref, err := name.ParseReference(server.URL[len("http://"):] + "/vm/" + what + ":v1")
			require.NoError(t, err)
			index, err := remote.Index(ref, remote.WithContext(t.Context()))
			require.NoError(t, err)
			id, err := index.Digest()
			require.NoError(t, err)
			require.Equal(t, image.Root.Digest.String(), id.String())
			for _, child := range image.Children(image.Root) {
				hash, err := v1.NewHash(child.Digest.String())
				require.NoError(t, err)
				img, err := index.Image(hash)
				require.NoError(t, err)
				config, err := img.ConfigFile()
				require.NoError(t, err)
				require.Equal(t, child.Platform.Architecture, config.Architecture)
				layers, err := img.Layers()
				require.NoError(t, err)
				require.Len(t, layers, 1)
				r, err := layers[0].Uncompressed() // which verifies what it reads
				require.NoError(t, err)
				archive, err := io.ReadAll(r)
				require.NoError(t, err)
				require.NoError(t, r.Close())
				require.Equal(t, config.RootFS.DiffIDs[0].String(), digest.FromBytes(archive).String())
			}
		})
	}
	t.Run("refused", func(t *testing.T) {
		b := golden.NewBuilder()
		missing := golden.OCI().Root
		image := b.Build(b.Index(golden.IndexOptions{}, missing))
		require.ErrorContains(t, image.Push(t.Context(), nil, server.URL, "vm/refused", "v1"), "404")
	})
}
