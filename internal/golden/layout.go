package golden

import (
	"os"
	"path/filepath"

	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// WriteLayout writes the image into dir as an OCI image layout in which tag names Root. A layout that
// is there already loses its other tags. skopeo finds tags of OCI images and indexes only in a layout,
// not those of [Docker].
// Spec: image-spec, OCI Image Layout.
func (i *Image) WriteLayout(dir, tag string) error {
	for _, id := range i.store.order {
		blobs := filepath.Join(dir, ocispec.ImageBlobsDir, id.Algorithm().String())
		if err := os.MkdirAll(blobs, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(blobs, id.Encoded()), i.store.items[id].content, 0o644); err != nil {
			return err
		}
	}
	root := i.Root
	root.Annotations = map[string]string{ocispec.AnnotationRefName: tag}
	index := marshal(ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: ocispec.MediaTypeImageIndex,
		Manifests: []ocispec.Descriptor{root},
	})
	if err := os.WriteFile(filepath.Join(dir, ocispec.ImageIndexFile), index, 0o644); err != nil {
		return err
	}
	mark := marshal(ocispec.ImageLayout{Version: ocispec.ImageLayoutVersion})
	return os.WriteFile(filepath.Join(dir, ocispec.ImageLayoutFile), mark, 0o644)
}
