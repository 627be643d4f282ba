package golden

import (
	"cmp"
	"encoding/json"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// ImageOptions says what an image is like. The zero value is an OCI image for linux that tells no
// architecture anywhere.
type ImageOptions struct {
	Docker bool // schema 2 instead of OCI

	Arch    string // of config and descriptor; "" leaves the descriptor without a platform
	OS      string // "" is linux
	Variant string

	ConfigArch   string // in the config instead of Arch: a label that lies
	NoConfigArch bool   // "architecture": "" in the config, as in the containerdisks of before 2022
	NoPlatform   bool   // the descriptor tells no platform, whatever the config says

	Env    []string
	Labels map[string]string

	ConfigMediaType string // replaces the config's media type
	Config          []byte // replaces the config, whole
	MediaType       string // replaces the manifest's media type, in it and in the descriptor
	ArtifactType    string
	Annotations     map[string]string // in the manifest
	Subject         *ocispec.Descriptor
}

// Image adds an image with the given layers, lowest first, and the config made for them. The
// descriptor returned carries the platform and the artifact type.
func (b *Builder) Image(o ImageOptions, layers ...ocispec.Descriptor) ocispec.Descriptor {
	configType, manifestType := ocispec.MediaTypeImageConfig, ocispec.MediaTypeImageManifest
	if o.Docker {
		configType, manifestType = MediaTypeDockerConfig, MediaTypeDockerManifest
	}
	config := o.Config
	if config == nil {
		config = b.config(o, layers)
	}
	m := ocispec.Manifest{
		Versioned:    specs.Versioned{SchemaVersion: 2},
		MediaType:    cmp.Or(o.MediaType, manifestType),
		ArtifactType: o.ArtifactType,
		Config:       b.Blob(cmp.Or(o.ConfigMediaType, configType), config),
		Layers:       append([]ocispec.Descriptor{}, layers...),
		Subject:      o.Subject,
		Annotations:  o.Annotations,
	}
	d := b.Manifest(m.MediaType, marshal(m))
	d.ArtifactType = o.ArtifactType
	if o.Arch != "" && !o.NoPlatform {
		d.Platform = &ocispec.Platform{Architecture: o.Arch, OS: cmp.Or(o.OS, "linux"), Variant: o.Variant}
	}
	return d
}

func (b *Builder) config(o ImageOptions, layers []ocispec.Descriptor) []byte {
	when := created()
	arch := cmp.Or(o.ConfigArch, o.Arch)
	if o.NoConfigArch {
		arch = ""
	}
	c := ocispec.Image{
		Created:  &when,
		Platform: ocispec.Platform{Architecture: arch, OS: cmp.Or(o.OS, "linux"), Variant: o.Variant},
		Config:   ocispec.ImageConfig{Env: o.Env, Entrypoint: []string{"no-entrypoint"}, Labels: o.Labels},
		RootFS:   ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{}},
	}
	for _, l := range layers {
		c.RootFS.DiffIDs = append(c.RootFS.DiffIDs, cmp.Or(b.diffIDs[l.Digest], l.Digest))
	}
	return marshal(c)
}

// IndexOptions says what an index is like. The zero value is an OCI index.
type IndexOptions struct {
	Docker       bool   // a manifest list instead
	MediaType    string // replaces the media type, in it and in the descriptor
	ArtifactType string
	Annotations  map[string]string
	Subject      *ocispec.Descriptor
}

// Index adds an index with the given entries as they are: their platforms and annotations are the
// caller's to change. They may be indexes themselves, or be missing from the Builder.
func (b *Builder) Index(o IndexOptions, children ...ocispec.Descriptor) ocispec.Descriptor {
	mediaType := ocispec.MediaTypeImageIndex
	if o.Docker {
		mediaType = MediaTypeDockerList
	}
	x := ocispec.Index{
		Versioned:    specs.Versioned{SchemaVersion: 2},
		MediaType:    cmp.Or(o.MediaType, mediaType),
		ArtifactType: o.ArtifactType,
		Manifests:    append([]ocispec.Descriptor{}, children...),
		Subject:      o.Subject,
		Annotations:  o.Annotations,
	}
	d := b.Manifest(x.MediaType, marshal(x))
	d.ArtifactType = o.ArtifactType
	return d
}

// Children lists what the manifest or index d refers to, in its order: an index's entries, or a
// manifest's config and then its layers, lowest first. It is empty for blobs and broken documents.
func (i *Image) Children(d ocispec.Descriptor) []ocispec.Descriptor {
	it := i.store.items[d.Digest]
	var doc struct {
		Manifests []ocispec.Descriptor `json:"manifests"`
		Config    *ocispec.Descriptor  `json:"config"`
		Layers    []ocispec.Descriptor `json:"layers"`
	}
	if !it.manifest || json.Unmarshal(it.content, &doc) != nil {
		return nil
	}
	all := doc.Manifests
	if doc.Config != nil {
		all = append(all, *doc.Config)
	}
	return append(all, doc.Layers...)
}

func marshal(v any) []byte {
	p, err := json.Marshal(v)
	if err != nil {
		panic("golden: " + err.Error())
	}
	return p
}
