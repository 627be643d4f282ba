package qcow_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"io"
	"runtime"
	"strings"
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

// TestHeaderRefusals: one field of a good header broken at a time. The offsets are those of
// the specification's header table.
func TestHeaderRefusals(t *testing.T) {
	good := testdata.Read("qcow2/qemu-v3-64k.qcow2")
	for _, tt := range []struct {
		name   string
		off, n int
		value  uint64
		reason disk.Reason
		text   string
	}{
		{"magic", 0, 4, 0x51464900, disk.UnknownFormat, "magic"},
		{"version 1", 4, 4, 1, disk.UnsupportedVersion, "version = 0x1 at 0x4"},
		{"version 4", 4, 4, 4, disk.UnsupportedVersion, "version = 0x4 at 0x4"},
		{"backing file", 8, 8, 0x200, disk.BackingFile, "backing_file_offset = 0x200 at 0x8"},
		{"backing file beyond the file", 8, 8, 1 << 63, disk.BackingFile, ""},
		{"backing file's name behind its cluster", 8, 8, 1<<16 + 8, disk.BackingFile, "outside the header's cluster"},
		{"cluster_bits 8", 20, 4, 8, disk.BadClusterSize, "cluster_bits = 0x8 at 0x14"},
		{"cluster_bits 22", 20, 4, 22, disk.BadClusterSize, ""},
		{"cluster_bits 40", 20, 4, 40, disk.BadClusterSize, ""},
		{"cluster_bits max", 20, 4, 0xffffffff, disk.BadClusterSize, ""},
		{"size unaligned", 24, 8, 1000, disk.VirtualSizeUnaligned, "size = 0x3e8 at 0x18"},
		{"size huge", 24, 8, 1<<64 - 512, disk.VirtualSizeTooLarge, ""},
		{"size beyond the default limit", 24, 8, 64<<40 + 512, disk.VirtualSizeTooLarge, ""},
		{"size beyond L1", 24, 8, 8 << 40, disk.BadHeader, "l1_size"},
		{"AES", 32, 4, 1, disk.Encrypted, "AES"},
		{"LUKS", 32, 4, 2, disk.Encrypted, "LUKS"},
		{"unknown crypt", 32, 4, 3, disk.Encrypted, ""},
		{"l1_size 0", 36, 4, 0, disk.BadHeader, "l1_size = 0x0 at 0x24"},
		{"l1_size max", 36, 4, 0xffffffff, disk.LimitExceeded, "l1_size = 0xffffffff at 0x24"},
		{"l1_size over 32 MiB", 36, 4, 4<<20 + 1, disk.LimitExceeded, ""},
		{"l1 unaligned", 40, 8, 0x30200, disk.TableUnaligned, "l1_table_offset = 0x30200 at 0x28"},
		{"l1 at 0", 40, 8, 0, disk.TableOutOfRange, "l1_table_offset"},
		{"l1 beyond int64", 40, 8, 1<<64 - 1<<16, disk.TableOutOfRange, ""},
		{"reftable unaligned", 48, 8, 0x10001, disk.TableUnaligned, "refcount_table_offset = 0x10001 at 0x30"},
		{"reftable at 0", 48, 8, 0, disk.TableOutOfRange, ""},
		{"reftable of no clusters", 56, 4, 0, disk.BadHeader, "refcount_table_clusters"},
		{"reftable over 8 MiB", 56, 4, 129, disk.LimitExceeded, ""},
		{"reftable max", 56, 4, 0xffffffff, disk.LimitExceeded, ""},
		{"snapshots", 60, 4, 65537, disk.LimitExceeded, "nb_snapshots"},
		{"external data file", 72, 8, 1 << 2, disk.ExternalDataFile, "incompatible_features = 0x4 at 0x48"},
		{"corrupt", 72, 8, 1 << 1, disk.CorruptBit, ""},
		{"raw data file and none", 88, 8, 1 << 1, disk.BadHeader, "autoclear_features = 0x2 at 0x58"},
		{"extension over the header area", 116, 4, 1 << 20, disk.BadHeader, "header extension"},
		{"unknown bit 5", 72, 8, 1 << 5, disk.UnknownFeature, "bit 5"},
		{"unknown bit 63", 72, 8, 1 << 63, disk.UnknownFeature, "bit 63"},
		{"compression bit without type", 72, 8, 1 << 3, disk.BadHeader, "compression_type"},
		{"refcount_order", 96, 4, 7, disk.BadHeader, "refcount_order = 0x7 at 0x60"},
		{"header_length short", 100, 4, 103, disk.BadHeader, "header_length = 0x67 at 0x64"},
		{"header_length over a cluster", 100, 4, 65537, disk.BadHeader, ""},
		{"header_length max", 100, 4, 0xffffffff, disk.BadHeader, ""},
		{"compression type without bit", 104, 1, 1, disk.BadHeader, "compression_type = 0x1 at 0x68"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			file := mutate(good, tt.off, tt.n, tt.value)
			err := requireReason(t, file, tt.reason)
			require.Contains(t, err.Error(), tt.text)
			require.NotContains(t, err.Error(), "\n")
		})
	}
	t.Run("unknown compression", func(t *testing.T) {
		zstd := testdata.Read("qcow2/qemu-zstd-4k.qcow2")
		requireReason(t, mutate(zstd, 104, 1, 2), disk.UnknownFeature)
	})
	t.Run("cut", func(t *testing.T) {
		for n := range 105 { // up to compression_type
			_, err := qcow.NewLayout(good[:n], disk.Limits{})
			var fe *disk.FormatError
			require.ErrorAs(t, err, &fe, "%d bytes", n)
		}
	})
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

// TestTableRefusals: entries of the tables broken one at a time.
func TestTableRefusals(t *testing.T) {
	plain := testdata.Read("qcow2/qemu-v3-4k.qcow2")
	l1, l2 := tablesOf(t, plain)
	first, second := used(plain, l2, 0), used(plain, l2, 1)
	entry := func(at int) uint64 { return binary.BigEndian.Uint64(plain[at:]) }
	v2 := testdata.Read("qcow2/qemu-v2-64k.qcow2")
	_, v2l2 := tablesOf(t, v2)
	v2first := used(v2, v2l2, 0)
	packed := testdata.Read("qcow2/qemu-zlib-4k.qcow2")
	_, packedL2 := tablesOf(t, packed)
	packedFirst := used(packed, packedL2, 0)
	shared, longest := packed, uint64(0) // all entries name the longest compressed cluster
	for i := range 512 {
		if e := binary.BigEndian.Uint64(packed[packedL2+8*i:]); e>>62 == 1 && e>>58&15 > longest>>58&15 {
			longest = e
		}
	}
	for i := range 512 {
		shared = mutate(shared, packedL2+8*i, 8, longest)
	}

	for _, tt := range []struct {
		name     string
		file     []byte
		reason   disk.Reason
		text     string
		dataOnly bool // seen by the pass over all entries, not by reading one cluster
	}{
		{"L2 table unaligned", mutate(plain, l1, 8, entry(l1)+512), disk.TableUnaligned, "L1 entry", false},
		{"L2 table past the end", mutate(plain, l1, 8, 1<<63|1<<40), disk.Truncated, "", false},
		{"L2 table on the header", mutate(plain, l1, 8, 1<<63), "", "", false}, // offset 0: unallocated
		{"L2 table on the L1 table", mutate(plain, l1, 8, 1<<63|uint64(l1)), disk.OverlapsMetadata, "L1 entry", true},
		{"two L1 entries, one L2 table", mutate(plain, l1+8, 8, entry(l1)), disk.OverlapsMetadata, "L1 entry", true},
		{"cluster unaligned", mutate(plain, first, 8, entry(first)+512), disk.BadEntry, "L2 entry", false},
		{"cluster past the end", mutate(plain, first, 8, 1<<63|1<<40), disk.Truncated, "", false},
		{"cluster on the L2 table", mutate(plain, first, 8, 1<<63|uint64(l2)), disk.OverlapsMetadata, "L2 entry", true},
		{"cluster on the refcount table", mutate(plain, first, 8, 1<<63|4096), disk.OverlapsMetadata, "", true},
		{"one cluster mapped twice", mutate(plain, second, 8, entry(first)), disk.SharedCluster, "L2 entry", true},
		{"zero cluster in version 2", mutate(v2, v2first, 8, binary.BigEndian.Uint64(v2[v2first:])|1), disk.BadEntry, "version 2", false},
		{"compressed cluster at 0", mutate(packed, packedFirst, 8, 1<<62), disk.BadEntry, "inside the header", false},
		{"compressed clusters on each other", shared, disk.SharedCluster, "compressed clusters", true},
		{"compressed cluster past the end", mutate(packed, packedFirst, 8, 1<<62|1<<40), disk.Truncated, "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := qcowCase(tt.file, nil)
			for name, src := range map[string]disk.Source{
				"file":   disk.File(bytes.NewReader(tt.file), int64(len(tt.file))),
				"stream": disk.Stream(bytes.NewReader(tt.file)),
			} {
				_, err := c.Convert(t.Context(), tt.file, src, new(disktest.Memory), disk.ConvertOptions{})
				if tt.reason == "" {
					require.NoError(t, err)
					continue
				}
				var fe *disk.FormatError
				require.ErrorAs(t, err, &fe, "%s: %v", name, err)
				require.Equal(t, tt.reason, fe.Reason, "%s: %v", name, err)
				require.Contains(t, err.Error(), tt.text)
			}
			if tt.dataOnly || tt.reason == "" {
				return
			}
			img, err := qcow.Open(bytes.NewReader(tt.file), int64(len(tt.file)), qcow.OpenOptions{})
			if err == nil {
				_, err = img.ReadAt(make([]byte, img.Size()), 0)
			}
			var fe *disk.FormatError
			require.ErrorAs(t, err, &fe, "image: %v", err)
			require.Equal(t, tt.reason, fe.Reason, "image: %v", err)
		})
	}
}

// TestUntidy: what QEMU reads right although it is untidy is read right here.
func TestUntidy(t *testing.T) {
	good := testdata.Read("qcow2/qemu-v3-4k.qcow2")
	want := readAll(t, good)
	l1, l2 := tablesOf(t, good)
	at := used(good, l2, 0)
	entry := func(at int) uint64 { return binary.BigEndian.Uint64(good[at:]) }
	for name, file := range map[string][]byte{
		"reserved bits of L1":    mutate(good, l1, 8, entry(l1)|0x1ff|1<<60),
		"no copied flag":         mutate(good, at, 8, entry(at)&^(1<<63)),
		"reserved bits of L2":    mutate(good, at, 8, entry(at)|1<<56|2),
		"trailing garbage":       append(bytes.Clone(good), []byte(strings.Repeat("garbage", 1000))...),
		"unknown compatible bit": mutate(good, 80, 8, 1<<40),
		"unknown autoclear bit":  mutate(good, 88, 8, 1<<40),
		"dirty":                  mutate(good, 72, 8, 1),
		"refcounts all zero":     append(append(bytes.Clone(good[:8192]), make([]byte, 4096)...), good[12288:]...),
		"snapshots counted":      mutate(mutate(good, 60, 4, 1), 64, 8, 4096),
	} {
		t.Run(name, func(t *testing.T) {
			require.True(t, bytes.Equal(want, readAll(t, file)))
			var m disktest.Memory
			stats, err := qcowCase(file, nil).Convert(t.Context(), file, disk.Stream(bytes.NewReader(file)), &m, disk.ConvertOptions{})
			require.NoError(t, err)
			got := make([]byte, stats.Size)
			_, err = m.ReadAt(got, 0)
			require.NoError(t, err)
			require.True(t, bytes.Equal(want, got))
		})
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
