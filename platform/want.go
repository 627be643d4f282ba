package platform

import (
	"fmt"
	"slices"
	"strings"

	"github.com/archdisk/archdisk/arch"
)

// Want is the platform asked for. The zero value asks for nothing: the sole
// architecture that an image offers for linux, whatever it is.
type Want struct {
	OS      string    // "" = linux
	Arch    arch.Arch // arch.Unknown = not asked
	Variant string    // "" = the baseline of Arch; needs Arch
}

// defaultOS is what a VM disk image states as its operating system, whatever runs in
// the guest. The host's is never used: skopeo#1586 and #634 are what comes of that.
const defaultOS = "linux"

// ParseWant reads an architecture in any spelling that [arch.ParseVariant] knows, with
// an operating system before it if need be: "arm64", "x86_64", "arm64/v9",
// "linux/arm64", "linux/arm64/v8". The empty string is the zero Want.
//
// Errors are [*arch.UnknownError], [*arch.VariantError], or unwrap to [ErrInvalid].
func ParseWant(s string) (Want, error) {
	if s == "" {
		return Want{}, nil
	}
	var want Want
	first, rest, slash := strings.Cut(s, "/")
	if os := normalizeOS(first); slash && slices.Contains(operatingSystems(), os) {
		want.OS, s = os, rest
	} else if strings.Count(s, "/") > 1 {
		return Want{}, fmt.Errorf("%w: platform %s: expected os/arch/variant with a known os", ErrInvalid, quote(s))
	}
	var err error
	if want.Arch, want.Variant, err = arch.ParseVariant(s); err != nil {
		return Want{}, err
	}
	return want, nil
}

// String returns os/arch or os/arch/variant, with * for an architecture not asked.
func (w Want) String() string {
	os := w.OS
	if os == "" {
		os = defaultOS
	}
	if w.Arch == arch.Unknown {
		return word(os) + "/*"
	}
	s := word(os) + "/" + w.Arch.String()
	if w.Variant != "" {
		s += "/" + word(w.Variant)
	}
	return s
}

// normalized returns w in one spelling, so that a Want made by hand is as good as a
// parsed one.
func (w Want) normalized() (Want, error) {
	if w.Arch == arch.Unknown && w.Variant != "" {
		return Want{}, fmt.Errorf("%w: variant %s asked without an architecture", ErrInvalid, quote(w.Variant))
	}
	if w.Arch != arch.Unknown && w.Arch.In(arch.OCI) == "" {
		return Want{}, fmt.Errorf("%w: architecture number %d asked", ErrInvalid, w.Arch)
	}
	w.OS = normalizeOS(w.OS)
	w.Variant = w.Arch.NormalizeVariant(w.Variant)
	return w, nil
}

// operatingSystems are the GOOS values that an image may state. The list tells an
// operating system from a mistyped architecture in ParseWant and serves nothing else.
func operatingSystems() []string {
	return []string{
		"linux", "windows", "darwin", "freebsd", "netbsd", "openbsd", "dragonfly",
		"solaris", "illumos", "aix", "android", "ios", "plan9", "zos", "js", "wasip1",
	}
}
