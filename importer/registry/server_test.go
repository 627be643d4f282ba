package registry_test

import (
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/require"

	"github.com/archdisk/archdisk/importer/registry"
)

const (
	manifestDoc = `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","layers":[]}`
	user        = "someone"
	password    = "hunter2"
)

func describe(content string) ocispec.Descriptor {
	return ocispec.Descriptor{Digest: digest.FromString(content), Size: int64(len(content))}
}

func blobPath(d ocispec.Descriptor) string { return "/v2/r/blobs/" + d.Digest.String() }

// routes are the answers of a fake registry by path. "/v2/" answers 200 unless
// it has an own route, everything else 404.
type routes map[string]http.HandlerFunc

// A fake is a server that keeps the requests it got.
type fake struct {
	*httptest.Server
	mu       sync.Mutex
	requests []*http.Request
}

func newFake(r routes) *fake {
	f := &fake{}
	f.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		f.mu.Lock()
		f.requests = append(f.requests, req.Clone(req.Context()))
		f.mu.Unlock()
		switch h := r[req.URL.Path]; {
		case h != nil:
			h(w, req)
		case req.URL.Path != "/v2/":
			http.NotFound(w, req)
		}
	}))
	f.Config.ErrorLog = quiet
	return f
}

func serve(t testing.TB, r routes) *fake {
	f := newFake(r)
	f.Start()
	t.Cleanup(f.Close)
	return f
}

func serveTLS(t testing.TB, r routes) *fake {
	f := newFake(r)
	f.EnableHTTP2 = true
	f.StartTLS()
	t.Cleanup(f.Close)
	return f
}

func (f *fake) host() string { return f.Listener.Addr().String() }

// got returns the requests for a path.
func (f *fake) got(path string) []*http.Request {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(f.requests), func(r *http.Request) bool { return r.URL.Path != path })
}

func (f *fake) roots() *tls.Config {
	return &tls.Config{RootCAs: f.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs}
}

func answer(body string, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		io.WriteString(w, body)
	}
}

func status(code int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
		io.WriteString(w, body)
	}
}

// chunked answers without declaring a length.
func chunked(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.(http.Flusher).Flush()
		io.WriteString(w, body)
	}
}

func newSource(t testing.TB, o registry.Options) *registry.Source {
	s := registry.New(o)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func readBlob(t testing.TB, s *registry.Source, ref string, d ocispec.Descriptor) ([]byte, error) {
	r, err := s.Blob(t.Context(), ref, d)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

// asError requires a *registry.Error whose text is one line without secrets.
func asError(t testing.TB, err error) *registry.Error {
	t.Helper()
	var e *registry.Error
	require.ErrorAs(t, err, &e)
	for cause := err; cause != nil; {
		text := cause.Error()
		require.NotContains(t, text, "\n")
		for _, secret := range []string{password, "c29tZW9uZTpodW50ZXIy", "Bearer ", "X-Signature", "?"} {
			require.NotContains(t, text, secret)
		}
		next, ok := cause.(interface{ Unwrap() error })
		if !ok {
			break
		}
		cause = next.Unwrap()
	}
	require.True(t, strings.HasPrefix(err.Error(), "registry: "+e.Op+" "), err.Error())
	return e
}

// wiretap is a proxy function that lets no request out: it notes the scheme and
// host of each and fails it.
type wiretap struct {
	mu   sync.Mutex
	seen []string
	err  error
}

func (w *wiretap) proxy(req *http.Request) (*url.URL, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = append(w.seen, req.URL.Scheme+"://"+req.URL.Host)
	return nil, w.err
}
