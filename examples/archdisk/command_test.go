package main

import (
	"bytes"
	"context"
	"encoding/binary"
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
		{"import a/b:1 x --progress fancy", "one of auto, plain, none"},
		{"import a/b:1 -", "standard output"},
		{"import a/b:1 x --format bogus", "unknown value; it is one of raw, qcow2"},
		{"import a/b:1 x --preallocate bogus", "unknown value; it is one of off, falloc, full"},
		{"import a/b:1 x --guest-check bogus", "unknown value; it is one of on, strict, warn, off"},
		{"convert a b --format bogus", "unknown value; it is one of raw, qcow2"},
		{"convert a b --compress bogus", "unknown value; it is one of none, zlib, zstd"},
		{"import a/b:1 x --memory 64Ki", "3Mi is the least"},
		{"probe x --memory 1", "3Mi is the least"},
		{"probe /no/such/file", "/no/such/file: no such file or directory; a file or a reference"},
		{"probe ./none.img", "./none.img: no such file or directory; a file or a reference"},
		{"probe -", "a file or a reference"},
		{"probe ..", "..: not a file; a file or a reference"},
		{"import /disk.qcow2 x", "/disk.qcow2 is not a reference"},
		{"platforms - --json", "- is not a reference"},
		{"convert x", "accepts 2 arg(s)"},
		{"platforms", "accepts 1 arg(s)"},
		// Not there yet, and every flag of it parses.
		{"import a/b:1 x --preallocate full", "--preallocate full is not available yet"},
		{"import a/b:1 x --policy p.json", "--policy p.json is not available yet"},
		{"import a/b:1 x --guest-check strict", "--guest-check strict is not available yet"},
		{"import a/b:1 x --guest-check on", "--guest-check on is not available yet"},
		{"import a/b:1 x --chunks 4", "--chunks 4 is not available yet"},
		{"import a/b:1 x --cert-dir /certs", "--cert-dir /certs is not available yet"},
		{"import -f dv.yaml x", "-f is not available yet"},
		{"import oci:dir x", "oci:... are not available yet"},
		{"import oci-archive:file x", "oci-archive:... are not available yet"},
		{"import docker-archive:file x", "docker-archive:... are not available yet"},
		{"import dir:dir x", "dir:... are not available yet"},
		{"convert a b --compress zstd", "--compress zstd is for --format qcow2"},
		{"inspect x --json", "inspect is not available yet"},
		{"map x --json --svg f", "map is not available yet"},
		{"plan x --name n --declared a --nodes a --control-plane a --strict --yaml --json", "plan is not available yet"},
	} {
		t.Run(tt.line, func(t *testing.T) {
			got := archdisk(t, nil, strings.Fields(tt.line)...)
			require.Equal(t, 2, got.code, got.stderr)
			require.Contains(t, got.stderr, tt.text)
			requireOneLine(t, got.stderr)
			if !strings.Contains(tt.line, "--json") {
				require.Empty(t, got.stdout)
				return
			}
			var r report
			require.NoError(t, json.Unmarshal([]byte(got.stdout), &r))
			require.Equal(t, "usage", r.Error.Code)
			require.EqualValues(t, "permanent", r.Error.Class)
		})
	}
	for _, args := range [][]string{{"import", "", "x"}, {"import", "a/b:1", ""}, {"convert", "x", ""}, {"probe", ""}, {"check", ""}, {"platforms", ""}} {
		got := archdisk(t, nil, args...)
		require.Equal(t, 2, got.code, "%q", args)
		require.Contains(t, got.stderr, "an argument is empty")
	}
}

// TestLeastMemory: what is named as the least is enough.
func TestLeastMemory(t *testing.T) {
	ref := serveGolden(t)
	for _, d := range golden.Disks() {
		got := archdisk(t, nil, "import", ref, filepath.Join(t.TempDir(), "out.raw"), "--arch", d.Arch, "--memory", "3Mi")
		require.Zero(t, got.code, got.stderr)
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
		{[]string{"--arch", "s390x", "--size", "1000"}, 2, "permanent", "options"},
		// Before the import starts.
		{[]string{"--arch", "s390x", "--auth-file", "/no/such/file"}, 3, "permanent", "setup"},
		{[]string{"--arch", "z80"}, 2, "permanent", "usage"},
		{[]string{"--bogus"}, 2, "permanent", "usage"},
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
	t.Run("platforms", func(t *testing.T) {
		got := archdisk(t, nil, "platforms", ref, "--auth-file", "/no/such/file", "--json")
		require.Equal(t, 3, got.code, got.stderr)
		require.Contains(t, got.stdout, `"reference":"`+ref+`"`)
		require.Contains(t, got.stdout, `"class":"permanent"`)
	})
	t.Run("target", func(t *testing.T) {
		dest := filepath.Join(t.TempDir(), "none", "x")
		got := archdisk(t, nil, "import", ref, dest, "--arch", "s390x", "--json")
		require.Equal(t, 3, got.code, got.stderr)
		require.Contains(t, got.stderr, "destination "+dest+": directory does not exist")
		require.Contains(t, got.stdout, `"class":"permanent"`)
	})
}

// TestWhatToDo: where a flag helps, the message names it.
func TestWhatToDo(t *testing.T) {
	ref := serveGolden(t)
	dest := filepath.Join(t.TempDir(), "out.raw")
	tar := write(t, "two.tar", golden.Tar(golden.Entry{Name: "a", Body: make([]byte, 512)}, golden.Entry{Name: "b", Body: make([]byte, 512)}))
	for text, args := range map[string][]string{
		"; choose one with --arch\n":                                  {"import", ref, dest},
		"linux/s390x; choose one with --arch\n":                       {"probe", ref, "--arch", "riscv64"},
		`"a" and "b"; choose one with --path` + "\n":                  {"convert", tar, dest},
		"disk too large: it needs 4194304 bytes, --size allows 512\n": {"import", ref, dest, "--arch", "amd64", "--size", "512"},
		"x:latest: 404": {"import", strings.TrimSuffix(ref, ":1"), dest},
	} {
		got := archdisk(t, nil, args...)
		require.Equal(t, 3, got.code, got.stderr)
		require.Contains(t, got.stderr, text)
	}
}

// TestInterrupted: an interruption ends what waits for standard input.
func TestInterrupted(t *testing.T) {
	dest := write(t, "out.raw", []byte("old"))
	for _, tt := range []struct{ line, text string }{
		{"convert - " + dest, "interrupted; the destination is as it was"},
		{"import 127.0.0.1:1/x:1 " + dest + " --username u --password-stdin", "interrupted; the destination is as it was"},
		{"probe 127.0.0.1:1/x:1 --username u --password-stdin", "interrupted"},
	} {
		ctx, interrupt := context.WithCancel(t.Context())
		silent := readFunc(func([]byte) (int, error) {
			interrupt()
			select {} // as a terminal that nobody types at
		})
		var stdout, stderr bytes.Buffer
		a := &app{in: silent, out: &stdout, err: &stderr}
		require.Equal(t, 1, a.run(ctx, append(strings.Fields(tt.line), "--json")), stderr.String())
		require.Equal(t, "archdisk: "+tt.text+"\n", stderr.String())
		require.Contains(t, stdout.String(), `"class":"transient","code":"cancelled"`)
		requireOnly(t, filepath.Dir(dest), "out.raw")
		old, err := os.ReadFile(dest)
		require.NoError(t, err)
		require.Equal(t, "old", string(old))
	}
}

// TestEmptyInput: no bytes are no disk, and the destination stays.
func TestEmptyInput(t *testing.T) {
	dest := write(t, "out.raw", []byte("old"))
	for _, src := range []string{"-", write(t, "empty", nil)} {
		got := archdisk(t, strings.NewReader(""), "convert", src, dest)
		require.Equal(t, 3, got.code)
		require.Equal(t, "archdisk: probe: disk of size zero: there are no bytes\n", got.stderr)
		old, err := os.ReadFile(dest)
		require.NoError(t, err)
		require.Equal(t, "old", string(old))
	}
}

// TestWords: what is said is about what the user has, and names the flag that helps.
func TestWords(t *testing.T) {
	odd := write(t, "odd.raw", bytes.Repeat([]byte{1}, 1000))
	disk := write(t, "disk.raw", bytes.Repeat([]byte{1}, 64<<10))
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(disk, link))
	image := testdata.Read("qcow2/qemu-v3-4k.qcow2")
	binary.BigEndian.PutUint64(image[24:], 1<<63)
	huge := write(t, "huge.qcow2", image)
	dir := t.TempDir()
	dest := filepath.Join(dir, "out")
	for name, tt := range map[string]struct {
		args []string
		code int
		text string
	}{
		"a raw disk's size, for qcow2": {[]string{"convert", odd, dest, "--format", "qcow2"}, 3, "convert: raw: corrupt image: 1000 bytes is no multiple of 512"},
		"a raw disk's size, too large": {[]string{"convert", disk, dest, "--size", "4096"}, 3, "it needs 65536 bytes, --size allows 4096"},
		"a size of no int64":           {[]string{"convert", huge, dest}, 3, "it needs 9223372036854775807 bytes"},
		"a path, and no archive":       {[]string{"convert", disk, dest, "--path", "x"}, 3, `no disk found at "x": this is no tar archive`},
		"onto itself":                  {[]string{"convert", disk, disk}, 2, "is the source, too"},
		"onto itself, by a link":       {[]string{"convert", link, disk}, 2, "is the source, too"},
		"too little memory":            {[]string{"convert", write(t, "z.qcow2", testdata.Read("qcow2/qemu-v3-2M.qcow2")), dest, "--memory", "4Mi"}, 3, "; give more --memory"},
	} {
		t.Run(name, func(t *testing.T) {
			got := archdisk(t, strings.NewReader(""), tt.args...)
			require.Equal(t, tt.code, got.code, got.stderr)
			require.Contains(t, got.stderr, tt.text)
			requireOnly(t, dir)
		})
	}
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
	require.Equal(t, `a b c\x1b[31m \u009b1m \u202eabc\u2066 \u2028 é`, oneLine("a\nb\rc\x1b[31m \u009b1m \u202eabc\u2066 \u2028 é"))
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
