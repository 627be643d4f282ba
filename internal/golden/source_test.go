package golden_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"log"
	"testing"
	"testing/iotest"

	"github.com/archdisk/archdisk/internal/golden"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/require"
)

func nopLogger() *log.Logger { return log.New(io.Discard, "", 0) }

// source returns a source with one blob, and the blob's descriptor.
func source(p []byte) (*golden.Source, ocispec.Descriptor) {
	b := golden.NewBuilder()
	d := b.Blob("application/octet-stream", p)
	return golden.NewSource(b.Build(b.Image(golden.ImageOptions{Arch: "amd64"}, d))), d
}

func TestSource(t *testing.T) {
	ctx := t.Context()
	image := golden.OCI()
	s := golden.NewSource(image)

	root, p, err := s.Resolve(ctx, "example.com/vm:latest")
	require.NoError(t, err)
	require.Equal(t, image.Root, root)
	require.Equal(t, root.Digest, digest.FromBytes(p))

	child := image.Children(root)[1]
	d, q, err := s.Resolve(ctx, "example.com/vm@"+child.Digest.String())
	require.NoError(t, err)
	require.Equal(t, child.Digest, d.Digest)
	p, err = s.Manifest(ctx, "example.com/vm:latest", child)
	require.NoError(t, err)
	require.Equal(t, q, p)

	layer := image.Children(child)[1]
	r, err := s.Blob(ctx, "example.com/vm:latest", layer)
	require.NoError(t, err)
	require.Equal(t, 1, s.Open())
	want, _ := image.Get(layer.Digest)
	require.NoError(t, iotest.TestReader(r, want))
	require.NoError(t, r.Close())
	require.NoError(t, r.Close())
	require.Equal(t, 0, s.Open())
	_, err = r.Read(make([]byte, 1))
	require.ErrorIs(t, err, fs.ErrClosed)

	require.Equal(t, []digest.Digest{root.Digest, child.Digest, child.Digest, layer.Digest}, s.Requests())
	require.Equal(t, 2, s.Count(child.Digest))
}

func TestSourceMissing(t *testing.T) {
	s, d := source([]byte("x"))
	_, _, err := s.Resolve(t.Context(), "example.com/vm@"+digest.FromString("other").String())
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = s.Manifest(t.Context(), "", d)
	require.ErrorIs(t, err, fs.ErrNotExist, "a blob is no manifest")
	d.Digest = ""
	_, err = s.Blob(t.Context(), "", d)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.Equal(t, 0, s.Open())
	require.Len(t, s.Requests(), 3)
}

func TestFaults(t *testing.T) {
	content := []byte("0123456789")
	broken := errors.New("broken")
	tests := map[string]struct {
		fault golden.Fault
		want  string
		err   error
	}{
		"flip first":  {golden.FlipByte(0), "\xcf123456789", nil},
		"flip last":   {golden.FlipByte(9), "012345678\xc6", nil},
		"flip beyond": {golden.FlipByte(10), "0123456789", nil},
		"truncate":    {golden.Truncate(4), "0123", nil},
		"append":      {golden.Append([]byte("ab")), "0123456789ab", nil},
		"fail":        {golden.FailAfter(4, broken), "0123", broken},
		"fail at end": {golden.FailAfter(10, broken), "0123456789", broken},
		"none":        {nil, "0123456789", nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s, d := source(content)
			s.Fault(d.Digest, test.fault)
			for range 2 { // every request is faulty, and the stored content is not changed
				r, err := s.Blob(t.Context(), "", d)
				require.NoError(t, err)
				got, err := io.ReadAll(iotest.OneByteReader(r))
				require.Equal(t, test.err, err)
				require.Equal(t, test.want, string(got))
				require.NoError(t, r.Close())
			}
		})
	}
	t.Run("manifest", func(t *testing.T) {
		s, _ := source(content)
		root, good, err := s.Resolve(t.Context(), "")
		require.NoError(t, err)
		s.Fault(root.Digest, golden.FlipByte(1))
		_, bad, err := s.Resolve(t.Context(), "")
		require.NoError(t, err)
		require.False(t, bytes.Equal(good, bad))
	})
}

func TestBlock(t *testing.T) {
	s, d := source([]byte("0123456789"))
	s.Fault(d.Digest, golden.BlockAfter(4))
	stop := errors.New("stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	r, err := s.Blob(ctx, "", d)
	require.NoError(t, err)
	defer r.Close()
	_, err = io.ReadFull(r, make([]byte, 4))
	require.NoError(t, err)
	done := make(chan error)
	go func() {
		_, err := r.Read(make([]byte, 1))
		done <- err
	}()
	cancel(stop)
	require.Equal(t, stop, <-done)
	_, err = s.Blob(ctx, "", d)
	require.Equal(t, stop, err)
}
