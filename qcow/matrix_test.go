package qcow_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/archdisk/archdisk/internal/peer"
	"github.com/archdisk/archdisk/qcow"
	"github.com/archdisk/archdisk/qcow/disk"
	"github.com/archdisk/archdisk/qcow/disk/disktest"
	"github.com/stretchr/testify/require"
)

// seedOf returns the seed of a random test and prints it: ARCHDISK_SEED, to have a run again,
// or a new one.
func seedOf(t testing.TB) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if s := os.Getenv("ARCHDISK_SEED"); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("ARCHDISK_SEED=%d", seed)
	return seed
}

// draw returns always and n of the others, at random, so that repeated runs come to all.
func draw[T any](t testing.TB, n int, always, others []T) []T {
	t.Helper()
	rnd := rand.New(rand.NewPCG(seedOf(t), 1))
	for _, i := range rnd.Perm(len(others))[:n] {
		always = append(always, others[i])
	}
	t.Logf("drawn: %v", always)
	return always
}

// sample is one image of the matrix: how the peer is to make it.
type sample struct {
	cluster       int64
	compression   string // "none", or one of its two names and how: "zlib write", "zstd convert"
	compat        string
	extended      bool
	preallocation string
	refcountBits  int
	after         string // what is done when it has been written: "", "resize" or "snapshot"
	size          int64
}

// samples draws n images. Each value of each axis comes up as often as the others; what a
// version or a cluster size does not allow is taken back.
func samples(rnd *rand.Rand, n int) []sample {
	clusters := []int64{512, 4 << 10, 64 << 10, 2 << 20}
	if !testing.Short() {
		clusters = nil
		for bits := 9; bits <= 21; bits++ {
			clusters = append(clusters, 1<<bits)
		}
	}
	list := make([]sample, n)
	spread(rnd, list, clusters, func(s *sample, v int64) { s.cluster = v })
	spread(rnd, list, []string{"none", "zlib write", "zstd write", "zlib convert", "zstd convert", "zlib convert -W"}, func(s *sample, v string) { s.compression = v })
	spread(rnd, list, []string{"1.1", "1.1", "1.1", "0.10"}, func(s *sample, v string) { s.compat = v })
	spread(rnd, list, []bool{false, true}, func(s *sample, v bool) { s.extended = v })
	spread(rnd, list, []string{"off", "metadata", "falloc", "full"}, func(s *sample, v string) { s.preallocation = v })
	spread(rnd, list, []int{16, 1, 64}, func(s *sample, v int) { s.refcountBits = v })
	spread(rnd, list, []string{"", "", "resize", "snapshot"}, func(s *sample, v string) { s.after = v })
	for i := range list {
		s := &list[i]
		if s.compat == "0.10" {
			s.extended, s.refcountBits = false, 16
			s.compression = strings.Replace(s.compression, "zstd", "zlib", 1)
		}
		if s.cluster < 16<<10 {
			s.extended = false
		}
		if s.compression != "none" {
			s.preallocation = "off" // a cluster that is there is not compressed any more
		}
		if s.after == "snapshot" && s.refcountBits == 1 {
			s.after = "" // a snapshot's clusters are counted twice
		}
		if s.after == "resize" && s.cluster > 64<<10 {
			s.after = "" // L1 would move only for a disk that no file system here can hold
		}
		s.size = max(1<<20, 3*s.cluster) + rnd.Int64N(1024)*512
	}
	return list
}

// spread gives each of list one of values, all as often, in no order.
func spread[T any](rnd *rand.Rand, list []sample, values []T, set func(*sample, T)) {
	for i, at := range rnd.Perm(len(list)) {
		set(&list[at], values[i%len(values)])
	}
}

func (s sample) String() string {
	return fmt.Sprintf("%d, %s, %s, extended %t, preallocation %s, %d refcount bits, %q, %d bytes",
		s.cluster, s.compression, s.compat, s.extended, s.preallocation, s.refcountBits, s.after, s.size)
}

func (s sample) options() string {
	o := fmt.Sprintf("cluster_size=%d,compat=%s,preallocation=%s", s.cluster, s.compat, s.preallocation)
	if s.compat == "1.1" {
		o += fmt.Sprintf(",refcount_bits=%d", s.refcountBits)
		if s.extended {
			o += ",extended_l2=on"
		}
		if strings.HasPrefix(s.compression, "zstd") {
			o += ",compression_type=zstd"
		}
	}
	return o
}

// create makes the image, and the raw disk that qemu-img reads from it.
func (s sample) create(t *testing.T, rnd *rand.Rand) (file []byte, raw *os.File) {
	qemu, qemuIO := peer.Require(t, "qemu-img"), peer.Require(t, "qemu-io")
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	image := at("m.qcow2")
	packing := strings.HasSuffix(s.compression, "write")
	if _, args, ok := strings.Cut(s.compression, "convert"); ok {
		require.NoError(t, os.WriteFile(at("in.raw"), guest(int(s.size), rnd.Uint64()), 0o600))
		convert := append([]string{"convert", "-c", "-t", "unsafe", "-f", "raw", "-O", "qcow2", "-o", s.options()}, strings.Fields(args)...)
		peer.Run(t, qemu, append(convert, at("in.raw"), image)...)
	} else {
		peer.Run(t, qemu, "create", "-q", "-f", "qcow2", "-o", s.options(), image, fmt.Sprint(s.size))
	}
	noise := make([]byte, 64<<10)
	for i := range noise {
		noise[i] = byte(rnd.Uint32())
	}
	require.NoError(t, os.WriteFile(at("noise"), noise, 0o600))
	touched := map[int64]bool{} // clusters, which can be compressed but once
	operate := func(n int, pack bool) {
		args := []string{"-t", "unsafe", "-f", "qcow2"}
		for range n {
			off := rnd.Int64N(s.size/512) * 512
			length := min((1+rnd.Int64N(min(3*s.cluster, 256<<10)/512))*512, s.size-off)
			verb := []string{"write -q -P 7", "write -q -s " + at("noise"), "write -q -z", "write -q -z -u", "discard -q"}[rnd.IntN(5)]
			if pack {
				at := off / s.cluster * s.cluster
				if touched[at/s.cluster] || at+s.cluster > s.size && s.after == "resize" { // only the disk's last cluster may be a part
					continue
				}
				off, length = at, min(s.cluster, s.size-at)
				verb = "write -q -c " + []string{"-P 9", "-s " + filepath.Join(dir, "noise")}[rnd.IntN(2)]
			}
			for i := off / s.cluster; i <= (off+length-1)/s.cluster; i++ {
				touched[i] = true
			}
			args = append(args, "-c", fmt.Sprintf("%s %d %d", verb, off, length))
		}
		if len(args) > 4 { // without a command it would ask for some
			peer.Run(t, qemuIO, append(args, image)...)
		}
	}
	// Each in a process of its own: QEMU 7.2 goes on to compress into a host cluster that has been
	// freed and taken by plain data in between.
	write := func(n int) {
		if packing {
			operate(n/2, true)
			n -= n / 2
		}
		operate(n, false)
	}
	n := 10
	if !testing.Short() {
		n = 10 + rnd.IntN(40)
	}
	write(n)
	switch s.after {
	case "resize": // so that L1 needs more clusters than it has
		entry := int64(8)
		if s.extended {
			entry = 16
		}
		span := s.cluster / entry * s.cluster // of one L1 entry
		peer.Run(t, qemu, "resize", "-q", "-f", "qcow2", image, fmt.Sprint(s.size+3*max(span, 1<<20)))
		write(n / 3)
	case "snapshot":
		peer.Run(t, qemu, "snapshot", "-c", "one", image)
		write(n / 2)
	}
	peer.Run(t, qemu, "convert", "-t", "unsafe", "-f", "qcow2", "-O", "raw", image, at("want.raw"))
	file, err := os.ReadFile(image)
	require.NoError(t, err)
	raw, err = os.Open(at("want.raw"))
	require.NoError(t, err)
	t.Cleanup(func() { raw.Close() })
	return file, raw
}

// sameDisk requires got to be what want holds: the first head bytes, and behind them, where
// nothing was ever written, here and there.
func sameDisk(t *testing.T, way string, want, got io.ReaderAt, size, head int64) {
	t.Helper()
	read := func(r io.ReaderAt, off, n int64) []byte {
		p := make([]byte, n)
		m, err := r.ReadAt(p, off)
		if err != io.EOF {
			require.NoError(t, err, "%s at %#x", way, off)
		}
		require.EqualValues(t, n, m, way)
		return p
	}
	const step = 64 << 10
	for off := int64(0); off < size; {
		n := min(step, size-off)
		if a, b := read(want, off, n), read(got, off, n); !bytes.Equal(a, b) {
			i := 0
			for a[i] == b[i] {
				i++
			}
			t.Fatalf("%s: %#x at disk offset %#x, not %#x", way, b[i], off+int64(i), a[i])
		}
		off += n
		if off >= head && size-off > step {
			off += min(max(step, (size-head)/16), size-off-step) &^ 511
		}
	}
}

// inPasses converts a stream of which next to nothing may be parked.
func inPasses(t *testing.T, file []byte, noGuess bool) (*disktest.Memory, disk.Stats, error) {
	layout, err := qcow.NewLayout(file[:min(len(file), 64<<10)], disk.Limits{})
	require.NoError(t, err)
	m := new(disktest.Memory)
	c := disk.NewConverter(m, layout, disk.ConvertOptions{Workers: 2, MaxParked: 1, Passes: 3, NoGuess: noGuess})
	defer c.Close()
	for more := true; more && err == nil; {
		more, err = c.Pass(t.Context(), disk.Stream(bytes.NewReader(file)))
	}
	return m, c.Stats(), err
}

// TestMatrix: what qemu-img and qemu-io make of a random disk, in all the ways that an image
// can be made, is read by every way in as qemu-img reads it.
func TestMatrix(t *testing.T) {
	peer.Require(t, "qemu-img")
	seed := seedOf(t)
	n := 24
	if !testing.Short() {
		n = 120
	}
	images, ways, wrong, passes := 0, 0, 0, 0
	for i, s := range samples(rand.New(rand.NewPCG(seed, 0)), n) {
		ok := t.Run(fmt.Sprint(i), func(t *testing.T) {
			defer func() {
				if t.Failed() {
					t.Logf("ARCHDISK_SEED=%d: %s", seed, s)
				}
			}()
			file, raw := s.create(t, rand.New(rand.NewPCG(seed, uint64(i+1))))
			info, err := raw.Stat()
			require.NoError(t, err)
			size := info.Size()
			check := func(way string, m *disktest.Memory, stats disk.Stats, err error) {
				t.Helper()
				require.NoError(t, err, way)
				require.Equal(t, size, stats.Size, way)
				require.Equal(t, size, stats.Written+stats.Zeroed, way)
				require.NoError(t, m.Covered(size), way)
				sameDisk(t, way, raw, m, size, s.size)
				ways++
			}
			for way, src := range map[string]disk.Source{
				"file":   disk.File(bytes.NewReader(file), int64(len(file))),
				"stream": disk.Stream(bytes.NewReader(file)),
			} {
				var m disktest.Memory
				stats, err := qcowCase(file, nil).Convert(t.Context(), file, src, &m, disk.ConvertOptions{Workers: 2})
				check(way, &m, stats, err)
			}
			m, stats, err := inPasses(t, file, true)
			check("passes", m, stats, err)
			passes = max(passes, stats.Passes)
			if m, stats, err = inPasses(t, file, false); errors.Is(err, disk.ErrWrongGuess) {
				wrong++ // noticed, and made right by the way before
			} else {
				check("passes with a guess", m, stats, err)
			}
			img, err := qcow.Open(bytes.NewReader(file), int64(len(file)), qcow.OpenOptions{Cache: 1})
			require.NoError(t, err)
			defer img.Close()
			require.Equal(t, size, img.Size())
			sameDisk(t, "ReadAt", raw, img, size, s.size)
			ways++
		})
		if !ok {
			break
		}
		images++
	}
	t.Logf("parity: matrix: %d of %d images read as by qemu-img, %d ways in, up to %d passes, %d wrong guesses noticed, seed %d",
		images, n, ways, passes, wrong, seed)
}
