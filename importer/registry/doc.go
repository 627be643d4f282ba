// Package registry reads manifests and blobs from an OCI distribution registry:
// it is a Source for an import. Authentication is go-containerregistry's, the
// requests are this package's own, so that every byte, redirect and error of
// them is accounted for here.
//
//	keys, err := registry.ConfigKeychain(dockerConfigJSON)
//	src := registry.New(registry.Options{Keychain: keys, Proxy: http.ProxyFromEnvironment})
//	defer src.Close()
//	desc, index, err := src.Resolve(ctx, "quay.io/containerdisks/fedora:41")
//	manifest, err := src.Manifest(ctx, ref, child)   // verified
//	blob, err := src.Blob(ctx, ref, layer)           // streamed; the caller verifies
//	defer blob.Close()
//
//	var e *registry.Error
//	retry := errors.As(err, &e) && e.Temporary()
//
// Not supported: pushing, schema1 manifests (they are handed over, so that the
// caller can name them), credential helpers other than by a keychain that the
// caller brings, foreign layer URLs, and retries: a failure is reported at once,
// and [Error.Temporary] says whether another try may help.
//
// A registry is not trusted. Manifests are bounded and checked against the
// digest they were asked by; digests from a descriptor are validated before
// they become part of a URL; a blob never yields more bytes than its descriptor
// says and never ends early without an error. Plain http and unverified TLS
// need a host's permission, private networks included. Redirects are bounded
// and carry no credentials to another host or port. The text of an error is one
// line without credentials and without the query, which may be a signature, of
// any URL.
package registry
