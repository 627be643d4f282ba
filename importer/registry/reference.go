package registry

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// A place is where one manifest or blob lies: what a request needs of it, and
// what an error shows.
type place struct {
	text   string // for errors
	repo   name.Repository
	id     string        // tag or digest
	digest digest.Digest // "" for a tag
}

func parse(op, ref string) (place, error) {
	text := strings.TrimPrefix(ref, "docker://")
	parsed, err := name.ParseReference(text, name.WeakValidation)
	if err != nil {
		err := fmt.Errorf("%w: want [host/]repository[:tag][@digest]", ErrReference)
		return place{}, &Error{Op: op, Ref: scrub(hideUser(text)), Err: err}
	}
	at := place{text: text, repo: parsed.Context(), id: parsed.Identifier()}
	if d, ok := parsed.(name.Digest); ok {
		at.digest = digest.Digest(d.DigestStr())
	} else if !strings.HasSuffix(text, ":"+at.id) {
		at.text += ":" + at.id
	}
	return at, nil
}

// parseAt returns the place of d in ref's repository. The digest may come from
// a hostile manifest: it is checked before it can become part of a URL.
func parseAt(op, ref string, d ocispec.Descriptor) (place, error) {
	at, err := parse(op, ref)
	if err != nil {
		return place{}, err
	}
	if err := d.Digest.Validate(); err != nil {
		return place{}, at.fail(op, fmt.Errorf("%w: descriptor with digest %.100q", ErrReference, d.Digest))
	}
	if d.Size < 0 {
		return place{}, at.fail(op, fmt.Errorf("%w: descriptor with size %d", ErrReference, d.Size))
	}
	return place{text: at.repo.Name() + "@" + d.Digest.String(), repo: at.repo, id: d.Digest.String(), digest: d.Digest}, nil
}

// url returns the address of the place. The scheme is the session's to correct.
func (p place) url(kind string) string {
	return "https://" + p.host() + "/v2/" + p.repo.RepositoryStr() + "/" + kind + "/" + p.id
}

func (p place) host() string { return p.repo.RegistryStr() }

// fail returns an error that was found here, in what the server sent.
func (p place) fail(op string, err error) *Error {
	return &Error{Op: op, Ref: p.text, Host: p.host(), Err: err}
}

// failure returns the error of a request that got no useful answer. It keeps
// of err what is known to hold no secret.
func (p place) failure(ctx context.Context, op string, err error) *Error {
	e := p.fail(op, nil)
	var status *transport.Error
	var host *hostError
	switch {
	case ctx.Err() != nil:
		e.Err = ctx.Err()
	case errors.As(err, &status): // only go-containerregistry's own requests: the ping and the token's
		if op != "ping" {
			e.Op = "token"
		}
		e.Status = status.StatusCode
		if len(status.Errors) > 0 {
			e.Code = cleanCode(string(status.Errors[0].Code))
		}
		if status.Request != nil {
			e.Host = status.Request.URL.Host
		}
	case errors.As(err, &host):
		e.Host, e.Err = host.host, host
	case isNetwork(err): // while go-containerregistry read a body
		e.Err = &hostError{p.host(), withoutURL(err)}
	default:
		e.Err = errors.New(scrub(withoutURL(err).Error()))
	}
	return e
}

// hideUser removes user and password from what was meant to be a reference.
func hideUser(ref string) string {
	at := strings.LastIndexByte(ref, '@')
	if at >= 0 && strings.HasPrefix(ref[at+1:], "sha") && !strings.Contains(ref[at:], "/") {
		at = strings.LastIndexByte(ref[:at], '@') // the last one belongs to a digest
	}
	if at < 0 {
		return ref
	}
	return "..." + ref[at:]
}
