package platform

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/archdisk/archdisk/arch"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// normalize returns p in one spelling: lower case, OCI names, variants as
// [arch.Arch.NormalizeVariant] writes them, "unknown" as "". An architecture that is
// not known here stays as its lower-case word: it is stated, and it matches no Want.
// An empty OS is left empty; nothing is filled in from the host.
func normalize(p ocispec.Platform) ocispec.Platform {
	n := ocispec.Platform{
		OS:           normalizeOS(p.OS),
		Architecture: notUnknown(strings.ToLower(p.Architecture)),
		OSVersion:    p.OSVersion,
		OSFeatures:   slices.Clone(p.OSFeatures),
	}
	if n.Architecture == "" {
		return n
	}
	n.Variant = strings.ToLower(p.Variant)
	if a, implied, err := arch.ParseVariant(p.Architecture); err == nil {
		n.Architecture, n.Variant = a.String(), implied
		if p.Variant != "" {
			n.Variant = a.NormalizeVariant(p.Variant)
		}
	}
	return n
}

func normalizeOS(os string) string {
	os = notUnknown(strings.ToLower(os))
	if os == "macos" {
		return "darwin"
	}
	return os
}

func notUnknown(s string) string {
	if s == "unknown" {
		return ""
	}
	return s
}

// Format returns a platform as os/arch[/variant] for people: what is not stated is
// "unknown", words that are more than letters, digits and .-_ are quoted, and long
// ones cut, so that a hostile image cannot write to a terminal.
func Format(p ocispec.Platform) string {
	if p.OS == "" && p.Architecture == "" {
		return "unknown"
	}
	s := word(p.OS) + "/" + word(p.Architecture)
	if p.Variant != "" {
		s += "/" + word(p.Variant)
	}
	return s
}

// key tells platforms apart, including by the parts that Format leaves out.
func key(p ocispec.Platform) string {
	return fmt.Sprintf("%q", append([]string{p.OS, p.Architecture, p.Variant, p.OSVersion}, p.OSFeatures...))
}

// maxWord is how many bytes of a document's string a message shows. A SHA-512 digest
// fits.
const maxWord = 140

func word(s string) string {
	if s == "" {
		return "unknown"
	}
	for _, c := range []byte(s) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (c < '0' || c > '9') && !strings.ContainsRune("._-:+", rune(c)) {
			return quote(s)
		}
	}
	return cut(s)
}

// printable quotes a text of encoding/json, which may hold parts of a document, if it
// is long or strange.
func printable(s string) string {
	if len(s) > maxWord || strings.ContainsFunc(s, func(r rune) bool { return !strconv.IsPrint(r) }) {
		return quote(s)
	}
	return s
}

func quote(s string) string { return fmt.Sprintf("%q", cut(s)) }

func cut(s string) string {
	if len(s) > maxWord {
		return s[:maxWord] + "..."
	}
	return s
}
