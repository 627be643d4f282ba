package archive_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"testing"
	"testing/iotest"

	"github.com/archdisk/archdisk/importer/archive"
	"github.com/archdisk/archdisk/internal/golden"
	"github.com/archdisk/archdisk/qcow/disk"
	"github.com/archdisk/archdisk/testdata"
	"github.com/stretchr/testify/require"
)

// decompress reads all of p and checks that memory is given back.
func decompress(t testing.TB, r io.Reader, budget *disk.Budget) (archive.Compression, []byte, error) {
	t.Helper()
	before := budget.Left()
	defer func() { require.Equal(t, before, budget.Left()) }()
	s, err := archive.Decompress(r, budget)
	if err != nil {
		require.Nil(t, s)
		return "", nil, err
	}
	defer s.Close()
	defer s.Close() // again
	out, err := io.ReadAll(s)
	return s.Compression, out, err
}

func TestFixtures(t *testing.T) {
	for _, f := range testdata.Fixtures() {
		if f.Format != "raw" {
			continue
		}
		t.Run(f.File, func(t *testing.T) {
			p := testdata.Read(f.File)
			for name, r := range map[string]io.Reader{
				"whole": bytes.NewReader(p), "bytes": iotest.OneByteReader(bytes.NewReader(p)), "data+EOF": iotest.DataErrReader(bytes.NewReader(p)),
			} {
				kind, out, err := decompress(t, r, disk.NewBudget(80<<20))
				require.NoError(t, err, name)
				want := archive.Compression(f.Compression)
				if want == "" {
					want = archive.None
				}
				require.Equal(t, want, kind)
				require.Equal(t, want, archive.Detect(p))
				sum := sha256.Sum256(out)
				require.Equal(t, f.SHA256, hex.EncodeToString(sum[:]))
			}
			if f.Compression == "" {
				return
			}
			for n := 6; n < len(p); n += 1 + len(p)/30 { // 6: the magic of xz
				_, _, err := decompress(t, bytes.NewReader(p[:n]), disk.NewBudget(80<<20))
				if f.File == "raw/zstd-skippable.raw.zst" && n < 20 || boundary(f.File, p, n) {
					continue
				}
				var damaged *archive.Error
				require.ErrorAs(t, err, &damaged, "cut at %d", n)
				require.Equal(t, want(f.Compression), damaged.Compression)
			}
		})
	}
}

func want(s string) archive.Compression { return archive.Compression(s) }

// boundary says that a stream cut at n is whole, and shorter.
func boundary(name string, p []byte, n int) bool {
	switch name {
	case "raw/gzip-multimember.raw.gz":
		return bytes.HasPrefix(p[n:], []byte("\x1f\x8b\x08"))
	case "raw/xz-multistream.raw.xz":
		return bytes.HasPrefix(p[n:], []byte("\xfd7zXZ\x00"))
	}
	return false
}

func TestShort(t *testing.T) {
	for _, p := range []string{"", "x", "\x1f", "\x1f\x8b", "\x28\xb5\x2f", "\xfd7zXZ", "\x50\x2a\x4d", "hello"} {
		kind, out, err := decompress(t, bytes.NewReader([]byte(p)), disk.NewBudget(0))
		require.NoError(t, err)
		require.Equal(t, archive.None, kind)
		require.Equal(t, p, string(out))
	}
}

func TestHead(t *testing.T) {
	for _, size := range []int{0, 1, 511, archive.HeadSize, archive.HeadSize + 1, 3 * archive.HeadSize} {
		content := bytes.Repeat([]byte{7}, size)
		for _, c := range []golden.Compression{golden.None, golden.Gzip, golden.Zstd} {
			s, err := archive.Decompress(iotest.HalfReader(bytes.NewReader(golden.Compress(c, content))), disk.NewBudget(0))
			require.NoError(t, err)
			for range 2 {
				head, err := s.Head()
				require.NoError(t, err)
				require.Len(t, head, min(size, archive.HeadSize))
			}
			out, err := io.ReadAll(s)
			require.NoError(t, err)
			require.Equal(t, len(content), len(out))
			s.Close()
		}
	}
}

func TestReaderError(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []golden.Compression{golden.None, golden.Gzip, golden.Zstd} {
		p := golden.Compress(c, golden.Disks()[0].File)
		for n := 0; n < len(p); n += 1 + len(p)/20 {
			r := io.MultiReader(bytes.NewReader(p[:n]), iotest.ErrReader(broken))
			_, _, err := decompress(t, r, disk.NewBudget(0))
			require.ErrorIs(t, err, broken, "%d after %d", c, n)
		}
	}
	p := testdata.Read("raw/xz-multiblock.raw.xz")
	for n := 0; n < len(p); n += 1 + len(p)/20 {
		_, _, err := decompress(t, io.MultiReader(bytes.NewReader(p[:n]), iotest.ErrReader(broken)), disk.NewBudget(0))
		require.ErrorIs(t, err, broken, "xz after %d", n)
	}
}

// TestBudget: a decoder takes what its stream states, and no less than it may need.
func TestBudget(t *testing.T) {
	zeros := make([]byte, 1<<20)
	single := binary.LittleEndian.AppendUint32([]byte("\x28\xb5\x2f\xfd\xa0"), 32<<20) // one segment of 32 MiB
	for name, test := range map[string]struct {
		p      []byte
		budget int64
		ok     bool
	}{
		"zstd":              {golden.Compress(golden.Zstd, zeros), 10 << 20, true},
		"zstd, no room":     {golden.Compress(golden.Zstd, zeros), 8 << 20, false},
		"zstd, one segment": {single, 32 << 20, false},
		"xz -9":             {testdata.Read("raw/xz-plain.raw.xz"), 65 << 20, true},
		"xz -9, no room":    {testdata.Read("raw/xz-plain.raw.xz"), 65<<20 - 1, false},
		"xz -6":             {testdata.Read("raw/xz-multiblock.raw.xz"), 9 << 20, true},
		"xz -6, no room":    {testdata.Read("raw/xz-multiblock.raw.xz"), 9<<20 - 1, false},
		"xz, none":          {testdata.Read("raw/xz-multiblock.raw.xz"), 1, false},
		"xz 4 GiB":          {xzDictionary(40), 1 << 30, false},
		"xz too many bits":  {xzDictionary(63), 1 << 40, false},
		"gzip":              {golden.Compress(golden.Gzip, zeros), 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := decompress(t, bytes.NewReader(test.p), disk.NewBudget(test.budget))
			if test.ok {
				require.NoError(t, err)
				return
			}
			var e *archive.Error
			require.ErrorAs(t, err, &e)
			if name != "xz too many bits" {
				require.ErrorIs(t, err, disk.ErrLimit)
				require.ErrorContains(t, err, "memory")
			}
		})
	}
}

// xzDictionary returns an xz fixture whose first block states another dictionary.
func xzDictionary(bits byte) []byte {
	p := bytes.Clone(testdata.Read("raw/xz-plain.raw.xz"))
	i := bytes.Index(p[12:30], []byte{0x21, 0x01})
	p[12+i+2] = bits
	return p
}

func TestIsTar(t *testing.T) {
	signed := golden.Tar(golden.Entry{Name: "disk/\xff\xfe"})
	for name, test := range map[string]struct {
		head []byte
		want bool
	}{
		"archive":    {golden.Tar(golden.Entry{Name: "disk/"}), true},
		"empty":      {golden.Tar(), true},
		"no bytes":   {nil, true},
		"zero block": {make([]byte, 512), true},
		"short":      {make([]byte, 511), false},
		"text":       {bytes.Repeat([]byte("x"), 512), false},
		"qcow2":      {golden.Disks()[0].File, false},
		"8 bit":      {signed, true},
		"flipped":    {append([]byte("x"), golden.Tar(golden.Entry{Name: "disk/"})[1:]...), false},
	} {
		require.Equal(t, test.want, archive.IsTar(test.head), name)
	}
}

func TestIsDisk(t *testing.T) {
	at := func(off int, magic string) []byte { return append(make([]byte, off), magic...) }
	for name, head := range map[string][]byte{
		"qcow2": golden.Disks()[0].File, "vmdk": at(0, "KDMV"), "vhdx": at(0, "vhdxfile"), "vdi": at(0x40, "\x7f\x10\xda\xbe"),
		"boot sector": at(510, "\x55\xaa"), "gpt": at(512, "EFI PART"), "gpt of 4k": at(4096, "EFI PART"), "iso": at(0x8001, "CD001"),
	} {
		require.True(t, archive.IsDisk(head), name)
		require.False(t, archive.IsDisk(head[:min(len(head)-1, 3)]), name)
	}
	for name, head := range map[string][]byte{"none": nil, "text": []byte("hello"), "zeros": make([]byte, 64<<10), "tar": golden.Tar(golden.Entry{Name: "disk/"})} {
		require.False(t, archive.IsDisk(head), name)
	}
}
