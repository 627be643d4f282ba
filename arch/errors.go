package arch

import (
	"errors"
	"fmt"
	"strings"
)

// Errors of this package unwrap to one of these.
var (
	// ErrUnknown: the word names no architecture known here. Correct the word.
	ErrUnknown = errors.New("arch: unknown architecture")
	// ErrVariant: the architecture is known, the variant is impossible or not
	// wanted in this place. Correct or drop the variant.
	ErrVariant = errors.New("arch: unusable variant")
)

// UnknownError is a word that names no known architecture. It unwraps to [ErrUnknown].
type UnknownError struct {
	Word string // as given, unbounded and unescaped
}

// Error quotes the word and lists the OCI names of the known architectures.
func (e *UnknownError) Error() string {
	var known []string
	for _, a := range All() {
		known = append(known, a.String())
	}
	return fmt.Sprintf("arch: unknown architecture %s; known: %s", quote(e.Word), strings.Join(known, ", "))
}

// Unwrap returns [ErrUnknown].
func (e *UnknownError) Unwrap() error { return ErrUnknown }

// VariantError is a variant that cannot be used. It unwraps to [ErrVariant].
type VariantError struct {
	Arch    Arch
	Word    string // the architecture as given
	Variant string // as given, unbounded and unescaped
	Reason  string
}

// Error quotes the architecture and variant and says why the variant is unusable.
func (e *VariantError) Error() string {
	return fmt.Sprintf("arch: unusable variant %s: %s", quote(cut(e.Word)+"/"+e.Variant), e.Reason)
}

// Unwrap returns [ErrVariant].
func (e *VariantError) Unwrap() error { return ErrVariant }

// maxWord is how many bytes of a foreign word an error text shows.
const maxWord = 40

func quote(s string) string { return fmt.Sprintf("%q", cut(s)) }

func cut(s string) string {
	if len(s) > maxWord {
		return s[:maxWord] + "..."
	}
	return s
}
