package platform

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Annotations that decide whether and in what order an entry is taken.
const (
	referenceType  = "vnd.docker.reference.type" // BuildKit attestations
	zstdAnnotation = "io.github.containers.compression.zstd"
)

// leaf is one image manifest that an image offers.
type leaf struct {
	descriptor ocispec.Descriptor
	platform   ocispec.Platform // normalised
	source     Source
	image      *image // nil until read
}

// image is what decides about a leaf in its manifest and config. Those themselves stay
// raw: of a thousand leaves, one is wanted decoded.
type image struct {
	platform ocispec.Platform // of the config, normalised; zero if it is not an image config
	zstd     bool             // of a layer
	artifact bool             // no image and no disk: a signature, a chart
}

// walk is one reading of an image: the leaves below a root.
type walk struct {
	documents fetcher
	root      ocispec.Descriptor // completed
	single    bool               // the root is a manifest itself
	leaves    []*leaf            // in index order, depth first
	entries   int
	seen      map[string]bool
}

// open reads the root and all indexes below it. Leaves are read only where nothing
// else states their platform.
func open(ctx context.Context, root ocispec.Descriptor, raw []byte, fetch Fetch, limits Limits) (*walk, error) {
	if fetch == nil {
		return nil, fmt.Errorf("%w: no Fetch given", ErrInvalid)
	}
	w := &walk{
		documents: fetcher{fetch: fetch, limits: limits.withDefaults(), have: make(map[digest.Digest][]byte)},
		root:      root,
		seen:      make(map[string]bool),
	}
	// A directory or an archive may know no more of its root than the bytes.
	if w.root.Digest == "" {
		w.root.Digest = digest.FromBytes(raw)
	}
	if w.root.Size == 0 {
		w.root.Size = int64(len(raw))
	}
	if err := w.documents.admit(w.root); err != nil {
		return nil, err
	}
	if err := w.documents.keep(w.root, raw); err != nil {
		return nil, err
	}
	doc, err := parseDocument(raw, w.root.MediaType, w.root.Digest)
	if err != nil {
		return nil, err
	}
	w.root.MediaType = doc.mediaType
	platform, err := stated(w.root, ocispec.Platform{})
	if err != nil {
		return nil, err
	}
	if doc.kind == kindManifest {
		w.single = true
		w.add(w.root, platform)
	} else if err := w.index(ctx, w.root.Digest, doc, platform, 1); err != nil {
		return nil, err
	}
	return w, w.resolve(ctx)
}

// index adds the leaves of an index; platform is what its own descriptor states.
func (w *walk) index(ctx context.Context, dgst digest.Digest, doc *document, platform ocispec.Platform, depth int) error {
	if limit := w.documents.limits.MaxDepth; depth > limit {
		return &LimitError{Field: "MaxDepth", Value: int64(depth), Limit: int64(limit)}
	}
	for _, d := range doc.index.Manifests {
		if dropped(d) {
			continue
		}
		w.entries++
		if limit := w.documents.limits.MaxManifests; w.entries > limit {
			return &LimitError{Field: "MaxManifests", Value: int64(w.entries), Limit: int64(limit)}
		}
		if d.MediaType == "" || !digest.DigestRegexpAnchored.MatchString(string(d.Digest)) {
			reason := fmt.Sprintf("an entry with mediaType %s and digest %s", quote(d.MediaType), quote(string(d.Digest)))
			return &DocumentError{Digest: dgst, Err: ErrInvalid, Reason: reason}
		}
		platform, err := stated(d, platform)
		if err != nil {
			return err
		}
		if kindOf(d.MediaType) == kindManifest {
			w.add(d, platform)
			continue
		}
		// The depth is part of what is walked once, so that MaxDepth is found
		// passed whichever of two paths comes first.
		if w.once("index", strconv.Itoa(depth), key(platform), id(d)) {
			if err := w.nested(ctx, d, platform, depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *walk) nested(ctx context.Context, d ocispec.Descriptor, platform ocispec.Platform, depth int) error {
	raw, err := w.documents.get(ctx, d)
	if err != nil {
		return err
	}
	doc, err := parseDocument(raw, d.MediaType, d.Digest)
	if err != nil {
		return err
	}
	return w.index(ctx, d.Digest, doc, platform, depth)
}

// add adds a leaf unless the same one is there.
func (w *walk) add(d ocispec.Descriptor, platform ocispec.Platform) {
	if !w.once("leaf", strconv.FormatBool(isAnnotatedZstd(d)), key(platform), id(d)) {
		return
	}
	l := &leaf{descriptor: d, platform: platform}
	if platform.Architecture != "" {
		l.source = SourceDescriptor
	}
	w.leaves = append(w.leaves, l)
}

// once reports whether it is asked for the first time about what parts name.
func (w *walk) once(parts ...string) bool {
	k := fmt.Sprintf("%q", parts)
	first := !w.seen[k]
	w.seen[k] = true
	return first
}

// id is a descriptor's digest with what is checked along with it: two that differ here
// are two entries, and at least one of them is wrong.
func id(d ocispec.Descriptor) string {
	return fmt.Sprintf("%s %d %s", d.Digest, d.Size, d.MediaType)
}

// resolve reads the leaves whose platform is not stated in full, and lets their configs
// fill it in. Those that turn out to be artifacts go.
func (w *walk) resolve(ctx context.Context) error {
	for _, l := range w.leaves {
		if l.platform.OS != "" && l.platform.Architecture != "" && !w.single {
			continue
		}
		if err := w.read(ctx, l); err != nil {
			return err
		}
		if config := l.image.platform; l.platform.Architecture == "" && config.Architecture != "" {
			os := l.platform.OS
			l.platform, l.source = config, SourceConfig
			if os != "" {
				l.platform.OS = os
			}
		} else if l.platform.OS == "" {
			l.platform.OS = config.OS
		}
	}
	w.dropArtifacts()
	return nil
}

// read reads what the manifest and the config of a leaf say, once.
func (w *walk) read(ctx context.Context, l *leaf) error {
	if l.image != nil {
		return nil
	}
	manifest, config, _, err := w.decode(ctx, l)
	if err != nil {
		return err
	}
	l.image = &image{zstd: slices.ContainsFunc(manifest.Layers, isZstd)}
	if config != nil {
		l.image.platform = normalize(config.Platform)
	}
	// The image-spec lets the config's type stand in for an absent artifactType.
	artifactType := manifest.ArtifactType
	if artifactType == "" {
		artifactType = manifest.Config.MediaType
	}
	l.image.artifact = !isDiskType(artifactType)
	return nil
}

// decode returns the manifest of a leaf, its image config (nil if the config is
// something else) and the manifest's bytes.
func (w *walk) decode(ctx context.Context, l *leaf) (ocispec.Manifest, *ocispec.Image, []byte, error) {
	fail := func(err error) (ocispec.Manifest, *ocispec.Image, []byte, error) {
		return ocispec.Manifest{}, nil, nil, err
	}
	raw, err := w.documents.get(ctx, l.descriptor)
	if err != nil {
		return fail(err)
	}
	doc, err := parseDocument(raw, l.descriptor.MediaType, l.descriptor.Digest)
	if err != nil {
		return fail(err)
	}
	if !isImageConfig(doc.manifest.Config.MediaType) {
		return doc.manifest, nil, raw, nil
	}
	rawConfig, err := w.documents.get(ctx, doc.manifest.Config)
	if err != nil {
		return fail(err)
	}
	config, err := parseConfig(rawConfig, doc.manifest.Config.Digest)
	if err != nil {
		return fail(err)
	}
	return doc.manifest, config, raw, nil
}

// isZstd reports whether a layer says that it is zstd: OCI's +zstd, Docker's .tar.zstd.
func isZstd(layer ocispec.Descriptor) bool {
	return strings.HasSuffix(layer.MediaType, "+zstd") || strings.HasSuffix(layer.MediaType, ".zstd")
}

// dropArtifacts removes the leaves that were read and hold no disk, and reports whether
// there were any. An image that is a single manifest was named by the user and stays.
func (w *walk) dropArtifacts() bool {
	before := len(w.leaves)
	if !w.single {
		w.leaves = slices.DeleteFunc(w.leaves, func(l *leaf) bool { return l.image != nil && l.image.artifact })
	}
	return len(w.leaves) != before
}

// dropped reports whether an index entry is not for us, by its descriptor alone:
// attestations, artifacts, and types we do not know, which the image-spec says must not
// be an error.
func dropped(d ocispec.Descriptor) bool {
	if _, attestation := d.Annotations[referenceType]; attestation {
		return true
	}
	if p := d.Platform; p != nil && strings.EqualFold(p.OS, "unknown") && strings.EqualFold(p.Architecture, "unknown") {
		return true
	}
	if !isDiskType(d.ArtifactType) {
		return true
	}
	is := kindOf(d.MediaType)
	return d.MediaType != "" && is != kindIndex && is != kindManifest
}

// maxPlatform is how many bytes a platform may take, which every entry of a nested
// index inherits.
const maxPlatform = 4096

// stated is the platform that a descriptor states, or the one of the index around it.
func stated(d ocispec.Descriptor, around ocispec.Platform) (ocispec.Platform, error) {
	if d.Platform == nil {
		return around, nil
	}
	p := normalize(*d.Platform)
	if p.OS == "" && p.Architecture == "" {
		return around, nil
	}
	if n := len(key(p)); n > maxPlatform {
		return p, &DocumentError{Digest: d.Digest, Err: ErrLimit, Reason: fmt.Sprintf("its platform takes %d bytes", n)}
	}
	return p, nil
}

// isAnnotatedZstd reports whether an entry carries the annotation of containers/image
// for zstd layers.
func isAnnotatedZstd(d ocispec.Descriptor) bool { return d.Annotations[zstdAnnotation] == "true" }
