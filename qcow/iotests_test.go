package qcow_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/archdisk/archdisk/internal/peer"
	"github.com/archdisk/archdisk/qcow"
	"github.com/archdisk/archdisk/qcow/disk"
	"github.com/archdisk/archdisk/qcow/disk/disktest"
	"github.com/stretchr/testify/require"
)

// bench is a folder in which the peer makes an image, and the image under test.
type bench struct {
	*testing.T
	dir, image string
	qemu, io   string
}

func newBench(t *testing.T) *bench {
	dir := t.TempDir()
	return &bench{T: t, dir: dir, image: filepath.Join(dir, "m.qcow2"), qemu: peer.Require(t, "qemu-img"), io: peer.Require(t, "qemu-io")}
}

func (b *bench) at(name string) string { return filepath.Join(b.dir, name) }

// create makes the image anew, with options and of size.
func (b *bench) create(options, size string) {
	b.Helper()
	args := []string{"create", "-q", "-f", "qcow2"}
	if options != "" {
		args = append(args, "-o", options)
	}
	peer.Run(b.T, b.qemu, append(args, b.image, size)...)
}

// run gives qemu-io its commands.
func (b *bench) run(commands ...string) { b.Helper(); b.runOn(b.image, commands...) }

func (b *bench) runOn(image string, commands ...string) {
	b.Helper()
	args := []string{"-t", "unsafe", "-f", "qcow2"}
	for _, c := range commands {
		if verb, rest, _ := strings.Cut(c, " "); verb == "write" || verb == "discard" {
			c = verb + " -q " + rest
		}
		args = append(args, "-c", c)
	}
	peer.Run(b.T, b.io, append(args, image)...)
}

func (b *bench) img(args ...string) { b.Helper(); peer.Run(b.T, b.qemu, args...) }

func (b *bench) file() []byte {
	b.Helper()
	file, err := os.ReadFile(b.image)
	require.NoError(b, err)
	return file
}

func (b *bench) header() *qcow.Header {
	b.Helper()
	file := b.file()
	h, err := qcow.ParseHeader(file[:min(len(file), 64<<10)], disk.Limits{})
	require.NoError(b, err)
	return h
}

// same requires the image to read as qemu-img reads it, by every way in, and its map and what
// the header says to be the same too.
func (b *bench) same() {
	b.Helper()
	b.img("convert", "-t", "unsafe", "-f", "qcow2", "-O", "raw", b.image, b.at("want.raw"))
	want, err := os.Open(b.at("want.raw"))
	require.NoError(b, err)
	defer want.Close()
	info, err := want.Stat()
	require.NoError(b, err)
	file := b.file()
	for way, src := range (rule{file: file}).sources() {
		var m disktest.Memory
		stats, err := qcowCase(file, nil).Convert(b.Context(), file, src, &m, disk.ConvertOptions{Workers: 2})
		require.NoError(b, err, way)
		require.Equal(b, info.Size(), stats.Size)
		require.NoError(b, m.Covered(stats.Size))
		sameDisk(b.T, way, want, &m, stats.Size, 16<<20)
	}
	img, err := qcow.Open(bytes.NewReader(file), int64(len(file)), qcow.OpenOptions{})
	require.NoError(b, err)
	defer img.Close()
	sameDisk(b.T, "ReadAt", want, img, info.Size(), 16<<20)
	sameMap(b.T, b.image, img)
	b.sameInfo()
}

// sameInfo requires the header to say what qemu-img info does.
func (b *bench) sameInfo() {
	b.Helper()
	out, err := exec.CommandContext(b.Context(), b.qemu, "info", "-U", "--output=json", b.image).Output()
	require.NoError(b, err)
	var info struct {
		VirtualSize int64 `json:"virtual-size"`
		ClusterSize int64 `json:"cluster-size"`
		Dirty       bool  `json:"dirty-flag"`
		Snapshots   []any
		Backing     string `json:"backing-filename"`
		BackingIs   string `json:"backing-filename-format"`
		Specific    struct {
			Data struct {
				Compat      string
				Compression string `json:"compression-type"`
				Lazy        bool   `json:"lazy-refcounts"`
				Bits        int    `json:"refcount-bits"`
				Corrupt     bool
				Extended    bool   `json:"extended-l2"`
				DataFile    string `json:"data-file"`
			}
		} `json:"format-specific"`
	}
	require.NoError(b, json.Unmarshal(out, &info))
	h, d := b.header(), info.Specific.Data
	require.Equal(b, info.VirtualSize, h.Size)
	require.Equal(b, info.ClusterSize, h.ClusterSize())
	require.Equal(b, info.Dirty, h.Dirty())
	require.EqualValues(b, len(info.Snapshots), h.Snapshots)
	require.Equal(b, info.Backing, h.BackingFile)
	require.Equal(b, info.BackingIs, h.BackingFormat)
	require.Equal(b, d.Compat, map[uint32]string{2: "0.10", 3: "1.1"}[h.Version])
	require.Equal(b, d.Compression, map[disk.Codec]string{disk.Deflate: "zlib", disk.Zstd: "zstd"}[h.Compression])
	require.Equal(b, d.Lazy, h.Compatible&1 != 0)
	require.Equal(b, d.Bits, 1<<h.RefcountOrder)
	require.Equal(b, d.Corrupt, h.Incompatible&2 != 0)
	require.Equal(b, d.Extended, h.Extended())
	require.Equal(b, d.DataFile, h.DataFile)
}

// sameChain is same for an image with others below it.
func (b *bench) sameChain() {
	b.Helper()
	b.img("convert", "-f", "qcow2", "-O", "raw", b.image, b.at("want.raw"))
	want, err := os.ReadFile(b.at("want.raw"))
	require.NoError(b, err)
	opened := 0
	file := b.file()
	img, err := qcow.Open(bytes.NewReader(file), int64(len(file)), qcow.OpenOptions{Files: openIn(b.dir, &opened)})
	require.NoError(b, err)
	require.EqualValues(b, len(want), img.Size())
	got := make([]byte, len(want))
	_, err = img.ReadAt(got, 0)
	require.NoError(b, err)
	require.True(b, bytes.Equal(want, got))
	require.NoError(b, img.Close())
	require.Zero(b, opened)
	b.sameInfo()
}

// over makes the image one that stands on base.
func (b *bench) over(base, format, options, size string) {
	b.Helper()
	args := []string{"create", "-q", "-f", "qcow2", "-F", format, "-b", base}
	if options != "" {
		args = append(args, "-o", options)
	}
	args = append(args, b.image)
	if size != "" {
		args = append(args, size)
	}
	b.img(args...)
}

// poke changes n bytes of the image at off.
func (b *bench) poke(off, n int, v uint64) {
	b.Helper()
	require.NoError(b, os.WriteFile(b.image, mutate(b.file(), off, n, v), 0o600))
}

// refused requires the image to be refused for reason; byPeer, that qemu-img does too, when
// it converts it.
func (b *bench) refused(reason disk.Reason, byPeer bool) {
	b.Helper()
	file := b.file()
	rule{file: file, reason: reason, at: anywhere, seen: byWalk}.refused(b.T)
	if byPeer {
		require.True(b, strings.HasPrefix(answer(b.T, file, nil), "refuses"))
	}
}

// checked returns the corruptions that qemu-img check finds in the image.
func (b *bench) checked() int {
	b.Helper()
	out, _ := exec.CommandContext(b.Context(), b.qemu, "check", "--output=json", "-f", "qcow2", b.image).Output()
	var report struct{ Corruptions int }
	require.NoError(b, json.Unmarshal(out, &report))
	return report.Corruptions
}

// peerCase is one of QEMU's own tests of its QCOW2 driver, and what was made of its subject here.
type peerCase struct {
	number, subject, ours string
	run                   func(b *bench)
}

var patterns = []string{"write -P 1 0 64k", "write -P 2 65k 3k", "write -P 3 300k 513k", "write -P 4 299k 1k", "write -P 5 1000k 24k", "write -P 6 511k 2k"}

// packs fills a disk of 2 MiB with compressed clusters of 64 KiB and leaves gaps.
func packs() (list []string) {
	for i := range 24 {
		list = append(list, fmt.Sprintf("write -c -P %d %dk 64k", i+1, (i+i/3)*64))
	}
	return list
}

func iotests() []peerCase {
	return []peerCase{
		{"001", "simple reads and writes", "aligned writes over each other", func(b *bench) {
			b.create("", "2M")
			b.run("write -P 10 0 2M", "write -P 11 0 1M", "write -P 12 1M 64k")
			b.same()
		}},
		{"002", "simple reads and writes, smaller ones", "sectors and pairs of them inside clusters", func(b *bench) {
			b.create("", "1M")
			for i := range 12 {
				b.run(fmt.Sprintf("write -P %d %d %d", i+1, i*70*1024+512*i, 512<<(i%3)))
			}
			b.same()
		}},
		{"004", "accesses beyond the end", "ReadAt up to, across and behind the end", func(b *bench) {
			b.create("", "1M")
			b.run("write -P 9 1020k 4k")
			file := b.file()
			img, err := qcow.Open(bytes.NewReader(file), int64(len(file)), qcow.OpenOptions{})
			require.NoError(b, err)
			defer img.Close()
			for _, tt := range []struct {
				off, n int64
				want   int
				err    error
			}{{1<<20 - 512, 512, 512, nil}, {1<<20 - 512, 513, 512, io.EOF}, {1 << 20, 1, 0, io.EOF}, {1 << 40, 4096, 0, io.EOF}, {1<<63 - 1, 1, 0, io.EOF}} {
				p := make([]byte, tt.n)
				n, err := img.ReadAt(p, tt.off)
				require.Equal(b, tt.want, n)
				require.Equal(b, tt.err, err)
				require.True(b, bytes.Equal(bytes.Repeat([]byte{9}, n), p[:n]))
			}
		}},
		{"005", "creation of very large images", "5 TiB with two clusters of data, in little memory", func(b *bench) {
			b.create("", "5T")
			b.run("write -P 1 0 64k", fmt.Sprintf("write -P 2 %d 64k", int64(5)<<40-64<<10))
			file := b.file()
			var m disktest.Memory
			budget := disk.NewBudget(16 << 20)
			stats, err := qcowCase(file, nil).Convert(b.Context(), file, disk.Stream(bytes.NewReader(file)), &m, disk.ConvertOptions{Workers: 2, Budget: budget})
			require.NoError(b, err)
			require.Equal(b, int64(5)<<40, stats.Size)
			require.EqualValues(b, 128<<10, stats.Written)
			p := make([]byte, 64<<10)
			_, err = m.ReadAt(p, 5<<40-64<<10)
			require.NoError(b, err)
			require.True(b, bytes.Equal(bytes.Repeat([]byte{2}, 64<<10), p))
			b.sameInfo()
		}},
		{"007", "internal snapshots", "fifteen of them: the active state is read", func(b *bench) {
			b.create("", "1M")
			for i := range 15 {
				b.img("snapshot", "-c", fmt.Sprint(i), b.image)
				b.run(fmt.Sprintf("write -P %d %dk 96k", i+1, i*60))
			}
			b.same()
		}},
		{"013", "compressed clusters and patterns", "compressed by convert, then written over in parts", func(b *bench) {
			require.NoError(b, os.WriteFile(b.at("in.raw"), guest(2<<20, 13), 0o600))
			b.img("convert", "-c", "-f", "raw", "-O", "qcow2", b.at("in.raw"), b.image)
			b.run(patterns...)
			b.same()
		}},
		{"017", "reads through a backing file", "written parts over a raw and a QCOW2 file", func(b *bench) {
			require.NoError(b, os.WriteFile(b.at("base.raw"), guest(2<<20, 17), 0o600))
			b.over(b.at("base.raw"), "raw", "", "")
			b.run(patterns...)
			b.sameChain()
			require.NoError(b, os.Rename(b.image, b.at("mid.qcow2")))
			b.over(b.at("mid.qcow2"), "qcow2", "cluster_size=4k", "")
			b.run("write -P 0x77 1030k 3k")
			b.sameChain()
		}},
		{"023", "patterns with several cluster sizes", "1, 4, 16 and 64 KiB", func(b *bench) {
			for _, size := range []string{"1k", "4k", "16k", "64k"} {
				b.create("cluster_size="+size, "2M")
				b.run(patterns...)
				b.same()
			}
		}},
		{"025", "images that grow", "by a little, and then so that L1 moves", func(b *bench) {
			b.create("cluster_size=4k", "1M")
			b.run("write -P 1 0 1M")
			b.img("resize", "-q", b.image, "1500k")
			b.run("write -P 2 1400k 100k")
			b.same()
			b.img("resize", "-q", b.image, "2G")
			b.run("write -P 3 1600k 100k")
			b.same()
		}},
		{"027", "parts of a cluster written: the rest is zeros", "512 bytes at each end and in the midst", func(b *bench) {
			b.create("", "512k")
			b.run("write -P 1 0 512", "write -P 2 130560 512", "write -P 3 160k 512")
			b.same()
		}},
		{"028", "a backing file smaller than the image", "zeros behind its end, inside a cluster too", func(b *bench) {
			b.img("create", "-q", "-f", "qcow2", b.at("base.qcow2"), "1000k")
			b.runOn(b.at("base.qcow2"), "write -P 5 0 1000k")
			b.over(b.at("base.qcow2"), "qcow2", "", "3M")
			b.run("write -P 6 996k 2k", "write -P 7 2M 1k")
			b.sameChain()
		}},
		{"031", "unknown header extensions stay when QEMU rewrites the header", "named and placed before and after", func(b *bench) {
			b.create("", "1M")
			find := func() int64 {
				for _, e := range b.header().Extensions {
					if e.Type == 0x12345678 {
						require.EqualValues(b, 13, e.Data.Len)
						require.Equal(b, "thirteen here", string(b.file()[e.Data.Off:e.Data.End()]))
						return e.Data.Off
					}
				}
				return -1
			}
			require.EqualValues(b, -1, find())
			list := b.header().Extensions
			end := int(list[len(list)-1].Data.End()+7) &^ 7
			b.poke(end, 8, 0x12345678<<32|13)
			for i, c := range []byte("thirteen here") {
				b.poke(end+8+i, 1, uint64(c))
			}
			before := find()
			require.EqualValues(b, end+8, before)
			b.img("create", "-q", "-f", "raw", b.at("base"), "1M")
			b.img("rebase", "-u", "-f", "qcow2", "-F", "raw", "-b", b.at("base"), b.image)
			require.Greater(b, find(), before, "another stands before it now")
			require.Equal(b, "raw", b.header().BackingFormat)
		}},
		{"033", "zeros written at odd places", "beside data, over it, in a fresh cluster", func(b *bench) {
			b.create("", "1M")
			b.run("write -P 1 0 512k", "write -z 64k 64k", "write -z 200k 33k", "write -z 512 1k", "write -z 700k 3k", "write -z 260608 512")
			b.same()
		}},
		{"034", "zeros written over a backing file", "in whole clusters and parts", func(b *bench) {
			b.img("create", "-q", "-f", "qcow2", b.at("base.qcow2"), "1M")
			b.runOn(b.at("base.qcow2"), "write -P 0x11 0 1M")
			b.over(b.at("base.qcow2"), "qcow2", "", "")
			b.run("write -z 0 64k", "write -z 100k 100k", "write -z 500k 1k")
			b.sameChain()
		}},
		{"036", "feature bits that nobody knows", "incompatible ones refused by name, others read", func(b *bench) {
			b.create("", "1M")
			b.run("write -P 1 0 64k")
			good := b.file()
			for _, bit := range []int{5, 42, 63} {
				require.NoError(b, os.WriteFile(b.image, mutate(good, 72, 8, 1<<bit), 0o600))
				b.refused(disk.UnknownFeature, true)
			}
			require.NoError(b, os.WriteFile(b.image, mutate(mutate(good, 80, 8, 1<<63), 88, 8, 1<<63), 0o600))
			b.same()
			require.NotZero(b, b.header().Autoclear)
			b.run("write -P 2 0 4k")
			require.Zero(b, b.header().Autoclear, "who writes takes it back")
		}},
		{"039", "the dirty bit of lazy refcounts", "a writer killed: read, and the bit told", func(b *bench) {
			b.create("lazy_refcounts=on", "1M")
			err := exec.Command(b.io, "-f", "qcow2", "-c", "write -P 0x5a 0 64k", "-c", "sigraise 9", b.image).Run()
			require.Error(b, err)
			require.True(b, b.header().Dirty())
			file := b.file()
			require.Equal(b, "reads the same", answer(b.T, file, readAll(b.T, file)))
			require.Equal(b, bytes.Repeat([]byte{0x5a}, 64<<10), readAll(b.T, file)[:64<<10])
		}},
		{"042", "images of no size", "a disk of no bytes", func(b *bench) {
			b.create("", "0")
			b.same()
		}},
		{"043", "chains that come back to themselves", "refused, and nothing left open", func(b *bench) {
			b.create("", "1M")
			require.NoError(b, os.Rename(b.image, b.at("a.qcow2")))
			b.over("a.qcow2", "qcow2", "", "")
			b.img("rebase", "-u", "-f", "qcow2", "-F", "qcow2", "-b", "m.qcow2", b.at("a.qcow2"))
			opened, file := 0, b.file()
			_, err := qcow.Open(bytes.NewReader(file), int64(len(file)), qcow.OpenOptions{Files: openIn(b.dir, &opened)})
			require.ErrorContains(b, err, "comes back")
			require.Zero(b, opened)
		}},
		{"053", "convert of a disk that ends inside a cluster", "compressed and not", func(b *bench) {
			require.NoError(b, os.WriteFile(b.at("in.raw"), guest(3<<20+512, 53), 0o600))
			for _, flags := range [][]string{nil, {"-c"}} {
				b.img(append(append([]string{"convert", "-f", "raw", "-O", "qcow2", "-o", "cluster_size=2M"}, flags...), b.at("in.raw"), b.image)...)
				b.same()
			}
		}},
		{"054", "disks larger than their L1 table can be", "the largest there is read, one more refused", func(b *bench) {
			if testing.Short() {
				b.Skip("a L1 table of 32 MiB takes time")
			}
			b.create("cluster_size=512", "128G")
			b.run("write -P 3 127G 1k")
			h := b.header()
			require.EqualValues(b, 4<<20, h.L1Size)
			file := b.file()
			img, err := qcow.Open(bytes.NewReader(file), int64(len(file)), qcow.OpenOptions{})
			require.NoError(b, err)
			defer img.Close()
			p := make([]byte, 1024)
			_, err = img.ReadAt(p, 127<<30)
			require.NoError(b, err)
			require.Equal(b, bytes.Repeat([]byte{3}, 1024), p)
			b.poke(36, 4, 4<<20+1)
			b.refused(disk.LimitExceeded, true)
		}},
		{"060", "structures that overlap", "found wherever qemu-img check finds corruption", func(b *bench) {
			b.create("", "64M")
			b.run("write -P 1 0 192k", "write -c -P 2 1M 64k")
			good := b.file()
			l1, l2 := tablesOf(b.T, good)
			for _, tt := range []struct {
				name   string
				off    int
				value  uint64
				reason disk.Reason
			}{
				{"L2 table on L1", l1, 1<<63 | uint64(l1), disk.OverlapsMetadata},
				{"L2 table on the refcount table", l1, 1<<63 | 0x10000, disk.OverlapsMetadata},
				{"cluster on L1", l2, 1<<63 | uint64(l1), disk.OverlapsMetadata},
				{"cluster on L2", l2, 1<<63 | uint64(l2), disk.OverlapsMetadata},
				{"cluster on the refcount table", l2, 1<<63 | 0x10000, disk.OverlapsMetadata},
				{"cluster twice", l2 + 8, be64(good, l2), disk.SharedCluster},
				{"cluster unaligned", l2, be64(good, l2) + 0x2200, disk.BadEntry},
				{"L2 table unaligned", l1, be64(good, l1) + 0x2200, disk.TableUnaligned},
				{"zero cluster unaligned", l2, be64(good, l2) + 0x2200 | 1, disk.BadEntry},
			} {
				require.NoError(b, os.WriteFile(b.image, mutate(good, tt.off, 8, tt.value), 0o600))
				require.NotZero(b, b.checked(), tt.name)
				b.refused(tt.reason, false)
			}
			require.NoError(b, os.WriteFile(b.image, mutate(good, 72, 8, 2), 0o600))
			b.refused(disk.CorruptBit, false)
		}},
		{"061", "images made older and newer", "zero clusters and a dirty bit go with amend", func(b *bench) {
			b.create("compat=1.1,lazy_refcounts=on", "1M")
			b.run("write -P 1 0 256k", "write -z 64k 64k", "write -z 512k 128k")
			b.img("amend", "-f", "qcow2", "-o", "compat=0.10", b.image)
			require.EqualValues(b, 2, b.header().Version)
			b.same()
			b.img("amend", "-f", "qcow2", "-o", "compat=1.1", b.image)
			b.same()
		}},
		{"062", "a snapshot of zero clusters", "then written over", func(b *bench) {
			b.create("", "1M")
			b.run("write -z 0 256k")
			b.img("snapshot", "-c", "one", b.image)
			b.run("write -P 4 60k 10k")
			b.same()
		}},
		{"063", "convert into an image that is there", "with -n, over data of before", func(b *bench) {
			require.NoError(b, os.WriteFile(b.at("in.raw"), guest(1<<20, 63), 0o600))
			b.create("", "1M")
			b.run("write -P 0xee 0 1M")
			b.img("convert", "-n", "-f", "raw", "-O", "qcow2", b.at("in.raw"), b.image)
			b.same()
		}},
		{"065", "what info tells of an image", "versions, lazy refcounts, compression", func(b *bench) {
			for _, options := range []string{"compat=0.10", "compat=1.1", "compat=1.1,lazy_refcounts=on", "compression_type=zstd", "refcount_bits=1", "cluster_size=2M,extended_l2=on"} {
				b.create(options, "32M")
				b.sameInfo()
			}
		}},
		{"066", "zero clusters that stay allocated", "written, zeroed, discarded, written again", func(b *bench) {
			b.create("preallocation=metadata", "2M")
			b.run("write -z 0 1M", "write -P 3 100k 100k", "discard 128k 64k", "write -z 1M 64k", "discard 1500k 200k")
			b.same()
		}},
		{"073", "neighbours of different kinds", "each kind of cluster beside each other kind", func(b *bench) {
			kinds := []string{"", "write -P 7", "write -c -P 8", "write -z"}
			var commands []string
			for i := range 16 {
				for j, k := range []string{kinds[i/4], kinds[i%4]} {
					if k != "" {
						commands = append(commands, fmt.Sprintf("%s %dk 64k", k, 64*(2*i+j)))
					}
				}
			}
			b.create("", "2M")
			b.run(commands...)
			b.same()
			b.img("create", "-q", "-f", "qcow2", b.at("base.qcow2"), "2M")
			b.runOn(b.at("base.qcow2"), "write -P 0xa5 0 2M")
			b.over(b.at("base.qcow2"), "qcow2", "", "")
			b.run(commands...)
			b.sameChain()
		}},
		{"079", "preallocated metadata with several cluster sizes", "16 KiB to 2 MiB", func(b *bench) {
			for _, size := range []string{"16k", "64k", "512k", "2M"} {
				b.create("preallocation=metadata,cluster_size="+size, "16M")
				b.run("write -P 1 3M 100k")
				b.same()
			}
		}},
		{"080", "headers with hostile numbers", "each refused as by qemu-img", func(b *bench) {
			b.create("", "64M")
			b.run("write -P 1 0 64k")
			good := b.file()
			for _, tt := range []struct {
				off, n int
				value  uint64
				reason disk.Reason
			}{
				{100, 4, 0xffffffff, disk.BadHeader}, {100, 4, 0x7fffffff, disk.BadHeader},
				{116, 4, 0x7fffffff, disk.BadHeader},
				{56, 4, 0xffffffff, disk.LimitExceeded}, {56, 4, 0x20001, disk.LimitExceeded},
				{48, 8, 0x1234567890abcdef, disk.TableUnaligned}, {48, 8, 0xffffffffffff0000, disk.TableOutOfRange},
				{60, 4, 0xffffffff, disk.LimitExceeded}, {60, 4, 0x7fffffff, disk.LimitExceeded},
				{64, 8, 0x1234567890abcdef, disk.TableUnaligned},
				{36, 4, 0xffffffff, disk.LimitExceeded}, {36, 4, 0x7fffffff, disk.LimitExceeded}, {36, 4, 0, disk.BadHeader},
				{40, 8, 0x1234567890abcdef, disk.TableUnaligned}, {40, 8, 0xffffffffffff0000, disk.TableOutOfRange},
				{8, 8, 0xffffffffffffffff, disk.BackingFile},
			} {
				file := mutate(good, tt.off, tt.n, tt.value)
				require.NoError(b, os.WriteFile(b.image, file, 0o600))
				err := requireReason(b.T, file, tt.reason)
				require.GreaterOrEqual(b, err.Offset, int64(0))
				require.True(b, strings.HasPrefix(answer(b.T, file, nil), "refuses"), "%d", tt.off)
			}
		}},
		{"090", "discarded clusters that were compressed", "the first, one between, the last", func(b *bench) {
			b.create("", "2M")
			b.run(packs()...)
			b.run("discard 0 64k", "discard 512k 128k", "discard 1920k 128k")
			b.same()
		}},
		{"102", "maps, of files that are cut too", "the same map; cut, refused where qemu-img reads zeros", func(b *bench) {
			b.create("", "1M")
			b.run("write -P 1 0 256k")
			b.same()
			file := b.file()
			want := readAll(b.T, file)
			cut := file[:len(file)-(64<<10)]
			require.Equal(b, "reads other bytes", answer(b.T, cut, want))
			require.NoError(b, os.WriteFile(b.image, cut, 0o600))
			b.refused(disk.Truncated, false)
		}},
		{"104", "sizes that are no multiple of a sector", "qemu-img rounds them up when it makes them", func(b *bench) {
			for _, size := range []string{"1024", "1025", "1535", "1536", "70000"} {
				b.create("", size)
				b.same()
			}
		}},
		{"107", "L1 tables that are updated", "growth with data before and behind", func(b *bench) {
			b.create("cluster_size=512", "64k")
			b.run("write -P 1 0 64k")
			b.img("resize", "-q", b.image, "4M")
			b.run("write -P 2 64k 64k", "write -P 3 4000k 32k")
			b.same()
		}},
		{"108", "refcounts that cannot be used any more", "reading does not need them", func(b *bench) {
			b.create("", "1M")
			b.run("write -P 1 0 256k")
			good := b.file()
			table := int(be64(good, 48))
			for name, file := range map[string][]byte{
				"no block":        mutate(good, table, 8, 0),
				"block unaligned": mutate(good, table, 8, be64(good, table)+512),
				"block far away":  mutate(good, table, 8, 1<<50),
				"counts wrong":    mutate(good, int(be64(good, table)), 8, 0x1234567812345678),
			} {
				require.NoError(b, os.WriteFile(b.image, file, 0o600))
				require.Equal(b, "reads the same", answer(b.T, file, readAll(b.T, file)), name)
				require.True(b, bytes.Equal(readAll(b.T, good), readAll(b.T, file)), name)
			}
		}},
		{"110", "relative names of backing files", "handed on as they stand", func(b *bench) {
			b.img("create", "-q", "-f", "qcow2", b.at("base.qcow2"), "1M")
			b.over("base.qcow2", "qcow2", "", "")
			require.Equal(b, "base.qcow2", b.header().BackingFile)
			b.sameChain()
			b.refused(disk.BackingFile, false)
		}},
		{"112", "widths of refcounts", "1 to 64 bits, with a snapshot where there can be one", func(b *bench) {
			for bits := 1; bits <= 64; bits *= 2 {
				b.create(fmt.Sprintf("refcount_bits=%d,cluster_size=4k", bits), "1M")
				b.run("write -P 1 0 300k")
				if bits > 1 {
					b.img("snapshot", "-c", "one", b.image)
				}
				b.run("write -P 2 100k 100k")
				b.same()
			}
		}},
		{"114", "backing formats that nobody knows", "refused by name", func(b *bench) {
			b.img("create", "-q", "-f", "raw", b.at("base"), "1M")
			b.over(b.at("base"), "raw", "", "")
			file := bytes.Replace(b.file(), []byte("\xe2\x79\x2a\xca\x00\x00\x00\x03raw"), []byte("\xe2\x79\x2a\xca\x00\x00\x00\x03foo"), 1)
			opened := 0
			_, err := qcow.Open(bytes.NewReader(file), int64(len(file)), qcow.OpenOptions{Files: openIn(b.dir, &opened)})
			require.ErrorContains(b, err, `"foo"`)
			require.True(b, strings.HasPrefix(answer(b.T, file, nil), "refuses"))
			require.Zero(b, opened)
		}},
		{"122", "convert with its options", "from a chain, compressed, all allocated, twice", func(b *bench) {
			b.img("create", "-q", "-f", "qcow2", b.at("base.qcow2"), "2M")
			b.runOn(b.at("base.qcow2"), "write -P 0x11 0 2M")
			b.over(b.at("base.qcow2"), "qcow2", "", "3M")
			b.run("write -P 0 0 192k", "write -z 256k 256k", "write -P 1 2500k 64k")
			source := b.at("source.qcow2")
			require.NoError(b, os.Rename(b.image, source))
			for _, flags := range [][]string{{"-c"}, {"-c", "-o", "compression_type=zstd"}, {"-S", "0"}, {"-S", "8k"}, {"-o", "compat=0.10"}, {"-W", "-m", "8", "-c"}} {
				b.img(append(append([]string{"convert", "-f", "qcow2", "-O", "qcow2"}, flags...), source, b.image)...)
				b.same()
			}
		}},
		{"125", "growth that is preallocated", "in each way", func(b *bench) {
			for _, how := range []string{"off", "metadata", "falloc", "full"} {
				b.create("cluster_size=512", "64k")
				b.run("write -P 1 0 64k")
				b.img("resize", "-q", "--preallocation="+how, b.image, "1M")
				b.run("write -P 2 512k 10k")
				b.same()
			}
		}},
		{"137", "options changed while an image is open", "none of them changes what is read", func(b *bench) {
			b.create("", "1M")
			b.run("reopen -o lazy-refcounts=on,cache-size=1M", "write -P 1 0 100k", "reopen -o lazy-refcounts=off,overlap-check=all", "write -P 2 200k 100k")
			b.same()
		}},
		{"138", "entries that name the end of all places", "refused, with no memory taken for them", func(b *bench) {
			b.create("cluster_size=512", "512")
			b.run("write -P 1 0 512")
			good := b.file()
			_, l2 := tablesOf(b.T, good)
			for _, entry := range []uint64{1<<63 | 0x00fffffffffffe00, 1<<63 | 1<<55, 1<<62 | 1<<55} {
				require.NoError(b, os.WriteFile(b.image, mutate(good, l2, 8, entry), 0o600))
				b.refused(disk.Truncated, false)
			}
		}},
		{"150", "disks that are allocated throughout", "by -S 0 and by preallocation", func(b *bench) {
			b.img("create", "-q", "-f", "raw", b.at("in.raw"), "1M")
			for _, flags := range [][]string{{"-S", "0"}, {"-o", "preallocation=metadata"}, {"-o", "preallocation=full"}} {
				b.img(append(append([]string{"convert", "-f", "raw", "-O", "qcow2"}, flags...), b.at("in.raw"), b.image)...)
				b.same()
			}
		}},
		{"154", "zeros over parts of clusters that show a backing file", "with data, zeros and nothing below", func(b *bench) {
			b.img("create", "-q", "-f", "qcow2", "-o", "cluster_size=4k", b.at("base.qcow2"), "256k")
			b.runOn(b.at("base.qcow2"), "write -P 0xa 0 64k", "write -z 64k 16k", "write -P 0xb 130k 1k")
			b.over(b.at("base.qcow2"), "qcow2", "cluster_size=4k", "")
			b.run("write -z 1k 2k", "write -z 4k 9k", "write -z 66k 1k", "write -z 100k 1k", "write -z 129k 2k", "write -z 131k 6k")
			b.sameChain()
		}},
		{"158", "encryption", "LUKS is refused, and says what it is", func(b *bench) {
			b.img("create", "-q", "--object", "secret,id=s,data=123456", "-f", "qcow2", "-o", "encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10", b.image, "1M")
			b.refused(disk.Encrypted, true)
			require.EqualValues(b, 2, b.header().CryptMethod)
		}},
		{"165", "bitmaps that are stored", "listed among the extensions; the disk is read", func(b *bench) {
			b.create("", "1M")
			b.img("bitmap", "--add", "-f", "qcow2", b.image, "b0")
			b.run("write -P 1 0 100k")
			b.img("bitmap", "--add", "--disable", "-f", "qcow2", b.image, "b1")
			b.same()
			require.True(b, slices.ContainsFunc(b.header().Extensions, func(e qcow.Extension) bool { return e.String() == "bitmaps" && e.Data.Len == 24 }))
			require.NotZero(b, b.header().Autoclear&1)
		}},
		{"179", "zeros that may unmap", "with -u and without, on data, zeros and nothing", func(b *bench) {
			for _, options := range []string{"", "compat=0.10"} {
				b.create(options, "2M")
				b.run("write -P 1 0 1M", "write -z -u 0 128k", "write -z 128k 128k", "write -z -u 256k 3k", "write -z -u 1M 64k", "write -z 1100k 64k", "write -z -u 128k 64k", "discard 512k 64k")
				b.same()
			}
		}},
		{"214", "sizes of compressed clusters that are wrong", "too small is refused, too large is read", func(b *bench) {
			b.create("cluster_size=2M", "6M")
			require.NoError(b, os.WriteFile(b.at("text"), text(2<<20, 214), 0o600))
			b.run("write -c -s "+b.at("text")+" 0 2M", "write -c -s "+b.at("text")+" 2M 2M", "write -c -P 0x11 4M 2M")
			good := b.file()
			want := readAll(b.T, good)
			_, l2 := tablesOf(b.T, good)
			const sectors = uint64(8191) << 49
			for i := range 2 {
				entry := be64(good, l2+8*i)
				large := mutate(good, l2+8*i, 8, entry|sectors)
				require.Equal(b, "reads the same", answer(b.T, large, want))
				require.True(b, bytes.Equal(want, readAll(b.T, large)))
				require.NoError(b, os.WriteFile(b.image, mutate(good, l2+8*i, 8, entry&^sectors), 0o600))
				b.refused(disk.DecompressFailed, true)
			}
		}},
		{"217", "snapshots that cannot be used", "the active state does not need them", func(b *bench) {
			b.create("", "1M")
			b.run("write -P 1 0 100k")
			b.img("snapshot", "-c", "one", b.image)
			b.run("write -P 2 50k 100k")
			want := readAll(b.T, b.file())
			b.poke(int(be64(b.file(), 64)), 8, 0x12345) // its L1 table
			require.Equal(b, "reads the same", answer(b.T, b.file(), want))
			require.True(b, bytes.Equal(want, readAll(b.T, b.file())))
		}},
		{"221", "raw files that end inside a sector", "padded with zeros when converted", func(b *bench) {
			require.NoError(b, os.WriteFile(b.at("in.raw"), bytes.Repeat([]byte{7}, 43009), 0o600))
			b.img("convert", "-f", "raw", "-O", "qcow2", b.at("in.raw"), b.image)
			b.same()
			require.Equal(b, append(bytes.Repeat([]byte{7}, 43009), make([]byte, 511)...), readAll(b.T, b.file()))
		}},
		{"244", "external data files", "refused, or opened by the caller's function", func(b *bench) {
			for _, raw := range []string{"off", "on"} {
				b.create("data_file="+b.at("data")+",data_file_raw="+raw, "2M")
				b.run("write -P 1 0 64k", "write -P 2 1000k 100k", "write -z 64k 64k", "discard 1000k 30k")
				b.refused(disk.ExternalDataFile, false)
				b.sameChain()
			}
		}},
		{"250", "large discards, and a disk made smaller", "what is left is read", func(b *bench) {
			b.create("cluster_size=4k", "16M")
			b.run("write -P 1 0 6M", "discard 1M 4M")
			b.img("resize", "-q", "--shrink", b.image, "5500k")
			b.same()
		}},
		{"261", "extra data in the snapshot table", "of version 2, that has none, and much", func(b *bench) {
			for _, compat := range []string{"0.10", "1.1"} {
				b.create("compat="+compat, "1M")
				b.img("snapshot", "-c", "one", b.image)
				b.run("write -P 1 0 100k")
				b.same()
				want, table := readAll(b.T, b.file()), int(be64(b.file(), 64))
				for _, n := range []uint64{0, 8, 64, 1024} {
					b.poke(table+36, 4, n)
					require.True(b, bytes.Equal(want, readAll(b.T, b.file())))
				}
			}
		}},
		{"271", "extended L2 entries", "subclusters written, zeroed, discarded, beside compressed clusters", func(b *bench) {
			for _, options := range []string{"", ",compression_type=zstd", ",preallocation=metadata"} {
				b.create("extended_l2=on,cluster_size=64k"+options, "4M")
				commands := []string{"write -P 1 0 1k", "write -P 2 3k 5k", "write -P 3 63k 2k", "write -z 4k 2k", "write -z 128k 64k",
					"write -P 4 130k 2k", "write -z -u 200k 3k", "discard 256k 64k", "write -P 5 320k 64k", "discard 330k 8k", "write -z 320k 1k"}
				if options != ",preallocation=metadata" {
					commands = append(commands, "write -c -P 6 1M 64k", "write -c -P 7 1088k 64k", "write -P 8 1090k 1k", "write -z 1M 1k")
				}
				b.run(commands...)
				b.same()
			}
			b.img("create", "-q", "-f", "qcow2", b.at("base.qcow2"), "1M")
			b.runOn(b.at("base.qcow2"), "write -P 9 0 1M")
			b.over(b.at("base.qcow2"), "qcow2", "extended_l2=on", "") // where zeros are not the same as nothing
			b.run("write -P 1 1k 3k", "write -z 6k 4k", "write -z 64k 64k", "write -c -P 2 128k 64k", "discard 192k 64k", "write -z 130k 2k", "write -P 3 320k 64k", "discard 322k 2k")
			b.sameChain()
		}},
		{"272", "compressed clusters beyond 4 GiB", "placed behind 5 GiB that are preallocated", func(b *bench) {
			b.create("preallocation=metadata", "5G")
			b.img("resize", "-q", b.image, "6G")
			b.run("write -c -P 0x42 5G 64k", "write -c -P 0x43 5242944k 64k")
			f, err := os.Open(b.image)
			require.NoError(b, err)
			defer f.Close()
			info, err := f.Stat()
			require.NoError(b, err)
			require.Greater(b, info.Size(), int64(5<<30))
			img, err := qcow.Open(f, info.Size(), qcow.OpenOptions{})
			require.NoError(b, err)
			defer img.Close()
			p := make([]byte, 128<<10)
			_, err = img.ReadAt(p, 5<<30)
			require.NoError(b, err)
			require.Equal(b, append(bytes.Repeat([]byte{0x42}, 64<<10), bytes.Repeat([]byte{0x43}, 64<<10)...), p)
			sameMap(b.T, b.image, img)
		}},
		{"274", "short backing files below longer ones", "what the short one ends stays zeros", func(b *bench) {
			b.img("create", "-q", "-f", "qcow2", b.at("base.qcow2"), "2M")
			b.runOn(b.at("base.qcow2"), "write -P 1 0 2M")
			b.img("create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", b.at("base.qcow2"), b.at("mid.qcow2"), "1M")
			b.over(b.at("mid.qcow2"), "qcow2", "", "2M")
			b.sameChain()
		}},
		{"287", "types of compression", "zlib and zstd; the bit and the byte must agree", func(b *bench) {
			for _, kind := range []string{"zlib", "zstd"} {
				b.create("compression_type="+kind, "2M")
				b.run(packs()...)
				b.same()
				good := b.file()
				require.NoError(b, os.WriteFile(b.image, mutate(good, 104, 1, uint64(1-good[104])), 0o600))
				b.refused(disk.BadHeader, true)
				require.NoError(b, os.WriteFile(b.image, mutate(good, 72, 8, be64(good, 72)^8), 0o600))
				b.refused(disk.BadHeader, true)
			}
		}},
		{"288", "the raw bit of data files", "none without a data file", func(b *bench) {
			b.create("data_file="+b.at("data")+",data_file_raw=on", "1M")
			require.EqualValues(b, 2, b.header().Autoclear&2)
			b.poke(72, 8, 0)
			b.refused(disk.BadHeader, true)
		}},
		{"290", "discards in both versions", "alone and over a backing file", func(b *bench) {
			b.img("create", "-q", "-f", "qcow2", b.at("base.qcow2"), "128k")
			b.runOn(b.at("base.qcow2"), "write -P 9 0 128k")
			for _, compat := range []string{"0.10", "1.1"} {
				b.create("compat="+compat, "128k")
				b.run("write -P 1 0 128k", "discard 64k 64k")
				b.same()
				b.over(b.at("base.qcow2"), "qcow2", "compat="+compat, "")
				b.run("write -P 1 0 128k", "discard 64k 64k")
				b.sameChain()
			}
		}},
	}
}

// TestIotests: the subjects of those of QEMU's tests that read, convert, map, check or refuse
// QCOW2 images, as cases of ours. What qemu-img makes of the same image is what must come out.
func TestIotests(t *testing.T) {
	list := iotests()
	passed := 0
	if testing.Short() { // some of them, others each time
		seed := seedOf(t)
		rand.New(rand.NewPCG(seed, 0)).Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		list = list[:20]
	}
	for _, x := range list {
		if t.Run(x.number, func(t *testing.T) {
			t.Logf("| %s | %s | %s |", x.number, x.subject, x.ours)
			x.run(newBench(t))
		}) {
			passed++
		}
	}
	t.Logf("parity: iotests: %d of %d subjects read as by qemu-img", passed, len(list))
}
