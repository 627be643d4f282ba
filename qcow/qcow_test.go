package qcow_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"io"
	"runtime"
	"testing"

	"github.com/archdisk/archdisk/qcow"
	"github.com/archdisk/archdisk/qcow/disk"
	"github.com/archdisk/archdisk/qcow/disk/disktest"
	"github.com/archdisk/archdisk/testdata"
	"github.com/stretchr/testify/require"
)

// TestFixtures: what another tool has written reads as that tool says, through every
// entry point; what must not be read is refused with its reason.
func TestFixtures(t *testing.T) {
	n := 0
	for _, f := range testdata.Fixtures() {
		if f.Format != "qcow2" || f.Compression != "" {
			continue
		}
		n++
		t.Run(f.File, func(t *testing.T) {
			file := testdata.Read(f.File)
			if f.Refused != "" {
				requireReason(t, file, disk.Reason(f.Refused))
				return
			}
			img, err := qcow.Open(bytes.NewReader(file), int64(len(file)), qcow.OpenOptions{})
			require.NoError(t, err)
			require.Equal(t, f.VirtualSize, img.Size())
			sum := sha256.New()
			_, err = io.Copy(sum, io.NewSectionReader(img, 0, img.Size()))
			require.NoError(t, err)
			require.Equal(t, f.SHA256, hex.EncodeToString(sum.Sum(nil)))
			if f.VirtualSize > 64<<20 {
				return // all zeros: the sum has said it
			}
			want := make([]byte, img.Size())
			_, err = img.ReadAt(want, 0)
			require.NoError(t, err)
			disktest.TestDisk(t, qcowCase(file, want))
		})
	}
	require.Greater(t, n, 20)
}

// requireReason checks that both ways in refuse file with the same reason.
func requireReason(t *testing.T, file []byte, reason disk.Reason) *disk.FormatError {
	t.Helper()
	var first, second *disk.FormatError
	_, err := qcow.NewLayout(file, disk.Limits{})
	require.ErrorAs(t, err, &first, "%v", err)
	require.Equal(t, reason, first.Reason, "%v", err)
	require.ErrorIs(t, err, reason.Sentinel())
	_, err = qcow.Open(bytes.NewReader(file), int64(len(file)), qcow.OpenOptions{})
	require.ErrorAs(t, err, &second, "%v", err)
	require.Equal(t, reason, second.Reason, "%v", err)
	return first
}

// mutate returns a copy of file with the big-endian value v of n bytes at off.
func mutate(file []byte, off, n int, v uint64) []byte {
	p := bytes.Clone(file)
	for i := range n {
		p[off+i] = byte(v >> (8 * (n - 1 - i)))
	}
	return p
}

// TestFeatureNames: an unknown feature is refused by the name that the image itself has for it.
func TestFeatureNames(t *testing.T) {
	good := testdata.Read("qcow2/qemu-v3-64k.qcow2")
	file := mutate(good, 72, 8, 1<<7)
	ext := append([]byte{0x68, 0x03, 0xf8, 0x57, 0, 0, 0, 48, 0, 7}, []byte("shiny\x1b[31m new")...)
	copy(file[112:], append(ext, make([]byte, 200)...))
	err := requireReason(t, file, disk.UnknownFeature)
	require.Contains(t, err.Error(), `bit 7 "shiny\x1b[31m new"`, "escaped")
}

// tablesOf finds the L1 table and the first L2 table of a good image.
func tablesOf(t *testing.T, file []byte) (l1, l2 int) {
	t.Helper()
	l1 = int(binary.BigEndian.Uint64(file[40:]))
	for i := 0; i < int(binary.BigEndian.Uint32(file[36:])); i++ {
		if l2 = int(binary.BigEndian.Uint64(file[l1+8*i:]) & 0x00fffffffffffe00); l2 != 0 {
			return l1, l2
		}
	}
	t.Fatal("no L2 table")
	return
}

// used returns the file offset of the nth L2 entry that is not 0, from 0.
func used(file []byte, l2, nth int) int {
	for at := l2; ; at += 8 {
		if binary.BigEndian.Uint64(file[at:]) != 0 {
			if nth--; nth < 0 {
				return at
			}
		}
	}
}

func readAll(t *testing.T, file []byte) []byte {
	t.Helper()
	img, err := qcow.Open(bytes.NewReader(file), int64(len(file)), qcow.OpenOptions{})
	require.NoError(t, err)
	defer img.Close()
	p := make([]byte, img.Size())
	_, err = img.ReadAt(p, 0)
	require.NoError(t, err)
	return p
}

// TestLateTables: an image whose L1 table was moved behind its data needs all of that
// parked; with too little room it says so, from a file it does not matter.
func TestLateTables(t *testing.T) {
	file := testdata.Read("qcow2/qemu-resized.qcow2")
	want := readAll(t, file)
	c := qcowCase(file, want)
	var m disktest.Memory
	stats, err := c.Convert(t.Context(), file, disk.Stream(bytes.NewReader(file)), &m, disk.ConvertOptions{})
	require.NoError(t, err)
	require.Positive(t, stats.PeakParked)
	require.LessOrEqual(t, stats.PeakParked, int64(len(file)))

	_, err = c.Convert(t.Context(), file, disk.Stream(bytes.NewReader(file)), new(disktest.Memory), disk.ConvertOptions{MaxParked: 8 << 10})
	require.ErrorIs(t, err, disk.ErrNeedsParking)

	stats, err = c.Convert(t.Context(), file, disk.File(bytes.NewReader(file), int64(len(file))), new(disktest.Memory), disk.ConvertOptions{MaxParked: 1})
	require.NoError(t, err)
	require.Zero(t, stats.PeakParked)
}

// TestBudget: a budget too small for the image's clusters is refused, not exceeded.
func TestBudget(t *testing.T) {
	file := testdata.Read("qcow2/qemu-zlib-2M.qcow2")
	b := disk.NewBudget(1 << 20)
	_, err := qcowCase(file, nil).Convert(t.Context(), file, disk.Stream(bytes.NewReader(file)), new(disktest.Memory), disk.ConvertOptions{Budget: b})
	require.ErrorIs(t, err, disk.ErrLimit)
	require.EqualValues(t, 1<<20, b.Left(), "all of it is given back")

	b = disk.NewBudget(64 << 20)
	_, err = qcowCase(file, nil).Convert(t.Context(), file, disk.Stream(bytes.NewReader(file)), new(disktest.Memory), disk.ConvertOptions{Budget: b, Workers: 64})
	require.NoError(t, err, "workers are fewer where they do not fit")
	require.EqualValues(t, 64<<20, b.Left())
}

// TestLimits: hostile numbers meet a limit before they meet memory.
func TestLimits(t *testing.T) {
	good := testdata.Read("qcow2/qemu-v3-64k.qcow2")
	t.Run("size near 2^63", func(t *testing.T) {
		file := mutate(mutate(mutate(good, 24, 8, 1<<63-512), 20, 4, 21), 36, 4, 4<<20)
		requireFault := func(err error) {
			var fe *disk.FormatError
			require.ErrorAs(t, err, &fe)
			require.Equal(t, disk.BadHeader, fe.Reason, "%v", err)
			require.Equal(t, "l1_size", fe.Field)
		}
		_, err := qcow.NewLayout(file, disk.Limits{VirtualSize: 1<<63 - 1})
		requireFault(err)
		_, err = qcow.Open(bytes.NewReader(file), int64(len(file)), qcow.OpenOptions{Limits: disk.Limits{VirtualSize: 1<<63 - 1}})
		requireFault(err)
	})
	t.Run("L1 table of 32 MiB", func(t *testing.T) {
		file := mutate(mutate(mutate(good, 20, 4, 9), 24, 8, 128<<30), 36, 4, 4<<20)
		layout, err := qcow.NewLayout(file[:512], disk.Limits{})
		require.NoError(t, err)
		list, err := layout.Start()
		require.NoError(t, err)
		for _, e := range list {
			if e.Kind != disk.Meta {
				continue
			}
			table := bytes.Repeat([]byte{0, 0, 0, 1, 0, 0, 0, 0}, 4<<20)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err = layout.Feed(e, table)
			runtime.ReadMemStats(&after)
			require.ErrorIs(t, err, disk.ErrLimit)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20))
		}
	})
	t.Run("what clusters are in use is counted", func(t *testing.T) {
		layout, err := qcow.NewLayout(good, disk.Limits{})
		require.NoError(t, err)
		before := layout.State().Memory
		_, err = layout.Start()
		require.NoError(t, err)
		require.Greater(t, layout.State().Memory, before)
	})
}
