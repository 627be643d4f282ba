package registry

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

const (
	maxRedirects = 10
	maxErrorBody = 64 << 10
)

// wires are the two ways to the network; which one is a matter of the host.
type wires struct {
	strict *http.Transport
	lax    *http.Transport // does not verify TLS
}

func newWires(o Options) wires {
	config := &tls.Config{}
	if o.TLS != nil {
		config = o.TLS.Clone()
	}
	dialer := &net.Dialer{Timeout: cmp.Or(o.DialTimeout, 30*time.Second), KeepAlive: 30 * time.Second}
	strict := &http.Transport{
		Proxy:                 o.Proxy,
		DialContext:           dialer.DialContext,
		TLSClientConfig:       config,
		TLSHandshakeTimeout:   cmp.Or(o.HandshakeTimeout, 15*time.Second),
		ResponseHeaderTimeout: cmp.Or(o.HeaderTimeout, 60*time.Second),
		ForceAttemptHTTP2:     true,
		DisableCompression:    true, // digests and sizes are of the bytes as stored
		MaxIdleConnsPerHost:   8,
		IdleConnTimeout:       90 * time.Second,
	}
	lax := strict.Clone()
	lax.TLSClientConfig.InsecureSkipVerify = true
	return wires{strict: strict, lax: lax}
}

// insecure says whether TLS need not be verified.
func (s *Source) insecure(host string) bool {
	return s.options.Insecure != nil && s.options.Insecure(host)
}

// plain says whether a host may be spoken to by plain http.
func (s *Source) plain(host string) bool {
	return isLoopback(host) || s.insecure(host)
}

func isLoopback(host string) bool {
	host = (&url.URL{Host: host}).Hostname()
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr.IsLoopback()
	}
	return strings.EqualFold(host, "localhost")
}

// A gate stands between go-containerregistry's transport and the wire. It holds
// one registry to one scheme and lets no other host be spoken to by plain http
// without permission: go-containerregistry itself would fall back to http on
// all private addresses, and would let http win a race against slow https.
type gate struct {
	source   *Source
	host     string      // the registry
	scheme   string      // its scheme
	answered atomic.Bool // by anything
	pinged   atomic.Bool // with success, which may be a challenge
}

func (g *gate) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := g.refuse(req.URL); err != nil {
		if req.Body != nil {
			req.Body.Close()
		}
		return nil, err
	}
	wire := g.source.wires.strict
	if g.source.insecure(req.URL.Host) {
		wire = g.source.wires.lax
	}
	res, err := wire.RoundTrip(req)
	if err != nil {
		return nil, &hostError{req.URL.Host, err}
	}
	g.answered.Store(true)
	if res.StatusCode == http.StatusOK || res.StatusCode == http.StatusUnauthorized {
		g.pinged.Store(true)
	}
	g.log(req, res)
	return res, nil
}

func (g *gate) refuse(u *url.URL) error {
	switch {
	case u.Scheme == "http" && (u.Host == g.host && g.scheme != "http" || !g.source.plain(u.Host)):
		return &hostError{u.Host, ErrPlainHTTP}
	case u.Scheme != "http" && u.Host == g.host && g.scheme == "http":
		return errors.New("the registry is spoken to by plain http")
	}
	return nil
}

func (g *gate) log(req *http.Request, res *http.Response) {
	path := ""
	if req.URL.Host == g.host {
		path = req.URL.Path // elsewhere it may be as secret as a query
	}
	g.source.options.Log.DebugContext(req.Context(), "registry request",
		"method", req.Method, "host", req.URL.Host, "path", path, "status", res.StatusCode)
}

// A session is the authenticated way to one repository.
type session struct {
	lock   chan struct{} // holds one token while the handshake runs; a mutex that a context can leave
	client *http.Client  // nil before a handshake has succeeded
}

// session returns the client for a repository. Of several callers one makes
// the handshake; a failed one is the next caller's to try again.
func (s *Source) session(ctx context.Context, at place) (*http.Client, error) {
	if s == nil || s.sessions == nil {
		return nil, at.fail("ping", errors.New("the source was not made by New"))
	}
	s.mu.Lock()
	key := at.repo.Name()
	one := s.sessions[key]
	if one == nil {
		one = &session{lock: make(chan struct{}, 1)}
		s.sessions[key] = one
	}
	s.mu.Unlock()

	select {
	case one.lock <- struct{}{}:
		defer func() { <-one.lock }()
	case <-ctx.Done():
		return nil, at.fail("ping", ctx.Err())
	}
	if one.client == nil {
		client, err := s.handshake(ctx, at)
		if err != nil {
			return nil, err
		}
		one.client = client
	}
	return one.client, nil
}

// handshake finds out how a registry wants to be spoken to: by https and, only
// if that brought no answer of any kind and the host may, by plain http.
func (s *Source) handshake(ctx context.Context, at place) (*http.Client, error) {
	auth, err := s.credentials(ctx, at.repo)
	if err != nil {
		return nil, at.failure(ctx, "token", err)
	}
	g := &gate{source: s, host: at.host(), scheme: "https"}
	authed, err := s.authenticate(ctx, at, at.repo.Registry, auth, g)
	if err != nil && ctx.Err() == nil && !g.answered.Load() && !isTLS(err) && s.plain(at.host()) {
		var plain name.Registry
		if plain, err = name.NewRegistry(at.host(), name.Insecure); err == nil {
			g = &gate{source: s, host: at.host(), scheme: "http"}
			authed, err = s.authenticate(ctx, at, plain, auth, g)
		}
	}
	if err != nil {
		op := "ping"
		if g.pinged.Load() {
			op = "token"
		}
		return nil, at.failure(ctx, op, err)
	}
	return &http.Client{Transport: authed, CheckRedirect: checkRedirect}, nil
}

func (s *Source) authenticate(ctx context.Context, at place, reg name.Registry, auth authn.Authenticator, g *gate) (http.RoundTripper, error) {
	scopes := []string{at.repo.Scope(transport.PullScope)}
	return transport.NewWithContext(ctx, reg, auth, transport.NewUserAgent(g, s.options.UserAgent), scopes)
}

// checkRedirect bounds redirects. Which hosts and schemes they may lead to is
// the gate's matter, and credentials are added below, by host and port.
func checkRedirect(req *http.Request, via []*http.Request) error {
	if len(via) >= maxRedirects {
		return fmt.Errorf("more than %d redirects", maxRedirects)
	}
	req.Header.Del("Referer") // a signed URL would go to the next host in it
	return nil
}

// get asks for a manifest or blob and returns the answer if it is the content,
// unencoded. The caller closes its body.
func (s *Source) get(ctx context.Context, op string, at place) (*http.Response, error) {
	client, err := s.session(ctx, at)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.url(op+"s"), nil)
	if err != nil {
		return nil, at.failure(ctx, op, err)
	}
	req.Header.Set("Accept-Encoding", "identity")
	if op == "manifest" {
		req.Header.Set("Accept", accept)
	}
	res, err := client.Do(req)
	if err != nil {
		return nil, at.failure(ctx, op, err)
	}
	if res.StatusCode != http.StatusOK {
		defer res.Body.Close()
		return nil, refused(ctx, op, at, res)
	}
	if encoding := res.Header.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
		res.Body.Close()
		return nil, at.fail(op, fmt.Errorf("content encoding %.20q was not asked for", encoding))
	}
	return res, nil
}

// refused returns the error of an answer other than 200.
func refused(ctx context.Context, op string, at place, res *http.Response) error {
	body, err := io.ReadAll(io.LimitReader(res.Body, maxErrorBody))
	if err != nil && ctx.Err() != nil {
		return at.failure(ctx, op, err)
	}
	return &Error{Op: op, Ref: at.text, Host: res.Request.URL.Host, Status: res.StatusCode, Code: errorCode(body)}
}
