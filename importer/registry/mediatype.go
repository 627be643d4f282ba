package registry

import (
	"encoding/json"
	"mime"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Media types of Docker's manifests; image-spec has OCI's.
const (
	dockerManifest      = "application/vnd.docker.distribution.manifest.v2+json"
	dockerManifestList  = "application/vnd.docker.distribution.manifest.list.v2+json"
	dockerSchema1       = "application/vnd.docker.distribution.manifest.v1+json"
	dockerSchema1Signed = "application/vnd.docker.distribution.manifest.v1+prettyjws"
)

// accept lists everything that a tag may turn out to be. A registry that is
// told less answers 404 or picks a platform by itself, so it is sent whole.
// Schema1 comes last, wanted only to be named in an error.
const accept = ocispec.MediaTypeImageIndex + ", " +
	ocispec.MediaTypeImageManifest + ", " +
	dockerManifestList + ", " +
	dockerManifest + ", " +
	dockerSchema1Signed + ", " +
	dockerSchema1

func isSchema1(mediaType string) bool {
	return mediaType == dockerSchema1 || mediaType == dockerSchema1Signed
}

// mediaType returns the media type in a Content-Type header without its
// parameters, or that in the document if the header's says nothing.
func mediaType(contentType string, body []byte) string {
	declared, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		declared, _, _ = strings.Cut(contentType, ";")
		declared = strings.ToLower(strings.TrimSpace(declared))
	}
	switch declared {
	case "", "application/json", "text/json", "text/plain", "application/octet-stream", "binary/octet-stream":
		var document struct {
			MediaType string `json:"mediaType"`
		}
		if json.Unmarshal(body, &document) == nil && document.MediaType != "" {
			return document.MediaType
		}
	}
	return declared
}
