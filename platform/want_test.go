package platform_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/archdisk/archdisk/arch"
	"github.com/archdisk/archdisk/platform"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/require"
)

func TestParseWant(t *testing.T) {
	tests := []struct {
		in   string
		want platform.Want
		text string
	}{
		{"", platform.Want{}, "linux/*"},
		{"arm64", platform.Want{Arch: arch.ARM64}, "linux/arm64"},
		{"x86_64", platform.Want{Arch: arch.AMD64}, "linux/amd64"},
		{"arm64/v8", platform.Want{Arch: arch.ARM64}, "linux/arm64"},
		{"arm64/v9", platform.Want{Arch: arch.ARM64, Variant: "v9"}, "linux/arm64/v9"},
		{"linux/arm64", platform.Want{OS: "linux", Arch: arch.ARM64}, "linux/arm64"},
		{"Linux/AArch64/V8", platform.Want{OS: "linux", Arch: arch.ARM64}, "linux/arm64"},
		{"linux/amd64/3", platform.Want{OS: "linux", Arch: arch.AMD64, Variant: "v3"}, "linux/amd64/v3"},
		{"macos/arm64", platform.Want{OS: "darwin", Arch: arch.ARM64}, "darwin/arm64"},
		{"windows/amd64", platform.Want{OS: "windows", Arch: arch.AMD64}, "windows/amd64"},
		{"armel", platform.Want{Arch: arch.ARM, Variant: "v6"}, "linux/arm/v6"},
		{"s390x", platform.Want{Arch: arch.S390X}, "linux/s390x"},
	}
	for _, test := range tests {
		t.Run(test.in, func(t *testing.T) {
			want, err := platform.ParseWant(test.in)
			require.NoError(t, err)
			require.Equal(t, test.want, want)
			require.Equal(t, test.text, want.String())
		})
	}

	for in, sentinel := range map[string]error{
		"linux": arch.ErrUnknown, "vax": arch.ErrUnknown, "linux/vax": arch.ErrUnknown, "linux/": arch.ErrUnknown, "linx/amd64": arch.ErrUnknown,
		"amd64/linux": arch.ErrVariant, "amd64/": arch.ErrVariant, "linux/amd64/": arch.ErrVariant, "linux/amd64/v1/x": arch.ErrVariant,
		"linx/amd64/v1": platform.ErrInvalid, "a/b/c/d": platform.ErrInvalid, "/": arch.ErrUnknown, " ": arch.ErrUnknown,
	} {
		t.Run(in, func(t *testing.T) {
			want, err := platform.ParseWant(in)
			require.ErrorIs(t, err, sentinel)
			require.Zero(t, want)
		})
	}
}

func TestErrorsAreTyped(t *testing.T) {
	r := newRegistry()
	root := r.index(plain("linux/arm64/v8"), plain("Linux/x86_64"), plain("linux/arm64"), nilPlatform("-"), entry{name: "e", on: "linux/\x1b[31m" + strings.Repeat("x", 500)})
	_, err := r.selectFrom(t, root, "s390x", platform.SelectOptions{})
	var none *platform.NoMatchError
	require.ErrorAs(t, err, &none)
	require.Equal(t, platform.Want{OS: "linux", Arch: arch.S390X}, none.Want)
	require.False(t, none.Ambiguous)
	require.Len(t, none.Have, 4)
	require.NotContains(t, err.Error(), "\x1b")
	require.Less(t, len(err.Error()), 500)
	require.ErrorContains(t, err, `platform: no match: linux/s390x asked; the image offers linux/"\x1b[31mxxx`)
	require.ErrorContains(t, err, `linux/amd64, linux/arm64, unknown`)

	_, err = r.selectFrom(t, root, "", platform.SelectOptions{})
	require.ErrorAs(t, err, &none)
	require.True(t, none.Ambiguous)

	root = r.image(nilPlatform("linux/amd64"))
	_, err = r.selectFrom(t, root, "arm64", platform.SelectOptions{})
	var mismatch *platform.MismatchError
	require.ErrorAs(t, err, &mismatch)
	require.Equal(t, arch.ARM64, mismatch.Want.Arch)
	require.Equal(t, "amd64", mismatch.Config.Architecture)
	require.Zero(t, mismatch.Descriptor)
	require.Equal(t, root.Digest, mismatch.Digest)
	require.True(t, errors.Is(err, platform.ErrNoMatch) && errors.Is(err, platform.ErrPlatformMismatch))
}

func TestFormat(t *testing.T) {
	for _, test := range []struct {
		platform ocispec.Platform
		want     string
	}{
		{ocispec.Platform{}, "unknown"},
		{ocispec.Platform{OS: "linux"}, "linux/unknown"},
		{ocispec.Platform{Architecture: "arm64"}, "unknown/arm64"},
		{ocispec.Platform{OS: "linux", Architecture: "arm64", Variant: "v9"}, "linux/arm64/v9"},
		{ocispec.Platform{OS: "li nux", Architecture: "é/"}, `"li nux"/"é/"`},
	} {
		require.Equal(t, test.want, platform.Format(test.platform))
	}
}

func TestList(t *testing.T) {
	r := newRegistry()
	root := r.index(
		attested, sbom,
		plain("linux/x86_64"),
		nilPlatform("linux/arm64/v9"),
		entry{on: "linux/s390x", nested: []entry{{name: "in", on: "-", missing: true}, plain("linux/386")}},
		export, helm,
		entry{name: "m", on: "linux/ppc64le", missing: true},
	)
	list, err := platform.List(context.Background(), root, r.blobs[root.Digest], r.fetch)
	require.NoError(t, err)
	var got []string
	for _, c := range list {
		require.NotEmpty(t, c.Descriptor.Digest)
		got = append(got, platform.Format(c.Platform)+" by "+c.Source.String())
	}
	require.Equal(t, []string{
		"linux/amd64 by descriptor",
		"linux/arm64/v9 by config",
		"linux/s390x by descriptor",
		"linux/386 by descriptor",
		"unknown by unknown",
		"linux/ppc64le by descriptor",
	}, got)

	root = r.image(nilPlatform("linux/arm64"))
	list, err = platform.List(context.Background(), root, r.blobs[root.Digest], r.fetch)
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, root, list[0].Descriptor)
	require.Equal(t, platform.SourceConfig, list[0].Source)
}

// Only what is needed is read: one manifest and one config where an index states all.
func TestSelectReadsLittle(t *testing.T) {
	r := newRegistry()
	root := r.index(attested, plain("linux/amd64"), plain("linux/arm64"), plain("linux/s390x"))
	_, err := r.selectFrom(t, root, "arm64", platform.SelectOptions{})
	require.NoError(t, err)
	require.Len(t, r.asked, 2)
	require.Equal(t, "linux/arm64", r.names[r.asked[0]])

	r.asked = nil
	_, err = r.selectFrom(t, root, "ppc64le", platform.SelectOptions{})
	require.ErrorIs(t, err, platform.ErrNoMatch)
	require.Empty(t, r.asked)
}
