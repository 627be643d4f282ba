package golden_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/archdisk/archdisk/internal/golden"
	"github.com/archdisk/archdisk/internal/peer"
	"github.com/archdisk/archdisk/testdata"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/mikelolasagasti/xz"
	"github.com/stretchr/testify/require"
)

// The tests of package testdata are here: "./..." leaves folders of that name out.

func TestManifestCompleteness(t *testing.T) {
	listed := make(map[string]bool)
	for _, f := range testdata.Fixtures() {
		require.False(t, listed[f.File], f.File)
		listed[f.File] = true
	}
	var total int64
	require.NoError(t, fs.WalkDir(testdata.FS, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		total += info.Size()
		require.LessOrEqual(t, info.Size(), int64(200<<10), name)
		if name == "manifest.json" {
			return nil
		}
		require.True(t, listed[name] || listed[strings.TrimSuffix(name, ".gz")], "%s is not in manifest.json", name)
		return nil
	}))
	require.LessOrEqual(t, total, int64(3<<19))
}

func TestFixtures(t *testing.T) {
	reasons := map[string]bool{
		testdata.BackingFile: true, testdata.ExternalDataFile: true, testdata.Encrypted: true,
		testdata.CorruptBit: true, testdata.UnknownIncompatibleFeature: true,
	}
	for _, f := range testdata.Fixtures() {
		t.Run(f.File, func(t *testing.T) {
			require.NotEmpty(t, f.Command)
			require.Zero(t, f.VirtualSize%512)
			require.Equal(t, f.Refused == "", f.SHA256 != "")
			require.True(t, f.Refused == "" || reasons[f.Refused], f.Refused)
			file := testdata.Read(f.File)
			switch f.Format {
			case "qcow2":
				require.Equal(t, "QFI\xfb", string(file[:4]))
				require.EqualValues(t, f.VirtualSize, binary.BigEndian.Uint64(file[24:]))
			case "raw":
				content := decompress(t, f.Compression, file)
				require.Len(t, content, int(f.VirtualSize))
				require.Equal(t, f.SHA256, sum(content))
			default:
				t.Fatalf("format %q", f.Format)
			}
		})
	}
}

func decompress(t *testing.T, compression string, file []byte) []byte {
	var r io.Reader = bytes.NewReader(file)
	var err error
	switch compression {
	case "gzip":
		r, err = gzip.NewReader(r)
	case "zstd":
		var d *zstd.Decoder
		d, err = zstd.NewReader(r)
		if err == nil {
			defer d.Close()
			r = d
		}
	case "xz":
		r, err = xz.NewReader(r, 0)
	case "":
	default:
		t.Fatalf("compression %q", compression)
	}
	require.NoError(t, err)
	content, err := io.ReadAll(r)
	require.NoError(t, err)
	return content
}

// TestFixturesByQEMU: qemu-img reads from the fixtures what manifest.json says.
func TestFixturesByQEMU(t *testing.T) {
	qemu := peer.Require(t, "qemu-img")
	for _, f := range testdata.Fixtures() {
		if f.Format != "qcow2" || f.Refused != "" || testing.Short() && f.VirtualSize > 1<<26 {
			continue
		}
		t.Run(f.File, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			in, out := filepath.Join(dir, path.Base(f.File)), filepath.Join(dir, "out.raw")
			require.NoError(t, os.WriteFile(in, testdata.Read(f.File), 0o600))
			peer.Run(t, qemu, "convert", "-f", "qcow2", "-O", "raw", in, out)
			raw, err := os.Open(out)
			require.NoError(t, err)
			defer raw.Close()
			h := sha256.New()
			n, err := io.Copy(h, raw)
			require.NoError(t, err)
			require.Equal(t, f.VirtualSize, n)
			require.Equal(t, f.SHA256, hex.EncodeToString(h.Sum(nil)))
			if !strings.Contains(f.File, "dirty") { // its reference counts are stale
				peer.Run(t, qemu, "check", "-f", "qcow2", in)
			}
		})
	}
}

func TestDisks(t *testing.T) {
	disks := golden.Disks()
	require.Len(t, disks, 3)
	for i, arch := range []string{"amd64", "arm64", "s390x"} {
		require.Equal(t, arch, disks[i].Arch)
		require.Equal(t, "qcow2", disks[i].Format)
		require.NotZero(t, disks[i].VirtualSize)
		require.Len(t, disks[i].SHA256, 64)
		require.Equal(t, testdata.Read(disks[i].Name), disks[i].File)
	}
}

func TestReadUnknown(t *testing.T) {
	require.Panics(t, func() { testdata.Read("qcow2/none.qcow2") })
}

func sum(p []byte) string {
	s := sha256.Sum256(p)
	return hex.EncodeToString(s[:])
}
