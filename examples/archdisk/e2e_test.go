package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/archdisk/archdisk/internal/golden"
	"github.com/archdisk/archdisk/internal/peer"
	"github.com/stretchr/testify/require"
)

// outcome is how one run of the command ended.
type outcome struct {
	code           int
	stdout, stderr string
}

// archdisk runs a command line inside this process.
func archdisk(t testing.TB, stdin io.Reader, args ...string) outcome {
	t.Helper()
	if stdin == nil {
		stdin = strings.NewReader("")
	}
	var stdout, stderr bytes.Buffer
	a := &app{in: stdin, out: &stdout, err: &stderr}
	code := a.run(t.Context(), args)
	return outcome{code, stdout.String(), stderr.String()}
}

// dockerRegistry runs Debian's docker-registry on loopback and returns its address.
func dockerRegistry(t testing.TB) string {
	t.Helper()
	path := peer.Require(t, "docker-registry")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := listener.Addr().String()
	require.NoError(t, listener.Close())
	dir := t.TempDir()
	config := fmt.Sprintf("version: 0.1\nlog: {level: error}\nstorage: {filesystem: {rootdirectory: %s/data}}\nhttp: {addr: %s}\n", dir, addr)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.yml"), []byte(config), 0o600))
	cmd := exec.Command(path, "serve", filepath.Join(dir, "config.yml"))
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	require.Eventually(t, func() bool {
		resp, err := http.Get("http://" + addr + "/v2/")
		if err != nil {
			return false
		}
		return resp.Body.Close() == nil && resp.StatusCode == http.StatusOK
	}, 30*time.Second, 50*time.Millisecond, "docker-registry does not answer: %s", &log)
	return addr
}

// skopeoPush pushes an OCI layout's image, all of its architectures.
func skopeoPush(t testing.TB, image *golden.Image, ref string) {
	t.Helper()
	skopeo := peer.Require(t, "skopeo")
	dir := filepath.Join(t.TempDir(), "layout")
	require.NoError(t, image.WriteLayout(dir, "1"))
	peer.Run(t, skopeo, "copy", "--all", "--dest-tls-verify=false", "oci:"+dir+":1", "docker://"+ref)
}

// qemuRaw returns what qemu-img makes of a disk image file.
func qemuRaw(t testing.TB, file []byte) []byte {
	t.Helper()
	qemu := peer.Require(t, "qemu-img")
	in, out := filepath.Join(t.TempDir(), "in"), filepath.Join(t.TempDir(), "out.raw")
	require.NoError(t, os.WriteFile(in, file, 0o600))
	peer.Run(t, qemu, "convert", "-O", "raw", in, out)
	raw, err := os.ReadFile(out)
	require.NoError(t, err)
	return raw
}

// TestEndToEnd: parts that are not ours serve the image and say what its disks are.
func TestEndToEnd(t *testing.T) {
	addr := dockerRegistry(t)
	ref := addr + "/x:1"
	skopeoPush(t, golden.OCI(), ref)
	require.NoError(t, golden.Docker().Push(t.Context(), http.DefaultClient, "http://"+addr, "list", "1"))

	for name, ref := range map[string]string{"index": ref, "list": "docker://" + addr + "/list:1"} {
		for _, d := range golden.Disks() {
			t.Run(name+"/"+d.Arch, func(t *testing.T) {
				dir := t.TempDir()
				dest := filepath.Join(dir, "out.raw")
				got := archdisk(t, nil, "import", ref, dest, "--arch", d.Arch, "--json")
				require.Zero(t, got.code, got.stderr)
				require.Empty(t, got.stderr)
				disk, err := os.ReadFile(dest)
				require.NoError(t, err)
				require.True(t, bytes.Equal(qemuRaw(t, d.File), disk), "differs from qemu-img's")
				sum := sha256.Sum256(disk)
				require.Equal(t, d.SHA256, hex.EncodeToString(sum[:]))

				var res map[string]any
				require.NoError(t, json.Unmarshal([]byte(got.stdout), &res))
				require.Equal(t, d.Arch, res["platform"].(map[string]any)["architecture"])
				for _, key := range []string{"reference", "index_digest", "manifest_digest", "layer_digest", "entry", "format", "virtual_size",
					"bytes_fetched", "bytes_written", "bytes_zeroed", "passes", "peak_parked", "resumes", "labels", "notes", "seconds"} {
					require.Contains(t, res, key)
				}
				requireOnly(t, dir, "out.raw")
			})
		}
	}

	t.Run("architecture absent", func(t *testing.T) {
		dir := t.TempDir()
		got := archdisk(t, nil, "import", ref, filepath.Join(dir, "out.raw"), "--arch", "riscv64")
		require.Equal(t, 3, got.code)
		for _, arch := range []string{"linux/riscv64", "linux/amd64", "linux/arm64", "linux/s390x"} {
			require.Contains(t, got.stderr, arch)
		}
		requireOneLine(t, got.stderr)
		requireOnly(t, dir)
	})
	t.Run("no architecture asked", func(t *testing.T) {
		got := archdisk(t, nil, "import", ref, filepath.Join(t.TempDir(), "out.raw"))
		require.Equal(t, 3, got.code)
		require.Contains(t, got.stderr, "linux/amd64, linux/arm64, linux/s390x")
	})
	t.Run("no such tag", func(t *testing.T) {
		got := archdisk(t, nil, "import", addr+"/x:none", filepath.Join(t.TempDir(), "out.raw"), "--arch", "amd64")
		require.Equal(t, 3, got.code)
		require.Contains(t, got.stderr, "404")
		requireOneLine(t, got.stderr)
	})
	t.Run("platforms", func(t *testing.T) {
		got := archdisk(t, nil, "platforms", ref)
		require.Zero(t, got.code, got.stderr)
		for _, d := range golden.Disks() {
			require.Contains(t, got.stdout, "linux/"+d.Arch)
		}
	})
	t.Run("probe", func(t *testing.T) {
		got := archdisk(t, nil, "probe", ref, "--arch", "aarch64", "--json")
		require.Zero(t, got.code, got.stderr)
		require.Contains(t, got.stdout, `"format":"qcow2"`)
	})
}

func requireOneLine(t *testing.T, stderr string) {
	t.Helper()
	require.True(t, strings.HasPrefix(stderr, "archdisk: "), stderr)
	require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
}

// requireOnly checks what a directory holds, hidden files included.
func requireOnly(t *testing.T, dir string, names ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var have []string
	for _, e := range entries {
		have = append(have, e.Name())
	}
	require.Equal(t, names, have)
}
