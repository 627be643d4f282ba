package registry_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/archdisk/archdisk/importer/registry"
)

func TestStatus(t *testing.T) {
	d := describe("blob")
	for _, row := range []struct {
		status    int
		body      string
		text      string
		is        error
		temporary bool
	}{
		{400, `{"errors":[{"code":"NAME_INVALID","message":"bad hunter2"}]}`, "400 NAME_INVALID", nil, false},
		{401, `{"errors":[{"code":"UNAUTHORIZED"}]}`, "401 UNAUTHORIZED", registry.ErrDenied, false},
		{403, `{"errors":[{"code":"DENIED"},{"code":"OTHER"}]}`, "403 DENIED", registry.ErrDenied, false},
		{404, `{"errors":[{"code":"hunter2 of\nthe server"}]}`, "404 Not Found", registry.ErrNotFound, false},
		{404, `<html>hunter2</html>`, "404 Not Found", registry.ErrNotFound, false},
		{408, ``, "408 Request Timeout", nil, true},
		{416, ``, "416 Requested Range Not Satisfiable", nil, false},
		{429, `{"errors":[{"code":"TOOMANYREQUESTS"}]}`, "429 TOOMANYREQUESTS", nil, true},
		{500, `{"errors":[]}`, "500 Internal Server Error", nil, true},
		{503, `{"errors":null}`, "503 Service Unavailable", nil, true},
		{599, ``, "599 unknown status", nil, true},
		{206, `part`, "206 Partial Content", nil, false},
		{307, ``, "307 Temporary Redirect", nil, false}, // to nowhere
	} {
		check := func(t *testing.T, op string, err error) {
			e := asError(t, err)
			require.Equal(t, op, e.Op)
			require.Equal(t, row.status, e.Status)
			require.Equal(t, fmt.Sprintf("registry: %s %s: %s", op, e.Ref, row.text), err.Error())
			require.Equal(t, row.temporary, e.Temporary())
			for _, sentinel := range []error{registry.ErrDenied, registry.ErrNotFound} {
				require.Equal(t, sentinel == row.is, errors.Is(err, sentinel))
			}
		}
		t.Run(row.text, func(t *testing.T) {
			f := serve(t, routes{
				"/v2/r/manifests/1": status(row.status, row.body),
				blobPath(d):         status(row.status, row.body),
			})
			s := newSource(t, registry.Options{})
			_, _, err := s.Resolve(t.Context(), f.host()+"/r:1")
			check(t, "manifest", err)
			_, err = s.Blob(t.Context(), f.host()+"/r:1", d)
			check(t, "blob", err)
			require.Len(t, f.got(blobPath(d)), 1, "no retries here")

			if row.status == 401 || row.status < 400 {
				return // to a ping these are answers
			}
			f = serve(t, routes{"/v2/": status(row.status, row.body)})
			_, _, err = s.Resolve(t.Context(), f.host()+"/r:1")
			check(t, "ping", err)
			require.Len(t, f.got("/v2/"), 1, "no retries here")
		})
	}
}

func TestRefusedConnection(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	host := l.Addr().String()
	require.NoError(t, l.Close())
	_, _, err = newSource(t, registry.Options{}).Resolve(t.Context(), host+"/r:1")
	e := asError(t, err)
	require.True(t, e.Temporary())
	require.Equal(t, "ping", e.Op)
	require.Equal(t, host, e.Host)
	require.Contains(t, err.Error(), "refused")
}

func TestUnknownHost(t *testing.T) {
	tap := &wiretap{err: &net.DNSError{Err: "no such host", Name: "r.example", IsNotFound: true}}
	_, _, err := newSource(t, registry.Options{Proxy: tap.proxy}).Resolve(t.Context(), "r.example/r:1")
	require.EqualError(t, err, "registry: ping r.example/r:1: dns: lookup r.example: no such host")
	require.True(t, asError(t, err).Temporary())
	var dns *net.DNSError
	require.ErrorAs(t, err, &dns)
}

// What a proxy function or a library below puts into its errors is not known.
func TestErrorTextIsScrubbed(t *testing.T) {
	for text, want := range map[string]string{
		"bad proxy http://someone:hunter2@proxy:1/p?X-Signature=2 here": "bad proxy http://proxy:1/p here",
		"first\nhunter2": "first",
		"a\x1b[1mb":      "a?[1mb",
	} {
		tap := &wiretap{err: &url.Error{Op: "Get", URL: "http://h?X-Signature=1", Err: errors.New(text)}}
		_, _, err := newSource(t, registry.Options{Proxy: tap.proxy}).Resolve(t.Context(), "r.example/r:1")
		var e *registry.Error
		require.ErrorAs(t, err, &e)
		require.Contains(t, err.Error(), want)
		require.NotContains(t, err.Error(), "hunter2")
		require.NotContains(t, err.Error(), "X-Signature")
		require.NotContains(t, err.Error(), "\n")
	}
}

func TestClosedBeforeAnswer(t *testing.T) {
	d := describe("blob")
	f := serve(t, routes{blobPath(d): func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }})
	_, err := newSource(t, registry.Options{}).Blob(t.Context(), f.host()+"/r:1", d)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.NotErrorIs(t, err, io.EOF)
	require.True(t, asError(t, err).Temporary())
}

func TestManifestBreaksOff(t *testing.T) {
	f := serve(t, routes{"/v2/r/manifests/1": answer("{", "Content-Length", "9")})
	_, _, err := newSource(t, registry.Options{}).Resolve(t.Context(), f.host()+"/r:1")
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.True(t, asError(t, err).Temporary())
}

func TestHeaderTimeout(t *testing.T) {
	f := serve(t, routes{"/v2/r/manifests/1": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }})
	_, _, err := newSource(t, registry.Options{HeaderTimeout: 20 * time.Millisecond}).Resolve(t.Context(), f.host()+"/r:1")
	require.True(t, asError(t, err).Temporary())
	require.Contains(t, err.Error(), "timeout")
}

func TestCancelled(t *testing.T) {
	for _, path := range []string{"/v2/", "/token", "/v2/r/manifests/1"} {
		t.Run(path, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			r := tokenRoutes(nil)
			r[path] = func(_ http.ResponseWriter, r *http.Request) {
				cancel(errors.New("elsewhere")) // the cause is not the network's
				<-r.Context().Done()
			}
			f := serve(t, r)
			_, _, err := newSource(t, registry.Options{}).Resolve(ctx, f.host()+"/r:1")
			require.ErrorIs(t, err, context.Canceled)
			require.True(t, asError(t, err).Temporary())
			require.Len(t, f.got(path), 1)
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	_, _, err := newSource(t, registry.Options{}).Resolve(ctx, "127.0.0.1:1/r:1")
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestErrorCode(t *testing.T) {
	for _, row := range []struct {
		err  *registry.Error
		code string
	}{
		{&registry.Error{Status: 401}, "denied"},
		{&registry.Error{Status: 403, Code: "DENIED"}, "denied"},
		{&registry.Error{Status: 404}, "not-found"},
		{&registry.Error{Status: 429}, "http-429"},
		{&registry.Error{Err: context.Canceled}, "cancelled"},
		{&registry.Error{Err: fmt.Errorf("x: %w", registry.ErrTLS)}, "tls"},
		{&registry.Error{Err: registry.ErrPlainHTTP}, "plain-http"},
		{&registry.Error{Err: registry.ErrReference}, "reference"},
		{&registry.Error{Err: registry.ErrTooLarge}, "limit-exceeded"},
		{&registry.Error{Err: &registry.SizeError{}}, "digest"},
		{&registry.Error{Err: io.ErrUnexpectedEOF}, "network"},
	} {
		require.Equal(t, row.code, row.err.ErrorCode(), row.err)
	}
}

// TestMessagesName: a reference without a tag is shown with the one that was asked for, and
// a digest once.
func TestMessagesName(t *testing.T) {
	d := describe("blob")
	f := serve(t, routes{"/v2/r/manifests/latest": status(404, ""), "/v2/r/manifests/" + d.Digest.String(): status(200, "other")})
	s := newSource(t, registry.Options{})
	_, _, err := s.Resolve(t.Context(), "docker://"+f.host()+"/r")
	require.EqualError(t, err, "registry: manifest "+f.host()+"/r:latest: 404 Not Found")
	_, _, err = s.Resolve(t.Context(), f.host()+"/r@"+d.Digest.String())
	require.ErrorIs(t, err, registry.ErrDigest)
	require.Equal(t, 1, strings.Count(err.Error(), d.Digest.String()), "%v", err)
}

// TestNotMade: a Source that New has not made gives errors.
func TestNotMade(t *testing.T) {
	for _, s := range []*registry.Source{nil, {}} {
		_, _, err := s.Resolve(t.Context(), "h/r:1")
		require.ErrorContains(t, err, "not made by New")
		require.False(t, asError(t, err).Temporary())
		_, err = s.Blob(t.Context(), "h/r:1", describe("blob"))
		require.ErrorContains(t, err, "not made by New")
		require.NoError(t, s.Close())
	}
}
