package qcow_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/archdisk/archdisk/internal/peer"
	"github.com/archdisk/archdisk/qcow"
	"github.com/archdisk/archdisk/qcow/disk"
	"github.com/archdisk/archdisk/qcow/disk/disktest"
	"github.com/stretchr/testify/require"
)

// way is one of the ways to make an image of a raw disk.
type way struct {
	name  string
	write func(ctx context.Context, raw []byte, o qcow.CreateOptions) ([]byte, error)
}

func ways() []way {
	return []way{
		{"stream", func(ctx context.Context, raw []byte, o qcow.CreateOptions) ([]byte, error) {
			var out bytes.Buffer
			_, err := qcow.Encode(ctx, &out, bytes.NewReader(raw), o)
			return out.Bytes(), err
		}},
		{"file", func(ctx context.Context, raw []byte, o qcow.CreateOptions) ([]byte, error) {
			var out memFile
			_, err := qcow.EncodeAt(ctx, &out, bytes.NewReader(raw), o)
			return out.bytes(), err
		}},
		{"convert", func(ctx context.Context, raw []byte, o qcow.CreateOptions) ([]byte, error) {
			var out memFile
			w, err := qcow.Create(&out, int64(len(raw)), o)
			if err != nil {
				return nil, err
			}
			defer w.Close()
			layout := disk.NewRawLayout(disk.Limits{})
			if _, err := disk.Convert(ctx, w, layout, disk.Stream(bytes.NewReader(raw)), disk.ConvertOptions{Workers: o.Workers}); err != nil {
				return nil, err
			}
			err = w.Finish(ctx)
			return out.bytes(), err
		}},
	}
}

type content struct {
	name string
	raw  []byte
}

func noise(n int, seed uint64) []byte {
	rnd := rand.New(rand.NewPCG(seed, 1))
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(rnd.Uint32())
	}
	return p
}

func prose(n int) []byte {
	var b bytes.Buffer
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, "Jan %2d %02d:%02d:%02d host%d unit[%d]: state %x of job %d\n", i%31, i%24, i%60, i%59, i%7, (i%997)*(i%997), uint32(i)*2654435761, i)
	}
	return b.Bytes()[:n]
}

// contents returns disks of about n bytes.
func contents(n int) []content {
	sparse := make([]byte, n+disk.SectorSize)
	copy(sparse[n/3+100:], "a byte or two")
	copy(sparse[n:], "the very end")
	mixed := append(prose(n/2), noise(n/2, 2)...)
	for off := 0; off+8192 < len(mixed); off += 96 << 10 {
		copy(mixed[off:off+8192], mixed[len(mixed)-8192:])
		clear(mixed[off+8192 : min(off+20000, len(mixed))])
	}
	ones := bytes.Repeat([]byte{1}, n)
	return []content{
		{"nothing", nil},
		{"zeros", make([]byte, n)},
		{"sector", prose(disk.SectorSize)},
		{"sparse", sparse},
		{"text", prose(n + 3*disk.SectorSize)},
		{"noise", noise(n-disk.SectorSize, 1)},
		{"ones", ones},
		{"mixed", mixed},
		{"random", guest(n+5*disk.SectorSize, 7)},
	}
}

// qemuAgrees has qemu-img check an image and compare it with its disk.
func qemuAgrees(t *testing.T, qemu string, image, raw []byte) {
	t.Helper()
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a.qcow2"), filepath.Join(dir, "b.raw")
	require.NoError(t, os.WriteFile(a, image, 0o600))
	require.NoError(t, os.WriteFile(b, raw, 0o600))
	require.Contains(t, string(peer.Run(t, qemu, "check", "-f", "qcow2", a)), "No errors were found on the image")
	peer.Run(t, qemu, "compare", "-f", "qcow2", "-F", "raw", a, b)
}

func imageIs(t *testing.T, image, raw []byte) {
	t.Helper()
	img, err := qcow.Open(bytes.NewReader(image), int64(len(image)), qcow.OpenOptions{})
	require.NoError(t, err)
	defer img.Close()
	require.EqualValues(t, len(raw), img.Size())
	got := make([]byte, len(raw))
	_, err = img.ReadAt(got, 0)
	require.NoError(t, err)
	require.True(t, bytes.Equal(raw, got), "content differs")
}

func codecs() []disk.Codec { return []disk.Codec{disk.Plain, disk.Deflate, disk.Zstd} }

// TestWrite: each cluster size, compression, content and way gives an image that qemu-img
// finds clean and equal, and that reads back in every way that there is. Readers of a stream
// need to keep little.
func TestWrite(t *testing.T) {
	sizes, list := []int64{512, 64 << 10}, contents(256<<10)
	if testing.Short() {
		list = []content{list[0], list[7]}
	} else {
		sizes = draw(t, 2, []int64{512, 64 << 10, 2 << 20}, []int64{1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20})
		list = contents(3 << 20)
	}
	var written, checked atomic.Int64
	t.Cleanup(func() {
		t.Logf("parity: writer: %d images read back, %d of them clean and identical for qemu-img", written.Load(), checked.Load())
	})
	for _, cs := range sizes {
		for _, codec := range codecs() {
			for _, c := range list {
				for _, way := range ways() {
					t.Run(fmt.Sprintf("%d/%s/%s/%s", cs, codec, c.name, way.name), func(t *testing.T) {
						t.Parallel()
						image, err := way.write(t.Context(), c.raw, qcow.CreateOptions{ClusterSize: cs, Compression: codec, Workers: 3})
						require.NoError(t, err)
						imageIs(t, image, c.raw)
						stats := forward(t, image)
						// Refcount blocks, and the end of what is packed before each L2 table.
						clusters := int64(len(image)) / cs
						require.LessOrEqual(t, stats.PeakParked, cs*(clusters/(cs/2)+2*(int64(len(c.raw))/(cs*cs/8))+4), "for a reader of a stream")
						written.Add(1)
						qemuAgrees(t, peer.Require(t, "qemu-img"), image, c.raw)
						checked.Add(1)
					})
				}
			}
		}
	}
}

// forward converts an image from a stream.
func forward(t *testing.T, image []byte) disk.Stats {
	t.Helper()
	layout, err := qcow.NewLayout(image[:min(len(image), 64<<10)], disk.Limits{})
	require.NoError(t, err)
	stats, err := disk.Convert(t.Context(), new(disktest.Memory), layout, disk.Stream(bytes.NewReader(image)), disk.ConvertOptions{Workers: 2})
	require.NoError(t, err)
	return stats
}

// TestWriteConforms: what is written goes through the conformance test of readers.
func TestWriteConforms(t *testing.T) {
	raw := guest(600<<10+512, 11)
	for _, codec := range codecs() {
		for _, way := range ways() {
			t.Run(codec.String()+"/"+way.name, func(t *testing.T) {
				image, err := way.write(t.Context(), raw, qcow.CreateOptions{ClusterSize: 16 << 10, Compression: codec})
				require.NoError(t, err)
				disktest.TestDisk(t, qcowCase(image, raw))
			})
		}
	}
}

// TestWriteSize: files are within 2 % of those of qemu-img convert, plain ones no larger. In
// clusters of up to 16 KiB compressed ones are within 4 %: in small inputs of machine code the
// encoders here find fewer matches (zlib takes three bytes for one, here four are the least),
// and the deflate encoder ends each cluster with an empty block, 10 bits, which shows where a
// cluster comes to 20 bytes: one byte repeated. The random disk is some 30 clusters, plain and
// compressed in turn: what fits where, and whether the file ends with a cluster or a sector, is
// luck, and one cluster more may be needed.
func TestWriteSize(t *testing.T) {
	qemu := peer.Require(t, "qemu-img")
	n, sizes := 2<<20, []int64{4 << 10, 64 << 10}
	list := []content{{"program", program(t, n)}}
	if !testing.Short() {
		n, sizes = 16<<20, draw(t, 1, []int64{4 << 10, 64 << 10}, []int64{512, 16 << 10, 32 << 10, 256 << 10, 2 << 20})
		list = append(contents(n)[3:], content{"program", program(t, n)}, content{"libraries", libraries(t, n)})
	}
	worst, compared := map[disk.Codec]float64{}, 0
	for _, c := range list {
		for _, cs := range sizes {
			for _, codec := range codecs() {
				dir := t.TempDir()
				in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
				require.NoError(t, os.WriteFile(in, c.raw, 0o600))
				args := []string{"convert", "-f", "raw", "-O", "qcow2", "-o", fmt.Sprintf("cluster_size=%d", cs)}
				switch codec {
				case disk.Deflate:
					args = append(args, "-c")
				case disk.Zstd:
					args = append(args, "-c", "-o", "compression_type=zstd")
				}
				peer.Run(t, qemu, append(args, in, out)...)
				info, err := os.Stat(out)
				require.NoError(t, err)
				line := fmt.Sprintf("%-9s %7d %-7s qemu-img %9d", c.name, cs, codec, info.Size())
				for _, way := range ways()[:2] {
					image, err := way.write(t.Context(), c.raw, qcow.CreateOptions{ClusterSize: cs, Compression: codec})
					require.NoError(t, err)
					more := 100 * (float64(len(image))/float64(info.Size()) - 1)
					line += fmt.Sprintf(" %s %+.2f %%", way.name, more)
					worst[codec] = max(worst[codec], more)
					compared++
					most := 0.0
					switch {
					case codec != disk.Plain && cs <= 16<<10:
						most = 4
					case codec != disk.Plain:
						most = 2
					}
					if c.name == "random" && codec != disk.Plain {
						most += 100 * float64(cs) / float64(info.Size())
					}
					if more > most {
						t.Errorf("%s: more than %.1f %%", line, most)
					}
				}
				t.Log(line)
			}
		}
	}
	t.Logf("parity: writer: sizes of %d files compared, the worst: plain %+.2f %%, zlib %+.2f %%, zstd %+.2f %%", compared, worst[disk.Plain], worst[disk.Deflate], worst[disk.Zstd])
}

// libraries returns up to n bytes of machine code by other compilers: qemu-img's.
func libraries(t testing.TB, n int) []byte {
	t.Helper()
	p, err := os.ReadFile(peer.Require(t, "qemu-img"))
	require.NoError(t, err)
	return p[:min(len(p), n)&^(disk.SectorSize-1)]
}

// program returns n bytes of what programs are made of: this test's own.
func program(t testing.TB, n int) []byte {
	t.Helper()
	path, err := os.Executable()
	require.NoError(t, err)
	p, err := os.ReadFile(path)
	require.NoError(t, err)
	if len(p) > n {
		p = p[:n]
	}
	return p[:len(p)&^(disk.SectorSize-1)]
}

func sum(p []byte) string {
	s := sha256.Sum256(p)
	return hex.EncodeToString(s[:8])
}

// goldenDisk has clusters of every kind.
func goldenDisk() []byte {
	p := append(prose(700<<10), noise(300<<10, 3)...)
	p = append(p, make([]byte, 500<<10)...)
	p = append(p, prose(90<<10)...)
	p = append(p, noise(70<<10, 4)...)
	return append(p, prose(512*3)...)
}

// TestReproducible: the same disk and options give the same bytes on every machine, with any
// number of workers, and again.
func TestReproducible(t *testing.T) {
	raw := goldenDisk()
	for _, tt := range []struct {
		way   string
		cs    int64
		codec disk.Codec
		sum   string
	}{
		{"stream", 64 << 10, disk.Plain, "81d292cced60ed06"},
		{"stream", 64 << 10, disk.Deflate, "4bcc1849f24098fb"},
		{"stream", 64 << 10, disk.Zstd, "8e9ba558935e2cbe"},
		{"stream", 4 << 10, disk.Deflate, "2c7d139f294fd827"},
		{"stream", 2 << 20, disk.Zstd, "bb9e1f25a6e1fe30"},
		{"file", 64 << 10, disk.Plain, "1500daf97b249a4d"},
		{"file", 64 << 10, disk.Deflate, "3505f779fe66ef77"},
		{"file", 64 << 10, disk.Zstd, "54282642c3d86aac"},
		{"file", 4 << 10, disk.Zstd, "347ae415a37ef347"},
		{"file", 2 << 20, disk.Deflate, "2ad23af1d7bb1f98"},
		{"convert", 64 << 10, disk.Plain, "1500daf97b249a4d"},
		{"convert", 64 << 10, disk.Deflate, "3505f779fe66ef77"},
		{"convert", 4 << 10, disk.Zstd, "347ae415a37ef347"},
	} {
		t.Run(fmt.Sprintf("%s/%d/%s", tt.way, tt.cs, tt.codec), func(t *testing.T) {
			for _, way := range ways() {
				if way.name != tt.way {
					continue
				}
				all := []int{1, 2, 8, 8, 8}
				if testing.Short() {
					all = []int{1, 8}
				}
				for _, workers := range all {
					image, err := way.write(t.Context(), raw, qcow.CreateOptions{ClusterSize: tt.cs, Compression: tt.codec, Workers: workers})
					require.NoError(t, err)
					require.Equal(t, tt.sum, sum(image), "%d workers", workers)
				}
			}
		})
	}
}

// cutUp returns a disk in pieces, in the order of a source.
func cutUp(raw []byte, most int, seed uint64, shuffle bool) []disk.Range {
	rnd := rand.New(rand.NewPCG(seed, 5))
	var list []disk.Range
	for off := int64(0); off < int64(len(raw)); {
		n := min(int64(1+rnd.IntN(most/512))*512, int64(len(raw))-off)
		list = append(list, disk.Range{Off: off, Len: n})
		off += n
	}
	if shuffle {
		rnd.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	}
	return list
}

// put writes pieces with several goroutines that take them in order.
func put(ctx context.Context, w *qcow.Writer, raw []byte, list []disk.Range, workers int) error {
	type job struct {
		n int64
		r disk.Range
	}
	jobs := make(chan job)
	errs := make(chan error, workers)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for range workers {
		go func() {
			for j := range jobs {
				p := bytes.Clone(raw[j.r.Off:j.r.End()])
				if bytes.Equal(p, make([]byte, len(p))) && j.n%2 == 0 {
					p = nil
				}
				runtime.Gosched()
				if err := w.PutAt(ctx, j.n, j.r, p); err != nil {
					errs <- err
					cancel()
					return
				}
				clear(p) // it is the caller's again
			}
			errs <- nil
		}()
	}
	for n, r := range list {
		select {
		case jobs <- job{int64(n), r}:
			continue
		case <-ctx.Done():
		}
		break
	}
	close(jobs)
	var first error
	for range workers {
		if err := <-errs; first == nil {
			first = err
		}
	}
	return first
}

// TestConvertReproducible: an image out of order, converted from a stream or a file, gives the
// same bytes whatever the number of workers.
func TestConvertReproducible(t *testing.T) {
	raw := goldenDisk()
	for _, codec := range codecs() {
		t.Run(codec.String(), func(t *testing.T) {
			var from memFile
			w, err := qcow.Create(&from, int64(len(raw)), qcow.CreateOptions{ClusterSize: 16 << 10, Compression: codec})
			require.NoError(t, err)
			require.NoError(t, put(t.Context(), w, raw, cutUp(raw, 150<<10, 3, true), 1))
			require.NoError(t, w.Finish(t.Context()))
			image := from.bytes()
			want := ""
			for _, workers := range []int{1, 2, 8, 8} {
				for _, src := range []disk.Source{disk.Stream(bytes.NewReader(image)), disk.File(bytes.NewReader(image), int64(len(image)))} {
					layout, err := qcow.NewLayout(image[:512], disk.Limits{})
					require.NoError(t, err)
					var to memFile
					w, err := qcow.Create(&to, int64(len(raw)), qcow.CreateOptions{Compression: codec, Workers: workers})
					require.NoError(t, err)
					_, err = disk.Convert(t.Context(), w, layout, src, disk.ConvertOptions{Workers: workers})
					require.NoError(t, err)
					require.NoError(t, w.Finish(t.Context()))
					got := to.bytes()
					imageIs(t, got, raw)
					if want == "" {
						want = sum(got)
					}
					require.Equal(t, want, sum(got), "%d workers", workers)
				}
			}
		})
	}
}

// TestPutAt: the order of the source decides the bytes, not that of the goroutines; and for a
// source in guest order not the sizes of the pieces either.
func TestPutAt(t *testing.T) {
	raw, all, sizes := append(goldenDisk(), goldenDisk()...), []int{1, 2, 8, 8}, []int64{512, 4 << 10, 64 << 10, 2 << 20}
	if testing.Short() {
		raw, all, sizes = goldenDisk()[:1<<20], []int{1, 8}, []int64{4 << 10, 64 << 10}
	}
	for _, cs := range sizes {
		for _, codec := range codecs() {
			for _, order := range []string{"guest", "shuffled"} {
				t.Run(fmt.Sprintf("%d/%s/%s", cs, codec, order), func(t *testing.T) {
					var want string
					if order == "guest" {
						var f memFile
						_, err := qcow.EncodeAt(t.Context(), &f, bytes.NewReader(raw), qcow.CreateOptions{ClusterSize: cs, Compression: codec})
						require.NoError(t, err)
						want = sum(f.bytes())
					}
					for i, workers := range all {
						seed := uint64(1)
						if order == "guest" {
							seed = uint64(i)
						}
						var f memFile
						b := disk.NewBudget(0)
						w, err := qcow.Create(&f, int64(len(raw)), qcow.CreateOptions{ClusterSize: cs, Compression: codec, Workers: 4, Budget: b})
						require.NoError(t, err)
						require.NoError(t, put(t.Context(), w, raw, cutUp(raw, 150<<10, seed, order != "guest"), workers))
						require.NoError(t, w.Finish(t.Context()))
						require.NoError(t, w.Close())
						require.NoError(t, w.Close())
						require.EqualValues(t, disk.DefaultMemory, b.Left())
						image := f.bytes()
						imageIs(t, image, raw)
						require.Equal(t, int64(len(image)), w.Stats().FileSize)
						if want == "" {
							want = sum(image)
							qemuAgrees(t, peer.Require(t, "qemu-img"), image, raw)
						}
						require.Equal(t, want, sum(image), "%d workers", workers)
					}
				})
			}
		}
	}
}

// TestAssemblyFull: clusters in pieces beyond the memory for them are stored plain.
func TestAssemblyFull(t *testing.T) {
	raw := prose(10 << 20)
	const cs = 1 << 20
	var f memFile
	w, err := qcow.Create(&f, int64(len(raw)), qcow.CreateOptions{ClusterSize: cs, Compression: disk.Deflate})
	require.NoError(t, err)
	defer w.Close()
	for half := range int64(2) {
		for off := half * cs / 2; off < int64(len(raw)); off += cs {
			_, err := w.WriteAt(raw[off:off+cs/2], off)
			require.NoError(t, err)
		}
	}
	require.NoError(t, w.Finish(t.Context()))
	require.Equal(t, qcow.Stats{Size: 10 << 20, FileSize: f.size, Data: 10, Compressed: 8}, w.Stats())
	imageIs(t, f.bytes(), raw)
	qemuAgrees(t, peer.Require(t, "qemu-img"), f.bytes(), raw)
}

// TestPartlyWritten: what nobody has written reads as zeros, in clusters half there, too.
func TestPartlyWritten(t *testing.T) {
	for _, codec := range codecs() {
		t.Run(codec.String(), func(t *testing.T) {
			raw := make([]byte, 1<<20)
			var f memFile
			w, err := qcow.Create(&f, int64(len(raw)), qcow.CreateOptions{Compression: codec})
			require.NoError(t, err)
			defer w.Close()
			for _, off := range []int64{3000, 600 << 10, 65536*3 - 10} {
				copy(raw[off:], "twenty bytes of data")
				_, err := w.WriteAt(raw[off:off+20], off)
				require.NoError(t, err)
			}
			require.NoError(t, w.ZeroRange(700<<10, 5))
			require.NoError(t, w.Finish(t.Context()))
			require.EqualValues(t, 4, w.Stats().Data)
			imageIs(t, f.bytes(), raw)
			qemuAgrees(t, peer.Require(t, "qemu-img"), f.bytes(), raw)
		})
	}
}
