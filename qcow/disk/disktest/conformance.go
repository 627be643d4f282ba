package disktest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/iotest"

	"github.com/archdisk/archdisk/qcow/disk"
	"github.com/stretchr/testify/require"
)

// Image is what a format returns for random access.
type Image interface {
	io.ReaderAt
	Size() int64
	Close() error
}

// Case is one image file and what must come out of it.
type Case struct {
	File []byte
	Want []byte // the disk, as another tool decodes it
	// AnyLength: nothing in the format tells where the file should end, as in raw.
	AnyLength bool
	// NewLayout and Open are the format's two ways in.
	NewLayout func(head []byte) (disk.Layout, error)
	Open      func(r io.ReaderAt, size int64) (Image, error)
}

const headSize = 64 << 10

func (c Case) head(file []byte) []byte { return file[:min(len(file), headSize)] }

// Convert runs the case's file, or another one in its place, through disk.Convert.
func (c Case) Convert(ctx context.Context, file []byte, src disk.Source, m *Memory, o disk.ConvertOptions) (disk.Stats, error) {
	layout, err := c.NewLayout(c.head(file))
	if err != nil {
		return disk.Stats{}, err
	}
	return disk.Convert(ctx, m, layout, src, o)
}

var errInjected = errors.New("injected")

// TestDisk checks that an image reads the same through every entry point: random access,
// forward pass from a file, forward pass from a stream; that every byte of the disk is
// covered exactly once; that the failure of the Nth read or write is returned and never
// taken for an end, for each of the first N and ever wider apart behind; and that a file cut short anywhere never passes for another disk.
func TestDisk(t *testing.T, c Case) {
	t.Helper()
	t.Run("ReadAt", func(t *testing.T) { c.testReadAt(t) })
	t.Run("Convert", func(t *testing.T) { c.testConvert(t) })
	t.Run("FailRead", func(t *testing.T) { c.testFailRead(t) })
	t.Run("FailWrite", func(t *testing.T) { c.testFailWrite(t) })
	if !c.AnyLength {
		t.Run("Cut", func(t *testing.T) { c.testCut(t) })
	}
}

func (c Case) testReadAt(t *testing.T) {
	img, err := c.Open(bytes.NewReader(c.File), int64(len(c.File)))
	require.NoError(t, err)
	defer img.Close()
	size := int64(len(c.Want))
	require.Equal(t, size, img.Size())

	all := make([]byte, size)
	n, err := img.ReadAt(all, 0)
	require.NoError(t, err, "a full read returns nil")
	require.Equal(t, len(all), n)
	require.True(t, bytes.Equal(c.Want, all), "content differs")

	_, err = img.ReadAt(make([]byte, 1), size)
	require.Equal(t, io.EOF, err)
	n, err = img.ReadAt(make([]byte, 1024), max(size-512, 0))
	require.Equal(t, io.EOF, err)
	require.EqualValues(t, min(size, 512), n)
	_, err = img.ReadAt(make([]byte, 1), -1)
	require.Error(t, err)

	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	t.Run("random", func(t *testing.T) {
		for i := range 4 {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				rnd := rand.New(rand.NewPCG(seed, uint64(i)))
				for range 50 {
					off := rnd.Int64N(size + 1)
					p := make([]byte, rnd.Int64N(min(size-off, 200<<10)+1))
					_, err := img.ReadAt(p, off)
					if len(p) > 0 {
						require.NoError(t, err)
					}
					require.True(t, bytes.Equal(c.Want[off:off+int64(len(p))], p), "at %#x", off)
				}
			})
		}
	})
}

// sources returns the ways to hand a file to Convert.
func sources(file []byte) map[string]disk.Source {
	return map[string]disk.Source{
		"file":        disk.File(bytes.NewReader(file), int64(len(file))),
		"stream":      disk.Stream(bytes.NewReader(file)),
		"half stream": disk.Stream(iotest.HalfReader(bytes.NewReader(file))),
		"data+EOF":    disk.Stream(iotest.DataErrReader(bytes.NewReader(file))),
	}
}

func (c Case) testConvert(t *testing.T) {
	for _, workers := range []int{1, 4} {
		for name, src := range sources(c.File) {
			t.Run(fmt.Sprintf("%s/%d", name, workers), func(t *testing.T) {
				var m Memory
				stats, err := c.Convert(t.Context(), c.File, src, &m, disk.ConvertOptions{Workers: workers})
				require.NoError(t, err)
				c.same(t, &m, stats)
			})
		}
	}
}

func (c Case) same(t *testing.T, m *Memory, stats disk.Stats) {
	t.Helper()
	require.EqualValues(t, len(c.Want), stats.Size)
	require.NoError(t, m.Covered(stats.Size))
	require.Equal(t, stats.Size, stats.Written+stats.Zeroed)
	got := make([]byte, stats.Size)
	_, err := m.ReadAt(got, 0)
	require.NoError(t, err)
	require.True(t, bytes.Equal(c.Want, got), "content differs")
}

// next returns the following read or write to fail: all of the first few, then ever wider
// apart, in a short run sooner.
func next[N int | int64](n N) N {
	if testing.Short() {
		return n + 1 + n/2
	}
	return n + 1 + n/6
}

// cuts is the number of places at which a file is cut.
func cuts() int {
	if testing.Short() {
		return 10
	}
	return 20
}

// failing counts reads and fails the nth.
type failing struct {
	r     *bytes.Reader
	calls atomic.Int64
	nth   int64
}

func (f *failing) Read(p []byte) (int, error) {
	if f.calls.Add(1) == f.nth {
		return 0, errInjected
	}
	return f.r.Read(p[:min(len(p), 16<<10)])
}

func (f *failing) ReadAt(p []byte, off int64) (int, error) {
	if f.calls.Add(1) == f.nth {
		return 0, errInjected
	}
	return f.r.ReadAt(p, off)
}

func (c Case) testFailRead(t *testing.T) {
	for _, way := range []string{"file", "stream", "image"} {
		t.Run(way, func(t *testing.T) {
			for n := int64(1); n < 10_000; n = next(n) {
				f := &failing{r: bytes.NewReader(c.File), nth: n}
				var err error
				switch way {
				case "file":
					_, err = c.Convert(t.Context(), c.File, disk.File(f, int64(len(c.File))), new(Memory), disk.ConvertOptions{Workers: 2})
				case "stream":
					_, err = c.Convert(t.Context(), c.File, disk.Stream(f), new(Memory), disk.ConvertOptions{Workers: 2})
				case "image":
					err = c.readAll(f)
				}
				if f.calls.Load() < n {
					require.NoError(t, err)
					return // every read has failed once
				}
				require.ErrorIs(t, err, errInjected, "read %d", n)
			}
		})
	}
}

func (c Case) readAll(r io.ReaderAt) error {
	img, err := c.Open(r, int64(len(c.File)))
	if err != nil {
		return err
	}
	defer img.Close()
	_, err = img.ReadAt(make([]byte, img.Size()), 0)
	if err == io.EOF {
		err = nil
	}
	return err
}

func (c Case) testFailWrite(t *testing.T) {
	for n := 1; n < 10_000; n = next(n) {
		m := &Memory{FailWrite: func(i int) error {
			if i == n {
				return errInjected
			}
			return nil
		}}
		_, err := c.Convert(t.Context(), c.File, disk.Stream(bytes.NewReader(c.File)), m, disk.ConvertOptions{Workers: 2})
		if m.Writes() < n {
			require.NoError(t, err)
			return
		}
		require.ErrorIs(t, err, errInjected, "write %d", n)
		var we *disk.WriteError
		require.ErrorAs(t, err, &we)
	}
}

// testCut: a file cut anywhere gives the whole right disk or an error, from every source.
func (c Case) testCut(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, uint64(len(c.File))))
	for i := range cuts() {
		n := rnd.IntN(len(c.File) + 1)
		if i < 5 {
			n = max(0, len(c.File)-1-i*100) // near the end, where it is easily missed
		}
		file := c.File[:n]
		for name, src := range sources(file) {
			var m Memory
			stats, err := c.Convert(t.Context(), file, src, &m, disk.ConvertOptions{Workers: 2})
			if err == nil {
				c.same(t, &m, stats)
				continue
			}
			var fe *disk.FormatError
			require.ErrorAs(t, err, &fe, "%s cut at %d", name, n)
		}
	}
}
