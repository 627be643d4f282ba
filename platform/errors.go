package platform

import (
	"errors"
	"fmt"
	"strings"

	"github.com/archdisk/archdisk/arch"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Errors of this package unwrap to one of these, unless they come from the caller's
// [Fetch] or context. None of them is cured by trying again.
var (
	// ErrNoMatch: the image does not offer what was asked. Ask for something else.
	ErrNoMatch = errors.New("platform: no match")
	// ErrPlatformMismatch: an image and what is said about it disagree. Always
	// comes with ErrNoMatch.
	ErrPlatformMismatch = errors.New("platform: mismatch")
	// ErrInvalid: a document contradicts itself, its descriptor or the
	// specification; or the request does.
	ErrInvalid = errors.New("platform: invalid")
	// ErrUnsupported: a well-formed document of a kind that is not handled.
	ErrUnsupported = errors.New("platform: unsupported")
	// ErrLimit: the image is beyond [Limits], or a document beyond what is sane.
	ErrLimit = errors.New("platform: limit passed")
	// ErrDigest: bytes are not those that a descriptor names.
	ErrDigest = errors.New("platform: wrong content")
)

// NoMatchError says what was asked and all that the image offers. It unwraps to
// [ErrNoMatch].
type NoMatchError struct {
	Want Want               // OS filled in
	Have []ocispec.Platform // os, architecture, variant; normalised, sorted, each once; "" = stated nowhere
	// Ambiguous: no architecture was asked and the image does not offer exactly
	// one. Have holds the choices.
	Ambiguous bool
	Reason    string // more, where Want and Have do not explain it; else ""
}

// Error names the wanted platform and lists the available ones.
func (e *NoMatchError) Error() string {
	have := make([]string, len(e.Have))
	for i, p := range e.Have {
		have[i] = Format(p)
	}
	offer := strings.Join(have, ", ")
	if offer == "" {
		offer = "nothing"
	}
	asked := e.Want.String()
	if e.Want.Arch == arch.Unknown {
		asked = "no architecture"
	}
	s := fmt.Sprintf("%v: %s asked; the image offers %s", ErrNoMatch, asked, offer)
	if e.Ambiguous {
		s = fmt.Sprintf("%v: no architecture asked and several are offered: %s", ErrNoMatch, offer)
	}
	if e.Reason != "" {
		s += ": " + e.Reason
	}
	return s
}

// Unwrap returns [ErrNoMatch].
func (e *NoMatchError) Unwrap() error { return ErrNoMatch }

// MismatchError is a disagreement about one image: between what was asked and the
// config of an image that is no index (Descriptor is then zero), or, with
// [SelectOptions].Strict, between an index and the config of its entry. It unwraps to
// [ErrPlatformMismatch] and to [ErrNoMatch], since either way no acceptable image is
// there.
type MismatchError struct {
	Want       Want
	Descriptor ocispec.Platform // what the index says, normalised
	Config     ocispec.Platform // what the image config says, normalised
	Digest     digest.Digest    // of the manifest
}

// Error names both sides.
func (e *MismatchError) Error() string {
	config := Format(e.Config)
	if e.Descriptor.Architecture == "" {
		return fmt.Sprintf("%v: %v asked, the config of the image says %s (%s)", ErrPlatformMismatch, e.Want, config, word(string(e.Digest)))
	}
	return fmt.Sprintf("%v: the index says %s, the config of the image says %s (%s)", ErrPlatformMismatch, Format(e.Descriptor), config, word(string(e.Digest)))
}

// Unwrap returns [ErrPlatformMismatch] and [ErrNoMatch].
func (e *MismatchError) Unwrap() []error { return []error{ErrPlatformMismatch, ErrNoMatch} }

// DocumentError is a document that cannot be used. It unwraps to its Err.
type DocumentError struct {
	Digest digest.Digest // of the document; unescaped
	Reason string        // strings from the document are quoted and cut
	Err    error         // ErrInvalid, ErrUnsupported or ErrLimit
}

// Error names the document and what is wrong with it.
func (e *DocumentError) Error() string {
	return fmt.Sprintf("%v: document %s: %s", e.Err, word(string(e.Digest)), e.Reason)
}

// Unwrap returns [ErrInvalid], [ErrUnsupported] or [ErrLimit].
func (e *DocumentError) Unwrap() error { return e.Err }

// LimitError is a limit that an image passes. It unwraps to [ErrLimit].
type LimitError struct {
	Field string // of Limits
	Value int64  // what the image needs, as far as it was counted
	Limit int64
}

// Error names the limit, its value and what the image needs.
func (e *LimitError) Error() string {
	return fmt.Sprintf("%v: %s = %d, the image needs at least %d", ErrLimit, e.Field, e.Limit, e.Value)
}

// Unwrap returns [ErrLimit].
func (e *LimitError) Unwrap() error { return ErrLimit }

// DigestError is content that its descriptor does not name: the size or the digest
// differs. It unwraps to [ErrDigest].
type DigestError struct {
	Digest, Got   digest.Digest // Got = "" if the size alone told
	Size, GotSize int64
}

// Error names the digest and the difference.
func (e *DigestError) Error() string {
	if e.Size != e.GotSize {
		return fmt.Sprintf("%v: %s: size %d, want %d", ErrDigest, word(string(e.Digest)), e.GotSize, e.Size)
	}
	return fmt.Sprintf("%v: %s: digest is %s", ErrDigest, word(string(e.Digest)), word(string(e.Got)))
}

// Unwrap returns [ErrDigest].
func (e *DigestError) Unwrap() error { return ErrDigest }
