package registry_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Whoever imports this package gets what it needs to talk to a registry, and
// no other tool's machinery.
func TestDependencies(t *testing.T) {
	if testing.Short() {
		t.Skip("runs the go command")
	}
	tool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("no go command: ", err)
	}
	out, err := exec.CommandContext(t.Context(), tool, "list", "-deps", ".").Output()
	require.NoError(t, err)
	deps := strings.Fields(string(out))
	require.Contains(t, deps, "github.com/google/go-containerregistry/pkg/v1/remote/transport")
	require.NotContains(t, deps, "github.com/google/go-containerregistry/pkg/v1/remote", "its fetchers have their own retries and limits")
	for _, dep := range deps {
		for _, kept := range []string{
			"github.com/containers/", "go.podman.io/", "k8s.io/", "sigs.k8s.io/",
			"github.com/spf13/cobra", "github.com/prometheus/", "github.com/stretchr/testify",
		} {
			require.False(t, strings.HasPrefix(dep, kept), dep)
		}
		if rest, ours := strings.CutPrefix(dep, "github.com/archdisk/archdisk/"); ours {
			require.True(t, rest == "importer/registry", dep)
		}
	}
}
