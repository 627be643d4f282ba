package qcow_test

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/archdisk/archdisk/internal/peer"
	"github.com/archdisk/archdisk/qcow"
	"github.com/archdisk/archdisk/qcow/disk"
	"github.com/archdisk/archdisk/qcow/disk/disktest"
	"github.com/stretchr/testify/require"
)

// arrangement is one way in which the tools in use leave clusters and tables in a file. unit is a
// sixteenth of the guest's disk, of which an eighth holds data.
type arrangement struct {
	name   string
	ladder bool // tables stand behind data, and no table of an earlier time tells of it
	make   func(b *bench, unit int64)
}

// fill writes to in.raw a sparse disk with data here and there, random, text and zeros in turn.
func fill(b *bench, unit int64) {
	f, err := os.Create(b.at("in.raw"))
	require.NoError(b, err)
	defer f.Close()
	require.NoError(b, f.Truncate(16*unit))
	rnd := rand.New(rand.NewPCG(uint64(unit), 22))
	for left := 2 * unit; left > 0; {
		n := min(left, unit/64+rnd.Int64N(unit/8))
		_, err := f.WriteAt(guest(int(n), rnd.Uint64()), rnd.Int64N(16*unit-n)&^4095)
		require.NoError(b, err)
		left -= n
	}
}

// converted is what qemu-img convert makes.
func converted(flags ...string) func(*bench, int64) {
	return func(b *bench, unit int64) {
		fill(b, unit)
		b.img(append(append([]string{"convert", "-t", "unsafe", "-f", "raw", "-O", "qcow2"}, flags...), b.at("in.raw"), b.image)...)
	}
}

// served is what a client writes into an empty image through qemu-nbd.
func served(compress bool, client func(b *bench, socket string)) func(*bench, int64) {
	return func(b *bench, unit int64) {
		fill(b, unit)
		b.create("", fmt.Sprint(16*unit))
		export := []string{"-f", "qcow2", b.image}
		if compress {
			export = []string{"--image-opts", "driver=compress,file.driver=qcow2,file.file.driver=file,file.file.filename=" + strings.ReplaceAll(b.image, ",", ",,")}
		}
		socket := b.at("s")
		cmd := exec.Command(peer.Require(b, "qemu-nbd"), append([]string{"-t", "-e", "8", "--discard=unmap", "-k", socket}, export...)...)
		var said bytes.Buffer
		cmd.Stdout, cmd.Stderr = &said, &said
		require.NoError(b, cmd.Start())
		require.Eventually(b, func() bool {
			c, err := net.Dial("unix", socket)
			if err == nil {
				c.Close()
			}
			return err == nil
		}, time.Minute, 10*time.Millisecond)
		client(b, socket)
		require.NoError(b, cmd.Process.Signal(os.Interrupt))
		require.NoError(b, cmd.Wait(), said.String())
	}
}

func nbdcopy(connections int) func(b *bench, socket string) {
	return func(b *bench, socket string) {
		peer.Run(b, peer.Require(b, "nbdcopy"), "--destination-is-zero", "-C", strconv.Itoa(connections), "--request-size=65536", b.at("in.raw"), "nbd+unix:///?socket="+socket)
	}
}

// inUse is an image of options into which a guest has written n times, at random, then what
// more adds.
func inUse(options string, n int, more ...func(b *bench, rnd *rand.Rand, unit int64)) func(*bench, int64) {
	return func(b *bench, unit int64) {
		b.create(options, fmt.Sprint(16*unit))
		rnd := rand.New(rand.NewPCG(uint64(n), 23))
		writes(n)(b, rnd, unit)
		for _, f := range more {
			f(b, rnd, unit)
		}
	}
}

func writes(n int) func(*bench, *rand.Rand, int64) {
	return func(b *bench, rnd *rand.Rand, unit int64) { b.run(commands(rnd, n, unit/400, unit, "write -P 7")...) }
}

// commands draws n commands of qemu-io, for up to twice size bytes each.
func commands(rnd *rand.Rand, n int, size, unit int64, verbs ...string) []string {
	var list []string
	for i := range n {
		length := max(512, rnd.Int64N(2*size)&^511)
		list = append(list, fmt.Sprintf("%s %d %d", verbs[i%len(verbs)], rnd.Int64N(16*unit-length)&^511, length))
	}
	return list
}

func resized(b *bench, size int64) {
	b.Helper()
	b.img("resize", "-q", "-f", "qcow2", b.image, fmt.Sprint(size))
}

// arrangements are those of which it was measured how much of them comes before its table.
func arrangements() []arrangement {
	discards := func(b *bench, rnd *rand.Rand, unit int64) { b.run(commands(rnd, 40, unit/8, unit, "discard")...) }
	snapshot := func(args ...string) func(*bench, *rand.Rand, int64) {
		return func(b *bench, _ *rand.Rand, _ int64) {
			b.img(append(append([]string{"snapshot"}, args...), b.image)...)
		}
	}
	return []arrangement{
		{"convert", false, converted()},
		{"convert -W", false, converted("-W")},
		{"convert -W -m16", false, converted("-W", "-m", "16")},
		{"convert -c", false, converted("-c")},
		{"convert -c, version 2", false, converted("-c", "-o", "compat=0.10")},
		{"convert -c -W -m16", false, converted("-c", "-W", "-m", "16")},
		{"convert -c, zstd", false, converted("-c", "-o", "compression_type=zstd")},
		{"convert -S 0 -c", false, converted("-S", "0", "-c")},
		{"convert, 4k", false, converted("-o", "cluster_size=4k")},
		{"convert -c, 4k", false, converted("-c", "-o", "cluster_size=4k")},
		{"convert, 512", false, converted("-o", "cluster_size=512")},
		{"convert, 2M", false, converted("-o", "cluster_size=2M")},
		{"convert -c, 2M", false, converted("-c", "-o", "cluster_size=2M")},
		{"convert, extended L2", false, converted("-o", "extended_l2=on")},
		{"convert -c, extended L2", false, converted("-c", "-o", "extended_l2=on")},
		{"convert, extended L2, 16k", false, converted("-o", "extended_l2=on,cluster_size=16k")},
		{"convert, preallocation", false, converted("-o", "preallocation=metadata")},
		{"convert, lazy refcounts", false, converted("-o", "lazy_refcounts=on")},
		{"convert, 1 refcount bit", false, converted("-o", "refcount_bits=1")},
		{"convert, 64 refcount bits", false, converted("-o", "refcount_bits=64")},
		{"convert, version 2", false, converted("-o", "compat=0.10")},
		{"nbdcopy, 1 connection", false, served(false, nbdcopy(1))},
		{"nbdcopy, 4 connections", false, served(false, nbdcopy(4))},
		{"nbdcopy, compress driver", false, served(true, nbdcopy(4))},
		{"convert -n -W, served", false, served(false, func(b *bench, socket string) {
			b.img("convert", "-n", "-W", "-f", "raw", "-O", "raw", b.at("in.raw"), "nbd+unix:///?socket="+socket)
		})},
		{"writes", false, inUse("", 800)},
		{"writes, 4k", false, inUse("cluster_size=4k", 800)},
		{"writes, 2M", false, inUse("cluster_size=2M", 800)},
		{"writes, extended L2", false, inUse("extended_l2=on", 800)},
		{"writes, version 2", false, inUse("compat=0.10", 800)},
		{"writes, discards", false, inUse("", 800, discards)},
		{"writes, discards, writes", false, inUse("", 800, discards, writes(400))},
		{"writes of zeros between", false, inUse("", 200, func(b *bench, rnd *rand.Rand, unit int64) {
			b.run(commands(rnd, 400, unit/100, unit, "write -z", "write -P 5", "write -zu", "write -P 6")...)
		})},
		{"writes, bitmap", false, inUse("", 400, func(b *bench, rnd *rand.Rand, unit int64) {
			b.img("bitmap", "-f", "qcow2", "--add", b.image, "b")
			writes(200)(b, rnd, unit)
		})},
		{"writes, amended", false, inUse("", 400, func(b *bench, rnd *rand.Rand, unit int64) {
			b.img("amend", "-q", "-f", "qcow2", "-o", "lazy_refcounts=on", b.image)
			writes(200)(b, rnd, unit)
		})},
		{"writes, rebased on nothing", false, func(b *bench, unit int64) {
			fill(b, unit)
			b.over(b.at("in.raw"), "raw", "", "")
			writes(200)(b, rand.New(rand.NewPCG(1, 36)), unit)
			b.img("rebase", "-q", "-f", "qcow2", "-b", "", b.image)
		}},
		{"compressed writes in no order", false, func(b *bench, unit int64) {
			b.create("", fmt.Sprint(16*unit))
			var list []string
			for i, at := range rand.New(rand.NewPCG(1, 37)).Perm(int(16 * unit >> 16)) {
				if i%12 == 0 {
					list = append(list, fmt.Sprintf("write -c -P %d %d 64k", 1+i%255, at<<16))
				}
			}
			b.run(list...)
		}},
		{"a larger overlay committed", true, func(b *bench, unit int64) {
			converted()(b, unit)
			require.NoError(b, os.Rename(b.image, b.at("base.qcow2")))
			b.over(b.at("base.qcow2"), "qcow2", "", fmt.Sprint(16*unit+4<<30))
			var list []string
			for i := range int64(64) { // one of these is where the old L1 table was
				list = append(list, fmt.Sprintf("write -P 7 %d 64k", i*unit/4&^65535))
			}
			b.run(list...)
			b.img("commit", "-q", "-f", "qcow2", b.image)
			require.NoError(b, os.Rename(b.at("base.qcow2"), b.image))
		}},
		{"snapshot, writes", true, inUse("", 400, snapshot("-c", "one"), writes(400))},
		{"snapshot, writes, snapshot deleted", true, inUse("", 400, snapshot("-c", "one"), writes(400), snapshot("-d", "one"))},
		{"snapshot, writes, snapshot applied", false, inUse("", 400, snapshot("-c", "one"), writes(400), snapshot("-a", "one"))},
		{"convert, resized", false, func(b *bench, unit int64) { converted()(b, unit); resized(b, 16*unit+4<<30) }},
		{"convert -c, resized", false, func(b *bench, unit int64) { converted("-c")(b, unit); resized(b, 16*unit+4<<30) }},
		{"writes, resized", false, inUse("", 800, func(b *bench, _ *rand.Rand, unit int64) { resized(b, 16*unit+4<<30) })},
		{"writes, 4k, resized, writes", false, inUse("cluster_size=4k", 400, func(b *bench, _ *rand.Rand, unit int64) { resized(b, 16*unit+4<<30) }, writes(400))},
		{"resized, then converted", false, func(b *bench, unit int64) {
			inUse("cluster_size=4k", 400)(b, unit)
			resized(b, 16*unit+64<<20)
			b.img("convert", "-t", "unsafe", "-f", "qcow2", "-O", "qcow2", "-c", b.image, b.at("again"))
			require.NoError(b, os.Rename(b.at("again"), b.image))
		}},
	}
}

// TestArrangements: each comes whole out of a stream of which little may be parked, in one pass,
// and those of the ladder in a second one or with scratch. ARCHDISK_UNIT,
// in MiB, makes the disks larger: the figures in ARCHITECTURE.md were measured with 64.
func TestArrangements(t *testing.T) {
	unit := int64(4 << 20)
	if testing.Short() {
		unit = 1 << 20
	}
	var extra int64 // that disks of any size may park
	if s := os.Getenv("ARCHDISK_UNIT"); s != "" {
		mib, err := strconv.ParseInt(s, 10, 64)
		require.NoError(t, err)
		unit, extra = mib<<20, 4<<20
	}
	for _, a := range arrangements() {
		t.Run(a.name, func(t *testing.T) {
			b := newBench(t)
			a.make(b, unit)
			b.img("convert", "-t", "unsafe", "-f", "qcow2", "-O", "raw", b.image, b.at("want.raw"))
			want, err := os.Open(b.at("want.raw"))
			require.NoError(t, err)
			defer want.Close()
			f, err := os.Open(b.image)
			require.NoError(t, err)
			defer f.Close()
			info, err := f.Stat()
			require.NoError(t, err)

			var clusters uint
			convert := func(o disk.ConvertOptions) disk.Stats {
				head := make([]byte, 64<<10)
				n, _ := f.ReadAt(head, 0)
				clusters = uint(head[23])
				layout, err := qcow.NewLayout(head[:n], disk.Limits{})
				require.NoError(t, err)
				budget := disk.NewBudget(64 << 20)
				o.Budget, o.Workers = budget, 2
				o.MaxParked = little(int64(1)<<clusters, 16*unit) + extra
				var m disktest.Memory
				c := disk.NewConverter(&m, layout, o)
				for more := true; more; {
					more, err = c.Pass(t.Context(), disk.Stream(io.NewSectionReader(f, 0, 1<<62)))
					require.NoError(t, err)
				}
				c.Close()
				require.EqualValues(t, 64<<20, budget.Left())
				stats := c.Stats()
				require.NoError(t, m.Covered(stats.Size))
				sameDisk(t, a.name, want, &m, stats.Size, 16*unit)
				return stats
			}
			stats := convert(disk.ConvertOptions{Passes: 3})
			require.Equal(t, a.ladder, stats.Passes > 1)
			parked := stats.PeakParked
			if a.ladder {
				scratch, err := os.Create(b.at("scratch"))
				require.NoError(t, err)
				defer scratch.Close()
				stats := convert(disk.ConvertOptions{Scratch: scratch})
				require.Equal(t, 1, stats.Passes)
				parked = stats.PeakParked
			}
			t.Logf("parity: arrangement: %s: file of %d bytes: %d passes with %d bytes parked, %d parked for one", a.name, info.Size(), stats.Passes, stats.PeakParked, parked)
		})
	}
}

// little is what may be parked of an image: a cluster of the refcount table, of compressed data
// what stands in the tail of a cluster older than its L2 table, and a worker's share.
func little(cluster, size int64) int64 {
	return 128<<10 + 2*cluster + cluster*(size/(cluster*cluster/8)+1)
}
