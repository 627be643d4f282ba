package registry_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/archdisk/archdisk/importer/registry"
)

// cut sends the head of an answer that declares the whole body, then n bytes of
// it, and closes the connection: with a reset if linger is 0.
func cut(body string, n, linger int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body[:n])
		conn.(*net.TCPConn).SetLinger(linger)
	}
}

func TestBlob(t *testing.T) {
	for _, content := range []string{"", "b", strings.Repeat("blob", 30_000)} {
		d := describe(content)
		for name, h := range map[string]http.HandlerFunc{
			"declared": answer(content, "Content-Length", fmt.Sprint(len(content))),
			"chunked":  chunked(content),
			"identity": answer(content, "Content-Encoding", "Identity"),
		} {
			t.Run(fmt.Sprintf("%s %d", name, len(content)), func(t *testing.T) {
				f := serve(t, routes{blobPath(d): h})
				s := newSource(t, registry.Options{})
				r, err := s.Blob(t.Context(), f.host()+"/r:1", d)
				require.NoError(t, err)
				require.NoError(t, iotest.TestReader(r, []byte(content)))
				_, err = r.Read(make([]byte, 1))
				require.Equal(t, io.EOF, err)
				require.NoError(t, r.Close())
				require.NoError(t, r.Close())
			})
		}
	}
}

// The bytes themselves are the caller's to verify.
func TestBlobIsNotVerified(t *testing.T) {
	d := describe("blob")
	f := serve(t, routes{blobPath(d): answer("bLob")})
	got, err := readBlob(t, newSource(t, registry.Options{}), f.host()+"/r:1", d)
	require.NoError(t, err)
	require.Equal(t, "bLob", string(got))
}

func TestBlobBreaksOff(t *testing.T) {
	content := strings.Repeat("0123456789abcdef", 1<<12)
	d := describe(content)
	for name, h := range map[string]http.HandlerFunc{
		"close":   cut(content, 1000, -1),
		"nothing": cut(content, 0, -1),
		"chunked": chunked(content[:1000]),
		"abort": func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, content[:1000])
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		},
	} {
		for _, version := range []string{"1.1", "2"} {
			if version == "2" && (name == "close" || name == "nothing") {
				continue // HTTP/2 has no connection of its own to close
			}
			t.Run(name+" "+version, func(t *testing.T) {
				f, o := serve, registry.Options{}
				if version == "2" {
					f, o.Insecure = serveTLS, func(string) bool { return true }
				}
				server := f(t, routes{blobPath(d): h})
				got, err := readBlob(t, newSource(t, o), server.host()+"/r:1", d)
				var broken *registry.StreamError
				require.ErrorAs(t, err, &broken)
				require.EqualValues(t, len(got), broken.Offset)
				require.Equal(t, d.Size, broken.Size)
				require.Equal(t, content[:len(got)], string(got))
				require.ErrorIs(t, err, io.ErrUnexpectedEOF)
				require.NotErrorIs(t, err, io.EOF)
				e := asError(t, err)
				require.True(t, e.Temporary())
				require.Contains(t, err.Error(), fmt.Sprintf("broke off at byte %d of %d: ", len(got), d.Size))
			})
		}
	}
}

// A reset may come before the answer has been looked at.
func TestBlobReset(t *testing.T) {
	content := strings.Repeat("0123456789abcdef", 1<<12)
	d := describe(content)
	f := serve(t, routes{blobPath(d): cut(content, 1000, 0)})
	got, err := readBlob(t, newSource(t, registry.Options{}), f.host()+"/r:1", d)
	require.True(t, asError(t, err).Temporary())
	require.Equal(t, content[:len(got)], string(got))
	var broken *registry.StreamError
	if errors.As(err, &broken) {
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		require.EqualValues(t, len(got), broken.Offset)
	}
}

func TestBlobErrorSticks(t *testing.T) {
	d := describe("0123456789")
	f := serve(t, routes{blobPath(d): chunked("01234")})
	r, err := newSource(t, registry.Options{}).Blob(t.Context(), f.host()+"/r:1", d)
	require.NoError(t, err)
	defer r.Close()
	_, first := io.ReadAll(r)
	require.ErrorIs(t, first, io.ErrUnexpectedEOF)
	n, again := r.Read(make([]byte, 1))
	require.Zero(t, n)
	require.Equal(t, first, again)
}

func TestBlobSize(t *testing.T) {
	d := describe("0123456789")
	for _, row := range []struct {
		name    string
		handler http.HandlerFunc
		have    int64
		read    string
	}{
		{"declared shorter", answer("012345678"), 9, ""},
		{"declared longer", answer("0123456789a"), 11, ""},
		{"longer", chunked("0123456789" + strings.Repeat("x", 100)), 11, "0123456789"},
	} {
		t.Run(row.name, func(t *testing.T) {
			f := serve(t, routes{blobPath(d): row.handler})
			got, err := readBlob(t, newSource(t, registry.Options{}), f.host()+"/r:1", d)
			require.Equal(t, row.read, string(got))
			var size *registry.SizeError
			require.ErrorAs(t, err, &size)
			require.Equal(t, registry.SizeError{Want: 10, Have: row.have}, *size)
			require.ErrorIs(t, err, registry.ErrDigest)
			require.False(t, asError(t, err).Temporary())
		})
	}
}

func TestContentEncoding(t *testing.T) {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	io.WriteString(w, manifestDoc)
	require.NoError(t, w.Close())
	d := describe(manifestDoc)
	h := answer(packed.String(), "Content-Encoding", "gzip")
	f := serve(t, routes{blobPath(d): h, "/v2/r/manifests/1": h})
	s := newSource(t, registry.Options{})
	_, err := s.Blob(t.Context(), f.host()+"/r:1", d)
	require.EqualError(t, err, "registry: blob "+asError(t, err).Ref+`: content encoding "gzip" was not asked for`)
	require.False(t, asError(t, err).Temporary())
	_, _, err = s.Resolve(t.Context(), f.host()+"/r:1")
	require.Contains(t, err.Error(), `content encoding "gzip"`)
}

func TestBlobCancelled(t *testing.T) {
	d := describe("0123456789")
	for _, version := range []string{"1.1", "2"} {
		t.Run(version, func(t *testing.T) {
			h := func(w http.ResponseWriter, r *http.Request) {
				io.WriteString(w, "01234")
				w.(http.Flusher).Flush()
				<-r.Context().Done()
			}
			f, o := serve, registry.Options{}
			if version == "2" {
				f, o.Insecure = serveTLS, func(string) bool { return true }
			}
			server := f(t, routes{blobPath(d): h})
			ctx, cancel := context.WithCancelCause(t.Context())
			r, err := newSource(t, o).Blob(ctx, server.host()+"/r:1", d)
			require.NoError(t, err)
			defer r.Close()
			_, err = io.ReadFull(r, make([]byte, 5))
			require.NoError(t, err)

			cancel(errors.New("the disk is full"))
			_, err = r.Read(make([]byte, 1))
			require.ErrorIs(t, err, context.Canceled)
			require.NotErrorIs(t, err, io.ErrUnexpectedEOF)
			require.True(t, asError(t, err).Temporary())
		})
	}
}

func TestBlobClosedDuringRead(t *testing.T) {
	d := describe("0123456789")
	f := serve(t, routes{blobPath(d): func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}})
	r, err := newSource(t, registry.Options{}).Blob(t.Context(), f.host()+"/r:1", d)
	require.NoError(t, err)
	var reader sync.WaitGroup
	reader.Go(func() {
		_, err = r.Read(make([]byte, 1))
	})
	r.Close()
	reader.Wait()
	require.Error(t, err)
	require.NotErrorIs(t, err, io.EOF)
}

// Many blobs at once make one handshake, and none waits for another to be read.
func TestManyBlobs(t *testing.T) {
	const many = 32
	content := strings.Repeat("blob", 50_000)
	d := describe(content)
	for _, version := range []string{"1.1", "2"} {
		t.Run(version, func(t *testing.T) {
			r := routes{blobPath(d): answer(content, "Content-Length", fmt.Sprint(len(content)))}
			f, o := serve, registry.Options{}
			if version == "2" {
				f, o.Insecure = serveTLS, func(string) bool { return true }
			}
			server := f(t, r)
			s := newSource(t, o)
			open := make([]io.ReadCloser, many)
			group, ctx := errgroup.WithContext(t.Context())
			for i := range open {
				group.Go(func() (err error) {
					open[i], err = s.Blob(context.WithoutCancel(ctx), server.host()+"/r:1", d)
					return err
				})
			}
			require.NoError(t, group.Wait()) // all are open, none is read
			require.Len(t, server.got("/v2/"), 1)

			group, _ = errgroup.WithContext(t.Context())
			for _, r := range open {
				group.Go(func() error {
					defer r.Close()
					got, err := io.ReadAll(r)
					if err == nil && string(got) != content {
						err = errors.New("other bytes")
					}
					return err
				})
			}
			require.NoError(t, group.Wait())
		})
	}
}
