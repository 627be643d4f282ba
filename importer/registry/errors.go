package registry

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"unicode"

	"github.com/opencontainers/go-digest"
)

// What a caller may do something about. None of these gets better by trying again.
var (
	ErrDenied    = errors.New("access denied")                                              // other credentials: 401, 403
	ErrNotFound  = errors.New("not found")                                                  // another reference: 404
	ErrTLS       = errors.New("tls not trusted")                                            // other roots, another name, a client certificate
	ErrPlainHTTP = errors.New("plain http is allowed only for loopback and insecure hosts") // [Options].Insecure
	ErrReference = errors.New("malformed reference")                                        // of a reference or a descriptor
	ErrTooLarge  = errors.New("manifest is larger than 4 MiB")
	ErrDigest    = errors.New("content is not what was promised") // digest or size
)

// An Error is a request that did not bring what was asked for. Its text is one
// line without credentials, without URL queries and without a server's messages.
type Error struct {
	Op     string // what was asked for: "ping", "token", "manifest" or "blob"
	Ref    string // the reference as given, its tag stated, or, for content asked by digest, repository@digest
	Host   string // the one that answered, or did not; "" if none was asked
	Status int    // of an HTTP answer that refuses, else 0
	Code   string // the registry's code in that answer, such as MANIFEST_UNKNOWN, or ""
	Err    error  // the cause; nil if Status tells it
}

func (e *Error) Error() string {
	var content *DigestError
	text := "registry: " + e.Op + " " + e.Ref + ": "
	switch {
	case e.Status != 0:
		text += fmt.Sprintf("%d %s", e.Status, cmp.Or(e.Code, http.StatusText(e.Status), "unknown status"))
	case errors.As(e.Err, &content) && strings.HasSuffix(e.Ref, "@"+content.Want.String()):
		text += "digest is " + content.Have.String()
	case e.Err != nil:
		text += e.Err.Error()
	}
	if e.Host != "" && e.Ref != e.Host && !strings.HasPrefix(e.Ref, e.Host+"/") {
		text += " (" + e.Host + ")"
	}
	return text
}

// Unwrap returns e.Err.
func (e *Error) Unwrap() error { return e.Err }

// Is gives the HTTP status its sentinel: [ErrDenied] or [ErrNotFound].
func (e *Error) Is(target error) bool {
	switch e.Status {
	case http.StatusUnauthorized, http.StatusForbidden:
		return target == ErrDenied
	case http.StatusNotFound:
		return target == ErrNotFound
	}
	return false
}

// Temporary says whether another try may help: after 408, 429 and 5xx, when
// the network failed (name lookup, connection, timeout, a body that broke off),
// and when the context ended, which is up to the caller. Everything else,
// content that is not as promised and malformed answers included, stays as it is.
func (e *Error) Temporary() bool {
	if e.Status != 0 {
		return e.Status == http.StatusRequestTimeout || e.Status == http.StatusTooManyRequests || e.Status >= 500
	}
	for _, permanent := range []error{ErrTLS, ErrPlainHTTP, ErrReference, ErrTooLarge, ErrDigest} {
		if errors.Is(e.Err, permanent) {
			return false
		}
	}
	var host *hostError
	return errors.As(e.Err, &host) || isNetwork(e.Err) ||
		errors.Is(e.Err, context.Canceled) || errors.Is(e.Err, context.DeadlineExceeded)
}

// ErrorCode names the error for programs: one of "denied", "not-found", "tls", "plain-http",
// "reference", "limit-exceeded", "digest", "cancelled", "http-" and a status, or "network".
func (e *Error) ErrorCode() string {
	for _, c := range []struct {
		err  error
		code string
	}{
		{context.Canceled, "cancelled"},
		{ErrDenied, "denied"}, {ErrNotFound, "not-found"}, {ErrTLS, "tls"}, {ErrPlainHTTP, "plain-http"},
		{ErrReference, "reference"}, {ErrTooLarge, "limit-exceeded"}, {ErrDigest, "digest"},
	} {
		if errors.Is(e, c.err) {
			return c.code
		}
	}
	if e.Status != 0 {
		return fmt.Sprintf("http-%d", e.Status)
	}
	return "network"
}

// A DigestError is content with another digest. It unwraps to [ErrDigest].
type DigestError struct {
	Want, Have digest.Digest
}

func (e *DigestError) Error() string {
	return fmt.Sprintf("digest is %s, want %s", e.Have, e.Want)
}

// Unwrap returns [ErrDigest].
func (e *DigestError) Unwrap() error { return ErrDigest }

// A SizeError is content of another size than its descriptor's, in bytes. It
// unwraps to [ErrDigest].
type SizeError struct {
	Want int64
	Have int64 // as declared by the server, or as read; a stream that is too long is not read on
}

func (e *SizeError) Error() string {
	return fmt.Sprintf("size is %d, want %d", e.Have, e.Want)
}

// Unwrap returns [ErrDigest].
func (e *SizeError) Unwrap() error { return ErrDigest }

// A StreamError is a blob that broke off. It unwraps to [io.ErrUnexpectedEOF],
// whatever the network called it, and to Err.
type StreamError struct {
	Offset int64 // bytes that had come
	Size   int64 // bytes that should have
	Err    error
}

func (e *StreamError) Error() string {
	return fmt.Sprintf("broke off at byte %d of %d: %s", e.Offset, e.Size, scrub(e.Err.Error()))
}

// Unwrap returns [io.ErrUnexpectedEOF] and e.Err.
func (e *StreamError) Unwrap() []error { return []error{io.ErrUnexpectedEOF, e.Err} }

// A hostError is a host that gave no answer, or was not asked for one.
type hostError struct {
	host string
	err  error
}

func (e *hostError) Error() string {
	var dns *net.DNSError
	var cert *tls.CertificateVerificationError
	switch {
	case speaksHTTP(e.err):
		return "server does not speak https; " + ErrPlainHTTP.Error()
	case errors.As(e.err, &dns):
		return scrub("dns: " + dns.Error())
	case errors.As(e.err, &cert):
		return scrub("tls: " + cert.Err.Error())
	case errors.Is(e.err, io.EOF):
		return "server closed the connection"
	}
	return scrub(e.err.Error())
}

// Unwrap returns the sentinel for what happened, if any, and what net reported.
// An end of file is never a clean one here.
func (e *hostError) Unwrap() []error {
	var record tls.RecordHeaderError
	switch {
	case speaksHTTP(e.err):
		return []error{ErrPlainHTTP}
	case isTLS(e.err), errors.As(e.err, &record):
		return []error{ErrTLS, e.err}
	case errors.Is(e.err, io.EOF):
		return []error{io.ErrUnexpectedEOF}
	}
	return []error{e.err}
}

// isTLS says whether two ends that could talk do not trust each other.
func isTLS(err error) bool {
	var cert *tls.CertificateVerificationError
	var op *net.OpError
	return errors.As(err, &cert) || errors.As(err, &op) && op.Op == "remote error" // how crypto/tls reports an alert
}

// speaksHTTP says whether a TLS handshake was answered by plain http.
func speaksHTTP(err error) bool {
	var record tls.RecordHeaderError
	return errors.As(err, &record) && string(record.RecordHeader[:]) == "HTTP/"
}

// isNetwork says whether an error is of the network by its type.
func isNetwork(err error) bool {
	var network net.Error
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.As(withoutURL(err), &network)
}

// withoutURL returns what a [url.Error] wraps: its text has the whole URL, and
// it calls itself a [net.Error].
func withoutURL(err error) error {
	var u *url.Error
	for errors.As(err, &u) {
		err = u.Err
	}
	return err
}

// errorCode returns the first code in a registry's error document, or "".
func errorCode(body []byte) string {
	var document struct {
		Errors []struct {
			Code string `json:"code"`
		} `json:"errors"`
	}
	if json.Unmarshal(body, &document) != nil || len(document.Errors) == 0 {
		return ""
	}
	return cleanCode(document.Errors[0].Code)
}

// cleanCode returns a code of the form that the specification gives them, or "".
func cleanCode(code string) string {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"
	if len(code) > 64 || strings.Trim(code, letters) != "" {
		return ""
	}
	return code
}

// scrub returns the first line of a text, printable and of bounded length, with
// user and query cut from every URL in it.
func scrub(text string) string {
	text, _, _ = strings.Cut(text, "\n")
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
	words := strings.Split(text, " ")
	for i, word := range words {
		scheme, rest, ok := strings.Cut(word, "://")
		if !ok {
			continue
		}
		rest, _, _ = strings.Cut(rest, "?")
		words[i] = scheme + "://" + rest[strings.LastIndex(rest, "@")+1:]
	}
	return fmt.Sprintf("%.300s", strings.Join(words, " "))
}
