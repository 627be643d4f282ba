package importer

import (
	"context"
	"crypto"
	_ "crypto/sha256" // the algorithms of digests
	_ "crypto/sha512"
	"fmt"
	"hash"
	"io"
	"sync/atomic"

	"github.com/archdisk/archdisk/qcow/disk"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

const (
	readAhead = 8 // chunks between the network and the decoder
	readChunk = 256 << 10
)

// blob reads a layer through a bounded read-ahead and verifies it on the way: the network
// is read and hashed by a goroutine, so that a slow disk does not look like a dead client.
// Its end is io.EOF only if size and digest are right.
type blob struct {
	chunks chan []byte // filled
	free   chan []byte // to be filled
	cancel context.CancelFunc
	err    error // how the stream ended; valid once chunks is closed
	cur    []byte
	rest   []byte // unread part of cur
	budget *disk.Budget
}

// openBlob starts to fetch d. Close it.
func openBlob(ctx context.Context, src Source, ref string, d ocispec.Descriptor, budget *disk.Budget, fetched *atomic.Int64) (*blob, error) {
	sum, err := newHash(d.Digest)
	if err != nil {
		return nil, err
	}
	if d.Size < 0 {
		return nil, fmt.Errorf("negative size %d", d.Size)
	}
	if err := budget.Reserve(readAhead*readChunk, "read-ahead"); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	body, err := src.Blob(ctx, ref, d)
	if err != nil {
		cancel()
		budget.Release(readAhead * readChunk)
		return nil, err
	}
	b := &blob{chunks: make(chan []byte, readAhead), free: make(chan []byte, readAhead), cancel: cancel, budget: budget}
	for range readAhead {
		b.free <- nil
	}
	go func() {
		defer close(b.chunks)
		defer body.Close()
		b.err = b.fetch(ctx, &verifier{r: body, d: d, hash: sum, fetched: fetched})
	}()
	return b, nil
}

// newHash returns the hash of a digest's algorithm, or an error for what is no digest.
func newHash(d digest.Digest) (hash.Hash, error) {
	if err := d.Validate(); err != nil {
		return nil, fmt.Errorf("digest %q: %w", d, err)
	}
	algorithm := map[digest.Algorithm]crypto.Hash{
		digest.SHA256: crypto.SHA256, digest.SHA384: crypto.SHA384, digest.SHA512: crypto.SHA512,
	}[d.Algorithm()]
	if algorithm == 0 {
		return nil, fmt.Errorf("digest %q: algorithm not known", d)
	}
	return algorithm.New(), nil
}

func (b *blob) fetch(ctx context.Context, r io.Reader) error {
	for {
		var p []byte
		select {
		case p = <-b.free:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if p == nil {
			p = make([]byte, readChunk)
		}
		p = p[:readChunk]
		n := 0
		var err error
		for n < readChunk/2 && err == nil {
			var m int
			m, err = r.Read(p[n:])
			n += m
		}
		if n > 0 {
			select {
			case b.chunks <- p[:n]:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		if err != nil {
			return err
		}
	}
}

// verifier passes a stream on and says io.EOF only for the right bytes.
type verifier struct {
	r       io.Reader
	d       ocispec.Descriptor
	hash    hash.Hash
	n       int64
	fetched *atomic.Int64
}

func (v *verifier) Read(p []byte) (int, error) {
	n, err := v.r.Read(p)
	v.hash.Write(p[:n])
	v.n += int64(n)
	v.fetched.Add(int64(n))
	if v.n > v.d.Size {
		return n, &SizeError{Want: v.d.Size, Got: v.n}
	}
	if err != io.EOF {
		return n, err
	}
	if v.n < v.d.Size {
		return n, &SizeError{Want: v.d.Size, Got: v.n}
	}
	if got := digest.NewDigest(v.d.Digest.Algorithm(), v.hash); got != v.d.Digest {
		return n, &DigestError{Want: v.d.Digest.String(), Got: got.String()}
	}
	return n, io.EOF
}

// Read returns verified-so-far bytes; an error other than io.EOF is the stream's own and
// comes again from Drain.
func (b *blob) Read(p []byte) (int, error) {
	if len(b.rest) == 0 {
		if b.cur != nil {
			b.free <- b.cur
			b.cur = nil
		}
		chunk, ok := <-b.chunks
		if !ok {
			return 0, b.err
		}
		b.cur, b.rest = chunk, chunk
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

// Drain reads to the end and returns nil if all of the blob is as its descriptor says.
func (b *blob) Drain() error {
	_, err := io.Copy(io.Discard, struct{ io.Reader }{b})
	return err
}

// Close stops the fetch and waits for its end.
func (b *blob) Close() {
	if b.budget == nil {
		return
	}
	b.cancel()
	for range b.chunks {
	}
	b.budget.Release(readAhead * readChunk)
	b.budget = nil
}
