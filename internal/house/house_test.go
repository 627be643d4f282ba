// Package house holds the test of the house's order: which folder may import which.
package house

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/archdisk/archdisk"

// floors are the top-level folders from the top down. A folder with its subtree is one
// floor; imports go down, or stay on it.
func floors() []string {
	return []string{"examples", "importer", "platform", "qcow", "arch", "endian", "internal", "testdata"}
}

// imports returns what each file of the module that is no test imports, by its path.
func imports(t *testing.T) map[string][]string {
	t.Helper()
	root := filepath.Join("..", "..")
	found := map[string][]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(root, path)
		name = filepath.ToSlash(name)
		if d.IsDir() && strings.HasPrefix(d.Name(), ".") && name != "." {
			return fs.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		found[name] = []string{}
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			found[name] = append(found[name], imported)
		}
		return nil
	})
	require.NoError(t, err)
	require.Greater(t, len(found), 40, "the walk has not seen the module")
	return found
}

func floorOf(path string) int {
	top, _, _ := strings.Cut(path, "/")
	return slices.Index(floors(), top)
}

// violations returns the imports that break the order.
func violations(files map[string][]string) []string {
	var bad []string
	for file, list := range files {
		from := floorOf(file)
		for _, imported := range list {
			local, isLocal := strings.CutPrefix(imported, module+"/")
			if why := judge(file, from, local, isLocal, imported); why != "" {
				bad = append(bad, file+" imports "+imported+": "+why)
			}
		}
	}
	slices.Sort(bad)
	return bad
}

func judge(file string, from int, local string, isLocal bool, imported string) string {
	if from < 0 {
		return "the file is on no floor"
	}
	if !isLocal {
		return judgeForeign(file, imported)
	}
	to := floorOf(local)
	dir := filepath.ToSlash(filepath.Dir(file))
	switch {
	case to < from:
		return "goes up"
	case strings.HasPrefix(file, "internal/golden/") && local == "testdata":
		return ""
	case leaf(dir):
		return "a leaf imports nothing of the module"
	case isFormat(dir) && isFormat(local) && dir != local:
		return "formats never import each other"
	case dir == "qcow/disk" && (isFormat(local) || local == "qcow/formats"), isFormat(dir) && local == "qcow/formats":
		return "formats know disk and endian, and nothing knows them but the table"
	case local == "internal/golden" && floors()[from] != "examples", local == "internal/peer", strings.HasSuffix(local, "test"):
		return "for tests and the demo"
	}
	return ""
}

// leaf says whether a folder may import nothing of the module.
func leaf(dir string) bool {
	return dir == "arch" || dir == "endian" || strings.HasPrefix(dir, "internal/")
}

// isFormat says whether a folder is one disk image format.
func isFormat(dir string) bool {
	return slices.Contains([]string{"qcow", "qcow/vmdk", "qcow/vhd", "qcow/vhdx", "qcow/vdi"}, dir)
}

// judgeForeign keeps heavy modules where they belong: a module's requirements reach whoever
// imports any of it.
func judgeForeign(file, imported string) string {
	for prefix, place := range map[string]string{
		"github.com/containers/":                 "importer/containers/",
		"github.com/google/go-containerregistry": "importer/registry/",
		"github.com/spf13/cobra":                 "examples/",
		"github.com/vbauerster/mpb":              "examples/",
		"github.com/prometheus/":                 "examples/cdi-importer/",
		"k8s.io/":                                "examples/cdi-importer/",
		"golang.org/x/sys":                       "importer/target/",
		"github.com/stretchr/testify":            "qcow/disk/disktest/",
		"github.com/diskfs/":                     "nowhere",
	} {
		if strings.HasPrefix(imported, prefix) && !strings.HasPrefix(file, place) && !strings.HasPrefix(file, "examples/") {
			return "belongs to " + place
		}
	}
	if (imported == "syscall" || imported == "unsafe") && !strings.HasPrefix(file, "importer/target/") &&
		!strings.HasPrefix(file, "examples/") && file != "importer/errors.go" {
		return "system calls live in importer/target"
	}
	if imported == "C" {
		return "no cgo"
	}
	return ""
}

func TestImportsGoDown(t *testing.T) {
	require.Empty(t, violations(imports(t)))
}

// TestViolationsAreSeen: the test above can fail.
func TestViolationsAreSeen(t *testing.T) {
	for _, tt := range []struct{ file, imported string }{
		{"qcow/header.go", module + "/importer"},
		{"arch/arch.go", module + "/endian"},
		{"arch/arch.go", module + "/internal/inflate"},
		{"platform/select.go", module + "/importer/registry"},
		{"internal/inflate/x.go", module + "/endian"},
		{"qcow/vmdk/x.go", module + "/qcow"},
		{"qcow/vhd/x.go", module + "/qcow/formats"},
		{"qcow/disk/x.go", module + "/qcow"},
		{"importer/import.go", module + "/internal/golden"},
		{"importer/import.go", "github.com/google/go-containerregistry/pkg/name"},
		{"importer/registry/x.go", "github.com/containers/image/v5/docker"},
		{"importer/x.go", "github.com/spf13/cobra"},
		{"qcow/x.go", "k8s.io/api/core/v1"},
		{"qcow/x.go", "syscall"},
		{"qcow/x.go", "C"},
		{"util/x.go", "fmt"},
	} {
		require.Len(t, violations(map[string][]string{tt.file: {tt.imported}}), 1, "%s imports %s", tt.file, tt.imported)
	}
	require.Empty(t, violations(map[string][]string{
		"qcow/header.go":      {module + "/qcow/disk", module + "/endian", "fmt"},
		"importer/import.go":  {module + "/importer/archive", module + "/platform", module + "/qcow/formats"},
		"examples/a/main.go":  {module + "/internal/golden", "github.com/spf13/cobra"},
		"qcow/disk/decode.go": {module + "/internal/inflate"},
	}))
}

// TestTopLevel: nothing else stands beside the floors, but for files that are no part of
// the repository, such as a binary that somebody has built.
func TestTopLevel(t *testing.T) {
	root := filepath.Join("..", "..")
	entries, err := os.ReadDir(root)
	require.NoError(t, err)
	for _, e := range entries {
		name := e.Name()
		ok := strings.HasPrefix(name, ".") || slices.Contains([]string{"go.mod", "go.sum", "LICENSE"}, name) ||
			strings.HasSuffix(name, ".md") || e.IsDir() && slices.Contains(floors(), name) ||
			e.Type().IsRegular() && untracked(root, name)
		require.True(t, ok, "%s does not belong at the top level", name)
	}
}

// untracked says that git does not know a file of dir; false where there is no git to ask.
func untracked(dir, name string) bool {
	if _, err := os.Stat(filepath.Join(dir, ".git")); err != nil {
		return false
	}
	tracked, err := git(dir, "ls-files", "--", name)
	return err == nil && len(tracked) == 0
}

// git runs git in dir, without what a hook that runs the tests has set for its own.
func git(dir string, args ...string) ([]byte, error) {
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}
	return cmd.Output()
}

func TestUntracked(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"known", "built"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	require.False(t, untracked(dir, "built"), "no repository")
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not installed")
	}
	for _, args := range [][]string{{"init", "-q"}, {"add", "known"}} {
		_, err := git(dir, args...)
		require.NoError(t, err)
	}
	require.True(t, untracked(dir, "built"))
	require.False(t, untracked(dir, "known"))
	t.Setenv("PATH", "")
	require.False(t, untracked(dir, "built"), "no git")
}
