package registry_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/archdisk/archdisk/importer/registry"
)

func TestTLS(t *testing.T) {
	f := serveTLS(t, routes{"/v2/r/manifests/1": answer(manifestDoc)})
	resolve := func(host string, o registry.Options) error {
		_, _, err := newSource(t, o).Resolve(t.Context(), host+"/r:1")
		return err
	}
	require.NoError(t, resolve(f.host(), registry.Options{TLS: f.roots()}))
	require.Equal(t, 2, f.got("/v2/r/manifests/1")[0].ProtoMajor)

	only := func(host string) bool { return host == f.host() }
	require.NoError(t, resolve(f.host(), registry.Options{Insecure: only}))
	require.Equal(t, 2, f.got("/v2/r/manifests/1")[1].ProtoMajor)

	// Loopback may speak plain http, but https that is there is verified, and
	// not given up for http.
	port := strings.TrimPrefix(f.host(), "127.0.0.1")
	before := len(f.got("/v2/"))
	for _, row := range []struct {
		name, host string
		options    registry.Options
		text       string
	}{
		{"unknown authority", f.host(), registry.Options{}, "tls: x509: certificate signed by unknown authority"},
		{"other name", "localhost" + port, registry.Options{TLS: f.roots(), Insecure: only}, "localhost"},
	} {
		t.Run(row.name, func(t *testing.T) {
			err := resolve(row.host, row.options)
			require.ErrorIs(t, err, registry.ErrTLS)
			require.Contains(t, err.Error(), row.text)
			require.Contains(t, err.Error(), "x509")
			require.False(t, asError(t, err).Temporary())
			require.Equal(t, "ping", asError(t, err).Op)
		})
	}
	require.Len(t, f.got("/v2/"), before)
}

func TestTLSAlert(t *testing.T) {
	f := newFake(nil)
	f.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	f.StartTLS()
	t.Cleanup(f.Close)
	_, _, err := newSource(t, registry.Options{TLS: f.roots()}).Resolve(t.Context(), f.host()+"/r:1")
	require.ErrorIs(t, err, registry.ErrTLS)
	require.False(t, asError(t, err).Temporary())
}

// Private networks get no plain http without permission, and no attempt at it.
func TestNoPlainHTTP(t *testing.T) {
	for _, host := range []string{
		"10.1.2.3:5000", "192.168.1.1", "172.16.0.1:5000", "169.254.1.1:80", "[fd00::1]:5000",
		"registry.local:5000", "registry.localhost:5000", "registry.example", "127.0.0.1.example:80",
	} {
		t.Run(host, func(t *testing.T) {
			tap := &wiretap{err: errors.New("no network")}
			_, _, err := newSource(t, registry.Options{Proxy: tap.proxy}).Resolve(t.Context(), host+"/r:1")
			e := asError(t, err)
			require.Equal(t, []string{"https://" + host}, tap.seen)
			require.EqualError(t, err, "registry: ping "+host+"/r:1: no network")
			require.NotErrorIs(t, err, registry.ErrPlainHTTP, "https was what failed")
			require.True(t, e.Temporary())
		})
	}
}

func TestPlainHTTPOrder(t *testing.T) {
	insecure := func(host string) bool { return host == "10.1.2.3:5000" }
	for _, host := range []string{"10.1.2.3:5000", "127.0.0.1:1", "127.9.9.9:1", "localhost:1", "LOCALHOST:1", "[::1]:1", "localhost"} {
		tap := &wiretap{err: errors.New("no network")}
		_, _, err := newSource(t, registry.Options{Proxy: tap.proxy, Insecure: insecure}).Resolve(t.Context(), host+"/r:1")
		require.Error(t, err)
		require.Equal(t, []string{"https://" + host, "http://" + host}, tap.seen)
	}
}

// dialTo leads everything to a server, whatever the host: it is an http proxy
// that tunnels there.
func dialTo(t *testing.T, addr string) func(*http.Request) (*url.URL, error) {
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect {
			res, err := http.Get("http://" + addr + r.URL.Path)
			if err != nil {
				w.WriteHeader(http.StatusBadGateway)
				return
			}
			defer res.Body.Close()
			w.WriteHeader(res.StatusCode)
			io.Copy(w, res.Body)
			return
		}
		there, err := net.Dial("tcp", addr)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		w.WriteHeader(http.StatusOK)
		here, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			there.Close()
			return
		}
		var up sync.WaitGroup
		up.Go(func() {
			io.Copy(there, here)
			there.Close()
		})
		io.Copy(here, there)
		here.Close()
		up.Wait()
	}))
	t.Cleanup(proxy.Close)
	return func(*http.Request) (*url.URL, error) { return url.Parse(proxy.URL) }
}

func TestPlainHTTPServerInPrivateNetwork(t *testing.T) {
	f := serve(t, routes{"/v2/r/manifests/1": answer(manifestDoc)})
	proxy := dialTo(t, f.host())
	_, _, err := newSource(t, registry.Options{Proxy: proxy}).Resolve(t.Context(), "10.1.2.3:5000/r:1")
	require.ErrorIs(t, err, registry.ErrPlainHTTP)
	require.False(t, asError(t, err).Temporary())
	require.EqualError(t, err, "registry: ping 10.1.2.3:5000/r:1: server does not speak https; plain http is allowed only for loopback and insecure hosts")
	require.Empty(t, f.got("/v2/"))

	yes := func(string) bool { return true }
	_, _, err = newSource(t, registry.Options{Proxy: proxy, Insecure: yes}).Resolve(t.Context(), "10.1.2.3:5000/r:1")
	require.NoError(t, err)
}

func TestFailedHandshakeIsNotKept(t *testing.T) {
	var pings atomic.Int32
	f := serve(t, routes{
		"/v2/": func(w http.ResponseWriter, _ *http.Request) {
			if pings.Add(1) == 1 {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		},
		"/v2/r/manifests/1": answer(manifestDoc),
	})
	s := newSource(t, registry.Options{})
	_, _, err := s.Resolve(t.Context(), f.host()+"/r:1")
	require.True(t, asError(t, err).Temporary())
	for range 2 {
		_, _, err = s.Resolve(t.Context(), f.host()+"/r:1")
		require.NoError(t, err)
	}
	require.EqualValues(t, 2, pings.Load())
}

// A caller that waits for another's handshake may leave, and takes over if
// that fails.
func TestWaitForHandshake(t *testing.T) {
	arrived := make(chan struct{}, 2)
	f := serve(t, routes{"/v2/": func(_ http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		<-r.Context().Done()
	}})
	s := newSource(t, registry.Options{})
	first, cancelFirst := context.WithCancel(t.Context())
	second, cancelSecond := context.WithCancel(t.Context())
	defer cancelSecond()
	errs := make(chan error, 2)
	resolve := func(ctx context.Context) {
		_, _, err := s.Resolve(ctx, f.host()+"/r:1")
		errs <- err
	}
	go resolve(first)
	<-arrived

	left, leave := context.WithCancel(t.Context())
	leave()
	_, _, err := s.Resolve(left, f.host()+"/r:1")
	require.ErrorIs(t, err, context.Canceled)

	go resolve(second)
	cancelFirst()
	require.ErrorIs(t, <-errs, context.Canceled)
	<-arrived // the second's own
	cancelSecond()
	require.ErrorIs(t, <-errs, context.Canceled)
}

func TestContextReachesEveryRequest(t *testing.T) {
	type key struct{}
	f := serve(t, tokenRoutes(nil))
	var asked atomic.Int32
	s := newSource(t, registry.Options{Proxy: func(r *http.Request) (*url.URL, error) {
		asked.Add(1)
		if r.Context().Value(key{}) != "mine" {
			return nil, errors.New("a request without its context: " + r.URL.Path)
		}
		return nil, nil
	}})
	ctx := context.WithValue(t.Context(), key{}, "mine")
	d := describe(manifestDoc)
	_, _, err := s.Resolve(ctx, f.host()+"/r:1")
	require.NoError(t, err)
	r, err := s.Blob(ctx, f.host()+"/r:1", d)
	require.NoError(t, err)
	require.NoError(t, r.Close())
	require.EqualValues(t, 5, asked.Load(), "https ping, http ping, token, manifest, blob")
}

func TestRedirect(t *testing.T) {
	d := describe("blob")
	storage := serve(t, routes{"/signed": answer("blob")})
	port := strings.TrimPrefix(storage.host(), "127.0.0.1")
	for _, target := range []string{"http://" + storage.host(), "http://localhost" + port} {
		for _, auth := range []string{"token", "basic"} {
			t.Run(auth+" "+strings.TrimSuffix(target, port), func(t *testing.T) {
				redirect := http.RedirectHandler(target+"/signed?X-Signature=1", http.StatusTemporaryRedirect).ServeHTTP
				r := routes{blobPath(d): redirect}
				if auth == "token" {
					r = tokenRoutes(nil)
					r[blobPath(d)] = redirect
				} else {
					r["/v2/"] = func(w http.ResponseWriter, _ *http.Request) {
						w.Header().Set("WWW-Authenticate", "Basic")
						w.WriteHeader(http.StatusUnauthorized)
					}
				}
				f := serve(t, r)
				s := newSource(t, registry.Options{Keychain: registry.Basic(user, password)})
				body, err := readBlob(t, s, f.host()+"/r:1", d)
				require.NoError(t, err)
				require.Equal(t, "blob", string(body))
				require.NotEmpty(t, f.got(blobPath(d))[0].Header["Authorization"])
				all := storage.got("/signed")
				last := all[len(all)-1]
				require.Empty(t, last.Header["Authorization"])
				require.Empty(t, last.Header["Referer"])
				require.Equal(t, "identity", last.Header.Get("Accept-Encoding"))
			})
		}
	}
}

func TestRedirectRefused(t *testing.T) {
	d := describe("blob")
	t.Run("loop", func(t *testing.T) {
		f := serve(t, routes{blobPath(d): func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, r.URL.Path+"?X-Signature=1", http.StatusTemporaryRedirect)
		}})
		_, err := newSource(t, registry.Options{}).Blob(t.Context(), f.host()+"/r:1", d)
		require.Contains(t, err.Error(), "more than 10 redirects")
		require.False(t, asError(t, err).Temporary())
		require.Len(t, f.got(blobPath(d)), 10)
	})
	for _, location := range []string{"http://10.1.2.3/x?X-Signature=1", "http://someone:hunter2@cdn.example/x?X-Signature=1"} {
		t.Run("to plain http", func(t *testing.T) {
			f := serveTLS(t, routes{blobPath(d): http.RedirectHandler(location, http.StatusFound).ServeHTTP})
			_, err := newSource(t, registry.Options{TLS: f.roots()}).Blob(t.Context(), f.host()+"/r:1", d)
			require.ErrorIs(t, err, registry.ErrPlainHTTP)
			require.False(t, asError(t, err).Temporary())
			u, _ := url.Parse(location)
			require.Equal(t, u.Host, asError(t, err).Host)
		})
	}
	t.Run("https to plain http on loopback", func(t *testing.T) {
		storage := serve(t, routes{"/x": answer("blob")})
		f := serveTLS(t, routes{blobPath(d): http.RedirectHandler(storage.URL+"/x", http.StatusFound).ServeHTTP})
		_, err := readBlob(t, newSource(t, registry.Options{TLS: f.roots()}), f.host()+"/r:1", d)
		require.NoError(t, err)
	})
	t.Run("to an error", func(t *testing.T) {
		storage := serve(t, routes{"/x": status(http.StatusForbidden, "<Error>hunter2</Error>")})
		f := serve(t, routes{blobPath(d): http.RedirectHandler(storage.URL+"/x?X-Signature=1", http.StatusFound).ServeHTTP})
		_, err := newSource(t, registry.Options{}).Blob(t.Context(), f.host()+"/r:1", d)
		require.ErrorIs(t, err, registry.ErrDenied)
		e := asError(t, err)
		require.Equal(t, storage.host(), e.Host)
		require.EqualError(t, err, "registry: blob "+e.Ref+": 403 Forbidden ("+storage.host()+")")
	})
	t.Run("to nothing that can be parsed", func(t *testing.T) {
		f := serve(t, routes{blobPath(d): func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "http://h:x/?X-Signature=1")
			w.WriteHeader(http.StatusFound)
		}})
		_, err := newSource(t, registry.Options{}).Blob(t.Context(), f.host()+"/r:1", d)
		require.False(t, asError(t, err).Temporary())
	})
}

// A registry that answers by https, whatever it says, is not asked by http.
func TestAnsweredByHTTPS(t *testing.T) {
	f := serveTLS(t, routes{"/v2/": status(http.StatusServiceUnavailable, "")})
	_, _, err := newSource(t, registry.Options{TLS: f.roots()}).Resolve(t.Context(), f.host()+"/r:1")
	require.EqualError(t, err, "registry: ping "+f.host()+"/r:1: 503 Service Unavailable")
}
