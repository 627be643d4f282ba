package arch

import "strings"

// Parse returns the architecture that s names in any known spelling: OCI or GOARCH
// (amd64), uname -m (x86_64), QEMU, Debian (armhf), upper or lower case, with or
// without the baseline variant (arm64/v8). A word nobody knows is an [*UnknownError];
// a variant other than the baseline is a [*VariantError], since an Arch cannot hold it.
//
// A word that implies a variant by itself, such as armel, is its architecture.
func Parse(s string) (Arch, error) {
	word, stated, slash := strings.Cut(s, "/")
	a, _, err := ParseVariant(s)
	if err != nil {
		return Unknown, err
	}
	if slash && a.NormalizeVariant(stated) != "" {
		return Unknown, &VariantError{Arch: a, Word: word, Variant: stated, Reason: "an architecture alone is expected here, variants are for platform.ParseWant"}
	}
	return a, nil
}

// ParseVariant returns the architecture that s names and its variant in one spelling,
// "" being the baseline: "x86_64" gives (AMD64, ""), "arm64/8" (ARM64, ""),
// "AMD64/3" (AMD64, "v3"), "armel" (ARM, "v6").
//
// Errors are [*UnknownError] and, for a variant that cannot be one, [*VariantError].
func ParseVariant(s string) (Arch, string, error) {
	word, stated, slash := strings.Cut(s, "/")
	a, variant := lookup(word)
	if a == Unknown {
		return Unknown, "", &UnknownError{Word: word}
	}
	if !slash {
		return a, variant, nil
	}
	variant = a.NormalizeVariant(stated)
	if !a.plausible(stated, variant) {
		return Unknown, "", &VariantError{Arch: a, Word: word, Variant: stated, Reason: "not a variant of " + a.String()}
	}
	return a, variant, nil
}

// NormalizeVariant returns a variant of a in one spelling: lower case, a leading v
// before a digit, no ".0", the baseline as "". A variant it does not know comes back
// in lower case: what a published list says is not for this package to refuse.
func (a Arch) NormalizeVariant(variant string) string {
	v := strings.ToLower(variant)
	if a == ARM64 || a == ARM {
		// `docker manifest annotate --variant armv8` is a common slip.
		v = strings.TrimPrefix(v, "arm")
	}
	if v != "" && v[0] >= '0' && v[0] <= '9' {
		v = "v" + v
	}
	if major, ok := strings.CutSuffix(v, ".0"); ok && isVersion(major) && !strings.Contains(major, ".") {
		v = major
	}
	if v == a.Baseline() {
		return ""
	}
	return v
}

// plausible reports whether a user may have meant a variant. It is strict where all
// variants are numbers, so that amd64/aarch64 is an error and no wish.
func (a Arch) plausible(stated, normalized string) bool {
	if stated == "" || len(normalized) > 16 {
		return false
	}
	if a.Baseline() != "" {
		return normalized == "" || isVersion(normalized)
	}
	for _, c := range normalized {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '.' && c != '_' && c != '-' {
			return false
		}
	}
	return true
}

// isVersion reports whether v is "v" and one or two numbers of at most two digits,
// such as v3 and v8.2.
func isVersion(v string) bool {
	numbers, ok := strings.CutPrefix(v, "v")
	if !ok {
		return false
	}
	major, minor, dot := strings.Cut(numbers, ".")
	return isNumber(major) && (!dot || isNumber(minor))
}

func isNumber(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return len(s) == 1 || len(s) == 2 && s[0] != '0'
}

// lookup finds a word in any vocabulary and returns the variant it implies. QEMU's
// ppc64 is left out: as a word of its own it means the big-endian machine.
func lookup(word string) (Arch, string) {
	word = strings.ToLower(word)
	for _, a := range All() {
		for v, name := range a.machine().names {
			if name == word && (a != PPC64LE || Vocabulary(v) != QEMU) {
				return a, ""
			}
		}
		for _, alias := range a.machine().aliases {
			if alias.word == word {
				return a, alias.variant
			}
		}
	}
	return Unknown, ""
}
