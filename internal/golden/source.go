package golden

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Source serves an image to an importer without a network. Every reference names the image, but one
// with a digest names that manifest. It does not verify what it serves, so that faults reach who
// does. What is not there is [fs.ErrNotExist].
type Source struct {
	image *Image

	mu       sync.Mutex
	faults   map[digest.Digest]Fault
	requests []digest.Digest
	open     int
}

// NewSource returns a Source of image, without faults.
func NewSource(image *Image) *Source {
	return &Source{image: image, faults: make(map[digest.Digest]Fault)}
}

// Fault wraps the content of d, blob or manifest, from the next request on; nil ends that.
func (s *Source) Fault(d digest.Digest, f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults[d] = f
}

// Requests lists the digests of what was asked for, in order, repeated and missing ones included.
func (s *Source) Requests() []digest.Digest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Count returns how often d was asked for.
func (s *Source) Count(d digest.Digest) int {
	n := 0
	for _, r := range s.Requests() {
		if r == d {
			n++
		}
	}
	return n
}

// Open returns how many blobs are open: opened and not closed.
func (s *Source) Open() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open
}

// Resolve returns the root, or the manifest whose digest ends ref, and its content.
func (s *Source) Resolve(ctx context.Context, ref string) (ocispec.Descriptor, []byte, error) {
	d := s.image.Root
	if _, id, ok := strings.Cut(ref, "@"); ok {
		d = s.image.store.items[digest.Digest(id)].descriptor
		d.Digest = digest.Digest(id)
	}
	p, err := s.Manifest(ctx, ref, d)
	return d, p, err
}

// Manifest returns the content of a manifest or index.
func (s *Source) Manifest(ctx context.Context, _ string, d ocispec.Descriptor) ([]byte, error) {
	r, err := s.serve(ctx, d.Digest, true)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

// Blob opens a blob. Reading fails once ctx is done. The caller closes it.
func (s *Source) Blob(ctx context.Context, _ string, d ocispec.Descriptor) (io.ReadCloser, error) {
	r, err := s.serve(ctx, d.Digest, false)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open++
	return &blob{source: s, r: r}, nil
}

func (s *Source) serve(ctx context.Context, d digest.Digest, manifest bool) (io.Reader, error) {
	s.mu.Lock()
	s.requests = append(s.requests, d)
	fault := s.faults[d]
	s.mu.Unlock()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	it, ok := s.image.store.items[d]
	if !ok || it.manifest != manifest {
		return nil, fmt.Errorf("golden: %q: %w", d, fs.ErrNotExist)
	}
	var r io.Reader = &content{ctx: ctx, r: bytes.NewReader(it.content)}
	if fault != nil {
		r = fault(ctx, r)
	}
	return r, nil
}

// content reads bytes until its context, that of one request, is done.
type content struct {
	ctx context.Context
	r   io.Reader
}

func (c *content) Read(p []byte) (int, error) {
	if err := context.Cause(c.ctx); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}

// blob is an open blob.
type blob struct {
	source *Source
	r      io.Reader
	closed bool // under source.mu
}

func (b *blob) Read(p []byte) (int, error) {
	b.source.mu.Lock()
	closed := b.closed
	b.source.mu.Unlock()
	if closed {
		return 0, fs.ErrClosed
	}
	return b.r.Read(p)
}

func (b *blob) Close() error {
	b.source.mu.Lock()
	defer b.source.mu.Unlock()
	if !b.closed {
		b.closed = true
		b.source.open--
	}
	return nil
}
