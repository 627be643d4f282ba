package importer

import (
	"strings"

	"github.com/archdisk/archdisk/qcow/formats"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Result is the record of what was done. Sizes are in bytes. A failed import returns it
// as far as it came.
type Result struct {
	Reference      string            `json:"reference,omitempty"`
	IndexDigest    string            `json:"index_digest,omitempty"`
	ManifestDigest string            `json:"manifest_digest,omitempty"`
	Platform       *Platform         `json:"platform,omitempty"`
	LayerDigest    string            `json:"layer_digest,omitempty"`
	Entry          string            `json:"entry,omitempty"` // path of the disk in the image
	Format         formats.Format    `json:"format,omitempty"`
	VirtualSize    int64             `json:"virtual_size"`        // of the image, -1 while not known
	Size           int64             `json:"size,omitempty"`      // of the resulting disk
	FileSize       int64             `json:"file_size,omitempty"` // of the file that holds it: Size, but for a qcow2 image
	BytesFetched   int64             `json:"bytes_fetched"`       // or read, of a file
	BytesWritten   int64             `json:"bytes_written"`
	BytesZeroed    int64             `json:"bytes_zeroed"`
	Passes         int               `json:"passes"` // over the layer that holds the disk
	PeakParked     int64             `json:"peak_parked"`
	Resumes        int64             `json:"resumes"`
	SHA256         string            `json:"sha256,omitempty"` // of the decoded disk, if asked for
	FileDigest     string            `json:"file_digest,omitempty"`
	Labels         map[string]string `json:"labels,omitempty"`
	Notes          []string          `json:"notes,omitempty"`
	// Seconds is the time spent in each stage of the import.
	Seconds map[Stage]float64 `json:"seconds,omitempty"`
}

// Platform is the chosen image's platform, normalised.
type Platform struct {
	OS           string `json:"os"`
	Architecture string `json:"architecture"`
	Variant      string `json:"variant,omitempty"`
}

// Progress is how far a running import is, in bytes.
type Progress struct {
	Fetched    int64 // of the blobs
	FetchTotal int64 // of all blobs that will be fetched as far as known
	Done       int64 // of the disk: written, or zero
	DiskSize   int64 // -1 while not known
}

// labels returns the labels that an image states by environment variables, as CDI takes
// them: A_B_KUBEVIRT_IO_C_D=v becomes a.b.kubevirt.io/c-d: v.
func labels(config *ocispec.Image) map[string]string {
	if config == nil {
		return nil
	}
	const mark = "KUBEVIRT_IO_"
	var found map[string]string
	for _, env := range config.Config.Env {
		key, value, ok := strings.Cut(env, "=")
		i := strings.Index(key, mark)
		if !ok || i < 0 {
			continue
		}
		domain := strings.ReplaceAll(key[:i+len(mark)-1], "_", ".")
		name := strings.ReplaceAll(key[i+len(mark):], "_", "-")
		if found == nil {
			found = map[string]string{}
		}
		found[strings.ToLower(domain+"/"+name)] = value
	}
	return found
}
