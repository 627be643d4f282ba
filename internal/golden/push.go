package golden

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Push puts the image into a registry: base is its address ("http://127.0.0.1:5000"), repo the
// repository, tag the name that Root gets. What is referred to goes first. A nil client is
// [http.DefaultClient].
// Spec: distribution-spec, Pushing a blob monolithically (POST then PUT), Pushing manifests.
func (i *Image) Push(ctx context.Context, client *http.Client, base, repo, tag string) error {
	if client == nil {
		client = http.DefaultClient
	}
	p := pusher{client: client, prefix: strings.TrimSuffix(base, "/") + "/v2/" + repo}
	for _, id := range i.store.order {
		it := i.store.items[id]
		push := p.blob
		if it.manifest {
			push = p.manifest
		}
		if err := push(ctx, it.descriptor, it.content); err != nil {
			return err
		}
	}
	return p.named(ctx, tag, i.store.items[i.Root.Digest])
}

type pusher struct {
	client *http.Client
	prefix string // URL of the repository
}

func (p pusher) blob(ctx context.Context, d ocispec.Descriptor, content []byte) error {
	location, err := p.send(ctx, request{http.MethodPost, p.prefix + "/blobs/uploads/", "", nil, http.StatusAccepted})
	if err != nil {
		return err
	}
	q := location.Query()
	q.Set("digest", d.Digest.String())
	location.RawQuery = q.Encode()
	_, err = p.send(ctx, request{http.MethodPut, location.String(), "application/octet-stream", content, http.StatusCreated})
	return err
}

func (p pusher) manifest(ctx context.Context, d ocispec.Descriptor, content []byte) error {
	return p.named(ctx, d.Digest.String(), item{descriptor: d, content: content})
}

func (p pusher) named(ctx context.Context, name string, it item) error {
	_, err := p.send(ctx, request{
		http.MethodPut, p.prefix + "/manifests/" + name, it.descriptor.MediaType, it.content, http.StatusCreated,
	})
	return err
}

type request struct {
	method, url, mediaType string
	body                   []byte
	want                   int // status
}

// send does a request and returns the absolute form of the response's Location.
func (p pusher) send(ctx context.Context, r request) (*url.URL, error) {
	req, err := http.NewRequestWithContext(ctx, r.method, r.url, bytes.NewReader(r.body))
	if err != nil {
		return nil, fmt.Errorf("golden: %w", err)
	}
	if r.mediaType != "" {
		req.Header.Set("Content-Type", r.mediaType)
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("golden: %w", err)
	}
	defer resp.Body.Close()
	said, err := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
	if err != nil {
		return nil, fmt.Errorf("golden: %s %s: %w", r.method, req.URL.Path, err)
	}
	if resp.StatusCode != r.want {
		return nil, fmt.Errorf("golden: %s %s: %s: %q", r.method, req.URL.Path, resp.Status, said)
	}
	location, err := resp.Location()
	if err != nil { // which a manifest's may lack
		return req.URL, nil
	}
	return location, nil
}
