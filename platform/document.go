package platform

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Media types that image-spec has no constant for: Docker's, and the config of a
// KubeVirt OCI export, which is a VirtualMachine and states no architecture.
const (
	dockerIndex     = "application/vnd.docker.distribution.manifest.list.v2+json"
	dockerManifest  = "application/vnd.docker.distribution.manifest.v2+json"
	dockerConfig    = "application/vnd.docker.container.image.v1+json"
	schema1         = "application/vnd.docker.distribution.manifest.v1+json"
	schema1Signed   = "application/vnd.docker.distribution.manifest.v1+prettyjws"
	kubevirtMachine = "application/vnd.kubevirt.virtualmachine.v1"
	kubevirtConfig  = "application/vnd.kubevirt.virtualmachine.config.v1+json"
)

// kind is what a document is.
type kind uint8

const (
	kindUnstated kind = iota // no media type, or a generic one: the document decides
	kindIndex
	kindManifest
	kindSchema1
	kindOther
)

// kindOf tells a document's kind from a media type, ignoring parameters such as
// "; charset=utf-8".
func kindOf(mediaType string) kind {
	switch bareType(mediaType) {
	case "", "application/json", "application/octet-stream", "text/plain":
		return kindUnstated
	case ocispec.MediaTypeImageIndex, dockerIndex:
		return kindIndex
	case ocispec.MediaTypeImageManifest, dockerManifest:
		return kindManifest
	case schema1, schema1Signed:
		return kindSchema1
	}
	return kindOther
}

func bareType(mediaType string) string {
	bare, _, _ := strings.Cut(mediaType, ";")
	return strings.ToLower(strings.TrimSpace(bare))
}

// document is a parsed index or manifest.
type document struct {
	kind      kind   // kindIndex or kindManifest
	mediaType string // its own, else the declared one, else OCI's
	index     ocispec.Index
	manifest  ocispec.Manifest
}

// parseDocument reads an index or a manifest that its descriptor (or the registry)
// calls declared. A document that two readers could take for two things is refused,
// as CVE-2021-41190 teaches.
func parseDocument(raw []byte, declared string, dgst digest.Digest) (*document, error) {
	invalid := func(format string, args ...any) (*document, error) {
		return nil, &DocumentError{Digest: dgst, Err: ErrInvalid, Reason: fmt.Sprintf(format, args...)}
	}
	unsupported := func(format string, args ...any) (*document, error) {
		return nil, &DocumentError{Digest: dgst, Err: ErrUnsupported, Reason: fmt.Sprintf(format, args...)}
	}

	if err := checkMembers(raw, documentMembers()); err != nil {
		return nil, unreadable(dgst, "", err)
	}
	var head struct {
		SchemaVersion int             `json:"schemaVersion"`
		MediaType     string          `json:"mediaType"`
		Manifests     json.RawMessage `json:"manifests"`
		Config        json.RawMessage `json:"config"`
		Layers        json.RawMessage `json:"layers"`
		FSLayers      json.RawMessage `json:"fsLayers"`
	}
	if err := json.Unmarshal(raw, &head); err != nil {
		return nil, unreadable(dgst, "", err)
	}
	indexKeys := present(head.Manifests)
	manifestKeys := present(head.Config) || present(head.Layers)
	schema1Keys := present(head.FSLayers)
	if indexKeys && (manifestKeys || schema1Keys) || manifestKeys && schema1Keys {
		return invalid("it has the members of more than one kind of document")
	}

	stated, outside := kindOf(head.MediaType), kindOf(declared)
	if stated != kindUnstated && outside != kindUnstated && bareType(head.MediaType) != bareType(declared) {
		return invalid("it calls itself %s, its descriptor calls it %s", quote(head.MediaType), quote(declared))
	}
	is := stated
	if is == kindUnstated {
		is = outside
	}
	if is == kindUnstated {
		switch {
		case indexKeys:
			is = kindIndex
		case manifestKeys:
			is = kindManifest
		}
	}

	switch {
	case is == kindSchema1 || head.SchemaVersion == 1 || schema1Keys:
		return unsupported("a Docker schema 1 manifest; push the image again with a current tool")
	case is == kindUnstated:
		return invalid("neither an index nor a manifest")
	case is == kindOther:
		mediaType := head.MediaType
		if stated != kindOther {
			mediaType = declared
		}
		return unsupported("media type %s", quote(mediaType))
	case head.SchemaVersion != 2 && head.SchemaVersion != 0: // some writers leave it out
		return invalid("schemaVersion = %d", head.SchemaVersion)
	case is == kindIndex && manifestKeys:
		return invalid("an index with a config or layers")
	case is == kindManifest && indexKeys:
		return invalid("an image manifest with manifests")
	case is == kindManifest && !present(head.Config):
		return invalid("an image manifest without a config")
	}

	doc := &document{kind: is, mediaType: ocispec.MediaTypeImageManifest}
	target := any(&doc.manifest)
	if is == kindIndex {
		doc.mediaType, target = ocispec.MediaTypeImageIndex, &doc.index
	}
	switch {
	case stated != kindUnstated:
		doc.mediaType = bareType(head.MediaType)
	case outside != kindUnstated:
		doc.mediaType = bareType(declared)
	}
	if err := json.Unmarshal(raw, target); err != nil {
		return nil, unreadable(dgst, "", err)
	}
	return doc, nil
}

// parseConfig reads an image config.
func parseConfig(raw []byte, dgst digest.Digest) (*ocispec.Image, error) {
	err := checkMembers(raw, configMembers())
	var config ocispec.Image
	if err == nil {
		err = json.Unmarshal(raw, &config)
	}
	if err != nil {
		return nil, unreadable(dgst, "image config: ", err)
	}
	return &config, nil
}

// unreadable makes a DocumentError of what checkMembers or encoding/json found.
func unreadable(dgst digest.Digest, what string, err error) error {
	if errors.Is(err, ErrLimit) {
		return &DocumentError{Digest: dgst, Err: ErrLimit, Reason: fmt.Sprintf("%smore than %d objects and arrays", what, maxComposites)}
	}
	return &DocumentError{Digest: dgst, Err: ErrInvalid, Reason: what + printable(err.Error())}
}

// isImageConfig reports whether a config of this type states a platform.
func isImageConfig(mediaType string) bool {
	return mediaType == ocispec.MediaTypeImageConfig || mediaType == dockerConfig
}

// isDiskType reports whether an artifactType, or a config type that stands in for one,
// is of something that can hold a disk. Signatures, SBOMs and charts are not.
func isDiskType(artifactType string) bool {
	switch artifactType {
	case "", kubevirtMachine, kubevirtConfig, ocispec.MediaTypeEmptyJSON:
		return true
	}
	return isImageConfig(artifactType)
}

func present(member json.RawMessage) bool {
	return len(member) > 0 && string(member) != "null"
}
