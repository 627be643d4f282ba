package formats_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"testing"

	"github.com/archdisk/archdisk/qcow/disk"
	"github.com/archdisk/archdisk/qcow/disk/disktest"
	"github.com/archdisk/archdisk/qcow/formats"
	"github.com/archdisk/archdisk/testdata"
	"github.com/stretchr/testify/require"
)

func head(file []byte) []byte { return file[:min(len(file), formats.HeadSize)] }

// TestFixtures: each fixture is recognised, and reads or is refused alike through the
// table's three ways in.
func TestFixtures(t *testing.T) {
	for _, f := range testdata.Fixtures() {
		if f.Compression != "" {
			continue
		}
		t.Run(f.File, func(t *testing.T) {
			file := testdata.Read(f.File)
			info, probeErr := formats.Probe(head(file), disk.Limits{})
			_, layoutErr := formats.NewLayout(head(file), disk.Limits{})
			img, openErr := formats.OpenImage(bytes.NewReader(file), int64(len(file)), disk.Limits{})
			require.EqualValues(t, f.Format, info.Format)
			if f.Refused != "" {
				for _, err := range []error{probeErr, layoutErr, openErr} {
					var fe *disk.FormatError
					require.ErrorAs(t, err, &fe)
					require.EqualValues(t, f.Refused, fe.Reason)
				}
				return
			}
			require.NoError(t, errors.Join(probeErr, layoutErr, openErr))
			defer img.Close()
			if info.VirtualSize >= 0 {
				require.Equal(t, f.VirtualSize, info.VirtualSize)
			}
			require.Equal(t, f.VirtualSize, img.Size())
			sum := sha256.New()
			_, err := io.Copy(sum, io.NewSectionReader(img, 0, img.Size()))
			require.NoError(t, err)
			require.Equal(t, f.SHA256, hex.EncodeToString(sum.Sum(nil)))
		})
	}
}

// TestNotes: what is worth knowing and no reason to refuse.
func TestNotes(t *testing.T) {
	for file, text := range map[string]string{
		"qcow2/qemu-dirty.qcow2":    "dirty bit",
		"qcow2/qemu-snapshot.qcow2": "internal snapshots",
	} {
		info, err := formats.Probe(head(testdata.Read(file)), disk.Limits{})
		require.NoError(t, err)
		require.Len(t, info.Notes, 1)
		require.Contains(t, info.Notes[0], text)
	}
}

// TestRefusedByName: a format that is known and not read is never taken for raw.
func TestRefusedByName(t *testing.T) {
	at := func(off int, magic string) []byte {
		p := make([]byte, 64<<10)
		copy(p[off:], magic)
		return p
	}
	for _, tt := range []struct {
		name string
		head []byte
	}{
		{"vmdk", at(0, "KDMV\x01\x00\x00\x00")},
		{"vmdk", at(0, "# Disk DescriptorFile\nversion=1\n")},
		{"vmdk", at(0, "COWD")},
		{"vhdx", at(0, "vhdxfile")},
		{"vhd", at(0, "conectix")},
		{"vdi", at(0x40, "\x7f\x10\xda\xbe")},
		{"qed", at(0, "QED\x00")},
		{"luks", at(0, "LUKS\xba\xbe\x00\x02")},
		{"parallels", at(0, "WithoutFreeSpace")},
		{"parallels", at(0, "WithouFreSpacExt")},
		{"bochs", at(0, "Bochs Virtual HD Image")},
		{"cloop", at(0, "#!/bin/sh\n#V2.0 Format\n")},
		{"dmg", at(0, "koly")},
		{"asif", at(0, "shdw")},
		{"gzip", at(0, "\x1f\x8b\x08")},
		{"zstd", at(0, "\x28\xb5\x2f\xfd")},
		{"xz", at(0, "\xfd7zXZ\x00")},
		{"bzip2", at(0, "BZh9")},
		{"zip", at(0, "PK\x03\x04")},
		{"tar", at(257, "ustar")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			info, err := formats.Probe(tt.head, disk.Limits{})
			require.EqualValues(t, tt.name, info.Format)
			for _, err := range []error{err, second(formats.NewLayout(tt.head, disk.Limits{})),
				second(formats.OpenImage(bytes.NewReader(tt.head), int64(len(tt.head)), disk.Limits{}))} {
				require.ErrorIs(t, err, disk.ErrUnsupported)
				require.ErrorContains(t, err, tt.name+": ")
			}
		})
	}
}

func second[T any](_ T, err error) error { return err }

// TestRaw: what has no magic is raw, its size known from the file alone.
func TestRaw(t *testing.T) {
	for name, p := range map[string][]byte{"zeros": make([]byte, 4096), "boot sector": append(make([]byte, 510), 0x55, 0xaa), "nothing": nil} {
		info, err := formats.Probe(p, disk.Limits{})
		require.NoError(t, err, name)
		require.Equal(t, formats.Info{Format: formats.Raw, VirtualSize: -1}, info, name)
	}
	_, err := formats.OpenImage(bytes.NewReader(make([]byte, 700)), 700, disk.Limits{})
	require.ErrorIs(t, err, disk.ErrCorrupt)
	_, err = formats.OpenImage(bytes.NewReader(make([]byte, 1024)), 1024, disk.Limits{VirtualSize: 512})
	require.ErrorIs(t, err, disk.ErrLimit)
	_, err = formats.OpenImage(bytes.NewReader(make([]byte, 100)), 1024, disk.Limits{})
	require.Error(t, err, "the reader is shorter than it is said to be")
}

// FuzzProbe: the three ways in agree on any first bytes, and what is accepted converts or
// fails with a FormatError.
func FuzzProbe(f *testing.F) {
	for _, x := range testdata.Fixtures() {
		if file := testdata.Read(x.File); len(file) < 64<<10 {
			f.Add(file)
		}
	}
	limits := disk.Limits{VirtualSize: 16 << 20, Metadata: 1 << 20}
	f.Fuzz(func(t *testing.T, file []byte) {
		info, err := formats.Probe(head(file), limits)
		layout, layoutErr := formats.NewLayout(head(file), limits)
		require.Equal(t, err == nil, layoutErr == nil)
		if err != nil {
			var fe *disk.FormatError
			require.ErrorAs(t, err, &fe)
			return
		}
		require.LessOrEqual(t, info.VirtualSize, limits.VirtualSize)
		_, err = disk.Convert(t.Context(), new(disktest.Memory), layout, disk.Stream(bytes.NewReader(file)),
			disk.ConvertOptions{Workers: 1, Budget: disk.NewBudget(16 << 20), VirtualSize: limits.VirtualSize})
		var fe *disk.FormatError
		if err != nil && !errors.As(err, &fe) {
			t.Fatalf("%T: %v", err, err)
		}
	})
}

// TestNothingBesideErrors: an error comes with no value that looks like one.
func TestNothingBesideErrors(t *testing.T) {
	for name, head := range map[string][]byte{
		"refused":  []byte("QED\x00"),
		"corrupt":  append([]byte("QFI\xfb"), make([]byte, 200)...),
		"odd size": make([]byte, 513),
	} {
		img, err := formats.OpenImage(bytes.NewReader(head), int64(len(head)), disk.Limits{})
		require.Error(t, err, name)
		require.True(t, img == nil, name)
		if name != "odd size" {
			layout, err := formats.NewLayout(head, disk.Limits{})
			require.Error(t, err, name)
			require.True(t, layout == nil, name)
		}
	}
	_, err := formats.OpenImage(bytes.NewReader(make([]byte, 512)), 1024, disk.Limits{})
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
}
