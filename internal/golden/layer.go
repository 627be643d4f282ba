package golden

import (
	"archive/tar"
	"bytes"
	"errors"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Compression is how a layer is compressed.
type Compression uint8

// The compressions.
const (
	None Compression = iota
	Gzip
	Zstd
)

// LayerOptions says what a layer is like. The zero value is an OCI layer that is not compressed.
type LayerOptions struct {
	Compression Compression
	Docker      bool   // the media type is Docker's
	MediaType   string // replaces the media type, say to contradict the bytes
}

// Entry is an entry of a layer's tar archive. Zero fields get what a containerdisk has.
type Entry struct {
	Name  string
	Type  byte   // tar type flag; 0 is a regular file, or a directory if Name ends in a slash
	Link  string // target of a link
	Body  []byte
	Mode  int64 // 0 is 0555 for a directory and 0444 for others
	Size  int64 // what the header says if not 0; the archive goes on after Body, padded, whatever it says
	UID   int   // 0 is 107, qemu
	GID   int   // 0 is 107, qemu
	Uname string
	Gname string
	PAX   map[string]string
}

// Layer adds a layer with entries in the order given, without looking whether they make sense.
func (b *Builder) Layer(o LayerOptions, entries ...Entry) ocispec.Descriptor {
	archive := Tar(entries...)
	mediaType := o.MediaType
	if mediaType == "" {
		mediaType = layerMediaType(o)
	}
	d := b.Blob(mediaType, Compress(o.Compression, archive))
	b.diffIDs[d.Digest] = digest.FromBytes(archive)
	return d
}

func layerMediaType(o LayerOptions) string {
	docker := []string{MediaTypeDockerLayer, MediaTypeDockerLayerGzip, MediaTypeDockerLayerZstd}
	oci := []string{ocispec.MediaTypeImageLayer, ocispec.MediaTypeImageLayerGzip, ocispec.MediaTypeImageLayerZstd}
	if o.Docker {
		return docker[o.Compression]
	}
	return oci[o.Compression]
}

// Tar returns a tar archive. It panics for an entry that tar has no header for.
func Tar(entries ...Entry) []byte {
	const block = 512
	var buf bytes.Buffer
	for _, e := range entries {
		if err := tar.NewWriter(&buf).WriteHeader(e.header()); err != nil {
			panic("golden: " + e.Name + ": " + err.Error())
		}
		// Not by the tar.Writer, which would hold Body against the size in the header.
		buf.Write(e.Body)
		buf.Write(make([]byte, -len(e.Body)&(block-1)))
	}
	buf.Write(make([]byte, 2*block))
	return buf.Bytes()
}

func (e Entry) header() *tar.Header {
	h := &tar.Header{
		Typeflag:   e.Type,
		Name:       e.Name,
		Linkname:   e.Link,
		Size:       int64(len(e.Body)),
		Mode:       e.Mode,
		Uid:        e.UID,
		Gid:        e.GID,
		Uname:      e.Uname,
		Gname:      e.Gname,
		ModTime:    created(),
		PAXRecords: e.PAX,
	}
	if e.Size != 0 {
		h.Size = e.Size
	}
	if h.Typeflag == 0 {
		h.Typeflag = tar.TypeReg
		if strings.HasSuffix(e.Name, "/") {
			h.Typeflag = tar.TypeDir
		}
	}
	switch {
	case h.Mode != 0:
	case h.Typeflag == tar.TypeDir:
		h.Mode = 0o555
	default:
		h.Mode = 0o444
	}
	if h.Uid == 0 {
		h.Uid = 107
	}
	if h.Gid == 0 {
		h.Gid = 107
	}
	if h.Uname == "" {
		h.Uname = "qemu"
	}
	if h.Gname == "" {
		h.Gname = "qemu"
	}
	return h
}

// created is when everything was made.
func created() time.Time { return time.Date(2024, time.January, 1, 0, 0, 0, 0, time.UTC) }

// Compress returns p compressed, always to the same bytes, or p itself for [None].
func Compress(c Compression, p []byte) []byte {
	switch c {
	case Gzip:
		var buf bytes.Buffer
		z := gzip.NewWriter(&buf)
		_, err := z.Write(p)
		if err = errors.Join(err, z.Close()); err != nil {
			panic("golden: " + err.Error())
		}
		return buf.Bytes()
	case Zstd:
		z, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
		if err != nil {
			panic("golden: " + err.Error())
		}
		return z.EncodeAll(p, nil)
	default:
		return p
	}
}
