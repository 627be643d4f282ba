package qcow_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/archdisk/archdisk/internal/peer"
	"github.com/archdisk/archdisk/qcow"
	"github.com/archdisk/archdisk/qcow/disk"
	"github.com/archdisk/archdisk/testdata"
	"github.com/stretchr/testify/require"
)

func be64(file []byte, off int) uint64 { return binary.BigEndian.Uint64(file[off:]) }

// firstL2 returns the offset of the L2 table that the first L1 entry in use names, and of its
// first entry in use.
func firstL2(t testing.TB, file []byte) (l1, l2, entry int) {
	t.Helper()
	for l1 = int(be64(file, 40)); be64(file, l1) == 0; l1 += 8 {
	}
	l2 = int(be64(file, l1) & 0xfffffffffffe00)
	for entry = l2; be64(file, entry) == 0; entry += 8 {
	}
	return l1, l2, entry
}

// TestCheckFindings: one edit each, what is found, where, and that qemu-img counts the same.
func TestCheckFindings(t *testing.T) {
	const cs = 4096
	plain := testdata.Read("qcow2/qemu-v3-4k.qcow2")
	packed := testdata.Read("qcow2/qemu-zlib-4k.qcow2")
	snapshot := testdata.Read("qcow2/qemu-snapshot.qcow2")
	bitmap := testdata.Read("qcow2/qemu-bitmap.qcow2")
	extended := testdata.Read("qcow2/qemu-extended-l2.qcow2")
	l1, l2, e := firstL2(t, plain)
	_, _, pe := firstL2(t, packed)
	_, _, xe := firstL2(t, extended)
	block := int(be64(plain, int(be64(plain, 48))))
	data := int(be64(plain, e) & 0xfffffffffffe00)
	table := int(be64(snapshot, 64))
	clusters := (len(plain) + cs - 1) / cs
	ext := bytes.Index(bitmap[:512], []byte{0x23, 0x85, 0x28, 0x75})
	dir := int(be64(bitmap, ext+24))
	hl := int(binary.BigEndian.Uint32(plain[100:]))
	var p parity

	for i, tt := range []struct {
		name     string
		file     []byte
		verdict  qcow.Verdict
		severity qcow.Severity
		kind     qcow.FindingKind
		offset   int // of the finding, -1 for any
	}{
		{"leak", mutate(plain, block+2*(data/cs), 2, 2), qcow.Corrupt, qcow.Leak, qcow.FoundRefcountTooHigh, data},
		{"leak of an appended cluster", mutate(append(bytes.Clone(plain), make([]byte, cs)...), block+2*clusters, 2, 1), qcow.Leaky, qcow.Leak, qcow.FoundRefcountTooHigh, clusters * cs},
		{"refcount 0", mutate(plain, block+2*(data/cs), 2, 0), qcow.Corrupt, qcow.Corruption, qcow.FoundRefcountTooLow, data},
		{"cluster mapped twice", mutate(plain, e+8, 8, be64(plain, e)), qcow.Corrupt, qcow.Note, qcow.FoundOverlap, data},
		{"data on the L2 table", mutate(plain, e, 8, uint64(l2)|1<<63), qcow.Corrupt, qcow.Note, qcow.FoundOverlap, l2},
		{"data on the header", mutate(plain, e, 8, 0x8000000000000200), qcow.Corrupt, qcow.Corruption, qcow.FoundUnaligned, e},
		{"data behind the end", mutate(plain, e, 8, uint64(1<<40)|1<<63), qcow.Corrupt, qcow.Corruption, qcow.FoundOutOfRange, e},
		{"data far behind the end", mutate(plain, e, 8, 0x80fffffffffff000), qcow.Corrupt, qcow.Corruption, qcow.FoundOutOfRange, e},
		{"data unaligned", mutate(plain, e, 8, be64(plain, e)|0x200), qcow.Corrupt, qcow.Corruption, qcow.FoundUnaligned, e},
		{"L2 reserved bit", mutate(plain, e, 8, be64(plain, e)|1<<57), qcow.Corrupt, qcow.Corruption, qcow.FoundReservedBits, e},
		{"L2 copied flag", mutate(plain, e, 8, be64(plain, e)^1<<63), qcow.Corrupt, qcow.Corruption, qcow.FoundCopiedFlag, e},
		{"L1 copied flag", mutate(plain, l1, 8, be64(plain, l1)^1<<63), qcow.Corrupt, qcow.Corruption, qcow.FoundCopiedFlag, l1},
		{"L1 reserved bit", mutate(plain, l1, 8, be64(plain, l1)|1), qcow.Corrupt, qcow.Corruption, qcow.FoundReservedBits, l1},
		{"L1 unaligned", mutate(plain, l1, 8, be64(plain, l1)|0x200), qcow.Corrupt, qcow.Corruption, qcow.FoundUnaligned, l1},
		{"L1 entry of the copied flag alone", mutate(plain, l1, 8, 1<<63), qcow.Corrupt, qcow.Note, qcow.FoundOverlap, 0},
		{"L1 table on the header", mutate(plain, 40, 8, 0), qcow.Corrupt, qcow.Note, qcow.FoundOverlap, 0},
		{"refcount table behind the end", mutate(plain, 48, 8, 1<<40), qcow.Corrupt, qcow.Corruption, qcow.FoundOutOfRange, 48},
		{"no refcount table", mutate(plain, 56, 4, 0), qcow.Corrupt, qcow.Corruption, qcow.FoundRefcountTooLow, 0},
		{"refcount block unaligned", mutate(plain, int(be64(plain, 48)), 8, uint64(block+512)), qcow.Failed, qcow.CheckError, qcow.FoundRefcountUnknown, 0},
		{"refcount block out of range", mutate(plain, int(be64(plain, 48)), 8, 1<<40), qcow.Corrupt, qcow.Corruption, qcow.FoundOutOfRange, int(be64(plain, 48))},
		{"refcount block of no file", mutate(plain, int(be64(plain, 48)), 8, 1<<64-cs), qcow.Failed, qcow.Corruption, qcow.FoundOutOfRange, int(be64(plain, 48))},
		{"refcount block reserved bit", mutate(plain, int(be64(plain, 48)), 8, uint64(block+1)), qcow.Corrupt, qcow.Corruption, qcow.FoundReservedBits, int(be64(plain, 48))},
		{"refcount block twice", mutate(plain, int(be64(plain, 48))+8, 8, uint64(block)), qcow.Corrupt, qcow.Corruption, qcow.FoundRefcountBlock, int(be64(plain, 48)) + 8},
		{"compressed, copied flag", mutate(packed, pe, 8, be64(packed, pe)|1<<63), qcow.Corrupt, qcow.Corruption, qcow.FoundCopiedFlag, pe},
		{"subclusters allocated and zero", mutate(extended, xe+8, 8, 1<<32|1), qcow.Corrupt, qcow.Corruption, qcow.FoundBadSubclusters, xe},
		{"subclusters of no cluster", mutate(mutate(extended, xe, 8, 0), xe+8, 8, 1), qcow.Corrupt, qcow.Corruption, qcow.FoundBadSubclusters, xe},
		{"snapshot L1 unaligned", mutate(snapshot, table, 8, be64(snapshot, table)+8), qcow.Corrupt, qcow.Corruption, qcow.FoundUnaligned, table},
		{"snapshot L1 too large", mutate(snapshot, table+8, 4, 4<<20+1), qcow.Corrupt, qcow.Corruption, qcow.FoundBadSnapshot, table + 8},
		{"snapshot extra data", mutate(snapshot, table+36, 4, 8), qcow.Corrupt, qcow.Corruption, qcow.FoundBadSnapshot, table + 36},
		{"snapshot extra data too large", mutate(snapshot, table+36, 4, 1025), qcow.Failed, qcow.CheckError, qcow.FoundBadSnapshot, table + 36},
		{"snapshots too many", mutate(snapshot, 60, 4, 65537), qcow.Failed, qcow.CheckError, qcow.FoundBadSnapshot, 60},
		{"snapshot table unaligned, and no snapshots", mutate(plain, 64, 8, 8), qcow.Failed, qcow.CheckError, qcow.FoundBadSnapshot, 64},
		{"snapshot table unaligned", mutate(snapshot, 64, 8, uint64(table+8)), qcow.Failed, qcow.CheckError, qcow.FoundBadSnapshot, 64},
		{"snapshot table on the header", mutate(mutate(plain, 64, 8, 0), 60, 4, 2), qcow.Corrupt, qcow.Note, qcow.FoundOverlap, 0},
		{"bitmaps reserved field", mutate(bitmap, ext+12, 4, 1), qcow.Failed, qcow.CheckError, qcow.FoundBadHeader, ext + 12},
		{"bitmaps autoclear bit missing", mutate(bitmap, 88, 8, 0), qcow.Leaky, qcow.Note, qcow.FoundBadBitmap, ext + 8},
		{"bitmap table too large", mutate(bitmap, dir+8, 4, 2), qcow.Failed, qcow.CheckError, qcow.FoundBadBitmap, dir + 8},
		{"bitmap granularity", mutate(bitmap, dir+17, 1, 32), qcow.Failed, qcow.CheckError, qcow.FoundBadBitmap, dir + 17},
		{"bitmap table entry", mutate(bitmap, int(be64(bitmap, dir)), 8, 2), qcow.Failed, qcow.CheckError, qcow.FoundBadBitmap, int(be64(bitmap, dir))},
		{"bitmap in use, table entry", mutate(mutate(bitmap, dir+12, 4, 1), int(be64(bitmap, dir)), 8, 2), qcow.Failed, qcow.CheckError, qcow.FoundBadBitmap, int(be64(bitmap, dir))},
		{"encryption header and no encryption", mutate(mutate(plain, hl, 8, 0x0537be77<<32|16), hl+24, 8, 0), qcow.Failed, qcow.CheckError, qcow.FoundBadHeader, hl + 8},
		{"encryption header too short", mutate(mutate(mutate(plain, 32, 4, 2), hl, 8, 0x0537be77<<32|8), hl+16, 8, 0), qcow.Failed, qcow.CheckError, qcow.FoundBadHeader, hl + 8},
		{"LUKS and no encryption header", mutate(mutate(plain, 32, 4, 2), hl, 8, 0), qcow.Failed, qcow.CheckError, qcow.FoundBadHeader, 32},
		{"backing file format too long", mutate(mutate(plain, hl, 8, 0xe2792aca<<32|16), hl+24, 8, 0), qcow.Failed, qcow.CheckError, qcow.FoundBadHeader, hl},
		{"no L1 table, unaligned", mutate(testdata.Read("qcow2/qemu-size-0.qcow2"), 40, 8, 0x30200), qcow.Failed, qcow.CheckError, qcow.FoundBadHeader, 40},
		{"backing file name too long", mutate(mutate(plain, 8, 8, 0x200), 16, 4, 1024), qcow.Failed, qcow.CheckError, qcow.FoundBadHeader, 8},
		{"header extension too long", mutate(plain, hl, 8, 1<<32|1<<31), qcow.Failed, qcow.CheckError, qcow.FoundBadHeader, hl},
		{"end of extensions too long", mutate(plain, hl, 8, 1<<31), qcow.Failed, qcow.CheckError, qcow.FoundBadHeader, hl},
		{"raw data file and none", mutate(plain, 88, 8, 2), qcow.Failed, qcow.CheckError, qcow.FoundBadHeader, 88},
		{"disk of 1 PiB", mutate(mutate(testdata.Read("qcow2/qemu-v3-2M.qcow2"), 36, 4, 2048), 24, 8, 1<<50), qcow.Clean, "", "", -1},
		{"odd size", mutate(plain, 24, 8, be64(plain, 24)-1), qcow.Clean, "", "", -1},
		{"corrupt bit", mutate(plain, 72, 8, 2), qcow.Clean, qcow.Note, qcow.FoundState, 72},
		{"dirty bit", mutate(plain, 72, 8, 1), qcow.Clean, qcow.Note, qcow.FoundState, 72},
	} {
		t.Run(tt.name, func(t *testing.T) {
			result, err := check(t, tt.file, qcow.CheckOptions{})
			require.NoError(t, err)
			require.Equal(t, tt.verdict, result.Verdict(), "%v", result.Findings)
			found := tt.kind == ""
			for _, f := range result.Findings {
				found = found || f.Severity == tt.severity && f.Kind == tt.kind && f.Offset == int64(tt.offset)
				require.NotContains(t, f.String(), "\n")
			}
			require.True(t, found, "no %s %s at %#x in %v", tt.severity, tt.kind, tt.offset, result.Findings)
			if chosen(i) {
				p.add(requireParity(t, peer.Require(t, "qemu-img"), write(t, "a.qcow2", tt.file), tt.file))
			}
		})
	}
	t.Log(&p)
}

// TestCheckRefuses: a header that leads nowhere is an error.
func TestCheckRefuses(t *testing.T) {
	good := testdata.Read("qcow2/qemu-v3-64k.qcow2")
	var p parity
	for i, tt := range []struct {
		name   string
		file   []byte
		reason disk.Reason
	}{
		{"empty", nil, disk.UnknownFormat},
		{"magic", mutate(good, 0, 4, 0), disk.UnknownFormat},
		{"cut", good[:70], disk.Truncated},
		{"version", mutate(good, 4, 4, 4), disk.UnsupportedVersion},
		{"cluster_bits", mutate(good, 20, 4, 22), disk.BadClusterSize},
		{"extended L2 in small clusters", mutate(testdata.Read("qcow2/qemu-v3-4k.qcow2"), 72, 8, 16), disk.BadClusterSize},
		{"refcount_order", mutate(good, 96, 4, 7), disk.BadHeader},
		{"unknown feature", mutate(good, 72, 8, 1<<9), disk.UnknownFeature},
		{"unknown encryption", mutate(good, 32, 4, 3), disk.Encrypted},
		{"L1 unaligned", mutate(good, 40, 8, 0x30200), disk.TableUnaligned},
		{"L1 too small", mutate(good, 36, 4, 0), disk.BadHeader},
		{"L1 too small for an odd size", mutate(mutate(good, 36, 4, 1), 24, 8, 512<<20+1), disk.BadHeader},
		{"L1 too small for extended L2", mutate(mutate(good, 72, 8, 16), 24, 8, 512<<20), disk.BadHeader},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := check(t, tt.file, qcow.CheckOptions{})
			var fe *disk.FormatError
			require.ErrorAs(t, err, &fe)
			require.Equal(t, tt.reason, fe.Reason, "%v", err)
			if chosen(i) {
				p.add(requireParity(t, peer.Require(t, "qemu-img"), write(t, "a.qcow2", tt.file), tt.file))
			}
		})
	}
	t.Log(&p)
}

// TestCheckLimits: memory and time are bounded whatever the image claims.
func TestCheckLimits(t *testing.T) {
	good := testdata.Read("qcow2/qemu-v3-4k.qcow2")
	t.Run("budget", func(t *testing.T) {
		for n := int64(1); ; n *= 2 {
			result, err := check(t, good, qcow.CheckOptions{Budget: disk.NewBudget(n)})
			if err == nil {
				require.Equal(t, qcow.Clean, result.Verdict())
				require.Less(t, n, int64(1<<20))
				return
			}
			require.ErrorIs(t, err, disk.ErrLimit, "%d bytes", n)
		}
	})
	t.Run("findings", func(t *testing.T) {
		file := bytes.Clone(good)
		clear(file[be64(file, 48):][:4096]) // no refcounts at all
		result, err := check(t, file, qcow.CheckOptions{MaxFindings: 3})
		require.NoError(t, err)
		require.Len(t, result.Findings, 3)
		require.Greater(t, result.Omitted, int64(10))
		require.Greater(t, result.Corruptions, int64(10))
	})
	t.Run("tables that overlap", func(t *testing.T) {
		// 65536 snapshots with one large L1 table, which is that of the active state.
		file := mutate(mutate(good, 36, 4, 4<<20), 60, 4, 65536)
		at := (len(file) + 4095) &^ 4095
		file = mutate(file, 64, 8, uint64(at))
		file = append(file, make([]byte, at-len(file))...)
		entry := make([]byte, 56)
		binary.BigEndian.PutUint64(entry, be64(file, 40))
		binary.BigEndian.PutUint32(entry[8:], 1<<19)
		binary.BigEndian.PutUint32(entry[36:], 16)
		file = append(file, bytes.Repeat(entry, 65536)...)
		_, err := check(t, file, qcow.CheckOptions{})
		require.ErrorIs(t, err, disk.ErrLimit)
	})
	t.Run("refcount blocks", func(t *testing.T) {
		// Each entry of a L2 table asks for another refcount block, of 2 GiB of the file.
		file := bytes.Clone(testdata.Read("qcow2/qemu-v3-64k.qcow2"))
		_, l2, _ := firstL2(t, file)
		reftable := int(be64(file, 48))
		for i := range 8192 {
			binary.BigEndian.PutUint64(file[reftable+8*i:], be64(file, reftable))
			binary.BigEndian.PutUint64(file[l2+8*i:], uint64(i)<<31|1<<63)
		}
		_, err := check(t, file, qcow.CheckOptions{})
		require.ErrorIs(t, err, disk.ErrLimit)
	})
	t.Run("file size", func(t *testing.T) {
		_, err := qcow.Check(t.Context(), endless{good}, 1<<62, qcow.CheckOptions{})
		require.ErrorIs(t, err, disk.ErrLimit)
	})
	t.Run("context", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := qcow.Check(ctx, bytes.NewReader(good), int64(len(good)), qcow.CheckOptions{})
		require.ErrorIs(t, err, context.Canceled)
	})
}

// endless is a file that goes on with zeros.
type endless struct{ p []byte }

func (e endless) ReadAt(p []byte, off int64) (int, error) {
	clear(p)
	if off < int64(len(e.p)) {
		copy(p, e.p[off:])
	}
	return len(p), nil
}

// TestCheckWidths: counters of each width are read from where QEMU writes them.
func TestCheckWidths(t *testing.T) {
	for i, bits := range []int{1, 2, 4, 8, 16, 32, 64} {
		if !chosen(i) {
			continue
		}
		t.Run(fmt.Sprint(bits), func(t *testing.T) {
			m := newMaker(t, 1)
			m.run(m.img, "create", "-q", "-f", "qcow2", "-o", fmt.Sprintf("cluster_size=4k,refcount_bits=%d", bits), m.path, "1M")
			m.run(m.qio, "-f", "qcow2", "-c", "write -P 1 0 300k", m.path)
			if bits > 1 {
				m.run(m.img, "snapshot", "-c", "one", m.path)
				m.run(m.qio, "-f", "qcow2", "-c", "write -P 1 0 70k", m.path)
			}
			file := m.read()
			require.Equal(t, 0, requireParity(t, m.img, m.path, file).exit)
			block := int(be64(file, int(be64(file, 48))))
			for _, i := range []int{0, 1, 5, 9} {
				bad := bytes.Clone(file)
				bad[block+i*max(bits, 8)/8+max(bits, 8)/8-1] ^= 1
				require.NotZero(t, requireParity(t, m.img, write(t, "b.qcow2", bad), bad).exit)
			}
		})
	}
}

// TestSnapshots: the list is that of qemu-img.
func TestSnapshots(t *testing.T) {
	m := newMaker(t, 1)
	names := []string{"first", "with \"quotes\"\n\x1b[31m", strings.Repeat("long", 50)}
	m.run(m.img, "create", "-q", "-f", "qcow2", m.path, "1M")
	for _, n := range names {
		m.run(m.img, "snapshot", "-c", n, m.path)
		m.run(m.img, "resize", "-q", "-f", "qcow2", m.path, "+1M")
	}
	file := m.read()
	result, err := check(t, file, qcow.CheckOptions{})
	require.NoError(t, err)
	list := result.Snapshots
	read, err := open(t, file).Snapshots()
	require.NoError(t, err)
	require.Equal(t, list, read)
	var info struct {
		Snapshots []struct {
			ID, Name    string
			VMStateSize int64 `json:"vm-state-size"`
			DateSec     int64 `json:"date-sec"`
		}
	}
	out := peer.Run(t, m.img, "info", "--output=json", m.path)
	require.NoError(t, json.Unmarshal(out, &info))
	require.Len(t, list, len(names))
	for i, s := range list {
		require.Equal(t, info.Snapshots[i].ID, s.ID)
		require.Equal(t, names[i], s.Name)
		require.Equal(t, info.Snapshots[i].DateSec, s.Date.Unix())
		require.Equal(t, info.Snapshots[i].VMStateSize, s.VMStateSize)
		require.Equal(t, int64(i+1)<<20, s.Size)
		require.Positive(t, s.L1Offset)
		require.Positive(t, s.L1Size)
	}

	t.Run("hostile", func(t *testing.T) {
		table := int(be64(file, 64))
		for i, tt := range []struct {
			name    string
			file    []byte
			verdict qcow.Verdict
			listed  int
		}{
			{"cut", file[:table+60], qcow.Corrupt, 3}, // the rest of the table is zeros
			{"at 0", mutate(file, 64, 8, 0), qcow.Corrupt, 1},
			{"far", mutate(file, 64, 8, 1<<63-1<<16), qcow.Failed, 0},
			{"extra data", mutate(file, table+36, 4, 1<<31), qcow.Failed, 0},
			{"L1 far", mutate(file, table, 8, 1<<63), qcow.Failed, 2},
			{"L1 large", mutate(file, table+8, 4, 1<<31), qcow.Corrupt, 2},
			{"disk size", mutate(file, table+48, 8, 1<<63), qcow.Clean, 2},
		} {
			result, err := check(t, tt.file, qcow.CheckOptions{})
			require.NoError(t, err, tt.name)
			require.Equal(t, tt.verdict, result.Verdict(), "%s: %v", tt.name, result.Findings)
			require.Len(t, result.Snapshots, tt.listed, tt.name)
			if chosen(i) {
				requireParity(t, m.img, write(t, "a.qcow2", tt.file), tt.file)
			}
		}
	})
}

// TestBitmaps: the list is that of qemu-img.
func TestBitmaps(t *testing.T) {
	m := newMaker(t, 1)
	m.run(m.img, "create", "-q", "-f", "qcow2", m.path, "8M")
	m.run(m.img, "bitmap", "--add", "-g", "512", m.path, "a \"b\"")
	m.run(m.img, "bitmap", "--add", "-g", "1M", m.path, "second")
	m.run(m.qio, "-f", "qcow2", "-c", "write -P 1 1M 64k", m.path)
	m.run(m.img, "bitmap", "--disable", m.path, "second")
	file := m.read()
	result, err := check(t, file, qcow.CheckOptions{})
	require.NoError(t, err)
	list := result.Bitmaps
	read, err := open(t, file).Bitmaps()
	require.NoError(t, err)
	require.Equal(t, list, read)
	read, err = open(t, mutate(file, 88, 8, 0)).Bitmaps()
	require.NoError(t, err)
	require.Empty(t, read, "out of date")
	require.Len(t, list, 2)
	require.Equal(t, "a \"b\"", list[0].Name)
	require.EqualValues(t, 512, list[0].Granularity)
	require.Equal(t, qcow.BitmapAuto, list[0].Flags)
	require.Equal(t, "second", list[1].Name)
	require.EqualValues(t, 1<<20, list[1].Granularity)
	require.Zero(t, list[1].Flags)
	ext := bytes.Index(file[:512], []byte{0x23, 0x85, 0x28, 0x75}) + 8
	dir := int(be64(file, ext+16))
	twin := bytes.Clone(file) // both entries are 32 bytes long
	copy(twin[dir+32:], twin[dir:dir+32])
	for i, tt := range []struct {
		name    string
		file    []byte
		verdict qcow.Verdict
	}{
		{"cut", file[:dir+20], qcow.Failed},
		{"none", mutate(file, ext, 4, 0), qcow.Failed},
		{"too many", mutate(file, ext, 4, 65536), qcow.Failed},
		{"more than stated", mutate(file, ext, 4, 1), qcow.Failed},
		{"fewer than stated", mutate(file, ext, 4, 3), qcow.Failed},
		{"directory large", mutate(file, ext+8, 8, 1<<40), qcow.Failed},
		{"directory larger than the file", mutate(file, ext+8, 8, 32<<20), qcow.Failed},
		{"directory unaligned", mutate(file, ext+16, 8, uint64(dir+8)), qcow.Failed},
		{"directory far", mutate(file, ext+16, 8, 1<<63), qcow.Failed},
		{"table far", mutate(file, dir, 8, 1<<63), qcow.Failed},
		{"table large", mutate(file, dir+8, 4, 1<<31), qcow.Failed},
		{"flags", mutate(file, dir+12, 4, 4), qcow.Failed},
		{"type", mutate(file, dir+16, 1, 2), qcow.Failed},
		{"table too large", mutate(file, dir+8, 4, 2), qcow.Failed},
		{"two of a name", twin, qcow.Failed},
		{"granularity", mutate(file, dir+17, 1, 8), qcow.Failed},
		{"name", mutate(file, dir+18, 2, 65535), qcow.Failed},
		{"extra data", mutate(file, dir+20, 4, 1), qcow.Failed},
	} {
		result, err := check(t, tt.file, qcow.CheckOptions{})
		require.NoError(t, err, tt.name)
		require.Equal(t, tt.verdict, result.Verdict(), "%s: %v", tt.name, result.Findings)
		img, err := qcow.Open(bytes.NewReader(tt.file), int64(len(tt.file)), qcow.OpenOptions{})
		if err == nil {
			_, err = img.Bitmaps()
		}
		var fe *disk.FormatError
		require.ErrorAs(t, err, &fe, tt.name)
		if chosen(i) {
			requireParity(t, m.img, write(t, "a.qcow2", tt.file), tt.file)
		}
	}
}

// open opens an image whose active state is sound.
func open(t *testing.T, file []byte) *qcow.Image {
	t.Helper()
	img, err := qcow.Open(bytes.NewReader(file), int64(len(file)), qcow.OpenOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { img.Close() })
	return img
}

// BenchmarkCheck: a disk of 64 GiB, all of it allocated.
func BenchmarkCheck(b *testing.B) {
	m := newMaker(b, 1)
	m.run(m.img, "create", "-q", "-f", "qcow2", "-o", "preallocation=metadata", m.path, "64G")
	r, err := os.Open(m.path)
	require.NoError(b, err)
	defer r.Close()
	info, err := r.Stat()
	require.NoError(b, err)
	b.Run("archdisk", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			result, err := qcow.Check(b.Context(), r, info.Size(), qcow.CheckOptions{})
			require.NoError(b, err)
			require.Equal(b, qcow.Clean, result.Verdict())
		}
	})
	b.Run("qemu-img", func(b *testing.B) {
		for b.Loop() {
			peer.Run(b, m.img, "check", m.path)
		}
	})
}

// TestCheckHeaderLength: the refusal is about the field as it stands in the file.
func TestCheckHeaderLength(t *testing.T) {
	good := testdata.Read("qcow2/qemu-v3-4k.qcow2")
	for _, length := range []uint64{0, 1, 4, 72, 103} {
		file := mutate(good, 100, 4, length)
		_, err := qcow.Check(t.Context(), bytes.NewReader(file), int64(len(file)), qcow.CheckOptions{})
		require.ErrorContains(t, err, fmt.Sprintf("header_length = %#x at 0x64", length))
	}
}
