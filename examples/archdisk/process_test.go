package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/archdisk/archdisk/importer"
	"github.com/archdisk/archdisk/internal/golden"
	"github.com/archdisk/archdisk/internal/peer"
	"github.com/stretchr/testify/require"
)

// buildCommand builds archdisk, to be run as a process of its own.
func buildCommand(t testing.TB) string {
	t.Helper()
	host, err := exec.Command("go", "env", "GOHOSTARCH").Output()
	require.NoError(t, err)
	if h := strings.TrimSpace(string(host)); h != runtime.GOARCH {
		t.Skipf("a %s process cannot be started from here: the machine is %s and this test runs under emulation", runtime.GOARCH, h)
	}
	path := filepath.Join(t.TempDir(), "archdisk")
	out, err := exec.Command("go", "build", "-o", path, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return path
}

// runBare runs a command with an environment that offers nothing, and returns what it
// printed and the most memory it had resident, in bytes.
func runBare(t testing.TB, path string, args ...string) (stdout string, peak int64) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Env = []string{"PATH=/nonexistent", "HOME=/nonexistent", "TMPDIR=/nonexistent"}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	require.NoError(t, cmd.Start())
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	// The kernel's figure for a finished child includes its parent's from before exec.
	for tick := time.NewTicker(5 * time.Millisecond); ; {
		select {
		case err := <-done:
			tick.Stop()
			require.NoError(t, err, errs.String())
			require.Empty(t, errs.String())
			return out.String(), peak
		case <-tick.C:
			peak = max(peak, residentPeak(cmd.Process.Pid))
		}
	}
}

// residentPeak reads the high-water mark of a process's resident memory, 0 if it is gone.
func residentPeak(pid int) int64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	_, line, _ := strings.Cut(string(status), "VmHWM:")
	var kib int64
	_, _ = fmt.Sscan(line, &kib)
	return kib << 10
}

// TestProcessBare: no program, no home, no temporary directory is needed.
func TestProcessBare(t *testing.T) {
	path := buildCommand(t)
	out, _ := runBare(t, path, "demo")
	for _, d := range golden.Disks() {
		require.Contains(t, out, d.SHA256)
	}
	addr := dockerRegistry(t)
	skopeoPush(t, golden.OCI(), addr+"/x:1")
	for _, d := range golden.Disks() {
		dest := filepath.Join(t.TempDir(), "out.raw")
		runBare(t, path, "import", addr+"/x:1", dest, "--arch", d.Arch)
		disk, err := os.ReadFile(dest)
		require.NoError(t, err)
		require.True(t, bytes.Equal(qemuRaw(t, d.File), disk))
	}
}

// TestProcessMemory: an import holds neither the blob nor the disk in memory. The disk is
// noise, so that the blob is as large.
func TestProcessMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("a disk of 600 MB is too much for a short run")
	}
	path := buildCommand(t)
	addr := dockerRegistry(t)
	const size = 600 << 20
	for name, compression := range map[string]golden.Compression{"none": golden.None, "gzip": golden.Gzip, "zstd": golden.Zstd} {
		t.Run(name, func(t *testing.T) {
			b := golden.NewBuilder()
			layer := b.Layer(golden.LayerOptions{Compression: compression}, golden.DiskEntries(noise(size))...)
			image := b.Build(b.Index(golden.IndexOptions{}, b.Image(golden.ImageOptions{Arch: "s390x"}, layer)))
			require.NoError(t, image.Push(t.Context(), http.DefaultClient, "http://"+addr, "big", name))
			dest := filepath.Join(t.TempDir(), "out.raw")
			_, peak := runBare(t, path, "import", addr+"/big:"+name, dest, "--arch", "s390x")
			info, err := os.Stat(dest)
			require.NoError(t, err)
			require.EqualValues(t, size, info.Size())
			t.Logf("import of %d MiB: at most %.1f MiB resident", size>>20, float64(peak)/(1<<20))
			require.Less(t, peak, int64(96<<20))
		})
	}
}

// TestProcessPasses: an image that was resized has its first table at its end, behind more data
// than memory may hold. The table that it had before serves; where that is gone, the image is
// fetched again, and from a pipe is refused or needs scratch.
func TestProcessPasses(t *testing.T) {
	if testing.Short() {
		t.Skip("a disk of 200 MiB is too much for a short run")
	}
	qemu := peer.Require(t, "qemu-img")
	path, dir := buildCommand(t), t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	require.NoError(t, os.WriteFile(at("in.raw"), noise(200<<20), 0o600))
	peer.Run(t, qemu, "convert", "-f", "raw", "-O", "qcow2", at("in.raw"), at("m.qcow2"))
	peer.Run(t, qemu, "resize", "-q", "-f", "qcow2", at("m.qcow2"), "20G")
	require.NoError(t, os.Remove(at("in.raw")))
	same := func() {
		t.Helper()
		peer.Run(t, qemu, "compare", "-f", "raw", "-F", "qcow2", at("out.raw"), at("m.qcow2"))
		require.NoError(t, os.Remove(at("out.raw")))
	}
	image, err := os.ReadFile(at("m.qcow2"))
	require.NoError(t, err)
	pipe := func(args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), path, append([]string{"convert", "-", at("out.raw")}, args...)...)
		cmd.Stdin = io.MultiReader(bytes.NewReader(image))
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	addr := dockerRegistry(t)
	fetch := func(tag string) importer.Result {
		b := golden.NewBuilder()
		layer := b.Layer(golden.LayerOptions{Compression: golden.Gzip}, golden.DiskEntries(image)...)
		require.NoError(t, b.Build(b.Index(golden.IndexOptions{}, b.Image(golden.ImageOptions{Arch: "arm64"}, layer))).
			Push(t.Context(), http.DefaultClient, "http://"+addr, "late", tag))
		out, peak := runBare(t, path, "import", addr+"/late:"+tag, at("out.raw"), "--arch", "arm64", "--json")
		var res importer.Result
		require.NoError(t, json.Unmarshal([]byte(out), &res))
		t.Logf("old table %s: %d passes, %d bytes parked, at most %.1f MiB resident", tag, res.Passes, res.PeakParked, float64(peak)/(1<<20))
		require.Less(t, peak, int64(96<<20))
		same()
		return res
	}

	require.Equal(t, 1, fetch("there").Passes)
	text, err := pipe()
	require.NoError(t, err, text)
	same()

	copy(image[3<<16:], bytes.Repeat([]byte{0xff}, 1<<16))
	require.Greater(t, fetch("gone").Passes, 1)
	text, err = pipe("--scratch", dir)
	require.NoError(t, err, text)
	same()
	text, err = pipe()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit, text)
	require.Equal(t, exitPermanent, exit.ExitCode())
	require.Regexp(t, `up to 2[0-9]{8} bytes have to be kept.*--scratch`, text)
	require.NoFileExists(t, at("out.raw"))
}

// noise returns n bytes that do not compress.
func noise(n int) []byte {
	p := make([]byte, n)
	x := uint64(88172645463325252)
	for i := 0; i+8 <= n; i += 8 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		for j := range 8 {
			p[i+j] = byte(x >> (8 * j))
		}
	}
	return p
}
