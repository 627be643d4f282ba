package main

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/archdisk/archdisk/importer/registry"
	"github.com/archdisk/archdisk/platform"
	"github.com/archdisk/archdisk/qcow/disk"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/spf13/cobra"
)

// size is a number of bytes on the command line: plain, or with Ki, Mi, Gi, Ti.
type size int64

func (s *size) String() string { return strconv.FormatInt(int64(*s), 10) }
func (s *size) Type() string   { return "N" }

func (s *size) Set(text string) error {
	number, shift := text, 0
	for i, suffix := range []string{"Ki", "Mi", "Gi", "Ti"} {
		if n, ok := strings.CutSuffix(text, suffix); ok {
			number, shift = n, 10*(i+1)
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n <= 0 || n > (1<<62)>>shift {
		return fmt.Errorf("a size is a number of bytes, or of Ki, Mi, Gi or Ti: not %q", text)
	}
	*s = size(n << shift)
	return nil
}

// memory is the budget of an import.
type memory struct{ size }

// leastMemory is what an import of an image with clusters of 64 KiB, the usual ones, needs.
const leastMemory = 3 << 20

func (m *memory) Set(text string) error {
	var n size
	if err := n.Set(text); err != nil {
		return err
	}
	if n < leastMemory {
		return fmt.Errorf("%dMi is the least that an import needs", leastMemory>>20)
	}
	m.size = n
	return nil
}

func (m *memory) budget() *disk.Budget { return disk.NewBudget(int64(m.size)) }

// choice is a flag that takes one of a few words.
type choice struct {
	value string
	words []string
}

// oneOf returns the choice among words; the first is the default.
func oneOf(words ...string) choice { return choice{words[0], words} }

func (c *choice) String() string { return c.value }
func (c *choice) Type() string   { return "WORD" }

func (c *choice) Set(text string) error {
	if !slices.Contains(c.words, text) {
		return fmt.Errorf("unknown value; it is one of %s", strings.Join(c.words, ", "))
	}
	c.value = text
	return nil
}

// notYet refuses flags whose work does not exist yet, unless they ask for nothing.
func notYet(c *cobra.Command, neutral map[string]string) error {
	for name, value := range neutral {
		f := c.Flags().Lookup(name)
		if f != nil && f.Changed && f.Value.String() != value {
			return usage("--%s %s is not available yet", name, f.Value)
		}
	}
	return nil
}

// sourceFlags say how registries are reached.
type sourceFlags struct {
	insecure      bool
	authFile      string
	username      string
	passwordStdin bool
	certDir       string
}

func (f *sourceFlags) add(c *cobra.Command) {
	c.Flags().BoolVar(&f.insecure, "insecure", false, "allow plain http and unverified TLS for the reference's host")
	c.Flags().StringVar(&f.authFile, "auth-file", "", "docker config.json or auth.json with credentials, in `F`")
	c.Flags().StringVar(&f.username, "username", "", "user `U` of the registry, with --password-stdin")
	c.Flags().BoolVar(&f.passwordStdin, "password-stdin", false, "read the password from standard input")
	c.Flags().StringVar(&f.certDir, "cert-dir", "", "further certificates, in directory `D`")
}

// open returns the source for a reference, and the reference as that source takes it.
func (f *sourceFlags) open(c *cobra.Command, ref string) (*registry.Source, error) {
	if isPath(ref) {
		return nil, usage("%s is not a reference: host/repository:tag is expected", ref)
	}
	for _, transport := range []string{"oci:", "oci-archive:", "docker-archive:", "dir:"} {
		if strings.HasPrefix(ref, transport) {
			return nil, usage("references of the form %s... are not available yet", transport)
		}
	}
	if err := notYet(c, map[string]string{"cert-dir": ""}); err != nil {
		return nil, err
	}
	keychain, err := f.keychain(c.InOrStdin())
	if err != nil {
		return nil, err
	}
	o := registry.Options{Keychain: keychain, Proxy: http.ProxyFromEnvironment}
	if f.insecure {
		host := hostOf(ref)
		o.Insecure = func(h string) bool { return h == host }
	}
	return registry.New(o), nil
}

// isPath says whether a name can only be a path, or standard input, and no reference.
func isPath(name string) bool {
	first, _, _ := strings.Cut(name, "/")
	return slices.Contains([]string{"", ".", "..", "~", "-"}, first)
}

// hostOf returns the host of a reference as it stands there.
func hostOf(ref string) string {
	host, _, _ := strings.Cut(strings.TrimPrefix(ref, "docker://"), "/")
	return host
}

func (f *sourceFlags) keychain(in io.Reader) (authn.Keychain, error) {
	switch {
	case f.passwordStdin != (f.username != ""):
		return nil, usage("--username and --password-stdin go together")
	case f.username != "" && f.authFile != "":
		return nil, usage("--auth-file and --username exclude each other")
	case f.username != "":
		line, err := bufio.NewReader(io.LimitReader(in, 64<<10)).ReadString('\n')
		if err != nil && err != io.EOF {
			return nil, fmt.Errorf("password from standard input: %w", err)
		}
		return registry.Basic(f.username, strings.TrimRight(line, "\r\n")), nil
	case f.authFile != "":
		p, err := os.ReadFile(f.authFile)
		if err != nil {
			return nil, fmt.Errorf("credentials: %w", err)
		}
		keychain, err := registry.ConfigKeychain(p)
		if err != nil {
			return nil, fmt.Errorf("credentials in %s: %w", f.authFile, err)
		}
		return keychain, nil
	}
	return authn.DefaultKeychain, nil
}

// parseArch reads --arch: an architecture, perhaps with its variant.
func parseArch(text string) (platform.Want, error) {
	want, err := platform.ParseWant(text)
	if err != nil {
		return want, usage("--arch: %v", err)
	}
	return want, nil
}
