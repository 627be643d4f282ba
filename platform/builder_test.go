package platform_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/archdisk/archdisk/platform"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/require"
)

const (
	dockerIndex    = "application/vnd.docker.distribution.manifest.list.v2+json"
	dockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	dockerConfig   = "application/vnd.docker.container.image.v1+json"
	vmArtifact     = "application/vnd.kubevirt.virtualmachine.v1"
	vmConfig       = "application/vnd.kubevirt.virtualmachine.config.v1+json"
	zstdAnnotation = "io.github.containers.compression.zstd"
)

// entry describes one entry of an index under test: an image, or with nested an index.
type entry struct {
	name string // makes its bytes distinct; an annotation of the manifest
	// on is the descriptor's platform as os/arch/variant, "-" = none.
	on string
	// config is what the image config says, likewise; "" = the same as on.
	config       string
	configType   string // default: the image config type
	artifactType string // of the descriptor
	manifestType string // artifactType of the manifest
	mediaType    string // of the descriptor
	features     []string
	annotations  map[string]string
	zstdLayer    bool
	missing      bool // in no registry: fetching it is an error
	nested       []entry
}

// registry holds documents and notes what is asked of it.
type registry struct {
	blobs  map[digest.Digest][]byte
	names  map[digest.Digest]string
	asked  []digest.Digest
	docker bool
}

func newRegistry() *registry {
	return &registry{blobs: make(map[digest.Digest][]byte), names: make(map[digest.Digest]string)}
}

func (r *registry) fetch(_ context.Context, d ocispec.Descriptor) ([]byte, error) {
	r.asked = append(r.asked, d.Digest)
	raw, ok := r.blobs[d.Digest]
	if !ok {
		return nil, fmt.Errorf("404 %s", r.names[d.Digest])
	}
	return raw, nil
}

func (r *registry) put(mediaType string, document any) ocispec.Descriptor {
	raw, ok := document.([]byte)
	if !ok {
		var err error
		if raw, err = json.Marshal(document); err != nil {
			panic(err)
		}
	}
	d := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(raw), Size: int64(len(raw))}
	r.blobs[d.Digest] = raw
	return d
}

func (r *registry) types() (index, manifest, config string) {
	if r.docker {
		return dockerIndex, dockerManifest, dockerConfig
	}
	return ocispec.MediaTypeImageIndex, ocispec.MediaTypeImageManifest, ocispec.MediaTypeImageConfig
}

// index stores an index of entries.
func (r *registry) index(entries ...entry) ocispec.Descriptor {
	mediaType, _, _ := r.types()
	index := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: mediaType, Manifests: []ocispec.Descriptor{}}
	for _, e := range entries {
		index.Manifests = append(index.Manifests, r.entry(e))
	}
	return r.put(mediaType, index)
}

func (r *registry) entry(e entry) ocispec.Descriptor {
	var d ocispec.Descriptor
	if e.nested != nil {
		d = r.index(e.nested...)
	} else {
		d = r.image(e)
	}
	d.Platform = parse(e.on)
	if d.Platform != nil {
		d.Platform.OSFeatures = e.features
	}
	d.ArtifactType = e.artifactType
	d.Annotations = e.annotations
	if e.mediaType != "" {
		d.MediaType = e.mediaType
	}
	if e.missing {
		delete(r.blobs, d.Digest)
	}
	return d
}

// image stores an image manifest and its config.
func (r *registry) image(e entry) ocispec.Descriptor {
	_, mediaType, configType := r.types()
	if e.configType != "" {
		configType = e.configType
	}
	says := e.config
	if says == "" {
		says = e.on
	}
	config := map[string]any{"rootfs": map[string]any{"type": "layers", "diff_ids": []string{}}, "config": map[string]any{"Labels": map[string]string{"OS": "a", "os": "b"}}}
	if p := parse(says); p != nil {
		config["architecture"], config["os"], config["variant"] = p.Architecture, p.OS, p.Variant
	}
	layer := "application/vnd.oci.image.layer.v1.tar+gzip"
	if e.zstdLayer {
		layer = "application/vnd.oci.image.layer.v1.tar+zstd"
	}
	d := r.put(mediaType, ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: mediaType, ArtifactType: e.manifestType,
		Config:      r.put(configType, config),
		Layers:      []ocispec.Descriptor{{MediaType: layer, Digest: digest.FromString(e.name), Size: 1}},
		Annotations: map[string]string{"name": e.name},
	})
	r.names[d.Digest] = e.name
	return d
}

func parse(s string) *ocispec.Platform {
	if s == "-" || s == "" {
		return nil
	}
	parts := append(strings.Split(s, "/"), "", "")
	return &ocispec.Platform{OS: parts[0], Architecture: parts[1], Variant: parts[2]}
}

// selectFrom chooses from the document that root names.
func (r *registry) selectFrom(t *testing.T, root ocispec.Descriptor, want string, opts platform.SelectOptions) (*platform.Selection, error) {
	t.Helper()
	var err error
	opts.Want, err = platform.ParseWant(want)
	require.NoError(t, err)
	return platform.Select(context.Background(), root, r.blobs[root.Digest], r.fetch, opts)
}

func permutations[T any](items []T) [][]T {
	if len(items) <= 1 {
		return [][]T{items}
	}
	var all [][]T
	for i := range items {
		rest := append(append([]T{}, items[:i]...), items[i+1:]...)
		for _, p := range permutations(rest) {
			all = append(all, append([]T{items[i]}, p...))
		}
	}
	return all
}
