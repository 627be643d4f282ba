package importer

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/archdisk/archdisk/platform"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// maxDocument bounds a manifest, an index or an image config in bytes.
const maxDocument = 4 << 20

// Manifest is an image chosen for a platform.
type Manifest struct {
	// IndexDigest is the digest of what the reference names; equal to Digest for an image
	// without an index.
	IndexDigest digest.Digest
	// Digest is the digest of the chosen image's manifest. A poller compares this one: it
	// changes only when the image for this platform does.
	Digest    digest.Digest
	Selection *platform.Selection
}

// Resolve finds the image that ref offers for an architecture. Only manifests and image
// configs are fetched.
//
// Errors: an [*Error], around [*platform.NoMatchError] if the image is not offered.
func Resolve(ctx context.Context, src Source, ref string, o ResolveOptions) (*Manifest, error) {
	m, err := resolve(ctx, src, ref, o.resolve())
	return m, at(StageResolve, err)
}

// Platforms lists the images that ref offers.
func Platforms(ctx context.Context, src Source, ref string) (digest.Digest, []platform.Candidate, error) {
	root, raw, err := lookUp(ctx, src, ref)
	if err != nil {
		return "", nil, at(StageResolve, err)
	}
	list, err := platform.List(ctx, root, raw, fetcher(src, ref))
	return rootDigest(root, raw), list, at(StageResolve, err)
}

func resolve(ctx context.Context, src Source, ref string, o platform.SelectOptions) (*Manifest, error) {
	root, raw, err := lookUp(ctx, src, ref)
	if err != nil {
		return nil, err
	}
	sel, err := platform.Select(ctx, root, raw, fetcher(src, ref), o)
	if err != nil {
		return nil, err
	}
	return &Manifest{IndexDigest: rootDigest(root, raw), Digest: sel.Descriptor.Digest, Selection: sel}, nil
}

func lookUp(ctx context.Context, src Source, ref string) (ocispec.Descriptor, []byte, error) {
	if src == nil {
		return ocispec.Descriptor{}, nil, missing("source")
	}
	return src.Resolve(ctx, ref)
}

func rootDigest(root ocispec.Descriptor, raw []byte) digest.Digest {
	if root.Digest != "" {
		return root.Digest
	}
	return digest.FromBytes(raw)
}

// fetcher gives platform its look-ups. Manifests and configs have their own ways in a
// registry; which of them a descriptor needs is told by its media type.
func fetcher(src Source, ref string) platform.Fetch {
	return func(ctx context.Context, d ocispec.Descriptor) ([]byte, error) {
		if isManifest(d.MediaType) {
			return src.Manifest(ctx, ref, d)
		}
		if d.Size > maxDocument {
			return nil, fmt.Errorf("config: %w", &SizeError{Want: maxDocument, Got: d.Size})
		}
		body, err := src.Blob(ctx, ref, d)
		if err != nil {
			return nil, err
		}
		defer body.Close()
		return io.ReadAll(io.LimitReader(body, maxDocument+1))
	}
}

func isManifest(mediaType string) bool {
	return strings.Contains(mediaType, "manifest") || strings.Contains(mediaType, "image.index")
}

// checkKind refuses images that are known not to hold a disk, before a layer is fetched.
func checkKind(config *ocispec.Image) error {
	if config == nil {
		return nil
	}
	for _, label := range []string{"containers.bootc", "ostree.bootable"} {
		if v := config.Config.Labels[label]; v == "1" || v == "true" {
			return fmt.Errorf("%w: label %s=%s", ErrBootc, label, v)
		}
	}
	return nil
}
