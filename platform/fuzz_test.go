package platform_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/archdisk/archdisk/arch"
	"github.com/archdisk/archdisk/platform"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/require"
)

// FuzzSelect reads its text as lines: the last is the root, the others are documents.
// @N in a line stands for the descriptor members of line N, which must come before, so
// that the fuzzer can build images whose digests hold.
func FuzzSelect(f *testing.F) {
	const (
		amd64  = `{"architecture":"amd64","os":"linux"}`
		arm64  = `{"architecture":"arm64","os":"linux","variant":"v8"}`
		config = `{"config":{"mediaType":"application/vnd.oci.image.config.v1+json",@0},"layers":[{"mediaType":"x+zstd"}]}`
		other  = `{"config":{"mediaType":"application/vnd.oci.image.config.v1+json",@1}}`
		entry  = `{"mediaType":"application/vnd.oci.image.manifest.v1+json",%s}`
		nested = `{"mediaType":"application/vnd.oci.image.index.v1+json",%s}`
	)
	image := func(members string) string { return fmt.Sprintf(entry, members) }
	lines := func(l ...string) string { return strings.Join(l, "\n") }
	index := func(e ...string) string { return `{"manifests":[` + strings.Join(e, ",") + `]}` }
	f.Add("amd64", uint8(0), lines(amd64, arm64, config, other, index(image("@2"), image("@3"))))
	f.Add("", uint8(1), lines(amd64, arm64, config, other, index(image("@2"))))
	f.Add("arm64/v9", uint8(0), lines(amd64, arm64, config, other, index(image(`@2,"platform":{"os":"linux","architecture":"aarch64"}`), image(`@3,"platform":{"os":"","architecture":"arm64","variant":"v9"}`))))
	f.Add("amd64", uint8(2), lines(amd64, arm64, config, other, index(image("@2"), image("@3")), index(fmt.Sprintf(nested, `@4,"platform":{"architecture":"amd64","os":"linux"}`), image("@3"))))
	f.Add("", uint8(3), lines(amd64, arm64, config))
	f.Add("s390x", uint8(0), lines(`{}`, `{"config":{"mediaType":"application/vnd.oci.empty.v1+json",@0}}`, index(image(`@1,"artifactType":"x"`))))
	f.Add("", uint8(0), lines(`{}`, `{"config":{"mediaType":"application/vnd.oci.empty.v1+json",@0}}`, index(image("@1"), image("@1"))))
	f.Add("arm", uint8(0), `{"schemaVersion":1}`)

	f.Fuzz(func(t *testing.T, wanted string, mode uint8, text string) {
		want, err := platform.ParseWant(wanted)
		if err != nil {
			return
		}
		r := newRegistry()
		root := build(r, text)
		if len(r.blobs) == 0 {
			return
		}
		opts := platform.SelectOptions{Want: want, Strict: mode&1 != 0, PreferGzip: mode&2 != 0, Limits: platform.Limits{MaxManifests: 50}}
		fetches := 0
		fetch := func(ctx context.Context, d ocispec.Descriptor) ([]byte, error) {
			fetches++
			return r.fetch(ctx, d)
		}
		sel, err := platform.Select(context.Background(), root, r.blobs[root.Digest], fetch, opts)
		require.LessOrEqual(t, fetches, 100, "an entry costs a manifest and a config at most")
		if err != nil {
			require.Nil(t, sel)
			require.Less(t, len(err.Error()), 20000)
			require.NotContains(t, err.Error(), "\n")
		} else {
			checkSelection(t, r, root, sel, want)
		}
		same, sameErr := platform.Select(context.Background(), root, r.blobs[root.Digest], fetch, opts)
		require.Equal(t, sel, same)
		require.Equal(t, fmt.Sprint(err), fmt.Sprint(sameErr))

		// The order of entries decides between twins and nothing else.
		back, ok := reversed(r, root)
		if !ok {
			return
		}
		turned, turnedErr := platform.Select(context.Background(), back, r.blobs[back.Digest], fetch, opts)
		require.Equal(t, err == nil, turnedErr == nil, "%v / %v", err, turnedErr)
		if err != nil {
			require.Equal(t, errors.Is(err, platform.ErrNoMatch), errors.Is(turnedErr, platform.ErrNoMatch), "%v / %v", err, turnedErr)
			return
		}
		if !strings.Contains(strings.Join(sel.Notes, ""), "the first was taken") {
			require.Equal(t, sel.Descriptor.Digest, turned.Descriptor.Digest)
			require.Equal(t, sel.Notes, turned.Notes)
		}
	})
}

func checkSelection(t *testing.T, r *registry, root ocispec.Descriptor, sel *platform.Selection, want platform.Want) {
	t.Helper()
	require.Equal(t, sel.Descriptor.Digest, digest.FromBytes(sel.Raw))
	require.Equal(t, r.blobs[sel.Descriptor.Digest], sel.Raw)
	chosen := sel.Platform.Architecture
	if want.Arch != arch.Unknown && chosen != want.Arch.String() {
		require.Empty(t, chosen)
		require.Equal(t, sel.Descriptor.Digest, root.Digest, "an entry of unknown architecture was taken from an index")
		require.NotEmpty(t, sel.Notes)
	}
	if want.OS != "" && sel.Platform.OS != "" {
		require.Equal(t, want.OS, sel.Platform.OS)
	}
	for _, note := range sel.Notes {
		require.NotContains(t, note, "\n")
		require.Less(t, len(note), 2000)
	}
}

// build stores the lines of a text and returns the descriptor of the last.
func build(r *registry, text string) ocispec.Descriptor {
	var stored []ocispec.Descriptor
	var root ocispec.Descriptor
	for i, line := range strings.Split(text, "\n") {
		if i == 10 {
			break
		}
		for n, d := range stored {
			line = strings.ReplaceAll(line, fmt.Sprintf("@%d", n), fmt.Sprintf(`"digest":%q,"size":%d`, d.Digest, d.Size))
		}
		if len(line) > 1<<16 {
			break
		}
		root = r.put("", []byte(line))
		r.names[root.Digest] = fmt.Sprint("line ", i)
		stored = append(stored, root)
	}
	return root
}

// reversed stores the root index with its entries in reverse, if it is one.
func reversed(r *registry, root ocispec.Descriptor) (ocispec.Descriptor, bool) {
	var members map[string]json.RawMessage
	var entries []json.RawMessage
	if json.Unmarshal(r.blobs[root.Digest], &members) != nil || json.Unmarshal(members["manifests"], &entries) != nil || len(entries) < 2 {
		return root, false
	}
	var turned [][]byte
	for _, e := range slices.Backward(entries) {
		turned = append(turned, e)
	}
	// Spliced as text: encoding again could mend what Select must refuse.
	before, after, ok := bytes.Cut(r.blobs[root.Digest], members["manifests"])
	if !ok {
		return root, false
	}
	return r.put("", slices.Concat(before, []byte("["), bytes.Join(turned, []byte(",")), []byte("]"), after)), true
}

// FuzzSelectEntries builds an index out of well-formed entries, one from a few bytes
// each, and asserts that the order of entries decides between twins only.
func FuzzSelectEntries(f *testing.F) {
	f.Add("amd64", uint8(0), []byte{1, 1, 0, 1, 2, 0, 2, 2, 0})
	f.Add("", uint8(1), []byte{0, 1, 0, 0, 1, 1, 0, 1, 2})
	f.Add("arm64/v9", uint8(2), []byte{5, 3, 0, 6, 3, 9, 1, 3, 16, 1, 1, 33})
	f.Fuzz(func(t *testing.T, wanted string, mode uint8, bytes []byte) {
		want, err := platform.ParseWant(wanted)
		if err != nil || len(bytes) > 60 {
			return
		}
		opts := platform.SelectOptions{Want: want, Strict: mode&1 != 0, PreferGzip: mode&2 != 0}
		r := newRegistry()
		entries := entriesOf(bytes, 0)
		root, back := r.index(entries...), r.index(backward(entries)...)
		sel, err := platform.Select(context.Background(), root, r.blobs[root.Digest], r.fetch, opts)
		turned, turnedErr := platform.Select(context.Background(), back, r.blobs[back.Digest], r.fetch, opts)
		if err != nil || turnedErr != nil {
			require.ErrorIs(t, err, platform.ErrNoMatch)
			require.ErrorIs(t, turnedErr, platform.ErrNoMatch)
			if !errors.Is(err, platform.ErrPlatformMismatch) { // which of two twins is named
				require.Equal(t, err.Error(), turnedErr.Error())
			}
			require.Equal(t, errors.Is(err, platform.ErrPlatformMismatch), errors.Is(turnedErr, platform.ErrPlatformMismatch))
			return
		}
		checkSelection(t, r, ocispec.Descriptor{}, sel, want)
		if !strings.Contains(strings.Join(sel.Notes, ""), "the first was taken") {
			require.Equal(t, sel.Descriptor.Digest, turned.Descriptor.Digest)
			require.Equal(t, sel.Notes, turned.Notes)
		}
	})
}

// entriesOf makes an entry of three bytes: platform, config, and what else there is.
func entriesOf(bytes []byte, depth int) []entry {
	platforms := []string{"-", "linux/amd64", "linux/arm64", "linux/x86_64/v3", "/arm64", "linux/arm64/v8", "linux/arm64/v9", "linux/amd64/v2", "windows/amd64", "linux/s390x", "/", "linux/vax", "linux/arm/v6"}
	entries := []entry{}
	for len(bytes) >= 3 {
		on, config, more := bytes[0], bytes[1], bytes[2]
		bytes = bytes[3:]
		e := entry{
			name: fmt.Sprint(more >> 6), // now and then the same image again
			on:   platforms[int(on)%len(platforms)], config: platforms[int(config)%len(platforms)],
			zstdLayer: more&1 != 0,
		}
		switch more >> 1 & 7 {
		case 1:
			e.features = []string{"x"}
		case 2:
			e.manifestType = "application/spdx+json"
		case 3:
			e.configType = vmConfig
		case 4:
			if n := min(len(bytes)/3, int(more>>4&3)) * 3; depth < 2 && n > 0 {
				e.nested, bytes = entriesOf(bytes[:n], depth+1), bytes[n:]
			}
		case 5:
			e.annotations = map[string]string{zstdAnnotation: "true"}
		case 6:
			e.annotations = map[string]string{"vnd.docker.reference.type": "x"}
		}
		entries = append(entries, e)
	}
	return entries
}

func backward(entries []entry) []entry {
	turned := []entry{}
	for _, e := range slices.Backward(entries) {
		if e.nested != nil {
			e.nested = backward(e.nested)
		}
		turned = append(turned, e)
	}
	return turned
}
