package platform

import (
	"context"
	_ "crypto/sha256" // the algorithms of the image-spec, for go-digest
	_ "crypto/sha512"
	"fmt"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Fetch returns the bytes that a descriptor names: a nested index, a manifest or an
// image config. It should read no more than d.Size bytes; [Select] and [List] check
// size and digest themselves. Calls are serial; one Select or List asks for a digest
// at most once. Errors reach the caller wrapped.
type Fetch func(ctx context.Context, d ocispec.Descriptor) ([]byte, error)

// Limits bound what an image can make [Select] and [List] do. Zero values are the
// documented defaults.
type Limits struct {
	MaxDocument  int64 // bytes of one index, manifest or config; default 4 MiB, as containerd
	MaxTotal     int64 // bytes of all documents read, the root included; default 64 MiB
	MaxDepth     int   // indexes on one path, the root included; default 4
	MaxManifests int   // entries of all indexes, attestations and artifacts not counted; default 1024
}

func (l Limits) withDefaults() Limits {
	if l.MaxDocument <= 0 {
		l.MaxDocument = 4 << 20
	}
	if l.MaxTotal <= 0 {
		l.MaxTotal = 64 << 20
	}
	if l.MaxDepth <= 0 {
		l.MaxDepth = 4
	}
	if l.MaxManifests <= 0 {
		l.MaxManifests = 1024
	}
	return l
}

// fetcher reads documents within limits, verified, each digest once.
type fetcher struct {
	fetch  Fetch
	limits Limits
	total  int64
	have   map[digest.Digest][]byte
}

// get returns the bytes of d.
func (f *fetcher) get(ctx context.Context, d ocispec.Descriptor) ([]byte, error) {
	if raw, ok := f.have[d.Digest]; ok {
		return raw, verify(d, raw)
	}
	if err := f.admit(d); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	raw, err := f.fetch(ctx, d)
	if err != nil {
		if strings.Contains(err.Error(), string(d.Digest)) {
			return nil, fmt.Errorf("platform: fetch: %w", err)
		}
		return nil, fmt.Errorf("platform: fetch %s: %w", d.Digest, err)
	}
	return raw, f.keep(d, raw)
}

// admit counts a document that is about to be read.
func (f *fetcher) admit(d ocispec.Descriptor) error {
	if err := usable(d); err != nil {
		return err
	}
	if limit := f.limits.MaxDocument; d.Size > limit {
		return &LimitError{Field: "MaxDocument", Value: d.Size, Limit: limit}
	}
	f.total += d.Size
	if limit := f.limits.MaxTotal; f.total > limit {
		return &LimitError{Field: "MaxTotal", Value: f.total, Limit: limit}
	}
	return nil
}

// keep verifies a document that was read.
func (f *fetcher) keep(d ocispec.Descriptor, raw []byte) error {
	if err := verify(d, raw); err != nil {
		return err
	}
	f.have[d.Digest] = raw
	return nil
}

// usable refuses a descriptor that nothing can be verified against.
func usable(d ocispec.Descriptor) error {
	if d.Size < 0 {
		return &DocumentError{Digest: d.Digest, Err: ErrInvalid, Reason: fmt.Sprintf("size = %d", d.Size)}
	}
	switch err := d.Digest.Validate(); err {
	case nil:
		return nil
	case digest.ErrDigestUnsupported:
		return &DocumentError{Digest: d.Digest, Err: ErrUnsupported, Reason: "digest algorithm"}
	default:
		return &DocumentError{Digest: d.Digest, Err: ErrInvalid, Reason: "its digest is malformed"}
	}
}

// verify compares bytes with a descriptor whose digest is valid.
func verify(d ocispec.Descriptor, raw []byte) error {
	size := int64(len(raw))
	if size != d.Size {
		return &DigestError{Digest: d.Digest, Size: d.Size, GotSize: size}
	}
	if got := d.Digest.Algorithm().FromBytes(raw); got != d.Digest {
		return &DigestError{Digest: d.Digest, Got: got, Size: size, GotSize: size}
	}
	return nil
}
