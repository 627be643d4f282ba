package qcow_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"

	"github.com/archdisk/archdisk/qcow"
	"github.com/archdisk/archdisk/qcow/disk"
	"github.com/stretchr/testify/require"
)

// memFile is a file in memory that takes room only where something was written.
type memFile struct {
	failAt  int    // the write that fails, counted from 1
	onWrite func() // called with each, optional

	mu     sync.Mutex
	pages  map[int64][]byte
	size   int64
	writes int
}

var errDiskFull = errors.New("disk full")

const memPage = 4 << 10

func (f *memFile) WriteAt(p []byte, off int64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.onWrite != nil {
		f.onWrite()
	}
	if f.writes++; f.writes == f.failAt {
		return 0, errDiskFull
	}
	if f.pages == nil {
		f.pages = map[int64][]byte{}
	}
	for n := 0; n < len(p); {
		at := off + int64(n)
		part := p[n:min(len(p), n+int(memPage-at%memPage))]
		if f.pages[at/memPage] == nil {
			if len(bytes.Trim(part, "\x00")) == 0 {
				n += len(part)
				continue
			}
			f.pages[at/memPage] = make([]byte, memPage)
		}
		n += copy(f.pages[at/memPage][at%memPage:], part)
	}
	f.size = max(f.size, off+int64(len(p)))
	return len(p), nil
}

func (f *memFile) ReadAt(p []byte, off int64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var end error
	if left := max(f.size-off, 0); int64(len(p)) > left {
		p, end = p[:left], io.EOF
	}
	for n := 0; n < len(p); {
		at := off + int64(n)
		part := p[n:min(len(p), n+int(memPage-at%memPage))]
		clear(part)
		copy(part, f.pages[at/memPage][min(int(at%memPage), len(f.pages[at/memPage])):])
		n += len(part)
	}
	return len(p), end
}

func (f *memFile) bytes() []byte {
	p := make([]byte, f.size)
	_, _ = f.ReadAt(p, 0)
	return p
}

// TestFailedWrite: each write fails once; it is reported, and what is there is no image.
func TestFailedWrite(t *testing.T) {
	raw := guest(400<<10, 13)
	if testing.Short() {
		raw = guest(100<<10, 13)
	}
	for _, codec := range codecs() {
		t.Run(codec.String(), func(t *testing.T) {
			o := qcow.CreateOptions{ClusterSize: 4 << 10, Compression: codec, Workers: 3}
			for n := 1; ; n++ {
				f := memFile{failAt: n}
				b := disk.NewBudget(0)
				o.Budget = b
				_, err := qcow.EncodeAt(t.Context(), &f, bytes.NewReader(raw), o)
				require.EqualValues(t, disk.DefaultMemory, b.Left())
				if f.writes < n {
					require.NoError(t, err)
					t.Logf("%d writes", n-1)
					break
				}
				require.ErrorIs(t, err, errDiskFull, "write %d", n)
				_, err = qcow.Open(&f, f.size, qcow.OpenOptions{})
				require.Error(t, err, "write %d", n)
			}
			for n := 0; ; n += 3000 {
				w := &shortWriter{left: n}
				_, err := qcow.Encode(t.Context(), w, bytes.NewReader(raw), o)
				if w.left >= 0 && err == nil {
					break
				}
				require.ErrorIs(t, err, errDiskFull)
			}
		})
	}
}

// TestFailedWriteOfConvert: each write fails once below a conversion by several workers, which
// ends and says so.
func TestFailedWriteOfConvert(t *testing.T) {
	raw := guest(5<<20, 17)
	for _, codec := range codecs() {
		for n := 1; ; n += 1 + n/2 {
			f := memFile{failAt: n}
			w, err := qcow.Create(&f, int64(len(raw)), qcow.CreateOptions{ClusterSize: 32 << 10, Compression: codec, Workers: 2})
			if err == nil {
				_, err = disk.Convert(t.Context(), w, disk.NewRawLayout(disk.Limits{}), disk.File(bytes.NewReader(raw), int64(len(raw))), disk.ConvertOptions{Workers: 4})
				if write := new(disk.WriteError); err != nil {
					require.ErrorAs(t, err, &write)
					require.ErrorIs(t, w.Finish(t.Context()), errDiskFull, "an error is final")
				} else {
					err = w.Finish(t.Context())
				}
				require.NoError(t, w.Close())
			}
			if f.writes < n {
				require.NoError(t, err)
				break
			}
			require.ErrorIs(t, err, errDiskFull, "write %d", n)
		}
	}
}

// shortWriter takes a number of bytes.
type shortWriter struct{ left int }

func (w *shortWriter) Write(p []byte) (int, error) {
	if w.left -= len(p); w.left < 0 {
		return 0, errDiskFull
	}
	return len(p), nil
}

// failingDisk fails the nth read.
type failingDisk struct {
	*bytes.Reader
	mu    sync.Mutex
	calls int
	nth   int
}

func (f *failingDisk) ReadAt(p []byte, off int64) (int, error) {
	f.mu.Lock()
	f.calls++
	fail := f.calls == f.nth
	f.mu.Unlock()
	if fail {
		return 0, errInjected
	}
	return f.Reader.ReadAt(p, off)
}

var errInjected = errors.New("injected")

// TestFailedRead: each read of the source fails once and is reported.
func TestFailedRead(t *testing.T) {
	raw := prose(5 << 19)
	for _, codec := range codecs() {
		for n := 1; ; n++ {
			src := &failingDisk{Reader: bytes.NewReader(raw), nth: n}
			_, err := qcow.Encode(t.Context(), io.Discard, src, qcow.CreateOptions{Compression: codec, Workers: 3})
			if src.calls < n {
				require.NoError(t, err)
				break
			}
			require.ErrorIs(t, err, errInjected, "read %d", n)
		}
		for n := 1; ; n++ {
			src := &failingDisk{Reader: bytes.NewReader(raw), nth: n}
			_, err := qcow.EncodeAt(t.Context(), new(memFile), src, qcow.CreateOptions{Compression: codec, Workers: 3})
			if src.calls < n {
				require.NoError(t, err)
				break
			}
			require.ErrorIs(t, err, errInjected, "read %d", n)
		}
	}
}

// holeyDisk is mostly zeros and knows where not.
type holeyDisk struct {
	size int64
	data map[int64]string
}

func (d holeyDisk) Size() int64 { return d.size }

func (d holeyDisk) ReadAt(p []byte, off int64) (int, error) {
	clear(p)
	for at, s := range d.data {
		if at >= off && at+int64(len(s)) <= off+int64(len(p)) {
			copy(p[at-off:], s)
		}
	}
	return len(p), nil
}

func (d holeyDisk) NextData(off int64) (disk.Range, error) {
	next := disk.Range{Off: d.size}
	for at, s := range d.data {
		if at >= off && at < next.Off {
			next = disk.Range{Off: at, Len: int64(len(s))}
		}
	}
	return next, nil
}

// TestHuge: memory follows the data, not the size of the disk.
func TestHuge(t *testing.T) {
	small := int64(100 << 30) // of 512-byte clusters
	if testing.Short() {
		small = 4 << 30
	}
	for _, tt := range []struct{ size, cs int64 }{{64 << 40, 64 << 10}, {64 << 40, 2 << 20}, {small, 512}} {
		src := holeyDisk{size: tt.size, data: map[int64]string{0: "first", tt.size / 2: "middle", tt.size - 4: "last"}}
		for _, codec := range codecs() {
			if testing.Short() && codec != disk.Zstd {
				continue
			}
			t.Run(fmt.Sprintf("%d/%d/%s", tt.size>>30, tt.cs, codec), func(t *testing.T) {
				o := qcow.CreateOptions{ClusterSize: tt.cs, Compression: codec, Workers: 2, Budget: disk.NewBudget(64 << 20)}
				for _, way := range []string{"file", "stream"} {
					var f memFile
					var err error
					var stats qcow.Stats
					grown := heapGrowth(func() {
						if way == "file" {
							stats, err = qcow.EncodeAt(t.Context(), &f, src, o)
						} else {
							stats, err = qcow.Encode(t.Context(), &appender{f: &f}, src, o)
						}
					})
					require.NoError(t, err)
					require.EqualValues(t, 3, stats.Data)
					require.Less(t, grown, int64(128<<20))
					require.Equal(t, f.size, stats.FileSize)

					img, err := qcow.Open(&f, f.size, qcow.OpenOptions{Limits: disk.Limits{Metadata: 64 << 20}})
					require.NoError(t, err)
					for at, s := range src.data {
						p := make([]byte, len(s))
						_, err := img.ReadAt(p, at)
						require.NoError(t, err)
						require.Equal(t, s, string(p))
					}
					again, err := qcow.EncodeAt(t.Context(), new(memFile), img, o)
					require.NoError(t, err)
					require.EqualValues(t, 3, again.Data, "an image is a source that knows its zeros")
					require.NoError(t, img.Close())
				}
			})
		}
	}
}

// heapGrowth returns by how much the heap is larger after f, garbage included.
func heapGrowth(f func()) int64 {
	var before, after runtime.MemStats
	debug.FreeOSMemory()
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int64(after.HeapSys-after.HeapReleased) - int64(before.HeapAlloc)
}

// appender writes a stream to a file and leaves zeros out.
type appender struct {
	f   *memFile
	off int64
}

func (a *appender) Write(p []byte) (int, error) {
	for done := 0; done < len(p); {
		part := p[done:min(len(p), done+memPage)]
		if len(bytes.Trim(part, "\x00")) > 0 {
			if _, err := a.f.WriteAt(part, a.off); err != nil {
				return 0, err
			}
		}
		done += len(part)
		a.off += int64(len(part))
	}
	a.f.size = a.off
	return len(p), nil
}

// TestCreateRefusals: what cannot be is said before anything is written.
func TestCreateRefusals(t *testing.T) {
	for _, tt := range []struct {
		name string
		size int64
		o    qcow.CreateOptions
		text string
	}{
		{"cluster size 3000", 512, qcow.CreateOptions{ClusterSize: 3000}, "cluster size 3000"},
		{"cluster size 256", 512, qcow.CreateOptions{ClusterSize: 256}, "cluster size 256"},
		{"cluster size 4 MiB", 512, qcow.CreateOptions{ClusterSize: 4 << 20}, "cluster size 4194304"},
		{"cluster size negative", 512, qcow.CreateOptions{ClusterSize: -512}, "cluster size -512"},
		{"size unaligned", 1000, qcow.CreateOptions{}, "size = 0x3e8: no multiple of 512"},
		{"size negative", -512, qcow.CreateOptions{}, "no multiple"},
		{"size huge", 65 << 40, qcow.CreateOptions{}, "at most 64 TiB"},
		{"clusters too small", 1 << 40, qcow.CreateOptions{ClusterSize: 512}, "clusters of 512 bytes are too small"},
		{"codec", 512, qcow.CreateOptions{Compression: 9}, "codec 9"},
		{"no memory", 512, qcow.CreateOptions{Budget: disk.NewBudget(1000)}, "bytes of memory needed"},
		{"no memory to compress", 512, qcow.CreateOptions{Budget: disk.NewBudget(2 << 20), Compression: disk.Zstd}, "bytes of memory needed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var f memFile
			_, err := qcow.Create(&f, tt.size, tt.o)
			require.ErrorContains(t, err, tt.text)
			require.Zero(t, f.writes)
			_, err = qcow.Encode(t.Context(), &appender{f: &f}, holeyDisk{size: tt.size}, tt.o)
			require.Error(t, err)
			require.Zero(t, f.writes)
			if tt.o.Budget != nil {
				require.Positive(t, tt.o.Budget.Left())
				require.NoError(t, tt.o.Budget.Reserve(tt.o.Budget.Left(), "all"))
			}
		})
	}
}

// TestMisuse: writes that break the contract are found, where they can be.
func TestMisuse(t *testing.T) {
	create := func(o qcow.CreateOptions) *qcow.Writer {
		w, err := qcow.Create(new(memFile), 1<<20, o)
		require.NoError(t, err)
		t.Cleanup(func() { w.Close() })
		return w
	}
	for _, codec := range codecs() {
		w := create(qcow.CreateOptions{Compression: codec, ClusterSize: 512})
		_, err := w.WriteAt(prose(64<<10), 0)
		require.NoError(t, err)
		_, err = w.WriteAt(prose(512), 512)
		require.ErrorContains(t, err, "written twice", codec.String())
		require.ErrorContains(t, w.Finish(t.Context()), "written twice", "an error is final")
	}
	_, err := create(qcow.CreateOptions{}).WriteAt(prose(512), 1<<20-100)
	require.ErrorContains(t, err, "of a disk of 1048576 bytes")
	require.ErrorContains(t, create(qcow.CreateOptions{}).ZeroRange(-1, 5), "of a disk")
	require.Error(t, create(qcow.CreateOptions{}).PutAt(t.Context(), 0, disk.Range{Len: 5}, prose(6)))

	w := create(qcow.CreateOptions{})
	require.NoError(t, w.Finish(t.Context()))
	require.Error(t, w.Finish(t.Context()))
	require.Error(t, w.ZeroRange(0, 5))

	ctx, cancel := context.WithCancel(t.Context())
	w = create(qcow.CreateOptions{})
	wait := make(chan error)
	go func() { wait <- w.PutAt(ctx, 1, disk.Range{Len: 512}, prose(512)) }()
	cancel()
	require.ErrorIs(t, <-wait, context.Canceled, "piece 0 never comes")
	require.ErrorIs(t, w.Finish(t.Context()), context.Canceled)
}

// changing is a source that is not the same twice.
type changing struct {
	holeyDisk
	reads *int
}

func (c changing) ReadAt(p []byte, off int64) (int, error) {
	*c.reads++
	copy(p, prose(len(p)-*c.reads))
	return len(p), nil
}

func TestSourceChanges(t *testing.T) {
	src := changing{holeyDisk{size: 64 << 10, data: map[int64]string{0: strings.Repeat("x", 64<<10)}}, new(int)}
	_, err := qcow.Encode(t.Context(), io.Discard, src, qcow.CreateOptions{Compression: disk.Deflate, Workers: 1})
	require.ErrorContains(t, err, "the source changed")
}

// TestCancel: a cancelled context ends each form, before it begins or at any write.
func TestCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, way := range ways() {
		_, err := way.write(ctx, prose(1<<20), qcow.CreateOptions{Compression: disk.Deflate})
		require.ErrorIs(t, err, context.Canceled, way.name)
	}
	raw := guest(600<<10, 17)
	for _, codec := range codecs() {
		for n := 1; ; n *= 2 {
			ctx, cancel := context.WithCancel(t.Context())
			var f memFile
			f.onWrite = func() {
				if f.writes == n {
					cancel()
				}
			}
			_, err := qcow.EncodeAt(ctx, &f, bytes.NewReader(raw), qcow.CreateOptions{ClusterSize: 4 << 10, Compression: codec, Workers: 3})
			if cancel(); f.writes <= n {
				break
			}
			if err != nil {
				require.ErrorIs(t, err, context.Canceled)
			}
		}
	}
}
