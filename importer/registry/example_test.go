package registry_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/archdisk/archdisk/importer/registry"
)

func ExampleSource() {
	layer := ocispec.Descriptor{
		Digest: "sha256:fa2c8cc4f28176bbeed4b736df569a34c79cd3723e9ec42f9674b4d46ac6b8b8",
		Size:   4,
	}
	server := newFake(routes{
		"/v2/r/manifests/1":                    answer(manifestDoc),
		"/v2/r/blobs/" + layer.Digest.String(): answer("blob"),
		"/v2/r/manifests/private":              status(http.StatusForbidden, `{"errors":[{"code":"DENIED"}]}`),
	})
	server.Start()
	defer server.Close()

	src := registry.New(registry.Options{})
	defer src.Close()
	ctx := context.Background()

	desc, _, err := src.Resolve(ctx, server.host()+"/r:1")
	fmt.Println(desc.MediaType, desc.Size, err)

	blob, err := src.Blob(ctx, server.host()+"/r:1", layer)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer blob.Close()
	content, err := io.ReadAll(blob) // to be hashed and compared with layer.Digest
	fmt.Println(string(content), err)

	_, _, err = src.Resolve(ctx, server.host()+"/r:private")
	var e *registry.Error
	if errors.As(err, &e) {
		fmt.Println(e.Status, e.Code, errors.Is(err, registry.ErrDenied), e.Temporary())
	}
	// Output:
	// application/vnd.oci.image.manifest.v1+json 88 <nil>
	// blob <nil>
	// 403 DENIED true false
}
