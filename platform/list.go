package platform

import (
	"context"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Source tells where the architecture of a [Candidate] is stated.
type Source uint8

// The sources of a platform.
const (
	SourceUnknown    Source = iota // nowhere
	SourceDescriptor               // in the index, by the entry or an index around it
	SourceConfig                   // in the image config
)

// String returns "descriptor", "config" or "unknown".
func (s Source) String() string {
	switch s {
	case SourceDescriptor:
		return "descriptor"
	case SourceConfig:
		return "config"
	}
	return "unknown"
}

// Candidate is one image manifest that an image offers.
type Candidate struct {
	Descriptor ocispec.Descriptor
	Platform   ocispec.Platform // normalised; empty fields are stated nowhere
	Source     Source           // of the architecture
}

// List returns what an image offers, in index order, nested indexes unfolded in place,
// attestations and artifacts left out. root, raw and fetch are as for [Select], the
// limits are the default ones. Manifests and configs are read only where no descriptor
// states a platform.
func List(ctx context.Context, root ocispec.Descriptor, raw []byte, fetch Fetch) ([]Candidate, error) {
	w, err := open(ctx, root, raw, fetch, Limits{})
	if err != nil {
		return nil, err
	}
	candidates := make([]Candidate, len(w.leaves))
	for i, l := range w.leaves {
		candidates[i] = Candidate{Descriptor: l.descriptor, Platform: l.platform, Source: l.source}
	}
	return candidates, nil
}
