package registry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	ggcr "github.com/google/go-containerregistry/pkg/registry"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/require"

	"github.com/archdisk/archdisk/importer/registry"
)

var quiet = log.New(io.Discard, "", 0)

// The shape that a consumer of sources asks for.
var _ interface {
	Resolve(ctx context.Context, ref string) (ocispec.Descriptor, []byte, error)
	Manifest(ctx context.Context, ref string, d ocispec.Descriptor) ([]byte, error)
	Blob(ctx context.Context, ref string, d ocispec.Descriptor) (io.ReadCloser, error)
} = (*registry.Source)(nil)

// push fills an in-process registry that is not ours: one blob, one manifest
// with it, and an index with that, tagged "1".
func push(t testing.TB) (host string, index, manifest, layer ocispec.Descriptor, content string) {
	server := httptest.NewServer(ggcr.New(ggcr.Logger(quiet)))
	t.Cleanup(server.Close)
	send := func(method, path, contentType, body string) {
		req, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, strings.NewReader(body))
		require.NoError(t, err)
		req.Header.Set("Content-Type", contentType)
		res, err := server.Client().Do(req)
		require.NoError(t, err)
		defer res.Body.Close()
		require.Equal(t, http.StatusCreated, res.StatusCode)
	}
	content = strings.Repeat("disk", 50_000)
	layer = describe(content)
	layer.MediaType = ocispec.MediaTypeImageLayer
	send(http.MethodPost, "/v2/some/disk/blobs/uploads/?digest="+layer.Digest.String(), "application/octet-stream", content)

	document := func(v any) string {
		b, err := json.Marshal(v)
		require.NoError(t, err)
		return string(b)
	}
	m := ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest, Layers: []ocispec.Descriptor{layer}}
	m.SchemaVersion = 2
	doc := document(m)
	manifest = describe(doc)
	manifest.MediaType = ocispec.MediaTypeImageManifest
	send(http.MethodPut, "/v2/some/disk/manifests/"+manifest.Digest.String(), manifest.MediaType, doc)

	i := ocispec.Index{MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{manifest}}
	i.SchemaVersion = 2
	doc = document(i)
	index = describe(doc)
	index.MediaType = ocispec.MediaTypeImageIndex
	send(http.MethodPut, "/v2/some/disk/manifests/1", index.MediaType, doc)
	return server.Listener.Addr().String(), index, manifest, layer, content
}

func TestSource(t *testing.T) {
	host, index, manifest, layer, content := push(t)
	var lines bytes.Buffer
	s := newSource(t, registry.Options{Log: slog.New(slog.NewTextHandler(&lines, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	for _, ref := range []string{
		host + "/some/disk:1",
		"docker://" + host + "/some/disk:1",
		host + "/some/disk@" + index.Digest.String(),
		host + "/some/disk:gone@" + index.Digest.String(),
	} {
		d, doc, err := s.Resolve(t.Context(), ref)
		require.NoError(t, err, ref)
		require.Equal(t, index, d)
		require.Equal(t, index.Digest, digest.FromBytes(doc))

		doc, err = s.Manifest(t.Context(), ref, manifest)
		require.NoError(t, err)
		require.Equal(t, manifest.Digest, digest.FromBytes(doc))

		got, err := readBlob(t, s, ref, layer)
		require.NoError(t, err)
		require.Equal(t, content, string(got))
	}
	require.Contains(t, lines.String(), "path=/v2/some/disk/manifests/1 status=200")

	_, _, err := s.Resolve(t.Context(), host+"/some/disk:2")
	require.ErrorIs(t, err, registry.ErrNotFound)
	require.EqualError(t, err, "registry: manifest "+host+"/some/disk:2: 404 MANIFEST_UNKNOWN")
	require.False(t, asError(t, err).Temporary())

	require.NoError(t, s.Close())
	_, _, err = s.Resolve(t.Context(), host+"/some/disk:1")
	require.NoError(t, err, "usable after Close")
}

func TestRequestHeaders(t *testing.T) {
	d := describe("blob")
	f := serve(t, routes{
		"/v2/r/manifests/1": answer(manifestDoc),
		blobPath(d):         answer("blob"),
	})
	s := newSource(t, registry.Options{UserAgent: "importer/1"})
	_, _, err := s.Resolve(t.Context(), f.host()+"/r:1")
	require.NoError(t, err)
	_, err = readBlob(t, s, f.host()+"/r:1", d)
	require.NoError(t, err)

	require.Equal(t, []string{strings.Join([]string{
		"application/vnd.oci.image.index.v1+json",
		"application/vnd.oci.image.manifest.v1+json",
		"application/vnd.docker.distribution.manifest.list.v2+json",
		"application/vnd.docker.distribution.manifest.v2+json",
		"application/vnd.docker.distribution.manifest.v1+prettyjws",
		"application/vnd.docker.distribution.manifest.v1+json",
	}, ", ")}, f.got("/v2/r/manifests/1")[0].Header["Accept"])
	for _, path := range []string{"/v2/r/manifests/1", blobPath(d)} {
		header := f.got(path)[0].Header
		require.Equal(t, []string{"identity"}, header["Accept-Encoding"])
		require.True(t, strings.HasPrefix(header.Get("User-Agent"), "importer/1 "), header)
	}
}

func TestResolveMediaType(t *testing.T) {
	const document = "application/vnd.oci.image.manifest.v1+json"
	for _, row := range []struct{ name, contentType, body, want string }{
		{"declared", "application/vnd.docker.distribution.manifest.v2+json", manifestDoc, "application/vnd.docker.distribution.manifest.v2+json"},
		{"parameters", "application/vnd.oci.image.index.v1+json; charset=utf-8", manifestDoc, "application/vnd.oci.image.index.v1+json"},
		{"bad parameters", "Application/vnd.oci.image.index.v1+json; =;", manifestDoc, "application/vnd.oci.image.index.v1+json"},
		{"json", "application/json", manifestDoc, document},
		{"text", "text/plain; charset=utf-8", manifestDoc, document},
		{"octets", "application/octet-stream", manifestDoc, document},
		{"none", "", manifestDoc, document},
		{"json without its own", "application/json", `{}`, "application/json"},
		{"none and no document", "", `not json`, ""},
		{"schema1", "application/vnd.docker.distribution.manifest.v1+prettyjws", `{"schemaVersion":1}`, "application/vnd.docker.distribution.manifest.v1+prettyjws"},
	} {
		t.Run(row.name, func(t *testing.T) {
			f := serve(t, routes{"/v2/r/manifests/1": func(w http.ResponseWriter, _ *http.Request) {
				w.Header()["Content-Type"] = []string{row.contentType}
				io.WriteString(w, row.body)
			}})
			d, body, err := newSource(t, registry.Options{}).Resolve(t.Context(), f.host()+"/r:1")
			require.NoError(t, err)
			require.Equal(t, row.body, string(body))
			want := describe(row.body)
			want.MediaType = row.want
			require.Equal(t, want, d)
		})
	}
}

func TestResolveDigest(t *testing.T) {
	right, wrong := digest.FromString(manifestDoc), digest.FromString("other")
	long := digest.SHA512.FromString(manifestDoc)
	schema1 := []string{"Content-Type", "application/vnd.docker.distribution.manifest.v1+prettyjws"}
	for _, row := range []struct {
		name   string
		id     string
		header []string
		ok     bool
		want   digest.Digest
	}{
		{"pinned", "@" + right.String(), nil, true, right},
		{"pinned, other content", "@" + wrong.String(), nil, false, ""},
		{"pinned by sha512", "@" + long.String(), nil, true, long},
		{"tag and digest, other content", ":1@" + wrong.String(), nil, false, ""},
		{"pinned, header lies", "@" + right.String(), []string{"Docker-Content-Digest", wrong.String()}, true, right},
		{"tag, header agrees", ":1", []string{"Docker-Content-Digest", right.String()}, true, right},
		{"tag, header disagrees", ":1", []string{"Docker-Content-Digest", wrong.String()}, false, ""},
		{"tag, header is no digest", ":1", []string{"Docker-Content-Digest", "etag"}, true, right},
		{"schema1 digests its payload", ":1", append([]string{"Docker-Content-Digest", wrong.String()}, schema1...), true, right},
	} {
		t.Run(row.name, func(t *testing.T) {
			h := answer(manifestDoc, row.header...)
			f := serve(t, routes{
				"/v2/r/manifests/1":                 h,
				"/v2/r/manifests/" + right.String(): h,
				"/v2/r/manifests/" + wrong.String(): h,
				"/v2/r/manifests/" + long.String():  h,
			})
			d, _, err := newSource(t, registry.Options{}).Resolve(t.Context(), f.host()+"/r"+row.id)
			if row.ok {
				require.NoError(t, err)
				require.Equal(t, row.want, d.Digest)
				return
			}
			require.ErrorIs(t, err, registry.ErrDigest)
			var mismatch *registry.DigestError
			require.ErrorAs(t, err, &mismatch)
			require.Equal(t, registry.DigestError{Want: wrong, Have: right}, *mismatch)
			require.False(t, asError(t, err).Temporary())
		})
	}
}

func TestManifestVerified(t *testing.T) {
	d := describe(manifestDoc)
	f := serve(t, routes{"/v2/r/manifests/" + d.Digest.String(): answer(strings.Replace(manifestDoc, "2", "3", 1))})
	s := newSource(t, registry.Options{})

	_, err := s.Manifest(t.Context(), f.host()+"/r:1", d)
	require.ErrorIs(t, err, registry.ErrDigest)
	require.False(t, asError(t, err).Temporary())
	require.Equal(t, f.host()+"/r@"+d.Digest.String(), asError(t, err).Ref)

	d.Size++
	_, err = s.Manifest(t.Context(), f.host()+"/r:1", d)
	var size *registry.SizeError
	require.ErrorAs(t, err, &size)
	require.Equal(t, registry.SizeError{Want: d.Size, Have: d.Size - 1}, *size)
	require.ErrorIs(t, err, registry.ErrDigest)
}

func TestManifestTooLarge(t *testing.T) {
	most := strings.Repeat(" ", 4<<20)
	f := serve(t, routes{
		"/v2/r/manifests/most":     answer(most),
		"/v2/r/manifests/declared": answer(most+" ", "Content-Length", fmt.Sprint(len(most)+1)),
		"/v2/r/manifests/chunked":  chunked(most + " "),
	})
	s := newSource(t, registry.Options{})
	d, _, err := s.Resolve(t.Context(), f.host()+"/r:most")
	require.NoError(t, err)
	require.EqualValues(t, len(most), d.Size)
	for _, tag := range []string{"declared", "chunked"} {
		_, _, err := s.Resolve(t.Context(), f.host()+"/r:"+tag)
		require.ErrorIs(t, err, registry.ErrTooLarge, tag)
		require.False(t, asError(t, err).Temporary())
	}
	before := len(f.requests)
	_, err = s.Manifest(t.Context(), f.host()+"/r:1", describe(most+" "))
	require.ErrorIs(t, err, registry.ErrTooLarge)
	require.Len(t, f.requests, before, "refused by its descriptor")
}

// A descriptor comes from a document that anybody may have written.
func TestHostileDescriptor(t *testing.T) {
	f := serve(t, nil)
	s := newSource(t, registry.Options{})
	good := describe("x").Digest
	for _, d := range []ocispec.Descriptor{
		{},
		{Digest: "sha256:../../../v2/", Size: 1},
		{Digest: "../other/manifests/1", Size: 1},
		{Digest: digest.Digest(strings.ToUpper(good.String())), Size: 1},
		{Digest: "md5:d41d8cd98f00b204e9800998ecf8427e", Size: 1},
		{Digest: good, Size: -1},
	} {
		_, err := s.Manifest(t.Context(), f.host()+"/r:1", d)
		require.ErrorIs(t, err, registry.ErrReference)
		require.False(t, asError(t, err).Temporary())
		_, err = s.Blob(t.Context(), f.host()+"/r:1", d)
		require.ErrorIs(t, err, registry.ErrReference)
		require.Equal(t, "blob", asError(t, err).Op)
	}
	require.Empty(t, f.requests)
}

func TestMalformedReference(t *testing.T) {
	s := newSource(t, registry.Options{Proxy: (&wiretap{err: errors.New("asked")}).proxy})
	for ref, shown := range map[string]string{
		"":                                        "",
		"host.example/UPPER:1":                    "host.example/UPPER:1",
		"host.example/r:":                         "host.example/r:",
		"host.example/r@sha256":                   "host.example/r@sha256",
		"https://host.example/r:1?X-Signature=1":  "https://host.example/r:1",
		"someone:hunter2@host.example/r:1":        "...@host.example/r:1",
		"docker://someone:hun/ter2@host.example":  "...@host.example",
		"http://someone:hunter2@host.example/r:1": "...@host.example/r:1",
		"someone:hunter2@h/r@" + describe("").Digest.String(): "...@h/r@" + describe("").Digest.String(),
		"host.example/a\nb": "host.example/a",
	} {
		_, _, err := s.Resolve(t.Context(), ref)
		require.ErrorIs(t, err, registry.ErrReference, ref)
		e := asError(t, err)
		require.Equal(t, shown, e.Ref)
		require.False(t, e.Temporary())
		_, err = s.Blob(t.Context(), ref, describe("x"))
		require.ErrorIs(t, err, registry.ErrReference, ref)
	}
}

func TestReferenceWithoutHost(t *testing.T) {
	tap := &wiretap{err: errors.New("no network")}
	_, _, err := newSource(t, registry.Options{Proxy: tap.proxy}).Resolve(t.Context(), "fedora:41")
	require.Equal(t, []string{"https://index.docker.io"}, tap.seen)
	require.EqualError(t, err, "registry: ping fedora:41: no network (index.docker.io)")
	require.True(t, asError(t, err).Temporary())
}
