package importer

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/archdisk/archdisk/importer/archive"
	"github.com/archdisk/archdisk/qcow/disk"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// mediaTypeDisk begins the media types of layers that are disks and no archives: KubeVirt's
// OCI export.
const mediaTypeDisk = "application/vnd.kubevirt.disk."

// annotationDisk is how KubeVirt's OCI export names a layer's disk.
const annotationDisk = "io.kubevirt.disk.name"

// pass is one walk over an image's layers.
type pass struct {
	*run
	src  Source
	ref  string
	find *archive.Finder
}

// walk reads the layers from the top until lower ones cannot matter. The disk has then been
// taken, unless a link leads elsewhere: then it returns the search for that.
func (p *pass) walk(ctx context.Context, layers []ocispec.Descriptor) (next *archive.Search, err error) {
	for i := len(layers) - 1; i >= 0; i-- {
		p.find.NextLayer()
		if p.find.Skips() {
			continue
		}
		if err := p.layer(ctx, layers[i]); err != nil {
			return nil, err
		}
		if p.find.Settled() {
			break
		}
	}
	_, next, err = p.find.Result()
	return next, at(StageUnpack, err)
}

// layer reads one layer to its end. An error found in its content counts only once the
// content is known to be the right one: so the rest is read first, and if the digest is wrong
// that is the error. Only refusals for size and a failing target end a download early.
func (p *pass) layer(ctx context.Context, d ocispec.Descriptor) error {
	defer p.timer.enter(StageFetch)()
	p.count.expect(d)
	b, err := openBlob(ctx, p.src, p.ref, d, p.o.Budget, &p.count.fetched)
	if err != nil {
		return at(StageFetch, ofLayer(d, err))
	}
	defer b.Close()
	p.o.Log.Debug("layer", append(p.attrs(), "layer", d.Digest, "size", d.Size)...)
	err = p.unpack(ctx, b, d)
	if err != nil && endsDownload(ctx, err) {
		return at(StageUnpack, err)
	}
	if bad := b.Drain(); bad != nil {
		class := classify(bad)
		if errors.Is(bad, io.ErrUnexpectedEOF) {
			class = Transient // what a connection that breaks off gives
		}
		fetch := &Error{Stage: StageFetch, Class: class, Code: code(bad, StageFetch), Err: ofLayer(d, bad)}
		if err != nil && !errors.Is(err, bad) {
			fetch.Cause = err
		}
		return fetch
	}
	return at(StageUnpack, err)
}

// ofLayer says which layer an error is about, unless the source has named it.
func ofLayer(d ocispec.Descriptor, err error) error {
	if strings.Contains(err.Error(), d.Digest.String()) {
		return fmt.Errorf("layer: %w", err)
	}
	return fmt.Errorf("layer %s: %w", d.Digest, err)
}

// endsDownload says that err is no judgement on the content.
func endsDownload(ctx context.Context, err error) bool {
	var write *disk.WriteError
	return ctx.Err() != nil || err == errProbed || errors.Is(err, ErrTooLarge) || errors.As(err, &write)
}

// unpack decompresses a layer and looks for the disk in it.
func (p *pass) unpack(ctx context.Context, b io.Reader, d ocispec.Descriptor) error {
	if strings.HasSuffix(d.MediaType, "+encrypted") {
		return fmt.Errorf("layer %s: encrypted (%s): %w", d.Digest, d.MediaType, disk.ErrUnsupported)
	}
	return p.unwrap(b, func(s *archive.Stream, head []byte) (err error) {
		switch isDisk := strings.HasPrefix(d.MediaType, mediaTypeDisk); {
		case !isDisk && archive.IsTar(head):
			err = p.tar(ctx, s, d)
		case isDisk || archive.IsDisk(head):
			err = p.disk(ctx, s, d)
		default:
			err = fmt.Errorf("layer %s (%s): neither a tar archive nor a disk: %w", d.Digest, d.MediaType, disk.ErrUnsupported)
		}
		if err != nil {
			return err
		}
		return drain(s)
	})
}

// tar looks at each entry of a layer, and converts the one that is the disk.
func (p *pass) tar(ctx context.Context, r io.Reader, d ocispec.Descriptor) error {
	entries := tar.NewReader(r)
	for {
		h, err := entries.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) {
			return fmt.Errorf("tar archive: %w", err)
		}
		take, err := p.find.Entry(h)
		if err != nil {
			return err
		}
		if !take {
			continue
		}
		p.res.LayerDigest, p.res.Entry = d.Digest.String(), archive.Clean(h.Name)
		p.length = h.Size
		if err := p.take(ctx, entries); err == errProbed {
			return err
		} else if err == io.ErrUnexpectedEOF {
			return fmt.Errorf("%q: the archive ends before the %d bytes of this file: %w", h.Name, h.Size, err)
		} else if err != nil {
			return about(fmt.Sprintf("%q", h.Name), err)
		}
	}
}

// disk converts a layer that is itself a disk.
func (p *pass) disk(ctx context.Context, r io.Reader, d ocispec.Descriptor) error {
	name := d.Annotations[annotationDisk]
	if name == "" {
		name = d.Annotations[ocispec.AnnotationTitle]
	}
	if name == "" {
		name = d.Digest.String()
	}
	take, err := p.find.Disk(name)
	if err != nil || !take {
		return err
	}
	p.res.LayerDigest, p.res.Entry, p.length = d.Digest.String(), name, -1
	return p.take(ctx, r)
}
