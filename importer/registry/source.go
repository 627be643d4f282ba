package registry

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// maxManifest is the largest manifest or index that is read, in bytes. The OCI
// distribution specification asks registries to take at least this much.
const maxManifest = 4 << 20

// Options says how a [Source] reaches registries. The zero value is anonymous,
// verifies TLS against the system's roots and uses no proxy.
type Options struct {
	// Keychain gives the credentials for a repository; nil means anonymous.
	// See [Basic] and [ConfigKeychain].
	Keychain authn.Keychain

	// Insecure says of a host, written as in the reference ("host" or
	// "host:port"), whether plain http and unverified TLS are allowed. It is
	// asked about redirect targets and token servers too, and must be safe for
	// concurrent use. Nil means none. Loopback hosts (127.0.0.0/8, ::1 and
	// localhost) may always be spoken to by plain http.
	Insecure func(host string) bool

	// TLS is the configuration to start from, such as roots and client
	// certificates; it is cloned. Nil means Go's default.
	TLS *tls.Config

	// Proxy returns the proxy for a request, as in [http.Transport]. Nil means
	// none: the environment is read only if [http.ProxyFromEnvironment] is given.
	Proxy func(*http.Request) (*url.URL, error)

	// UserAgent is the product that is named to servers; "" means "archdisk".
	UserAgent string

	// Log gets one line a request, at Debug, without credentials or query
	// strings. Nil means silent.
	Log *slog.Logger

	// DialTimeout bounds the making of a connection; 0 means 30 s.
	DialTimeout time.Duration

	// HandshakeTimeout bounds the TLS handshake; 0 means 15 s.
	HandshakeTimeout time.Duration

	// HeaderTimeout bounds the wait between a request and the first line of its
	// answer; 0 means 60 s. It does not bound the body.
	HeaderTimeout time.Duration
}

// A Source reads manifests and blobs of any number of registries. The first
// request to a repository finds out its scheme and authentication, which later
// ones reuse. It is safe for concurrent use.
//
// All references are "[docker://][host/]repository[:tag][@digest]": a digest
// wins over a tag, and a missing host means Docker Hub. Errors are of type
// [*Error].
type Source struct {
	options Options
	wires   wires

	mu       sync.Mutex
	sessions map[string]*session // by repository; every session is of the pull scope
}

// New returns a Source. It makes no connection yet.
func New(o Options) *Source {
	if o.UserAgent == "" {
		o.UserAgent = "archdisk"
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Source{options: o, wires: newWires(o), sessions: make(map[string]*session)}
}

// Close closes idle connections. Blobs that are open stay so, and the Source
// may be used again.
func (s *Source) Close() error {
	if s == nil || s.sessions == nil {
		return nil
	}
	s.wires.strict.CloseIdleConnections()
	s.wires.lax.CloseIdleConnections()
	return nil
}

// Resolve fetches the manifest or index that ref names. The descriptor has the
// media type that the server declares, or the document's own if the declared
// one says nothing, the digest of the bytes, and their size. Content that is
// not what ref's digest, or the server's own, promises is [ErrDigest].
func (s *Source) Resolve(ctx context.Context, ref string) (ocispec.Descriptor, []byte, error) {
	at, err := parse("manifest", ref)
	if err != nil {
		return ocispec.Descriptor{}, nil, err
	}
	body, header, err := s.manifest(ctx, at)
	if err != nil {
		return ocispec.Descriptor{}, nil, err
	}
	d := ocispec.Descriptor{
		MediaType: mediaType(header.Get("Content-Type"), body),
		Digest:    digest.FromBytes(body),
		Size:      int64(len(body)),
	}
	want := at.digest
	if want == "" && !isSchema1(d.MediaType) { // schema1's digest is that of its unsigned payload
		want = digest.Digest(header.Get("Docker-Content-Digest"))
		if want.Validate() != nil {
			want = "" // it is optional, and only pinned references promise something
		}
	}
	if want != "" {
		if err := verify(want, body); err != nil {
			return ocispec.Descriptor{}, nil, at.fail("manifest", err)
		}
		d.Digest = want
	}
	return d, body, nil
}

// Manifest fetches the manifest or index d of ref's repository. Bytes that do
// not have d's size and digest are [ErrDigest].
func (s *Source) Manifest(ctx context.Context, ref string, d ocispec.Descriptor) ([]byte, error) {
	at, err := parseAt("manifest", ref, d)
	if err != nil {
		return nil, err
	}
	if d.Size > maxManifest {
		return nil, at.fail("manifest", ErrTooLarge)
	}
	body, _, err := s.manifest(ctx, at)
	if err != nil {
		return nil, err
	}
	if have := int64(len(body)); have != d.Size {
		return nil, at.fail("manifest", &SizeError{Want: d.Size, Have: have})
	}
	if err := verify(d.Digest, body); err != nil {
		return nil, at.fail("manifest", err)
	}
	return body, nil
}

// manifest reads what lies at a place, whole and unverified.
func (s *Source) manifest(ctx context.Context, at place) ([]byte, http.Header, error) {
	res, err := s.get(ctx, "manifest", at)
	if err != nil {
		return nil, nil, err
	}
	defer res.Body.Close()
	if res.ContentLength > maxManifest {
		return nil, nil, at.fail("manifest", ErrTooLarge)
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxManifest+1))
	if err != nil {
		return nil, nil, at.failure(ctx, "manifest", &hostError{res.Request.URL.Host, err})
	}
	if len(body) > maxManifest {
		return nil, nil, at.fail("manifest", ErrTooLarge)
	}
	return body, res.Header, nil
}

func verify(want digest.Digest, body []byte) error {
	if have := want.Algorithm().FromBytes(body); have != want {
		return &DigestError{Want: want, Have: have}
	}
	return nil
}
