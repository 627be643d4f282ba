package qcow_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/archdisk/archdisk/internal/peer"
	"github.com/archdisk/archdisk/qcow"
	"github.com/archdisk/archdisk/qcow/disk"
	"github.com/archdisk/archdisk/qcow/disk/disktest"
	"github.com/stretchr/testify/require"
)

// ladderImage makes an image of one of the layouts whose tables stand behind their data, and
// the raw disk that qemu-img reads from it.
func ladderImage(t *testing.T, kind string) (image, raw string) {
	qemu, qemuIO := peer.Require(t, "qemu-img"), peer.Require(t, "qemu-io")
	dir := t.TempDir()
	image, raw = filepath.Join(dir, "m.qcow2"), filepath.Join(dir, "want.raw")
	in := filepath.Join(dir, "in.raw")
	require.NoError(t, os.WriteFile(in, guest(6<<20, 7), 0o600))
	writes := func() {
		rnd, args := rand.New(rand.NewPCG(1, 2)), []string{"-f", "qcow2"}
		for range 100 {
			args = append(args, "-c", fmt.Sprintf("write -q -P %d %d 20k", 1+rnd.IntN(255), rnd.IntN(5<<20)&^511))
		}
		peer.Run(t, qemuIO, append(args, image)...)
	}
	peer.Run(t, qemu, "convert", "-f", "raw", "-O", "qcow2", "-o", "cluster_size=4k", in, image)
	resize := func(size string) { peer.Run(t, qemu, "resize", "-q", "-f", "qcow2", image, size) }
	switch kind {
	case "resized":
		resize("2G")
	case "resized and written":
		resize("2G")
		writes()
	case "compressed and resized":
		peer.Run(t, qemu, "convert", "-f", "raw", "-O", "qcow2", "-c", "-o", "cluster_size=4k", in, image)
		resize("2G")
	case "snapshot and writes":
		peer.Run(t, qemu, "snapshot", "-c", "one", image)
		writes()
	case "snapshot, writes, resized":
		peer.Run(t, qemu, "snapshot", "-c", "one", image)
		writes()
		resize("8G")
	}
	peer.Run(t, qemu, "convert", "-f", "qcow2", "-O", "raw", image, raw)
	return image, raw
}

// sum returns the SHA-256 of the first size bytes of r.
func sumOf(t *testing.T, r io.ReaderAt, size int64) string {
	t.Helper()
	h := sha256.New()
	_, err := io.Copy(h, io.NewSectionReader(r, 0, size))
	require.NoError(t, err)
	return fmt.Sprintf("%x", h.Sum(nil))
}

// TestLadder: images whose tables stand behind their data, from a stream: with memory enough,
// with further passes, with scratch, and with none of them.
func TestLadder(t *testing.T) {
	for _, kind := range []string{"resized", "resized and written", "compressed and resized", "snapshot and writes", "snapshot, writes, resized"} {
		t.Run(kind, func(t *testing.T) {
			image, raw := ladderImage(t, kind)
			file, err := os.ReadFile(image)
			require.NoError(t, err)
			want, err := os.Open(raw)
			require.NoError(t, err)
			defer want.Close()
			info, err := want.Stat()
			require.NoError(t, err)
			const head = 8 << 20 // behind it is nothing but the growth
			wantSum := sumOf(t, want, min(head, info.Size()))

			// With NoGuess nothing is taken from the table that was L1 before.
			convert := func(o disk.ConvertOptions) (disk.Stats, error) {
				b := disk.NewBudget(64 << 20)
				o.Budget, o.Workers = b, 3
				layout, err := qcow.NewLayout(file[:64<<10], disk.Limits{})
				require.NoError(t, err)
				var m disktest.Memory
				c := disk.NewConverter(&m, layout, o)
				more := true
				for more && err == nil {
					more, err = c.Pass(t.Context(), disk.Stream(bytes.NewReader(file)))
				}
				stats := c.Stats()
				c.Close()
				require.EqualValues(t, 64<<20, b.Left())
				if err != nil {
					return stats, err
				}
				require.Equal(t, info.Size(), stats.Size)
				require.NoError(t, m.Covered(stats.Size), "each byte once, whatever the passes")
				require.Equal(t, wantSum, sumOf(t, &m, min(head, stats.Size)))
				return stats, nil
			}
			memory, err := convert(disk.ConvertOptions{})
			require.NoError(t, err)
			require.Equal(t, 1, memory.Passes)
			require.Greater(t, memory.PeakParked, int64(256<<10))

			const little = 64 << 10
			passes, err := convert(disk.ConvertOptions{MaxParked: little, Passes: 3, NoGuess: true})
			require.NoError(t, err)
			require.LessOrEqual(t, passes.PeakParked, int64(little))
			require.Greater(t, passes.Passes, 1)

			scratchFile, err := os.Create(filepath.Join(t.TempDir(), "scratch"))
			require.NoError(t, err)
			defer scratchFile.Close()
			scratch, err := convert(disk.ConvertOptions{MaxParked: little, Scratch: scratchFile})
			require.NoError(t, err)
			require.Equal(t, 1, scratch.Passes)
			require.Equal(t, memory.PeakParked, scratch.PeakParked)

			_, err = convert(disk.ConvertOptions{MaxParked: little, NoGuess: true})
			var fe *disk.FormatError
			require.ErrorAs(t, err, &fe)
			require.Equal(t, disk.NeedsParking, fe.Reason)
			require.GreaterOrEqual(t, int64(fe.Value), memory.PeakParked, "the error says how much it takes")
			require.LessOrEqual(t, int64(fe.Value), int64(len(file)))
			require.ErrorContains(t, err, fmt.Sprintf("%d bytes", fe.Value))
			outcome := "no guess"
			guess, err := convert(disk.ConvertOptions{MaxParked: little})
			if guessed := map[string]bool{"resized": true, "resized and written": true, "compressed and resized": true}[kind]; guessed {
				require.NoError(t, err)
				require.Equal(t, 1, guess.Passes)
				outcome = fmt.Sprintf("one pass by the old table with %d", guess.PeakParked)
			} else {
				require.ErrorIs(t, err, disk.ErrNeedsParking)
				if errors.Is(err, disk.ErrWrongGuess) {
					outcome = "a wrong guess"
				}
			}
			t.Logf("parity: ladder: %s: %d bytes parked in one pass, or %d passes with %d; %s", kind, memory.PeakParked, passes.Passes, passes.PeakParked, outcome)
		})
	}
}

// TestWrongGuess: the table that was L1 before says something else than the one that is: what
// was written is not taken for the disk.
func TestWrongGuess(t *testing.T) {
	image, _ := ladderImage(t, "resized")
	good, err := os.ReadFile(image)
	require.NoError(t, err)
	const old = 0x3000 // behind header, refcount table and its first block
	entry := func(i int) uint64 { return binary.BigEndian.Uint64(good[old+8*i:]) }
	require.NotZero(t, entry(0))
	require.NotZero(t, entry(1))
	want := readAllOf(t, good, 8<<20)
	for name, tt := range map[string]struct {
		value  uint64
		passes int // that it takes
		wrong  bool
	}{
		"the other's table": {entry(1), 0, true},
		"a data cluster":    {entry(0) + 4096, 0, true},
		"nothing":           {0, 0, true}, // then the L2 table behind it seems to be more of it
		"no L1 entry":       {entry(0) | 1, 2, false},
		"the header":        {1 << 63, 0, true},
		"past the end":      {1<<63 | 1<<40, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			file := mutate(good, old, 8, tt.value)
			convert := func(noGuess bool) (disk.Stats, error) {
				layout, err := qcow.NewLayout(file[:64<<10], disk.Limits{})
				require.NoError(t, err)
				var m disktest.Memory
				c := disk.NewConverter(&m, layout, disk.ConvertOptions{MaxParked: 64 << 10, Passes: 3, NoGuess: noGuess})
				defer c.Close()
				for more := true; more; {
					if more, err = c.Pass(t.Context(), disk.Stream(bytes.NewReader(file))); err != nil {
						return c.Stats(), err
					}
				}
				got := make([]byte, len(want))
				_, err = m.ReadAt(got, 0)
				require.NoError(t, err)
				require.True(t, bytes.Equal(want, got))
				return c.Stats(), m.Covered(c.Stats().Size)
			}
			stats, err := convert(false)
			if tt.wrong {
				require.ErrorIs(t, err, disk.ErrWrongGuess)
				var fe *disk.FormatError
				require.ErrorAs(t, err, &fe)
				require.Equal(t, disk.NeedsParking, fe.Reason)
				require.GreaterOrEqual(t, fe.Value, binary.BigEndian.Uint64(file[40:]), "all before the L1 table")
				stats, err = convert(true)
				tt.passes = 2
			}
			require.NoError(t, err)
			require.Equal(t, tt.passes, stats.Passes)
		})
	}
}

// readAllOf returns the first n bytes of an image's disk.
func readAllOf(t *testing.T, file []byte, n int) []byte {
	t.Helper()
	img, err := qcow.Open(bytes.NewReader(file), int64(len(file)), qcow.OpenOptions{})
	require.NoError(t, err)
	defer img.Close()
	p := make([]byte, n)
	_, err = img.ReadAt(p, 0)
	require.NoError(t, err)
	return p
}

// TestScratchAndTables: with scratch, what is parked leaves memory to tables, the largest there
// are: 2 MiB each.
func TestScratchAndTables(t *testing.T) {
	qemu, qemuIO := peer.Require(t, "qemu-img"), peer.Require(t, "qemu-io")
	dir := t.TempDir()
	image := filepath.Join(dir, "m.qcow2")
	peer.Run(t, qemu, "create", "-q", "-f", "qcow2", "-o", "cluster_size=2M", image, "1T")
	peer.Run(t, qemuIO, "-f", "qcow2", "-c", "write -q -P 5 0 60M", image)
	peer.Run(t, qemu, "snapshot", "-c", "one", image)
	peer.Run(t, qemuIO, "-f", "qcow2", "-c", "write -q -P 9 0 10M", image)
	peer.Run(t, qemu, "resize", "-q", "-f", "qcow2", image, "10T")
	f, err := os.Open(image)
	require.NoError(t, err)
	defer f.Close()
	scratch, err := os.Create(filepath.Join(dir, "scratch"))
	require.NoError(t, err)
	defer scratch.Close()

	head := make([]byte, 64<<10)
	_, err = f.ReadAt(head, 0)
	require.NoError(t, err)
	layout, err := qcow.NewLayout(head, disk.Limits{})
	require.NoError(t, err)
	var m disktest.Memory
	stats, err := disk.Convert(t.Context(), &m, layout, disk.Stream(f), disk.ConvertOptions{Budget: disk.NewBudget(24 << 20), Scratch: scratch})
	require.NoError(t, err)
	require.Greater(t, stats.PeakParked, int64(24<<20))
	require.NoError(t, m.Covered(stats.Size))
	want := append(bytes.Repeat([]byte{9}, 10<<20), bytes.Repeat([]byte{5}, 50<<20)...)
	got := make([]byte, len(want))
	_, err = m.ReadAt(got, 0)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got))
}
