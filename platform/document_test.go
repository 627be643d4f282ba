package platform_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/archdisk/archdisk/arch"
	"github.com/archdisk/archdisk/platform"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/require"
)

const (
	ociIndex    = ocispec.MediaTypeImageIndex
	ociManifest = ocispec.MediaTypeImageManifest
	schema1     = "application/vnd.docker.distribution.manifest.v1+prettyjws"
	emptyDigest = "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
	emptyConfig = `{"mediaType":"application/vnd.oci.empty.v1+json","digest":"` + emptyDigest + `","size":2}`
)

func TestDocuments(t *testing.T) {
	tests := []struct {
		name      string
		mediaType string // that the registry states
		document  string
		err       error // nil: it is read, whatever it then offers
		text      string
	}{
		{"empty index", ociIndex, `{"schemaVersion":2,"manifests":[]}`, platform.ErrNoMatch, "nothing"},
		{"index with null members", ociIndex, `{"schemaVersion":2,"manifests":[],"layers":null,"config":null}`, platform.ErrNoMatch, "nothing"},
		{"index, manifests null", ociIndex, `{"schemaVersion":2,"manifests":null}`, platform.ErrNoMatch, "nothing"},
		{"media type in the document alone", "", `{"schemaVersion":2,"mediaType":"` + ociIndex + `"}`, platform.ErrNoMatch, "nothing"},
		{"no media type anywhere, index", "", `{"schemaVersion":2,"manifests":[]}`, platform.ErrNoMatch, "nothing"},
		{"no media type anywhere, manifest", "", `{"schemaVersion":2,"config":` + emptyConfig + `,"layers":[]}`, nil, ""},
		{"generic media type", "application/json", `{"schemaVersion":2,"config":` + emptyConfig + `,"layers":[]}`, nil, ""},
		{"media type with parameter", ociManifest + "; charset=utf-8", `{"schemaVersion":2,"mediaType":"` + ociManifest + `","config":` + emptyConfig + `}`, nil, ""},
		{"no schemaVersion", ociManifest, `{"config":` + emptyConfig + `}`, nil, ""},
		{"free keys in annotations", ociManifest, `{"config":` + emptyConfig + `,"annotations":{"Layers":"","layers":"","OS":"","os":""}}`, nil, ""},
		{"strange but harmless members", ociManifest, `{"config":` + emptyConfig + `,"x":[{"y":[1,2,{"z":null}]}],"subject":null}`, nil, ""},

		{"manifests and layers", ociIndex, `{"schemaVersion":2,"manifests":[],"layers":[]}`, platform.ErrInvalid, "more than one kind"},
		{"manifests and config", ociManifest, `{"schemaVersion":2,"manifests":[],"config":{}}`, platform.ErrInvalid, "more than one kind"},
		{"manifests and fsLayers", ociIndex, `{"schemaVersion":2,"manifests":[],"fsLayers":[]}`, platform.ErrInvalid, "more than one kind"},
		{"layers and fsLayers", ociManifest, `{"schemaVersion":2,"config":{},"fsLayers":[]}`, platform.ErrInvalid, "more than one kind"},
		{"index type, manifest body", ociIndex, `{"schemaVersion":2,"config":` + emptyConfig + `}`, platform.ErrInvalid, "an index with a config"},
		{"manifest type, index body", ociManifest, `{"schemaVersion":2,"manifests":[]}`, platform.ErrInvalid, "with manifests"},
		{"types contradict", ociManifest, `{"schemaVersion":2,"mediaType":"` + ociIndex + `","manifests":[]}`, platform.ErrInvalid, "calls itself"},
		{"OCI and Docker contradict", ociIndex, `{"schemaVersion":2,"mediaType":"` + dockerIndex + `","manifests":[]}`, platform.ErrInvalid, "calls itself"},
		{"manifest without config", ociManifest, `{"schemaVersion":2,"layers":[]}`, platform.ErrInvalid, "without a config"},
		{"neither", "", `{"schemaVersion":2}`, platform.ErrInvalid, "neither"},
		{"schemaVersion 3", ociIndex, `{"schemaVersion":3,"manifests":[]}`, platform.ErrInvalid, "schemaVersion = 3"},
		{"member twice", ociIndex, `{"manifests":[],"manifests":[{}]}`, platform.ErrInvalid, `"manifests" appears twice`},
		{"member twice, escaped", ociIndex, `{"manifests":[],"m\u0061nifests":[{}]}`, platform.ErrInvalid, "twice"},
		{"annotation twice", ociIndex, `{"manifests":[],"annotations":{"a":"","a":""}}`, platform.ErrInvalid, "twice"},
		{"member in another case", ociIndex, `{"Manifests":[]}`, platform.ErrInvalid, "in case only"},
		{"long s for s", ociIndex, `{"manifestſ":[]}`, platform.ErrInvalid, "in case only"},
		{"platform in another case", ociIndex, `{"manifests":[{"Platform":{}}]}`, platform.ErrInvalid, "in case only"},
		{"architecture in another case", ociIndex, `{"manifests":[{"platform":{"Architecture":"arm64"}}]}`, platform.ErrInvalid, "in case only"},
		{"entry without media type", ociIndex, `{"manifests":[{"digest":"` + emptyDigest + `","size":2}]}`, platform.ErrInvalid, `mediaType ""`},
		{"entry with a malformed digest", ociIndex, `{"manifests":[{"mediaType":"` + ociManifest + `","digest":"sha256:\u001b[31m","size":2}]}`, platform.ErrInvalid, `\x1b[31m`},
		{"entry with a short digest", ociIndex, `{"manifests":[{"mediaType":"` + ociManifest + `","digest":"sha256:aa","size":2}]}`, platform.ErrInvalid, "malformed"},
		{"entry with a foreign digest", ociIndex, `{"manifests":[{"mediaType":"` + ociManifest + `","digest":"blake3:aa","size":2}]}`, platform.ErrUnsupported, "algorithm"},
		{"entry with a negative size", ociIndex, `{"manifests":[{"mediaType":"` + ociManifest + `","digest":"` + emptyDigest + `","size":-1}]}`, platform.ErrInvalid, "size = -1"},
		{"entry of a huge size", ociIndex, `{"manifests":[{"mediaType":"` + ociManifest + `","digest":"` + emptyDigest + `","size":4194305}]}`, platform.ErrLimit, "MaxDocument"},
		{"size is no number", ociIndex, `{"manifests":[{"size":"2"}]}`, platform.ErrInvalid, "cannot unmarshal"},
		{"empty", ociIndex, ``, platform.ErrInvalid, "not a JSON object"},
		{"null", ociIndex, `null`, platform.ErrInvalid, "not a JSON object"},
		{"array", ociIndex, `[]`, platform.ErrInvalid, "not a JSON object"},
		{"truncated", ociIndex, `{"manifests":[`, platform.ErrInvalid, "unexpected end"},
		{"two documents", ociIndex, `{"manifests":[]}{}`, platform.ErrInvalid, "after top-level value"},
		{"deep", ociIndex, `{"x":` + strings.Repeat("[", 20000) + strings.Repeat("]", 20000) + `}`, platform.ErrInvalid, "depth"},
		{"many empty layers", ociManifest, `{"config":` + emptyConfig + `,"layers":[` + strings.Repeat("{},", 1<<15) + `{}]}`, platform.ErrLimit, "objects and arrays"},
		{"huge platform", ociIndex, `{"manifests":[{"mediaType":"` + ociIndex + `","digest":"` + emptyDigest + `","size":2,"platform":{"os":"linux","os.features":["` + strings.Repeat("x", 5000) + `"]}}]}`, platform.ErrLimit, "its platform takes"},
		{"byte order mark", ociIndex, "\ufeff{}", platform.ErrInvalid, "not a JSON object"},

		{"schema 1 by type", schema1, `{"schemaVersion":1,"name":"a","fsLayers":[]}`, platform.ErrUnsupported, "schema 1"},
		{"schema 1 by version", "", `{"schemaVersion":1,"name":"a"}`, platform.ErrUnsupported, "schema 1"},
		{"schema 1 by layers", "application/json", `{"fsLayers":[],"signatures":[]}`, platform.ErrUnsupported, "schema 1"},
		{"OCI artifact manifest", "application/vnd.oci.artifact.manifest.v1+json", `{"mediaType":"application/vnd.oci.artifact.manifest.v1+json","blobs":[]}`, platform.ErrUnsupported, "artifact.manifest"},
		{"web page", "text/html", `{}`, platform.ErrUnsupported, "text/html"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			root := ocispec.Descriptor{MediaType: test.mediaType, Digest: digest.FromString(test.document), Size: int64(len(test.document))}
			r := newRegistry()
			sel, err := platform.Select(context.Background(), root, []byte(test.document), r.fetch, platform.SelectOptions{})
			_, listErr := platform.List(context.Background(), root, []byte(test.document), r.fetch)
			if test.err == nil {
				require.NoError(t, err)
				require.NoError(t, listErr)
				require.Equal(t, ociManifest, sel.Descriptor.MediaType)
				require.Nil(t, sel.Config)
				return
			}
			require.ErrorIs(t, err, test.err)
			require.ErrorContains(t, err, test.text)
			require.NotContains(t, err.Error(), "\x1b")
			require.Less(t, len(err.Error()), 600)
			if errors.Is(test.err, platform.ErrInvalid) || errors.Is(test.err, platform.ErrUnsupported) {
				var document *platform.DocumentError
				require.ErrorAs(t, err, &document)
			}
			require.Empty(t, r.asked)
		})
	}
}

func TestConfigDocuments(t *testing.T) {
	for _, test := range []struct {
		name, config, text string
	}{
		{"member twice", `{"architecture":"amd64","os":"linux","architecture":"arm64"}`, "twice"},
		{"in another case", `{"architecture":"amd64","os":"linux","Architecture":"arm64"}`, "in case only"},
		{"no object", `[]`, "not a JSON object"},
		{"wrong type", `{"architecture":1}`, "cannot unmarshal"},
		{"free below the top", `{"architecture":"amd64","os":"linux","config":{"Labels":{"Os":"","os":""}},"Size":1}`, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newRegistry()
			config := r.put(ocispec.MediaTypeImageConfig, []byte(test.config))
			root := r.put(ociManifest, ocispec.Manifest{Config: config})
			_, err := r.selectFrom(t, root, "amd64", platform.SelectOptions{})
			if test.text == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, platform.ErrInvalid)
			require.ErrorContains(t, err, test.text)
			require.ErrorContains(t, err, string(config.Digest))
		})
	}
}

// A dir: source knows the bytes of its root and nothing else.
func TestRootWithoutDescriptor(t *testing.T) {
	r := newRegistry()
	root := r.image(nilPlatform("linux/arm64"))
	sel, err := platform.Select(context.Background(), ocispec.Descriptor{}, r.blobs[root.Digest], r.fetch, platform.SelectOptions{})
	require.NoError(t, err)
	require.Equal(t, root, sel.Descriptor)
	require.Equal(t, "arm64", sel.Config.Architecture)
}

func TestDigests(t *testing.T) {
	// spoil changes what the registry serves for the manifest or the config.
	tests := []struct {
		name  string
		spoil func(raw []byte) []byte
	}{
		{"flipped", func(raw []byte) []byte { raw[len(raw)-2] ^= 1; return raw }},
		{"short", func(raw []byte) []byte { return raw[:len(raw)-1] }},
		{"long", func(raw []byte) []byte { return append(raw, '\n') }},
		{"empty", func([]byte) []byte { return nil }},
	}
	for _, test := range tests {
		for _, what := range []string{"manifest", "config", "nested", "root"} {
			t.Run(test.name+"/"+what, func(t *testing.T) {
				r := newRegistry()
				root := r.index(entry{on: "-", nested: []entry{plain("linux/amd64")}})
				var index, nested ocispec.Index
				var manifest ocispec.Manifest
				require.NoError(t, json.Unmarshal(r.blobs[root.Digest], &index))
				require.NoError(t, json.Unmarshal(r.blobs[index.Manifests[0].Digest], &nested))
				require.NoError(t, json.Unmarshal(r.blobs[nested.Manifests[0].Digest], &manifest))
				d := map[string]ocispec.Descriptor{"root": root, "nested": index.Manifests[0], "manifest": nested.Manifests[0], "config": manifest.Config}[what]
				r.blobs[d.Digest] = test.spoil(append([]byte{}, r.blobs[d.Digest]...))
				_, err := r.selectFrom(t, root, "amd64", platform.SelectOptions{})
				require.ErrorIs(t, err, platform.ErrDigest)
				var wrong *platform.DigestError
				require.ErrorAs(t, err, &wrong)
				require.Equal(t, d.Digest, wrong.Digest)
				require.ErrorContains(t, err, "platform: wrong content: "+d.Digest.String())
				require.EqualValues(t, len(r.blobs[d.Digest]), wrong.GotSize)
			})
		}
	}
}

// One digest under two sizes: at least one entry is wrong, whichever comes first.
func TestOneDigestTwoSizes(t *testing.T) {
	r := newRegistry()
	d := r.entry(plain("linux/amd64"))
	other := d
	other.Size++
	for _, entries := range permutations([]ocispec.Descriptor{d, other}) {
		root := r.put(ociIndex, ocispec.Index{Manifests: entries})
		_, err := r.selectFrom(t, root, "amd64", platform.SelectOptions{})
		require.ErrorIs(t, err, platform.ErrDigest)
	}
}

func TestLimits(t *testing.T) {
	many := make([]entry, 1025)
	for i := range many {
		many[i] = named(fmt.Sprint(i), "linux/amd64")
	}
	nested := entry{on: "-", nested: many[:600]}
	again := entry{on: "linux/s390x", nested: many[:600]}
	tests := []struct {
		name    string
		entries []entry
		limits  platform.Limits
		field   string
	}{
		{"entries", many, platform.Limits{}, "MaxManifests"},
		{"entries just allowed", many[:1024], platform.Limits{}, ""},
		{"entries, limit given", many[:3], platform.Limits{MaxManifests: 2}, "MaxManifests"},
		{"entries of two nested", []entry{nested, again}, platform.Limits{}, "MaxManifests"},
		{"the same index twice is read once", []entry{nested, nested}, platform.Limits{}, ""},
		{"depth", []entry{{on: "-", nested: many[:1]}}, platform.Limits{MaxDepth: 1}, "MaxDepth"},
		{"document", many[:9], platform.Limits{MaxDocument: 1000}, "MaxDocument"},
		{"total", many[:9], platform.Limits{MaxTotal: 4000}, "MaxTotal"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := newRegistry()
			root := r.index(test.entries...)
			_, err := r.selectFrom(t, root, "amd64", platform.SelectOptions{Limits: test.limits})
			if test.field == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, platform.ErrLimit)
			var limit *platform.LimitError
			require.ErrorAs(t, err, &limit)
			require.Equal(t, test.field, limit.Field)
			require.Greater(t, limit.Value, limit.Limit)
		})
	}

	t.Run("document of 4 MiB and a byte", func(t *testing.T) {
		raw := []byte(`{"manifests":[]` + strings.Repeat(" ", 4<<20-16+1) + `}`)
		require.Len(t, raw, 4<<20+1)
		_, err := platform.Select(context.Background(), ocispec.Descriptor{}, raw, newRegistry().fetch, platform.SelectOptions{})
		require.ErrorIs(t, err, platform.ErrLimit)
		_, err = platform.Select(context.Background(), ocispec.Descriptor{}, raw[:len(raw)-1], newRegistry().fetch, platform.SelectOptions{})
		require.ErrorIs(t, err, platform.ErrInvalid) // read, and found cut off
	})
	t.Run("a bush of indexes", func(t *testing.T) {
		// Each level names the one below many times, under as many platforms.
		r := newRegistry()
		below := r.index(plain("linux/amd64"))
		for range 3 {
			var index ocispec.Index
			for i := range 200 {
				d := below
				d.Platform = &ocispec.Platform{OS: "linux", Architecture: fmt.Sprint("x", i)}
				index.Manifests = append(index.Manifests, d)
			}
			below = r.put(ociIndex, index)
		}
		_, err := r.selectFrom(t, below, "amd64", platform.SelectOptions{})
		require.ErrorIs(t, err, platform.ErrLimit)
		require.LessOrEqual(t, len(r.asked), 4)
	})
}

func TestContext(t *testing.T) {
	r := newRegistry()
	root := r.index(plain("linux/amd64"))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := platform.Select(ctx, root, r.blobs[root.Digest], r.fetch, platform.SelectOptions{})
	require.ErrorIs(t, err, context.Canceled)
	require.Empty(t, r.asked)
}

func TestFetchErrorIsWrapped(t *testing.T) {
	r := newRegistry()
	root := r.index(plain("linux/amd64"))
	refused := errors.New("connection refused")
	fetch := func(context.Context, ocispec.Descriptor) ([]byte, error) { return nil, refused }
	_, err := platform.Select(context.Background(), root, r.blobs[root.Digest], fetch, platform.SelectOptions{})
	require.ErrorIs(t, err, refused)
}

func TestBadRequests(t *testing.T) {
	r := newRegistry()
	root := r.index(plain("linux/amd64"))
	for _, want := range []platform.Want{{Variant: "v8"}, {Arch: 200}} {
		_, err := platform.Select(context.Background(), root, r.blobs[root.Digest], r.fetch, platform.SelectOptions{Want: want})
		require.ErrorIs(t, err, platform.ErrInvalid)
	}
	_, err := platform.Select(context.Background(), root, r.blobs[root.Digest], nil, platform.SelectOptions{})
	require.ErrorIs(t, err, platform.ErrInvalid)

	// A Want made by hand is normalised.
	sel, err := platform.Select(context.Background(), root, r.blobs[root.Digest], r.fetch, platform.SelectOptions{Want: platform.Want{OS: "Linux", Arch: arch.AMD64, Variant: "V1"}})
	require.NoError(t, err)
	require.Empty(t, sel.Notes)
}
