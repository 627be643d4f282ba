package platform_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/archdisk/archdisk/platform"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/require"
)

// row is an index, a request and the right answer.
type row struct {
	name    string
	entries []entry
	want    string
	chosen  string // name of the entry; "" = an error
	err     error  // default with no entry chosen: ErrNoMatch
	note    string // part of a note; "" = there must be no note
	text    string // part of the error's text
	twins   bool   // the first of the index wins; order matters
	strict  bool
	gzip    bool
}

func plain(on string) entry { return entry{name: on, on: on} }

func named(name, on string) entry { return entry{name: name, on: on} }

func nilPlatform(config string) entry { return entry{name: "cfg " + config, on: "-", config: config} }

var (
	featured   = entry{name: "featured", on: "linux/amd64", features: []string{"x"}}
	gzipped    = entry{name: "gz", on: "linux/amd64"}
	zstdNoted  = entry{name: "zst", on: "linux/amd64", annotations: map[string]string{zstdAnnotation: "true"}}
	zstdLayers = entry{name: "zst", on: "linux/amd64", zstdLayer: true}
	liar       = entry{name: "liar", on: "linux/amd64", config: "linux/arm64"}
	honest     = entry{name: "honest", on: "linux/amd64", config: "linux/amd64"}
	attested   = entry{name: "attestation", on: "unknown/unknown", missing: true, annotations: map[string]string{"vnd.docker.reference.type": "attestation-manifest"}}
	unknown2   = entry{name: "unknown", on: "Unknown/unknown", missing: true}
	sbom       = entry{name: "sbom", on: "-", artifactType: "application/spdx+json", missing: true}
	helm       = entry{name: "helm", on: "-", config: "-", configType: "application/vnd.cncf.helm.config.v1+json"}
	sbomAMD64  = entry{name: "sbom", on: "linux/amd64", artifactType: "application/spdx+json", missing: true}
	sbomInside = entry{name: "sbom", on: "linux/amd64", manifestType: "application/spdx+json", configType: ocispec.MediaTypeEmptyJSON}
	export     = entry{name: "export", on: "-", config: "-", artifactType: vmArtifact, manifestType: vmArtifact, configType: vmConfig}
	exportARM  = entry{name: "export arm64", on: "linux/arm64", config: "-", artifactType: vmArtifact, manifestType: vmArtifact, configType: vmConfig}
)

// What the clients in use answer differs in nearly every one of these; the answers here
// follow the table in the package documentation.
func selectRows() []row {
	amd64, arm64, s390x := plain("linux/amd64"), plain("linux/arm64"), plain("linux/s390x")
	return []row{
		{name: "plain list", entries: []entry{amd64, arm64, s390x}, want: "s390x", chosen: "linux/s390x"},
		{name: "plain list, arm64", entries: []entry{amd64, arm64, s390x}, want: "arm64", chosen: "linux/arm64"},
		{name: "plain list with v8", entries: []entry{amd64, plain("linux/arm64/v8"), s390x}, want: "arm64", chosen: "linux/arm64/v8"},

		// Variants and spellings.
		{name: "variantless entry, v8 asked", entries: []entry{arm64}, want: "arm64/v8", chosen: "linux/arm64"},
		{name: "v9 and v8", entries: []entry{plain("linux/arm64/v9"), plain("linux/arm64/v8")}, want: "arm64", chosen: "linux/arm64/v8"},
		{name: "v9 only", entries: []entry{plain("linux/arm64/v9")}, want: "arm64", chosen: "linux/arm64/v9", note: "only variant"},
		{name: "v9 only, strict", entries: []entry{plain("linux/arm64/v9")}, want: "arm64", strict: true, text: "linux/arm64/v9"},
		{name: "armv8", entries: []entry{plain("linux/arm64/armv8")}, want: "arm64", chosen: "linux/arm64/armv8"},
		{name: "variant 8", entries: []entry{plain("linux/arm64/8")}, want: "arm64", chosen: "linux/arm64/8"},
		{name: "v9 wanted, v9 v8", entries: []entry{plain("linux/arm64/v9"), plain("linux/arm64/v8")}, want: "arm64/v9", chosen: "linux/arm64/v9"},
		{name: "v9 wanted, v8.5 v8", entries: []entry{plain("linux/arm64/v8.5"), plain("linux/arm64/v8")}, want: "arm64/v9", chosen: "linux/arm64/v8.5", note: "closest"},
		{name: "v9 wanted, v8.6 v8", entries: []entry{plain("linux/arm64/v8.6"), plain("linux/arm64/v8")}, want: "arm64/v9", chosen: "linux/arm64/v8", note: "closest"},
		{name: "v8.2 wanted, v8.10 v8.1 v8", entries: []entry{plain("linux/arm64/v8.10"), plain("linux/arm64/v8.1"), plain("linux/arm64/v8")}, want: "arm64/v8.2", chosen: "linux/arm64/v8.1", note: "closest"},
		{name: "amd64 variants, none asked", entries: []entry{plain("linux/amd64/v3"), plain("linux/amd64/v2"), amd64}, want: "amd64", chosen: "linux/amd64"},
		{name: "amd64 variants, v1 asked", entries: []entry{plain("linux/amd64/v3"), plain("linux/amd64/v2"), amd64}, want: "amd64/v1", chosen: "linux/amd64"},
		{name: "amd64 variants, v2 asked", entries: []entry{plain("linux/amd64/v3"), plain("linux/amd64/v2"), amd64}, want: "amd64/v2", chosen: "linux/amd64/v2"},
		{name: "amd64 variants, v4 asked", entries: []entry{plain("linux/amd64/v3"), plain("linux/amd64/v2"), amd64}, want: "amd64/v4", chosen: "linux/amd64/v3", note: "variant v4 wanted, the closest is linux/amd64/v3"},
		{name: "v2 only, none asked", entries: []entry{plain("linux/amd64/v2")}, want: "amd64", chosen: "linux/amd64/v2", note: "only variant"},
		{name: "v2 only, v3 asked", entries: []entry{plain("linux/amd64/v2")}, want: "amd64/v3", chosen: "linux/amd64/v2", note: "closest"},
		{name: "v2 and baseline", entries: []entry{plain("linux/amd64/v2"), amd64}, want: "amd64", chosen: "linux/amd64"},
		{name: "v3 and v2, none asked", entries: []entry{plain("linux/amd64/v3"), plain("linux/amd64/v2")}, want: "amd64", text: "linux/amd64/v2, linux/amd64/v3: several variants"},
		{name: "v3 and v2, nothing asked", entries: []entry{plain("linux/amd64/v3"), plain("linux/amd64/v2")}, want: "", text: "several variants"},
		{name: "unordered variant only", entries: []entry{plain("linux/arm64/banana")}, want: "arm64", chosen: "linux/arm64/banana", note: "only variant"},
		{name: "unordered variant and baseline", entries: []entry{plain("linux/arm64/banana"), arm64}, want: "arm64/v9", chosen: "linux/arm64", note: "closest"},
		{name: "riscv64 profile, baseline", entries: []entry{plain("linux/riscv64")}, want: "riscv64/rva22u64", chosen: "linux/riscv64", note: "closest"},
		{name: "arm below its baseline", entries: []entry{plain("linux/arm/v5"), plain("linux/arm/v6")}, want: "arm", chosen: "linux/arm/v6", note: "below the baseline"},
		{name: "x86_64 aarch64 entries, amd64", entries: []entry{plain("linux/x86_64"), plain("linux/aarch64")}, want: "amd64", chosen: "linux/x86_64"},
		{name: "x86_64 aarch64 entries, arm64", entries: []entry{plain("linux/x86_64"), plain("linux/aarch64")}, want: "arm64", chosen: "linux/aarch64"},
		{name: "x86_64 asked", entries: []entry{amd64, arm64}, want: "x86_64", chosen: "linux/amd64"},
		{name: "aarch64 asked", entries: []entry{amd64, arm64}, want: "aarch64", chosen: "linux/arm64"},
		{name: "upper case", entries: []entry{plain("Linux/AMD64")}, want: "linux/amd64", chosen: "Linux/AMD64"},

		// Never another architecture.
		{name: "386 only", entries: []entry{plain("linux/386")}, want: "amd64", text: "linux/386"},
		{name: "arm only", entries: []entry{plain("linux/arm/v7")}, want: "arm64", text: "linux/arm"},
		{name: "amd64 only, arm64 asked", entries: []entry{amd64}, want: "arm64", text: "linux/arm64 asked; the image offers linux/amd64"},
		{name: "amd64 arm64, s390x asked", entries: []entry{arm64, amd64}, want: "s390x", text: "linux/s390x asked; the image offers linux/amd64, linux/arm64"},
		{name: "s390x published as amd64", entries: []entry{{name: "p", on: "linux/amd64", config: "linux/s390x"}}, want: "s390x", text: "linux/amd64"},
		{name: "another os", entries: []entry{plain("windows/amd64"), arm64}, want: "amd64", text: "linux/arm64, windows/amd64"},
		{name: "os asked", entries: []entry{plain("windows/amd64"), amd64}, want: "windows/amd64", chosen: "windows/amd64"},
		{name: "darwin is not linux", entries: []entry{plain("darwin/arm64"), arm64}, want: "arm64", chosen: "linux/arm64"},
		{name: "foreign word", entries: []entry{plain("linux/mips64le"), amd64}, want: "amd64", chosen: "linux/amd64"},
		{name: "empty index", entries: nil, want: "amd64", text: "the image offers nothing"},

		// Platforms not stated.
		{name: "nil (arm64), amd64 asked", entries: []entry{nilPlatform("linux/arm64")}, want: "amd64", text: "linux/arm64"},
		{name: "nil (arm64), arm64 asked", entries: []entry{nilPlatform("linux/arm64")}, want: "arm64", chosen: "cfg linux/arm64"},
		{name: "nil (arm64) and amd64", entries: []entry{nilPlatform("linux/arm64"), amd64}, want: "amd64", chosen: "linux/amd64"},
		{name: "nil (arm64) and amd64, arm64 asked", entries: []entry{nilPlatform("linux/arm64"), amd64}, want: "arm64", chosen: "cfg linux/arm64"},
		{name: "nil (amd64), nil (arm64)", entries: []entry{nilPlatform("linux/amd64"), nilPlatform("linux/arm64")}, want: "arm64", chosen: "cfg linux/arm64"},
		{name: "nil (aarch64 v8), nil (arm64 v9)", entries: []entry{nilPlatform("linux/aarch64/v8"), nilPlatform("linux/arm64/v9")}, want: "arm64", chosen: "cfg linux/aarch64/v8"},
		{name: "stated before nil", entries: []entry{nilPlatform("linux/amd64"), amd64}, want: "amd64", chosen: "linux/amd64"},
		{name: "empty platform", entries: []entry{{name: "e", on: "/", config: "linux/amd64"}}, want: "amd64", chosen: "e"},
		{name: "empty platform, another asked", entries: []entry{{name: "e", on: "/", config: "linux/amd64"}}, want: "arm64", text: "linux/amd64"},
		{name: "empty os", entries: []entry{{name: "e", on: "/arm64", config: "linux/arm64"}}, want: "linux/arm64", chosen: "e"},
		{name: "empty os everywhere", entries: []entry{{name: "e", on: "/arm64", config: "/arm64"}}, want: "linux/arm64", chosen: "e", note: "no operating system"},
		{name: "empty os, windows config", entries: []entry{{name: "e", on: "/arm64", config: "windows/arm64"}}, want: "linux/arm64", text: "windows/arm64"},
		{name: "stated os before none", entries: []entry{{name: "e", on: "/arm64", config: "/arm64"}, arm64}, want: "arm64", chosen: "linux/arm64"},
		{name: "empty architecture", entries: []entry{{name: "e", on: "linux/", config: "/arm64"}}, want: "arm64", chosen: "e"},
		{name: "unknown architecture word", entries: []entry{{name: "e", on: "linux/unknown", config: "linux/arm64"}}, want: "arm64", chosen: "e"},
		{name: "stated nowhere, asked", entries: []entry{nilPlatform("-")}, want: "amd64", text: "offers unknown"},
		{name: "stated nowhere beside the wanted", entries: []entry{nilPlatform("-"), amd64}, want: "amd64", chosen: "linux/amd64", note: "1 of the entries left out"},

		// Attestations and artifacts.
		{name: "attestation", entries: []entry{attested, amd64}, want: "amd64", chosen: "linux/amd64"},
		{name: "attestation by platform", entries: []entry{unknown2, amd64}, want: "amd64", chosen: "linux/amd64"},
		{name: "attestations of two", entries: []entry{attested, amd64, unknown2, arm64}, want: "", text: "several are offered: linux/amd64, linux/arm64"},
		{name: "artifact without platform", entries: []entry{sbom, amd64}, want: "amd64", chosen: "linux/amd64"},
		{name: "artifact without platform, arm64 asked", entries: []entry{sbom, amd64}, want: "arm64", text: "offers linux/amd64"},
		{name: "artifact by config type", entries: []entry{helm, amd64}, want: "", chosen: "linux/amd64"},
		{name: "artifact with platform", entries: []entry{sbomAMD64, amd64}, want: "amd64", chosen: "linux/amd64"},
		{name: "artifact with platform only", entries: []entry{sbomAMD64}, want: "amd64", text: "nothing"},
		{name: "artifact inside", entries: []entry{sbomInside, amd64}, want: "amd64", chosen: "linux/amd64"},
		{name: "artifact inside only", entries: []entry{sbomInside}, want: "amd64", text: "nothing"},
		{name: "artifact inside hides no variant", entries: []entry{sbomInside, plain("linux/amd64/v2")}, want: "amd64", chosen: "linux/amd64/v2", note: "only variant"},
		{name: "unknown media type", entries: []entry{{name: "x", on: "linux/amd64", mediaType: "application/x-new", missing: true}, amd64}, want: "amd64", chosen: "linux/amd64"},
		{name: "KubeVirt export, nothing asked", entries: []entry{export}, want: "", chosen: "export", note: "states no architecture"},
		{name: "KubeVirt export, asked", entries: []entry{export}, want: "arm64", text: "unknown"},
		{name: "KubeVirt export with platform", entries: []entry{exportARM, amd64}, want: "arm64", chosen: "export arm64"},

		// Ties.
		{name: "twins", entries: []entry{named("A", "linux/amd64"), named("B", "linux/amd64")}, want: "amd64", chosen: "A", note: "the first was taken", twins: true},
		{name: "the same twice", entries: []entry{amd64, amd64}, want: "amd64", chosen: "linux/amd64"},
		{name: "zstd annotated", entries: []entry{gzipped, zstdNoted}, want: "amd64", chosen: "zst"},
		{name: "zstd annotated, gzip preferred", entries: []entry{gzipped, zstdNoted}, want: "amd64", gzip: true, chosen: "gz"},
		{name: "zstd layers", entries: []entry{gzipped, zstdLayers}, want: "amd64", chosen: "zst"},
		{name: "zstd layers, gzip preferred", entries: []entry{gzipped, zstdLayers}, want: "amd64", gzip: true, chosen: "gz"},
		{name: "os.features", entries: []entry{featured, amd64}, want: "amd64", chosen: "linux/amd64"},
		{name: "os.features only", entries: []entry{featured}, want: "amd64", chosen: "featured", note: `os.features "x"`},
		{name: "two amd64, one of them ARM", entries: []entry{liar, honest}, want: "amd64", chosen: "honest", note: "1 more"},
		{name: "config before compression", entries: []entry{{name: "liar", on: "linux/amd64", config: "linux/arm64", zstdLayer: true}, honest}, want: "amd64", chosen: "honest", note: "1 more"},
		{name: "silent config before a wrong one", entries: []entry{liar, {name: "silent", on: "linux/amd64", config: "-"}}, want: "amd64", chosen: "silent", note: "1 more"},
		{name: "two amd64, strict", entries: []entry{liar, honest}, want: "amd64", strict: true, chosen: "honest", note: "1 more"},

		// Descriptor and config disagree.
		{name: "config disagrees", entries: []entry{{name: "e", on: "linux/arm64", config: "linux/amd64"}, amd64}, want: "arm64", chosen: "e", note: "the index says linux/arm64, the config of the image says linux/amd64"},
		{name: "config disagrees, strict", entries: []entry{{name: "e", on: "linux/arm64", config: "linux/amd64"}, amd64}, want: "arm64", strict: true, err: platform.ErrPlatformMismatch, text: "the index says linux/arm64, the config of the image says linux/amd64"},
		{name: "config of an unheard-of machine", entries: []entry{{name: "e", on: "linux/arm64", config: "linux/vax"}}, want: "arm64", strict: true, err: platform.ErrPlatformMismatch, text: "linux/vax"},
		{name: "config of another os, strict", entries: []entry{{name: "e", on: "linux/arm64", config: "darwin/arm64"}}, want: "arm64", strict: true, err: platform.ErrPlatformMismatch},
		{name: "config in another spelling, strict", entries: []entry{{name: "e", on: "linux/arm64/v8", config: "Linux/aarch64"}}, want: "arm64", strict: true, chosen: "e"},
		{name: "variant missing in config, strict", entries: []entry{{name: "e", on: "linux/amd64/v2", config: "linux/amd64"}}, want: "amd64/v2", strict: true, chosen: "e"},

		// No architecture asked.
		{name: "nothing asked, one", entries: []entry{s390x}, want: "", chosen: "linux/s390x"},
		{name: "nothing asked, two", entries: []entry{arm64, amd64}, want: "", text: "no architecture asked and several are offered: linux/amd64, linux/arm64"},
		{name: "nothing asked, nil configs of two", entries: []entry{nilPlatform("linux/amd64"), nilPlatform("linux/arm64")}, want: "", text: "linux/amd64, linux/arm64"},
		{name: "nothing asked, variants of one", entries: []entry{plain("linux/amd64/v3"), amd64}, want: "", chosen: "linux/amd64"},
		{name: "nothing asked, another os beside", entries: []entry{plain("windows/amd64"), arm64}, want: "", chosen: "linux/arm64"},
		{name: "nothing asked, one known", entries: []entry{nilPlatform("-"), arm64}, want: "", chosen: "linux/arm64", note: "left out"},
		{name: "nothing asked, two unknown", entries: []entry{nilPlatform("-"), {name: "other", on: "-", config: "-"}}, want: "", text: "several are offered: unknown"},
		{name: "nothing asked, foreign word", entries: []entry{plain("linux/mips64le")}, want: "", chosen: "linux/mips64le"},
		{name: "nothing asked, nothing there", entries: nil, want: "", text: "no architecture asked; the image offers nothing"},

		// Nested indexes.
		{name: "nested with platform", entries: []entry{{on: "linux/amd64", nested: []entry{amd64}}, {on: "linux/arm64", nested: []entry{arm64}}}, want: "arm64", chosen: "linux/arm64"},
		{name: "nested without platform", entries: []entry{{on: "-", nested: []entry{amd64, arm64}}}, want: "arm64", chosen: "linux/arm64"},
		{name: "two nested without platform", entries: []entry{{on: "-", nested: []entry{amd64}}, {on: "-", nested: []entry{arm64}}}, want: "arm64", chosen: "linux/arm64"},
		{name: "platform inherited", entries: []entry{{on: "linux/arm64", nested: []entry{{name: "in", on: "-", config: "-"}}}, amd64}, want: "arm64", chosen: "in"},
		{name: "own platform before the inherited", entries: []entry{{on: "linux/arm64", nested: []entry{amd64}}}, want: "amd64", chosen: "linux/amd64"},
		{name: "rank over all leaves", entries: []entry{{on: "-", nested: []entry{plain("linux/amd64/v2")}}, {on: "-", nested: []entry{amd64}}}, want: "amd64", chosen: "linux/amd64"},
		{name: "three deep", entries: []entry{{on: "-", nested: []entry{{on: "-", nested: []entry{{on: "-", nested: []entry{arm64, attested}}}}}}}, want: "arm64", chosen: "linux/arm64"},
		{name: "four deep", entries: []entry{{on: "-", nested: []entry{{on: "-", nested: []entry{{on: "-", nested: []entry{{on: "-", nested: []entry{arm64}}}}}}}}, arm64}, want: "arm64", err: platform.ErrLimit, text: "MaxDepth = 4"},
		{name: "nested missing", entries: []entry{{on: "-", missing: true, nested: []entry{amd64}}, arm64}, want: "arm64", err: errFetch},
		{name: "nil missing", entries: []entry{{name: "m", on: "-", missing: true}, arm64}, want: "arm64", err: errFetch},
		{name: "another architecture missing", entries: []entry{{name: "m", on: "linux/amd64", missing: true}, arm64}, want: "arm64", chosen: "linux/arm64"},
		{name: "wanted missing", entries: []entry{{name: "m", on: "linux/arm64", missing: true}, amd64}, want: "arm64", err: errFetch},
	}
}

// errFetch stands for an error of Fetch, which has no sentinel here.
var errFetch = fmt.Errorf("404")

func TestSelect(t *testing.T) {
	for _, docker := range []bool{false, true} {
		for _, r := range selectRows() {
			t.Run(fmt.Sprintf("%s/docker=%t", r.name, docker), func(t *testing.T) {
				for i, entries := range permutations(r.entries) {
					if r.twins && i > 0 {
						r.chosen = entries[0].name
					}
					reg := newRegistry()
					reg.docker = docker
					root := reg.index(entries...)
					sel, err := reg.selectFrom(t, root, r.want, platform.SelectOptions{Strict: r.strict, PreferGzip: r.gzip})
					r.check(t, reg, sel, err)
				}
			})
		}
	}
}

func (r row) check(t *testing.T, reg *registry, sel *platform.Selection, err error) {
	t.Helper()
	for _, d := range reg.asked {
		require.NotContains(t, []string{"attestation", "unknown", "x"}, reg.names[d], "fetched although it is no image")
	}
	require.Len(t, reg.asked, len(slices.Compact(slices.Sorted(slices.Values(reg.asked)))), "a digest fetched twice")
	if r.chosen == "" {
		require.Nil(t, sel)
		require.Error(t, err)
		switch r.err {
		case nil:
			require.ErrorIs(t, err, platform.ErrNoMatch)
			var none *platform.NoMatchError
			require.ErrorAs(t, err, &none)
		case errFetch:
			require.ErrorContains(t, err, "404")
		default:
			require.ErrorIs(t, err, r.err)
		}
		require.ErrorContains(t, err, r.text)
		require.True(t, strings.HasPrefix(err.Error(), "platform: "), err.Error())
		return
	}
	require.NoError(t, err)
	require.Equal(t, r.chosen, sel.Manifest.Annotations["name"])
	require.Equal(t, reg.blobs[sel.Descriptor.Digest], sel.Raw)
	require.EqualValues(t, len(sel.Raw), sel.Descriptor.Size)
	require.Equal(t, sel.Manifest.Config.MediaType == ocispec.MediaTypeImageConfig || sel.Manifest.Config.MediaType == dockerConfig, sel.Config != nil)
	notes := strings.Join(sel.Notes, "; ")
	if r.note == "" {
		require.Empty(t, notes)
	}
	require.Contains(t, notes, r.note)
}

// Single manifests: there is no index to say what they are for.
func TestSelectSingle(t *testing.T) {
	rows := []row{
		{name: "agrees", entries: []entry{nilPlatform("linux/amd64")}, want: "amd64", chosen: "cfg linux/amd64"},
		{name: "agrees in another spelling", entries: []entry{nilPlatform("linux/aarch64/v8")}, want: "arm64", chosen: "cfg linux/aarch64/v8"},
		{name: "another architecture", entries: []entry{nilPlatform("linux/amd64")}, want: "arm64", err: platform.ErrPlatformMismatch, text: "linux/arm64 asked, the config of the image says linux/amd64"},
		{name: "another os", entries: []entry{nilPlatform("windows/amd64")}, want: "amd64", err: platform.ErrPlatformMismatch, text: "windows/amd64"},
		{name: "unheard-of architecture", entries: []entry{nilPlatform("linux/vax")}, want: "amd64", err: platform.ErrPlatformMismatch, text: "linux/vax"},
		{name: "nothing stated", entries: []entry{{name: "e", on: "-", config: "linux/"}}, want: "amd64", chosen: "e", note: "states no architecture"},
		{name: "nothing stated, nothing asked", entries: []entry{{name: "e", on: "-", config: "-"}}, want: "", chosen: "e", note: "states no architecture"},
		{name: "architecture without os", entries: []entry{nilPlatform("/amd64")}, want: "amd64", chosen: "cfg /amd64", note: "no operating system"},
		{name: "nothing asked", entries: []entry{nilPlatform("linux/s390x")}, want: "", chosen: "cfg linux/s390x"},
		{name: "nothing asked, another os", entries: []entry{nilPlatform("darwin/arm64")}, want: "", chosen: "cfg darwin/arm64", note: "the image is for darwin/arm64"},
		{name: "higher variant", entries: []entry{nilPlatform("linux/amd64/v3")}, want: "amd64", chosen: "cfg linux/amd64/v3", note: "only variant"},
		{name: "higher variant, strict", entries: []entry{nilPlatform("linux/amd64/v3")}, want: "amd64", strict: true, text: "linux/amd64/v3"},
		{name: "KubeVirt export", entries: []entry{export}, want: "arm64", chosen: "export", note: "states no architecture"},
		{name: "artifact by name", entries: []entry{helm}, want: "arm64", chosen: "helm", note: "states no architecture"},
		{name: "root states a platform", entries: []entry{{name: "e", on: "linux/arm64", config: "linux/amd64"}}, want: "arm64", chosen: "e", note: "the index says"},
		{name: "root states another platform", entries: []entry{plain("linux/amd64")}, want: "arm64", text: "linux/amd64"},
		{name: "386", entries: []entry{nilPlatform("linux/386")}, want: "amd64", err: platform.ErrPlatformMismatch},
	}
	for _, docker := range []bool{false, true} {
		for _, r := range rows {
			t.Run(fmt.Sprintf("%s/docker=%t", r.name, docker), func(t *testing.T) {
				reg := newRegistry()
				reg.docker = docker
				root := reg.entry(r.entries[0])
				sel, err := reg.selectFrom(t, root, r.want, platform.SelectOptions{Strict: r.strict, PreferGzip: r.gzip})
				r.check(t, reg, sel, err)
			})
		}
	}
}
