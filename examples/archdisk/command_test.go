package main

import (
	"bytes"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/archdisk/archdisk/importer"
	"github.com/archdisk/archdisk/internal/golden"
	"github.com/archdisk/archdisk/testdata"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/stretchr/testify/require"
)

// serveGolden serves the golden image on loopback and returns its reference.
func serveGolden(t *testing.T) string {
	t.Helper()
	srv := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(srv.Close)
	require.NoError(t, golden.Docker().Push(t.Context(), http.DefaultClient, srv.URL, "x", "1"))
	return strings.TrimPrefix(srv.URL, "http://") + "/x:1"
}

// write puts a fixture or other bytes into a file.
func write(t *testing.T, name string, p []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, p, 0o600))
	return path
}

func TestDemo(t *testing.T) {
	got := archdisk(t, nil, "demo")
	require.Zero(t, got.code, got.stderr)
	for _, d := range golden.Disks() {
		require.Contains(t, got.stdout, d.SHA256)
	}
}

// TestUsage: what is wrong with a command line exits 2 and says so on one line.
func TestUsage(t *testing.T) {
	for _, tt := range []struct {
		line string
		text string
	}{
		{"bogus", `unknown command "bogus"`},
		{"import", "accepts between 1 and 2"},
		{"import a/b:1", "REF and DEST"},
		{"import a/b:1 x --bogus", "unknown flag: --bogus"},
		{"import a/b:1 x --arch z80", `unknown architecture "z80"`},
		{"import a/b:1 x --size 10G", "Ki, Mi, Gi or Ti"},
		{"import a/b:1 x --size -1", "Ki, Mi, Gi or Ti"},
		{"import a/b:1 x --size 9000000Ti", "Ki, Mi, Gi or Ti"},
		{"import a/b:1 x --expect-sha256 abc", "64 hexadecimal digits"},
		{"import a/b:1 x --expect-file-digest md5:abc", "md5:abc"},
		{"import a/b:1 x --size 1000", "no multiple of 512"},
		{"import a/b:1 x --username u", "go together"},
		{"import a/b:1 x --progress fancy", "auto, plain or none"},
		{"import a/b:1 -", "standard output"},
		{"convert x", "accepts 2 arg(s)"},
		{"platforms", "accepts 1 arg(s)"},
		// Not there yet, and every flag of it parses.
		{"import a/b:1 x --arch amd64 --format qcow2", "--format qcow2 is not available yet"},
		{"import a/b:1 x --preallocate full", "--preallocate full is not available yet"},
		{"import a/b:1 x --policy p.json", "--policy p.json is not available yet"},
		{"import a/b:1 x --scratch /tmp", "--scratch /tmp is not available yet"},
		{"import a/b:1 x --guest-check strict", "--guest-check strict is not available yet"},
		{"import a/b:1 x --guest-check on", "--guest-check on is not available yet"},
		{"import a/b:1 x --chunks 4", "--chunks 4 is not available yet"},
		{"import a/b:1 x --cert-dir /certs", "--cert-dir /certs is not available yet"},
		{"import -f dv.yaml x", "-f is not available yet"},
		{"import oci:dir x", "oci:... are not available yet"},
		{"import oci-archive:file x", "oci-archive:... are not available yet"},
		{"import docker-archive:file x", "docker-archive:... are not available yet"},
		{"import dir:dir x", "dir:... are not available yet"},
		{"convert a b --format qcow2 --compress zstd", "is not available yet"},
		{"convert a b --scratch /tmp", "--scratch /tmp is not available yet"},
		{"check x --json", "check is not available yet"},
		{"inspect x --json", "inspect is not available yet"},
		{"map x --json --svg f", "map is not available yet"},
		{"plan x --name n --declared a --nodes a --control-plane a --strict --yaml --json", "plan is not available yet"},
	} {
		t.Run(tt.line, func(t *testing.T) {
			got := archdisk(t, nil, strings.Fields(tt.line)...)
			require.Equal(t, 2, got.code, got.stderr)
			require.Contains(t, got.stderr, tt.text)
			require.Empty(t, got.stdout)
			requireOneLine(t, got.stderr)
		})
	}
}

// TestFlagsThatAskForNothing: the neutral value of what is not there yet works at once.
func TestFlagsThatAskForNothing(t *testing.T) {
	ref := serveGolden(t)
	dest := filepath.Join(t.TempDir(), "out.raw")
	got := archdisk(t, nil, "import", ref, dest, "--arch", "x86_64", "--guest-check", "off", "--format", "raw",
		"--preallocate", "off", "--chunks", "1", "--progress", "plain", "--memory", "32Mi", "--json",
		"--expect-sha256", golden.Disks()[0].SHA256)
	require.Zero(t, got.code, got.stderr)
	var res importer.Result
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &res))
	require.Equal(t, golden.Disks()[0].SHA256, res.SHA256)
	require.Equal(t, "u1.small", res.Labels["instancetype.kubevirt.io/default-instancetype"])
	require.Empty(t, res.Notes)
}

func TestImportPrintsForPeople(t *testing.T) {
	ref := serveGolden(t)
	dest := filepath.Join(t.TempDir(), "out.raw")
	got := archdisk(t, nil, "import", ref, dest, "--arch", "s390x", "--size", "8Mi")
	require.Zero(t, got.code, got.stderr)
	for _, text := range []string{dest, "8.0 MiB", "linux/s390x", "qcow2", "disk/disk.img", "not looked at"} {
		require.Contains(t, got.stdout, text)
	}
	info, err := os.Stat(dest)
	require.NoError(t, err)
	require.EqualValues(t, 8<<20, info.Size())
}

// TestFailureAsJSON: the object has what is known, and the error with its class.
func TestFailureAsJSON(t *testing.T) {
	ref := serveGolden(t)
	for _, tt := range []struct {
		args        []string
		code        int
		class, word string
	}{
		{[]string{"--arch", "riscv64"}, 3, "permanent", "no-match"},
		{[]string{"--arch", "s390x", "--size", "512"}, 3, "permanent", "disk-too-large"},
		{[]string{"--arch", "s390x", "--path", "other.img"}, 3, "permanent", "no-disk"},
		{[]string{"--arch", "s390x", "--expect-sha256", strings.Repeat("0", 64)}, 3, "permanent", "digest"},
		{[]string{"--arch", "s390x", "--memory", "64Ki"}, 3, "permanent", "limit-exceeded"},
	} {
		t.Run(tt.word, func(t *testing.T) {
			dir := t.TempDir()
			got := archdisk(t, nil, append([]string{"import", ref, filepath.Join(dir, "out.raw"), "--json"}, tt.args...)...)
			require.Equal(t, tt.code, got.code, got.stderr)
			requireOneLine(t, got.stderr)
			var r report
			require.NoError(t, json.Unmarshal([]byte(got.stdout), &r))
			require.NotNil(t, r.Error)
			require.EqualValues(t, tt.class, r.Error.Class)
			require.Equal(t, tt.word, r.Error.Code)
			require.NotEmpty(t, r.Error.Stage)
			requireOnly(t, dir)
		})
	}
	t.Run("refused connection", func(t *testing.T) {
		got := archdisk(t, nil, "import", "127.0.0.1:1/x:1", filepath.Join(t.TempDir(), "x"), "--arch", "amd64", "--json")
		require.Equal(t, 1, got.code, got.stderr)
		require.Contains(t, got.stdout, `"class":"transient"`)
		require.Contains(t, got.stderr, "connection refused")
	})
}

func TestConvert(t *testing.T) {
	for _, f := range testdata.Fixtures() {
		if f.VirtualSize > 64<<20 {
			continue
		}
		t.Run(f.File, func(t *testing.T) {
			file := testdata.Read(f.File)
			src := write(t, "src", file)
			for way, args := range map[string][]string{"file": {"convert", src}, "stdin": {"convert", "-"}} {
				dir := t.TempDir()
				dest := filepath.Join(dir, "out.raw")
				got := archdisk(t, bytes.NewReader(file), append(args, dest, "--json", "--memory", "160Mi")...)
				if f.Refused != "" {
					require.Equal(t, 3, got.code, way)
					require.Contains(t, got.stdout, `"code":"`+f.Refused+`"`)
					requireOneLine(t, got.stderr)
					requireOnly(t, dir)
					continue
				}
				require.Zero(t, got.code, "%s: %s", way, got.stderr)
				info, err := os.Stat(dest)
				require.NoError(t, err)
				require.Equal(t, f.VirtualSize, info.Size())
			}
		})
	}
}

// TestConvertDictionary: what xz -9 writes needs a dictionary of 64 MiB, more than is left
// of the default memory; the message says so.
func TestConvertDictionary(t *testing.T) {
	src := write(t, "src", testdata.Read("raw/xz-plain.raw.xz"))
	got := archdisk(t, nil, "convert", src, filepath.Join(t.TempDir(), "out.raw"), "--json")
	require.Equal(t, 3, got.code)
	require.Contains(t, got.stderr, "xz stream needs more memory")
	require.Contains(t, got.stdout, `"code":"limit-exceeded"`)
}

func TestProbeFile(t *testing.T) {
	got := archdisk(t, nil, "probe", write(t, "disk.qcow2", testdata.Read("qcow2/qemu-dirty.qcow2")))
	require.Zero(t, got.code, got.stderr)
	require.Contains(t, got.stdout, "qcow2")
	require.Contains(t, got.stdout, "dirty bit")

	got = archdisk(t, nil, "probe", write(t, "disk.qcow2", testdata.Read("qcow2/qemu-backing-file.qcow2")))
	require.Equal(t, 3, got.code)
	require.Contains(t, got.stderr, "backing_file_offset")
	requireOneLine(t, got.stderr)
}

func TestPassword(t *testing.T) {
	got := archdisk(t, strings.NewReader("secret\n"), "import", "127.0.0.1:1/x:1", filepath.Join(t.TempDir(), "x"),
		"--arch", "amd64", "--username", "me", "--password-stdin")
	require.Equal(t, 1, got.code, got.stderr)
	require.NotContains(t, got.stderr, "secret")

	got = archdisk(t, nil, "platforms", "127.0.0.1:1/x:1", "--auth-file", write(t, "auth.json", []byte("no json")))
	require.Equal(t, 3, got.code)
	requireOneLine(t, got.stderr)
}

// TestMessagesStayOnTheirLine: names that come from an image cannot forge output.
func TestMessagesStayOnTheirLine(t *testing.T) {
	require.Equal(t, "a b c[31m", oneLine("a\nb\rc\x1b[31m"))
}

// TestProgress draws the bars without a terminal and prints plain lines by the clock.
func TestProgress(t *testing.T) {
	var buf bytes.Buffer
	report, stop := barProgress(&buf)
	report(importer.Progress{Fetched: 5, FetchTotal: 10, Done: 1 << 20, DiskSize: 2 << 20})
	report(importer.Progress{Fetched: 10, FetchTotal: 10, Done: 2 << 20, DiskSize: 2 << 20})
	stop()
	stop()

	buf.Reset()
	last := time.Now()
	plain := plainProgress(&buf, func() time.Time { return last })
	plain(importer.Progress{Fetched: 1})
	require.Empty(t, buf.String())
	last = last.Add(plainInterval)
	plain(importer.Progress{Fetched: 1 << 20, FetchTotal: 2 << 20, Done: 3 << 20, DiskSize: 4 << 20})
	require.Equal(t, "archdisk: read 1.0 MiB of 2.0 MiB, disk 3.0 MiB of 4.0 MiB\n", buf.String())
}
