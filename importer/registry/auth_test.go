package registry_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/stretchr/testify/require"

	"github.com/archdisk/archdisk/importer/registry"
)

// tokenRoutes is a registry with a token server at its own address. It gives
// tokens to everybody for whom allow, if any, returns true.
func tokenRoutes(allow func(*http.Request) bool) routes {
	guarded := func(h http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") == "Bearer good" {
				h(w, r)
				return
			}
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="http://%s/token",service="here"`, r.Host))
			status(http.StatusUnauthorized, `{"errors":[{"code":"UNAUTHORIZED"}]}`)(w, r)
		}
	}
	return routes{
		"/v2/":                          guarded(answer("")),
		"/v2/r/manifests/1":             guarded(answer(manifestDoc)),
		blobPath(describe(manifestDoc)): guarded(answer(manifestDoc)),
		"/token": func(w http.ResponseWriter, r *http.Request) {
			if allow != nil && !allow(r) {
				status(http.StatusUnauthorized, `{"errors":[{"code":"UNAUTHORIZED","message":"not hunter2"}]}`)(w, r)
				return
			}
			io.WriteString(w, `{"token":"good"}`)
		},
	}
}

func TestToken(t *testing.T) {
	f := serve(t, tokenRoutes(nil))
	s := newSource(t, registry.Options{})
	for range 3 {
		_, _, err := s.Resolve(t.Context(), f.host()+"/r:1")
		require.NoError(t, err)
		_, err = readBlob(t, s, f.host()+"/r:1", describe(manifestDoc))
		require.NoError(t, err)
	}
	require.Len(t, f.got("/v2/"), 1)
	asked := f.got("/token")
	require.Len(t, asked, 1, "one token for all")
	require.Equal(t, "repository:r:pull", asked[0].URL.Query().Get("scope"))
	require.Equal(t, "here", asked[0].URL.Query().Get("service"))
	require.Empty(t, asked[0].Header["Authorization"])
}

func TestTokenWithPassword(t *testing.T) {
	f := serve(t, tokenRoutes(func(r *http.Request) bool {
		u, p, _ := r.BasicAuth()
		return u == user && p == password
	}))
	_, _, err := newSource(t, registry.Options{Keychain: registry.Basic(user, password)}).Resolve(t.Context(), f.host()+"/r:1")
	require.NoError(t, err)
	for _, r := range f.got("/v2/r/manifests/1") {
		require.Equal(t, "Bearer good", r.Header.Get("Authorization"))
	}

	_, _, err = newSource(t, registry.Options{Keychain: registry.Basic(user, "wrong")}).Resolve(t.Context(), f.host()+"/r:1")
	require.ErrorIs(t, err, registry.ErrDenied)
	require.EqualError(t, err, "registry: token "+f.host()+"/r:1: 401 UNAUTHORIZED")
	require.False(t, asError(t, err).Temporary())
	require.NotContains(t, err.Error(), "wrong")
}

func TestIdentityToken(t *testing.T) {
	f := serve(t, tokenRoutes(func(r *http.Request) bool {
		return r.Method == http.MethodPost && r.FormValue("refresh_token") == password
	}))
	keys, err := registry.ConfigKeychain(fmt.Appendf(nil, `{"auths":{%q:{"identitytoken":%q}}}`, f.host(), password))
	require.NoError(t, err)
	_, _, err = newSource(t, registry.Options{Keychain: keys}).Resolve(t.Context(), f.host()+"/r:1")
	require.NoError(t, err)
}

func TestExpiredToken(t *testing.T) {
	r := tokenRoutes(nil)
	tokens := 0
	r["/token"] = func(w http.ResponseWriter, _ *http.Request) {
		tokens++
		if tokens == 1 {
			io.WriteString(w, `{"access_token":"stale"}`)
			return
		}
		io.WriteString(w, `{"access_token":"good"}`)
	}
	f := serve(t, r)
	_, _, err := newSource(t, registry.Options{}).Resolve(t.Context(), f.host()+"/r:1")
	require.NoError(t, err)
	require.Equal(t, 2, tokens)
}

func TestTokenServerFails(t *testing.T) {
	for _, row := range []struct {
		name      string
		token     http.HandlerFunc
		temporary bool
	}{
		{"unavailable", status(503, ""), true},
		{"bad request", status(400, ""), false},
		{"not json", answer("hunter2"), false},
		{"no token", answer(`{"id_token":"hunter2"}`), false},
		{"breaks off", answer("{", "Content-Length", "9"), true},
		{"closes", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, true},
		{"redirects to plain http elsewhere", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://other.example/token?X-Signature=1", http.StatusTemporaryRedirect)
		}, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := tokenRoutes(nil)
			r["/token"] = row.token
			f := serve(t, r)
			_, _, err := newSource(t, registry.Options{}).Resolve(t.Context(), f.host()+"/r:1")
			e := asError(t, err)
			require.Equal(t, "token", e.Op)
			require.Equal(t, row.temporary, e.Temporary(), err)
		})
	}
}

func TestForeignRealm(t *testing.T) {
	for _, realm := range []string{"http://other.example/token", "http://169.254.169.254/token", "https://10.0.0.1/token", "ftp://other.example"} {
		f := serve(t, routes{"/v2/": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+realm+`?X-Signature=1"`)
			w.WriteHeader(http.StatusUnauthorized)
		}})
		_, _, err := newSource(t, registry.Options{Keychain: registry.Basic(user, password)}).Resolve(t.Context(), f.host()+"/r:1")
		require.False(t, asError(t, err).Temporary(), err)
	}
}

func TestBasicAuth(t *testing.T) {
	guarded := func(h http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if u, p, _ := r.BasicAuth(); u == user && p == password {
				h(w, r)
				return
			}
			w.Header().Set("WWW-Authenticate", `Basic realm="hunter2"`)
			status(http.StatusUnauthorized, `{"errors":[{"code":"UNAUTHORIZED"}]}`)(w, r)
		}
	}
	f := serve(t, routes{"/v2/": guarded(answer("")), "/v2/r/manifests/1": guarded(answer(manifestDoc))})
	_, _, err := newSource(t, registry.Options{Keychain: registry.Basic(user, password)}).Resolve(t.Context(), f.host()+"/r:1")
	require.NoError(t, err)

	for _, keys := range []authn.Keychain{nil, registry.Basic(user, "wrong")} {
		_, _, err = newSource(t, registry.Options{Keychain: keys}).Resolve(t.Context(), f.host()+"/r:1")
		require.ErrorIs(t, err, registry.ErrDenied)
		require.EqualError(t, err, "registry: manifest "+f.host()+"/r:1: 401 UNAUTHORIZED")
		require.False(t, asError(t, err).Temporary())
	}
}

type failingKeychain struct{ error }

func (k failingKeychain) Resolve(authn.Resource) (authn.Authenticator, error) { return nil, k.error }

func TestKeychainFails(t *testing.T) {
	f := serve(t, nil)
	keys := failingKeychain{errors.New("no helper\nhunter2")}
	_, _, err := newSource(t, registry.Options{Keychain: keys}).Resolve(t.Context(), f.host()+"/r:1")
	require.EqualError(t, err, "registry: token "+f.host()+"/r:1: no helper")
	require.False(t, asError(t, err).Temporary())
	require.Empty(t, f.requests)
}

func encode(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

func TestConfigKeychain(t *testing.T) {
	login := func(user, password string) authn.AuthConfig {
		return authn.AuthConfig{Username: user, Password: password}
	}
	for _, row := range []struct {
		name, config, repo string
		want               authn.AuthConfig // zero: anonymous
	}{
		{"empty", `{}`, "r.example/a", authn.AuthConfig{}},
		{"null", `null`, "r.example/a", authn.AuthConfig{}},
		{"auth", `{"auths":{"r.example":{"auth":"` + encode("u:p:q") + `"}}}`, "r.example/a", login("u", "p:q")},
		{"auth unpadded", `{"auths":{"r.example":{"auth":"` + strings.TrimRight(encode("u:pp"), "=") + `"}}}`, "r.example/a", login("u", "pp")},
		{"auth padded by docker", `{"auths":{"r.example":{"auth":"` + encode("u:p\x00\x00") + `"}}}`, "r.example/a", login("u", "p")},
		{"auth wins", `{"auths":{"r.example":{"auth":"` + encode("u:p") + `","username":"v","password":"q"}}}`, "r.example/a", login("u", "p")},
		{"apart", `{"auths":{"r.example":{"username":"u","password":"p"}}}`, "r.example/a", login("u", "p")},
		{"kubernetes secret", `{"auths":{"r.example":{"username":"u","password":"p","email":"e@x","auth":"` + encode("u:p") + `"}}}`, "r.example/a", login("u", "p")},
		{"identity token", `{"auths":{"r.example":{"identitytoken":"t"}}}`, "r.example/a", authn.AuthConfig{IdentityToken: "t"}},
		{"identity token by its user", `{"auths":{"r.example":{"auth":"` + encode("<token>:t") + `"}}}`, "r.example/a", authn.AuthConfig{IdentityToken: "t"}},
		{"registry token", `{"auths":{"r.example":{"registrytoken":"t"}}}`, "r.example/a", authn.AuthConfig{RegistryToken: "t"}},
		{"other host", `{"auths":{"r.example":{"username":"u"}}}`, "s.example/a", authn.AuthConfig{}},
		{"other port", `{"auths":{"r.example:5000":{"username":"u"}}}`, "r.example/a", authn.AuthConfig{}},
		{"port", `{"auths":{"r.example:5000":{"username":"u"}}}`, "r.example:5000/a", login("u", "")},
		{"host is no prefix", `{"auths":{"r.example":{"username":"u"}}}`, "r.example.org/a", authn.AuthConfig{}},
		{"url", `{"auths":{"https://r.example/":{"username":"u"}}}`, "r.example/a", login("u", "")},
		{"url with version", `{"auths":{"http://r.example:80/v2/":{"username":"u"}}}`, "r.example:80/a", login("u", "")},
		{"bare wins over url", `{"auths":{"https://r.example":{"username":"v"},"r.example":{"username":"u"},"http://r.example":{"username":"w"}}}`, "r.example/a", login("u", "")},
		{"namespace", `{"auths":{"r.example/n":{"username":"u"},"r.example":{"username":"v"}}}`, "r.example/n/a", login("u", "")},
		{"other namespace", `{"auths":{"r.example/n":{"username":"u"},"r.example":{"username":"v"}}}`, "r.example/nn/a", login("v", "")},
		{"repository", `{"auths":{"r.example/n/a":{"username":"u"},"r.example/n":{"username":"v"}}}`, "r.example/n/a", login("u", "")},
		{"empty entry hides nothing", `{"auths":{"r.example/n":{},"r.example":{"username":"v"}},"credsStore":"desktop"}`, "r.example/n/a", login("v", "")},
		{"hub legacy", `{"auths":{"https://index.docker.io/v1/":{"username":"u"}}}`, "fedora", login("u", "")},
		{"hub", `{"auths":{"docker.io":{"username":"u"}}}`, "docker.io/n/a", login("u", "")},
		{"hub namespace", `{"auths":{"docker.io/n":{"username":"u"},"docker.io":{"username":"v"}}}`, "index.docker.io/n/a", login("u", "")},
		{"hub's other host", `{"auths":{"registry-1.docker.io":{"username":"u"}}}`, "fedora", login("u", "")},
	} {
		t.Run(row.name, func(t *testing.T) {
			keys, err := registry.ConfigKeychain([]byte(row.config))
			require.NoError(t, err)
			repo, err := name.NewRepository(row.repo)
			require.NoError(t, err)
			auth, err := keys.Resolve(repo)
			require.NoError(t, err)
			got, err := auth.Authorization()
			require.NoError(t, err)
			require.Equal(t, row.want, *got)
		})
	}
}

func TestConfigKeychainMalformed(t *testing.T) {
	for config, want := range map[string]string{
		``:                                    "not JSON at byte 0",
		`{"auths":hunter2`:                    "not JSON at byte 10",
		`{"auths":{}} {}`:                     "not JSON at byte 14",
		`[]`:                                  "not a docker config",
		`{"auths":{"h":"hunter2"}}`:           "not a docker config",
		`{"auths":{"h":{"auth":1234}}}`:       "not a docker config",
		`{"auths":{"h":{"auth":"hunter2!"}}}`: `"h": auth is not base64`,
		`{"auths":{"h":{"auth":"` + encode("hunter2") + `"}}}`:            `"h": auth is not user:password`,
		`{"auths":{"http://u:hunter2@h":{"auth":"` + encode("x") + `"}}}`: `"...@h": auth is not user:password`,
	} {
		_, err := registry.ConfigKeychain([]byte(config))
		require.EqualError(t, err, "registry: credentials: "+want)
	}
}

func FuzzConfigKeychain(f *testing.F) {
	for _, seed := range []string{
		`{}`, `null`, `{"auths":null}`, `{"auths":{"h":null}}`,
		`{"auths":{"https://index.docker.io/v1/":{"auth":"dTpw"}}}`,
		`{"auths":{"r.example/n":{"username":"u","password":"p"},"r.example":{"identitytoken":"t"}}}`,
		`{"auths":{"/":{"auth":"Og=="},"":{"username":"x"},"//":{"username":"y"}}}`,
		`{"auths":{"h":{"auth":"%"}}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, config []byte) {
		keys, err := registry.ConfigKeychain(config)
		if err != nil {
			require.NotContains(t, err.Error(), "\n")
			require.Less(t, len(err.Error()), 1200)
			require.Nil(t, keys)
			return
		}
		for _, s := range []string{"r.example/n/a", "h/a", "fedora", "unseen.example/a"} {
			repo, err := name.NewRepository(s)
			require.NoError(t, err)
			auth, err := keys.Resolve(repo)
			require.NoError(t, err)
			got, err := auth.Authorization()
			require.NoError(t, err)
			if s == "unseen.example/a" && !strings.Contains(string(config), "unseen") && !strings.Contains(string(config), `\`) {
				require.Equal(t, authn.AuthConfig{}, *got, "credentials for a host that is not in the config")
			}
			again, err := keys.Resolve(repo)
			require.NoError(t, err)
			require.Equal(t, auth, again)
		}
	})
}
