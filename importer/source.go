package importer

import (
	"context"
	"io"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Source is a place that images come from. It moves bytes: the choice of a platform and
// the verification of what it delivers are this package's. Safe for concurrent use.
//
// An error with a method `Temporary() bool` says whether trying again may help.
type Source interface {
	// Resolve returns the descriptor and the bytes of what ref names: an index or a
	// manifest. The descriptor's media type, digest or size may be empty if not known.
	Resolve(ctx context.Context, ref string) (ocispec.Descriptor, []byte, error)
	// Manifest returns the bytes of an index or manifest below ref, at most 4 MiB.
	Manifest(ctx context.Context, ref string, d ocispec.Descriptor) ([]byte, error)
	// Blob opens a config or a layer below ref. A stream that breaks off returns an error
	// that is not io.EOF.
	Blob(ctx context.Context, ref string, d ocispec.Descriptor) (io.ReadCloser, error)
}

// Target is where a disk goes. One disk at a time: Begin, then writes that do not overlap
// from several goroutines, then Commit or Abort. After either it may be used again.
//
// A Target may also be a [disk.Zeroer]. If it is none, it must read as zeros after Begin.
type Target interface {
	// Begin prepares for a disk of size bytes, -1 if that is not known yet. A target that
	// cannot hold it says so here. Until Begin nothing may have been changed.
	Begin(ctx context.Context, size int64) error
	io.WriterAt
	// ReadAt reads back what has been written, before and after Commit.
	io.ReaderAt
	// Commit makes the disk durable, size bytes long, and then visible, in this order.
	Commit(ctx context.Context, size int64) error
	// Abort undoes what can be undone; nothing that looks like a whole disk stays. It does
	// nothing if there is nothing to abort.
	Abort() error
}

// Policy is asked before any layer is fetched. An error refuses the image.
type Policy interface {
	Check(ctx context.Context, s Subject) error
}

// Subject is what a [Policy] judges.
type Subject struct {
	Reference      string
	IndexDigest    string // of what the reference names
	ManifestDigest string // of the image for the wanted platform
	Manifest       []byte // that image's manifest, as its digest names it
}
