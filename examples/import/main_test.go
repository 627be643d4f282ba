package main

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/archdisk/archdisk/internal/golden"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/stretchr/testify/require"
)

func TestRun(t *testing.T) {
	srv := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer srv.Close()
	require.NoError(t, golden.Docker().Push(t.Context(), http.DefaultClient, srv.URL, "x", "1"))
	ref := strings.TrimPrefix(srv.URL, "http://") + "/x:1"
	for _, d := range golden.Disks() {
		file := filepath.Join(t.TempDir(), "disk.img")
		require.NoError(t, run(t.Context(), ref, d.Arch, file))
		disk, err := os.ReadFile(file)
		require.NoError(t, err)
		sum := sha256.Sum256(disk)
		require.Equal(t, d.SHA256, hex.EncodeToString(sum[:]))
	}
	require.ErrorContains(t, run(t.Context(), ref, "z80", "x"), "unknown architecture")
	require.ErrorContains(t, run(t.Context(), ref, "riscv64", filepath.Join(t.TempDir(), "x")), "linux/s390x")
}

// TestReadmeShowsThis: the README's program is this one.
func TestReadmeShowsThis(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	require.NoError(t, err)
	program, err := os.ReadFile("main.go")
	require.NoError(t, err)
	body := string(program[strings.Index(string(program), "func run("):])
	require.Contains(t, string(readme), body)
}
