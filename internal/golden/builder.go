package golden

import (
	"fmt"
	"maps"
	"slices"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// The media types of Docker images.
const (
	MediaTypeDockerManifest  = "application/vnd.docker.distribution.manifest.v2+json"
	MediaTypeDockerList      = "application/vnd.docker.distribution.manifest.list.v2+json"
	MediaTypeDockerConfig    = "application/vnd.docker.container.image.v1+json"
	MediaTypeDockerLayer     = "application/vnd.docker.image.rootfs.diff.tar"
	MediaTypeDockerLayerGzip = "application/vnd.docker.image.rootfs.diff.tar.gzip"
	MediaTypeDockerLayerZstd = "application/vnd.docker.image.rootfs.diff.tar.zstd"
)

// Builder collects the blobs and manifests of an image. What refers to others is added after them.
type Builder struct {
	store   store
	diffIDs map[digest.Digest]digest.Digest // of layers
}

// store is content by digest, in the order in which it came.
type store struct {
	items map[digest.Digest]item
	order []digest.Digest
}

type item struct {
	descriptor ocispec.Descriptor
	content    []byte
	manifest   bool // an image manifest or an index: registries keep these apart from blobs
}

// NewBuilder returns an empty Builder.
func NewBuilder() *Builder {
	return &Builder{
		store:   store{items: make(map[digest.Digest]item)},
		diffIDs: make(map[digest.Digest]digest.Digest),
	}
}

// Blob adds a blob: a config, a layer, or the single disk of an artifact. The Builder keeps p.
func (b *Builder) Blob(mediaType string, p []byte) ocispec.Descriptor {
	return b.add(mediaType, p, false)
}

// Manifest adds the bytes of a manifest or index that [Builder.Image] and [Builder.Index] would not
// make. The Builder keeps p.
func (b *Builder) Manifest(mediaType string, p []byte) ocispec.Descriptor {
	return b.add(mediaType, p, true)
}

func (b *Builder) add(mediaType string, p []byte, manifest bool) ocispec.Descriptor {
	d := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(p), Size: int64(len(p))}
	if _, ok := b.store.items[d.Digest]; !ok {
		b.store.items[d.Digest] = item{descriptor: d, content: p, manifest: manifest}
		b.store.order = append(b.store.order, d.Digest)
	}
	return d
}

// Build returns what was collected so far as an image whose tag points at root. It panics if root
// was not made by this Builder.
func (b *Builder) Build(root ocispec.Descriptor) *Image {
	if _, ok := b.store.items[root.Digest]; !ok {
		panic(fmt.Sprintf("golden: root %s is not in the builder", root.Digest))
	}
	return &Image{
		Root:  root,
		store: store{items: maps.Clone(b.store.items), order: slices.Clone(b.store.order)},
	}
}

// Image is a finished image.
type Image struct {
	Root  ocispec.Descriptor // the index or manifest that a tag points at
	store store
}

// Get returns the content of a blob or manifest, which the caller must not change.
func (i *Image) Get(d digest.Digest) ([]byte, bool) {
	it, ok := i.store.items[d]
	return it.content, ok
}

// Descriptors lists all blobs and manifests: none refers to a later one. They have a media type, a
// digest and a size; platform and annotations are in what refers to them.
func (i *Image) Descriptors() []ocispec.Descriptor {
	all := make([]ocispec.Descriptor, 0, len(i.store.order))
	for _, d := range i.store.order {
		all = append(all, i.store.items[d].descriptor)
	}
	return all
}
