package qcow_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/archdisk/archdisk/internal/peer"
	"github.com/archdisk/archdisk/qcow"
	"github.com/archdisk/archdisk/qcow/disk"
	"github.com/archdisk/archdisk/qcow/disk/disktest"
	"github.com/archdisk/archdisk/testdata"
	"github.com/stretchr/testify/require"
)

// TestExtensions: header extensions are kept with their places, unknown ones too.
func TestExtensions(t *testing.T) {
	good := testdata.Read("qcow2/qemu-v3-64k.qcow2")
	file := mutate(good, 112, 4, 0x12345678) // the feature name table becomes something else
	file = mutate(file, 116, 4, 0x180-3)     // its data is padded
	h, err := qcow.ParseHeader(file[:4096], disk.Limits{})
	require.NoError(t, err)
	require.Equal(t, []qcow.Extension{{Type: 0x12345678, Data: disk.Range{Off: 120, Len: 0x180 - 3}}}, h.Extensions)
	require.Equal(t, "unknown extension 0x12345678", h.Extensions[0].String())

	h, err = qcow.ParseHeader(testdata.Read("qcow2/qemu-backing-file.qcow2"), disk.Limits{})
	require.NoError(t, err)
	require.Equal(t, "/etc/hostname", h.BackingFile)
	require.Equal(t, "raw", h.BackingFormat)
	require.Equal(t, "backing file format", h.Extensions[0].String())
	h, err = qcow.ParseHeader(testdata.Read("qcow2/qemu-data-file.qcow2"), disk.Limits{})
	require.NoError(t, err)
	require.Equal(t, "data.raw", h.DataFile)
}

// TestLenient: what is refused as corrupt is read when asked for.
func TestLenient(t *testing.T) {
	lenient := disk.Limits{Lenient: true}
	read := func(t *testing.T, file []byte) []byte {
		t.Helper()
		img, err := qcow.Open(bytes.NewReader(file), int64(len(file)), qcow.OpenOptions{Limits: lenient})
		require.NoError(t, err)
		defer img.Close()
		want := make([]byte, img.Size())
		_, err = img.ReadAt(want, 0)
		require.NoError(t, err)
		layout, err := qcow.NewLayout(file, lenient)
		require.NoError(t, err)
		var m disktest.Memory
		stats, err := disk.Convert(t.Context(), &m, layout, disk.File(bytes.NewReader(file), int64(len(file))), disk.ConvertOptions{})
		require.NoError(t, err)
		got := make([]byte, stats.Size)
		_, err = m.ReadAt(got, 0)
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, got))
		return got
	}
	plain := testdata.Read("qcow2/qemu-v3-4k.qcow2")
	want := readAll(t, plain)
	require.True(t, bytes.Equal(want, read(t, testdata.Read("qcow2/qemu-corrupt-bit.qcow2"))))
	_, l2 := tablesOf(t, plain)
	first, second := used(plain, l2, 0), used(plain, l2, 1)
	twice := read(t, mutate(plain, second, 8, binary.BigEndian.Uint64(plain[first:])))
	a, b := (first-l2)/8*4096, (second-l2)/8*4096
	require.True(t, bytes.Equal(twice[a:a+4096], twice[b:b+4096]))
	require.True(t, bytes.Equal(want[a:a+4096], twice[a:a+4096]))
}

// TestExtents: the map of an image is the one that qemu-img map gives.
func TestExtents(t *testing.T) {
	qemu, qemuIO := peer.Require(t, "qemu-img"), peer.Require(t, "qemu-io")
	seed := seedOf(t)
	for i, opts := range []string{"cluster_size=4k", "cluster_size=64k,extended_l2=on", "cluster_size=16k,extended_l2=on", "cluster_size=512", "compat=0.10,cluster_size=64k"} {
		t.Run(opts, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, uint64(i)))
			image := filepath.Join(t.TempDir(), "m.qcow2")
			const size = 8 << 20
			peer.Run(t, qemu, "create", "-q", "-f", "qcow2", "-o", opts, image, fmt.Sprint(size))
			args := []string{"-f", "qcow2"}
			for range 60 {
				off, n := rnd.IntN(size-(64<<10))&^511, (1+rnd.IntN(120))*512
				op := []string{"write -q -P 7", "write -q -z", "discard -q", "write -q -P 8"}[rnd.IntN(4)]
				args = append(args, "-c", fmt.Sprintf("%s %d %d", op, off, n))
			}
			peer.Run(t, qemuIO, append(args, image)...)
			file, err := os.ReadFile(image)
			require.NoError(t, err)
			img, err := qcow.Open(bytes.NewReader(file), int64(len(file)), qcow.OpenOptions{})
			require.NoError(t, err)
			defer img.Close()
			sameMap(t, image, img)
			for e, err := range img.Extents(size / 2) {
				require.NoError(t, err)
				require.LessOrEqual(t, e.Guest.Off, int64(size/2))
				break
			}
		})
	}
}

// sameMap requires the extents of img to be what qemu-img map says of the file.
func sameMap(t *testing.T, image string, img *qcow.Image) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), peer.Require(t, "qemu-img"), "map", "--output=json", image).Output()
	require.NoError(t, err)
	var list []struct {
		Start, Length       int64
		Zero, Data, Present bool
		Offset              *int64
	}
	require.NoError(t, json.Unmarshal(out, &list))
	at := int64(0)
	for e, err := range img.Extents(0) {
		require.NoError(t, err)
		require.Equal(t, at, e.Guest.Off)
		for at < e.Guest.End() { // the peer's runs are cut elsewhere
			for list[0].Start+list[0].Length <= at {
				list = list[1:]
			}
			m := list[0]
			if e.Kind != disk.Data {
				require.True(t, m.Zero && !m.Data, "at %#x: %s", at, e)
			} else { // it may stand in a hole of the image file, of which we know nothing
				require.True(t, m.Data || m.Zero && m.Offset != nil, "at %#x: %s", at, e)
			}
			if e.Kind == disk.Data && e.Codec == disk.Plain {
				require.NotNil(t, m.Offset, "at %#x: %s", at, e)
				require.Equal(t, *m.Offset+at-m.Start, e.File.Off+at-e.Guest.Off)
			}
			at = min(e.Guest.End(), m.Start+m.Length)
		}
	}
	require.Equal(t, img.Size(), at)
}

// openIn opens files of a folder by their names, which the tests chose, and counts what
// is open.
func openIn(dir string, open *int) qcow.OpenFunc {
	return func(r qcow.Reference) (qcow.File, error) {
		f, err := os.Open(filepath.Join(dir, filepath.Base(r.Name)))
		if err != nil {
			return qcow.File{}, err
		}
		info, err := f.Stat()
		if err != nil {
			return qcow.File{}, err
		}
		*open++
		return qcow.File{ReaderAt: f, Size: info.Size(), Close: func() error { *open--; return f.Close() }}, nil
	}
}

// TestChain: images over images of other sizes, as qemu-img makes and reads them.
func TestChain(t *testing.T) {
	qemu, qemuIO := peer.Require(t, "qemu-img"), peer.Require(t, "qemu-io")
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	require.NoError(t, os.WriteFile(at("base.raw"), guest(1<<20, 1), 0o600))
	peer.Run(t, qemu, "create", "-q", "-f", "qcow2", "-F", "raw", "-b", "base.raw", at("mid.qcow2"), "3M")
	peer.Run(t, qemuIO, "-f", "qcow2", "-c", "write -q -P 5 700k 900k", "-c", "write -q -z 64k 64k", at("mid.qcow2"))
	peer.Run(t, qemu, "create", "-q", "-f", "qcow2", "-o", "extended_l2=on", "-F", "qcow2", "-b", "mid.qcow2", at("top.qcow2"), "2M")
	peer.Run(t, qemuIO, "-f", "qcow2", "-c", "write -q -P 6 1k 3k", "-c", "write -q -P 9 1400k 200k", at("top.qcow2"))
	opened := 0
	openTop := func(o qcow.OpenOptions) (*qcow.Image, error) {
		f, err := os.Open(at("top.qcow2"))
		require.NoError(t, err)
		t.Cleanup(func() { f.Close() })
		info, err := f.Stat()
		require.NoError(t, err)
		return qcow.Open(f, info.Size(), o)
	}
	peer.Run(t, qemu, "convert", "-f", "qcow2", "-O", "raw", at("top.qcow2"), at("want.raw"))
	want, err := os.ReadFile(at("want.raw"))
	require.NoError(t, err)

	img, err := openTop(qcow.OpenOptions{Files: openIn(dir, &opened)})
	require.NoError(t, err)
	require.Equal(t, 2, opened)
	got := make([]byte, img.Size())
	_, err = img.ReadAt(got, 0)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got))
	require.NoError(t, img.Close())
	require.NoError(t, img.Close(), "a second time")
	require.Zero(t, opened)

	refused := func(err error, text string) {
		t.Helper()
		var fe *disk.FormatError
		require.ErrorAs(t, err, &fe)
		require.Equal(t, disk.BackingFile, fe.Reason)
		require.ErrorContains(t, err, text)
		require.Zero(t, opened, "what was opened is closed")
	}
	_, err = openTop(qcow.OpenOptions{})
	refused(err, `"mid.qcow2"`)
	errNo := errors.New("may not")
	_, err = openTop(qcow.OpenOptions{Files: func(qcow.Reference) (qcow.File, error) { return qcow.File{}, errNo }})
	require.ErrorIs(t, err, errNo)
	_, err = openTop(qcow.OpenOptions{Files: func(r qcow.Reference) (qcow.File, error) {
		f, err := openIn(dir, &opened)(r)
		f.Format = "vmdk"
		return f, err
	}})
	refused(err, `format "vmdk"`)

	peer.Run(t, qemu, "create", "-q", "-f", "qcow2", "-u", "-F", "qcow2", "-b", "top.qcow2", at("mid.qcow2"), "3M")
	_, err = openTop(qcow.OpenOptions{Files: openIn(dir, &opened)})
	refused(err, "comes back")
	n := 0
	_, err = openTop(qcow.OpenOptions{Files: func(r qcow.Reference) (qcow.File, error) { // a new name each time
		n++
		name := fmt.Sprintf("x%d.qcow2", n)
		peer.Run(t, qemu, "create", "-q", "-f", "qcow2", "-u", "-F", "qcow2", "-b", fmt.Sprintf("x%d.qcow2", n+1), at(name), "1M")
		r.Name = name
		return openIn(dir, &opened)(r)
	}})
	refused(err, "more than 64")
	file, err := os.ReadFile(at("top.qcow2"))
	require.NoError(t, err)
	file = bytes.Replace(file, []byte{0xe2, 0x79, 0x2a, 0xca}, []byte("none"), 1)
	require.NoError(t, os.WriteFile(at("top.qcow2"), file, 0o600))
	_, err = openTop(qcow.OpenOptions{Files: openIn(dir, &opened)})
	refused(err, "says the format")
}

// TestDataFile: the data of an image is in another file.
func TestDataFile(t *testing.T) {
	qemu, qemuIO := peer.Require(t, "qemu-img"), peer.Require(t, "qemu-io")
	for _, raw := range []string{"off", "on"} {
		t.Run("raw "+raw, func(t *testing.T) {
			dir := t.TempDir()
			image := filepath.Join(dir, "m.qcow2")
			peer.Run(t, qemu, "create", "-q", "-f", "qcow2", "-o", "data_file="+filepath.Join(dir, "data.raw")+",data_file_raw="+raw, image, "2M")
			peer.Run(t, qemuIO, "-f", "qcow2", "-c", "write -q -P 5 0 100k", "-c", "write -q -P 6 1m 64k", "-c", "write -q -z 64k 64k", image)
			peer.Run(t, qemu, "convert", "-f", "qcow2", "-O", "raw", image, filepath.Join(dir, "want.raw"))
			want, err := os.ReadFile(filepath.Join(dir, "want.raw"))
			require.NoError(t, err)
			file, err := os.ReadFile(image)
			require.NoError(t, err)
			opened := 0
			open := func() (*qcow.Image, error) {
				return qcow.Open(bytes.NewReader(file), int64(len(file)), qcow.OpenOptions{Files: openIn(dir, &opened)})
			}
			img, err := open()
			require.NoError(t, err)
			defer img.Close()
			got := make([]byte, img.Size())
			_, err = img.ReadAt(got, 0)
			require.NoError(t, err)
			require.True(t, bytes.Equal(want, got))

			_, l2 := tablesOf(t, file)
			for name, entry := range map[string]uint64{"compressed": 1<<62 | 1<<20, "elsewhere": 1<<63 | 2<<16} {
				file := mutate(file, l2, 8, entry)
				img, err := qcow.Open(bytes.NewReader(file), int64(len(file)), qcow.OpenOptions{Files: openIn(dir, &opened)})
				require.NoError(t, err)
				_, err = img.ReadAt(make([]byte, 512), 0)
				var fe *disk.FormatError
				require.ErrorAs(t, err, &fe, name)
				require.Equal(t, disk.BadEntry, fe.Reason)
				require.NoError(t, img.Close())
			}
			require.NoError(t, os.Truncate(filepath.Join(dir, "data.raw"), 1<<20))
			img, err = open()
			require.NoError(t, err)
			defer img.Close()
			_, err = img.ReadAt(got, 0)
			require.ErrorIs(t, err, disk.ErrTruncated)
		})
	}
}

// TestOpenSnapshot: each internal snapshot is listed, and reads as qemu-img reads it.
func TestOpenSnapshot(t *testing.T) {
	qemu, qemuIO := peer.Require(t, "qemu-img"), peer.Require(t, "qemu-io")
	for _, opts := range []string{"cluster_size=4k", "cluster_size=16k,extended_l2=on", "compat=0.10"} {
		t.Run(opts, func(t *testing.T) {
			dir := t.TempDir()
			at := func(name string) string { return filepath.Join(dir, name) }
			peer.Run(t, qemu, "create", "-q", "-f", "qcow2", "-o", opts, at("m.qcow2"), "4M")
			for i, name := range []string{"first", "with space", "last"} {
				peer.Run(t, qemuIO, "-f", "qcow2", "-c", fmt.Sprintf("write -q -P %d %dk 300k", i+1, 100*i), at("m.qcow2"))
				peer.Run(t, qemu, "snapshot", "-c", name, at("m.qcow2"))
				if i == 0 && opts != "compat=0.10" {
					peer.Run(t, qemu, "resize", "-q", "-f", "qcow2", at("m.qcow2"), "6M") // snapshots of other sizes
				}
			}
			peer.Run(t, qemuIO, "-f", "qcow2", "-c", "write -q -P 99 0 1M", at("m.qcow2"))
			file, err := os.ReadFile(at("m.qcow2"))
			require.NoError(t, err)
			img := open(t, file)
			list, err := img.Snapshots()
			require.NoError(t, err)
			require.Len(t, list, 3)
			require.Equal(t, "with space", list[1].Name)
			require.Equal(t, "2", list[1].ID)
			for i, s := range list {
				peer.Run(t, qemu, "convert", "-f", "qcow2", "-O", "raw", "-l", "snapshot.id="+s.ID, at("m.qcow2"), at("want.raw"))
				want, err := os.ReadFile(at("want.raw"))
				require.NoError(t, err)
				snap, err := img.OpenSnapshot(s)
				require.NoError(t, err)
				size := s.Size
				if i == 0 {
					require.EqualValues(t, 4<<20, size)
				}
				got := make([]byte, size)
				_, err = snap.ReadAt(got, 0)
				require.NoError(t, err)
				require.True(t, bytes.Equal(want[:size], got), "%d", i) // qemu-img gives it the active size
				require.Equal(t, size, snap.Size())
				require.NoError(t, snap.Close())
			}
			table := int(binary.BigEndian.Uint64(file[64:]))
			for name, bad := range map[string][]byte{
				"cut":             file[:table+50],
				"extra data":      mutate(file, table+36, 4, 1<<20),
				"L1 unaligned":    mutate(file, table, 8, 512+1<<20),
				"L1 out of range": mutate(file, table, 8, 1<<63),
			} {
				_, err := open(t, bad).Snapshots()
				var fe *disk.FormatError
				require.ErrorAs(t, err, &fe, name)
			}
			for name, s := range map[string]qcow.Snapshot{
				"size unaligned": {Size: 1000, L1Size: 1, L1Offset: list[0].L1Offset},
				"L1 too small":   {Size: 1 << 40, L1Size: 1, L1Offset: list[0].L1Offset},
				"size too large": {Size: 1 << 60, L1Size: 1 << 40, L1Offset: list[0].L1Offset},
				"L1 outside":     {Size: 4 << 20, L1Size: 16, L1Offset: 1 << 40},
			} {
				_, err := img.OpenSnapshot(s)
				var fe *disk.FormatError
				require.ErrorAs(t, err, &fe, name)
			}
		})
	}
}
