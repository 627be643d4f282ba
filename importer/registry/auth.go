package registry

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
)

// credentials asks the keychain about a repository.
func (s *Source) credentials(ctx context.Context, repo name.Repository) (authn.Authenticator, error) {
	if s.options.Keychain == nil {
		return authn.Anonymous, nil
	}
	return authn.Resolve(ctx, s.options.Keychain, repo)
}

// Basic returns a keychain with one user for every registry that is asked.
func Basic(user, password string) authn.Keychain {
	return basicKeychain{authn.FromConfig(authn.AuthConfig{Username: user, Password: password})}
}

type basicKeychain struct{ auth authn.Authenticator }

func (k basicKeychain) Resolve(authn.Resource) (authn.Authenticator, error) { return k.auth, nil }

// ConfigKeychain returns a keychain of the credentials in a docker config.json,
// an auth.json of the containers tools, or a Kubernetes secret's
// .dockerconfigjson, given as its content. Of its keys (host, host/namespace,
// host/namespace/repository, and legacy URLs such as
// "https://index.docker.io/v1/") the most specific one that matches wins; a
// repository that none matches is anonymous. Credential helpers named in it are
// not run, and nothing is read but config.
//
// An error names the key that is malformed and shows nothing of its value.
func ConfigKeychain(config []byte) (authn.Keychain, error) {
	var file struct {
		Auths map[string]credential `json:"auths"`
	}
	if err := json.Unmarshal(config, &file); err != nil {
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			return nil, fmt.Errorf("registry: credentials: not JSON at byte %d", syntax.Offset)
		}
		return nil, errors.New("registry: credentials: not a docker config")
	}
	keys := make(configKeychain)
	bare := make(map[string]bool) // keys written without a URL's parts win over those with
	for _, written := range slices.Sorted(maps.Keys(file.Auths)) {
		auth, err := file.Auths[written].decode()
		if err != nil {
			return nil, fmt.Errorf("registry: credentials: %.200q: %w", hideUser(written), err)
		}
		key := normalizeKey(written)
		if auth == (authn.AuthConfig{}) || bare[key] {
			continue
		}
		keys[key] = authn.FromConfig(auth)
		bare[key] = key == written
	}
	return keys, nil
}

// A configKeychain maps "host[/path]" to its credentials.
type configKeychain map[string]authn.Authenticator

func (k configKeychain) Resolve(target authn.Resource) (authn.Authenticator, error) {
	for key := target.String(); ; {
		if auth, ok := k[key]; ok {
			return auth, nil
		}
		slash := strings.LastIndexByte(key, '/')
		if slash < 0 {
			return authn.Anonymous, nil
		}
		key = key[:slash]
	}
}

// normalizeKey returns a key as references write it: no scheme, no API version,
// and one name for Docker Hub.
func normalizeKey(key string) string {
	rest, hadScheme := strings.CutPrefix(key, "https://")
	if !hadScheme {
		rest, hadScheme = strings.CutPrefix(key, "http://")
	}
	rest = strings.TrimRight(rest, "/")
	host, path, _ := strings.Cut(rest, "/")
	if hadScheme && (path == "v1" || path == "v2") {
		path = ""
	}
	switch host {
	case "docker.io", "registry-1.docker.io":
		host = name.DefaultRegistry
	}
	if path == "" {
		return host
	}
	return host + "/" + path
}

// A credential is one entry of "auths".
type credential struct {
	Auth          string `json:"auth"` // base64 of user:password; wins over the two apart
	Username      string `json:"username"`
	Password      string `json:"password"`
	IdentityToken string `json:"identitytoken"`
	RegistryToken string `json:"registrytoken"`
}

func (c credential) decode() (authn.AuthConfig, error) {
	auth := authn.AuthConfig{
		Username:      c.Username,
		Password:      c.Password,
		IdentityToken: c.IdentityToken,
		RegistryToken: c.RegistryToken,
	}
	if c.Auth != "" {
		decoded, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(c.Auth, "=\r\n "))
		if err != nil {
			return authn.AuthConfig{}, errors.New("auth is not base64")
		}
		user, password, ok := strings.Cut(string(decoded), ":")
		if !ok {
			return authn.AuthConfig{}, errors.New("auth is not user:password")
		}
		auth.Username, auth.Password = user, strings.TrimRight(password, "\x00") // docker pads with zeros
	}
	if auth.Username == "<token>" { // what credential helpers call an identity token
		auth = authn.AuthConfig{IdentityToken: auth.Password, RegistryToken: auth.RegistryToken}
	}
	return auth, nil
}
