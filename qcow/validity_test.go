package qcow_test

import (
	"bytes"
	"compress/zlib"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/archdisk/archdisk/internal/peer"
	"github.com/archdisk/archdisk/qcow"
	"github.com/archdisk/archdisk/qcow/disk"
	"github.com/archdisk/archdisk/qcow/disk/disktest"
	"github.com/archdisk/archdisk/testdata"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
)

// rule is one thing that an image may have wrong, or seem to.
type rule struct {
	name   string
	file   []byte
	want   []byte      // the disk
	reason disk.Reason // why it is refused, "" if it is read
	at     int64       // where the error says that it is, or anywhere
	text   string      // in the error
	seen   scope
}

// scope says which ways in see what is wrong.
type scope int

const (
	everywhere scope = iota
	byWalk           // the pass over all entries, not the reading of one cluster
	atOpen           // both ways refuse before they read
)

const anywhere = -2

// withDisk states the disk of an image that is refused: what qemu-img may read from it.
func withDisk(want []byte, r rule) rule { r.want = want; return r }

// fixture returns an image and its disk, which is the one that the manifest states.
func fixture(t *testing.T, name string) (file, want []byte) {
	t.Helper()
	file = testdata.Read("qcow2/" + name + ".qcow2")
	want = readAll(t, file)
	for _, f := range testdata.Fixtures() {
		if f.File == "qcow2/"+name+".qcow2" {
			sum := sha256.Sum256(want)
			require.Equal(t, f.SHA256, hex.EncodeToString(sum[:]))
			return file, want
		}
	}
	t.Fatalf("no fixture %s", name)
	return nil, nil
}

// headerRules break one field of a good header at a time. The offsets are those of the
// specification's header table, and the error's unless it is said.
func headerRules(t *testing.T) []rule {
	good, disk0 := fixture(t, "qemu-v3-64k")
	v2, v2disk := fixture(t, "qemu-v2-64k")
	zstd4k, _ := fixture(t, "qemu-zstd-4k")
	set := func(name string, off, n int, value uint64, reason disk.Reason, text string) rule {
		return rule{name: name, file: mutate(good, off, n, value), reason: reason, at: int64(off), text: text, seen: atOpen}
	}
	at := func(off int64, r rule) rule { r.at = off; return r }
	also := func(off, n int, value uint64, r rule) rule { r.file = mutate(r.file, off, n, value); return r }
	reads := func(name string, off, n int, value uint64) rule {
		return rule{name: name, file: mutate(good, off, n, value), want: disk0}
	}
	// An extension in the place of the feature names, which nothing needs.
	extension := func(name string, kind, n uint32, reason disk.Reason, text string) rule {
		r := set(name, 112, 8, uint64(kind)<<32|uint64(n), reason, text)
		if reason == "" {
			r.want = disk0
		}
		return r
	}
	const bitmaps, luks = 0x23852875, 0x0537be77
	return []rule{
		set("magic", 0, 4, 0x51464900, disk.UnknownFormat, "magic"),
		set("version 1", 4, 4, 1, disk.UnsupportedVersion, "version = 0x1 at 0x4"),
		set("version 4", 4, 4, 4, disk.UnsupportedVersion, "version = 0x4 at 0x4"),
		also(16, 4, 5, set("backing file", 8, 8, 0x200, disk.BackingFile, "backing_file_offset = 0x200 at 0x8")),
		reads("the place of a backing file's name of no length", 8, 8, 0x200),
		set("backing file beyond the file", 8, 8, 1<<63, disk.BackingFile, ""),
		set("backing file's name behind its cluster", 8, 8, 1<<16+8, disk.BackingFile, "outside the header's cluster"),
		at(16, also(16, 4, 1024, set("backing file's name of 1024 bytes", 8, 8, 0x200, disk.BackingFile, "backing_file_size = 0x400"))),
		at(16, also(16, 4, 17, set("backing file's name over its cluster", 8, 8, 1<<16-16, disk.BackingFile, "backing_file_size = 0x11"))),
		reads("a name's length and no backing file", 16, 4, 0xffffffff),
		set("cluster_bits 8", 20, 4, 8, disk.BadClusterSize, "cluster_bits = 0x8 at 0x14"),
		set("cluster_bits 22", 20, 4, 22, disk.BadClusterSize, ""),
		set("cluster_bits 40", 20, 4, 40, disk.BadClusterSize, ""),
		set("cluster_bits max", 20, 4, 0xffffffff, disk.BadClusterSize, ""),
		set("size unaligned", 24, 8, 1000, disk.VirtualSizeUnaligned, "size = 0x3e8 at 0x18"),
		set("size huge", 24, 8, 1<<64-512, disk.VirtualSizeTooLarge, ""),
		set("size beyond the default limit", 24, 8, 64<<40+512, disk.VirtualSizeTooLarge, ""),
		at(36, set("size beyond L1", 24, 8, 8<<40, disk.BadHeader, "l1_size")),
		set("AES", 32, 4, 1, disk.Encrypted, "AES"),
		set("LUKS", 32, 4, 2, disk.Encrypted, "LUKS"),
		set("unknown crypt", 32, 4, 3, disk.Encrypted, ""),
		set("l1_size 0", 36, 4, 0, disk.BadHeader, "l1_size = 0x0 at 0x24"),
		set("l1_size max", 36, 4, 0xffffffff, disk.LimitExceeded, "l1_size = 0xffffffff at 0x24"),
		set("l1_size over 32 MiB", 36, 4, 4<<20+1, disk.LimitExceeded, ""),
		reads("l1_size more than needed", 36, 4, 100),
		set("l1 unaligned", 40, 8, 0x30200, disk.TableUnaligned, "l1_table_offset = 0x30200 at 0x28"),
		set("l1 beyond int64", 40, 8, 1<<64-1<<16, disk.TableOutOfRange, ""),
		withDisk(disk0, set("l1 at 0", 40, 8, 0, disk.TableOutOfRange, "l1_table_offset")),
		{name: "l1 past the end", file: mutate(good, 40, 8, 1<<40), want: disk0, reason: disk.Truncated, at: int64(len(good))},
		set("reftable unaligned", 48, 8, 0x10001, disk.TableUnaligned, "refcount_table_offset = 0x10001 at 0x30"),
		set("reftable at 0", 48, 8, 0, disk.TableOutOfRange, ""),
		set("reftable beyond int64", 48, 8, 1<<64-1<<16, disk.TableOutOfRange, ""),
		reads("reftable past the end", 48, 8, 1<<40),
		set("reftable of no clusters", 56, 4, 0, disk.BadHeader, "refcount_table_clusters"),
		set("reftable over 8 MiB", 56, 4, 129, disk.LimitExceeded, ""),
		set("reftable max", 56, 4, 0xffffffff, disk.LimitExceeded, ""),
		set("snapshots", 60, 4, 65537, disk.LimitExceeded, "nb_snapshots"),
		at(64, also(64, 8, 0x30200, set("snapshot table unaligned", 60, 4, 1, disk.TableUnaligned, "snapshots_offset = 0x30200"))),
		set("snapshot table unaligned, no snapshot", 64, 8, 0x30200, disk.TableUnaligned, "snapshots_offset = 0x30200"),
		at(64, also(64, 8, 1<<64-1<<16, set("snapshot table beyond int64", 60, 4, 1, disk.TableOutOfRange, ""))),
		reads("dirty", 72, 8, 1),
		withDisk(disk0, set("corrupt", 72, 8, 1<<1, disk.CorruptBit, "")),
		set("external data file", 72, 8, 1<<2, disk.ExternalDataFile, "incompatible_features = 0x4 at 0x48"),
		at(104, set("compression bit without type", 72, 8, 1<<3, disk.BadHeader, "compression_type")),
		set("unknown bit 5", 72, 8, 1<<5, disk.UnknownFeature, "bit 5"),
		set("unknown bit 63", 72, 8, 1<<63, disk.UnknownFeature, "bit 63"),
		reads("lazy refcounts", 80, 8, 1),
		reads("unknown compatible bits", 80, 8, 1<<63|1<<40),
		set("raw data file and none", 88, 8, 1<<1, disk.BadHeader, "autoclear_features = 0x2 at 0x58"),
		reads("bitmaps bit and no bitmaps", 88, 8, 1),
		reads("unknown autoclear bits", 88, 8, 1<<63|1<<40),
		set("refcount_order", 96, 4, 7, disk.BadHeader, "refcount_order = 0x7 at 0x60"),
		set("refcount_order max", 96, 4, 0xffffffff, disk.BadHeader, ""),
		set("header_length short", 100, 4, 103, disk.BadHeader, "header_length = 0x67 at 0x64"),
		set("header_length over a cluster", 100, 4, 65537, disk.BadHeader, ""),
		set("header_length max", 100, 4, 0xffffffff, disk.BadHeader, ""),
		reads("header_length no multiple of 8", 100, 4, 105),
		reads("header_length 104", 100, 4, 104),
		reads("header_length of a cluster", 100, 4, 65536),
		set("compression type without bit", 104, 1, 1, disk.BadHeader, "compression_type = 0x1 at 0x68"),
		{name: "unknown compression", file: mutate(zstd4k, 104, 1, 2), reason: disk.UnknownFeature, at: 104, seen: atOpen},
		{name: "zstd bit and zlib", file: mutate(zstd4k, 104, 1, 0), reason: disk.BadHeader, at: 104, seen: atOpen},

		extension("extension over the header area", 0x6803f857, 1<<20, disk.BadHeader, "header extension"),
		extension("unknown extension over the header area", 0x12345678, 1<<16-119, disk.BadHeader, "header extension"),
		extension("unknown extension of 4 GiB", 0x12345678, 0xffffffff, disk.BadHeader, "header extension"),
		extension("unknown extension up to the end", 0x12345678, 1<<16-120, "", ""),
		extension("end of extensions over the header area", 0, 0xffffffff, disk.BadHeader, "header extension"),
		extension("end of extensions with a length", 0, 1000, "", ""),
		extension("half a feature name", 0x6803f857, 8*48-2, "", ""),
		extension("backing format of 16 bytes", 0xe2792aca, 16, disk.BadHeader, "backing file format"),
		extension("backing format of 15 bytes", 0xe2792aca, 15, "", ""),
		extension("data file's name and no data file", 0x44415441, 8, "", ""),
		extension("encryption's extension and none", luks, 16, disk.BadHeader, "full disk encryption"),
		extension("bitmaps of another length, bit not set", bitmaps, 8, disk.BadHeader, "bitmaps"),
		{name: "version 2, an extension", file: mutate(mutate(v2, 72, 8, 0x12345678<<32|8), 88, 8, 0), want: v2disk},
		{name: "version 2, an extension too long", file: mutate(v2, 72, 8, 0x12345678<<32|1<<20), reason: disk.BadHeader, at: 72, text: "header extension", seen: atOpen},
	}
}

// tableRules break entries of the tables.
func tableRules(t *testing.T) []rule {
	plain, disk0 := fixture(t, "qemu-v3-4k")
	l1, l2 := tablesOf(t, plain)
	first, second := used(plain, l2, 0), used(plain, l2, 1)
	v2, _ := fixture(t, "qemu-v2-64k")
	_, v2l2 := tablesOf(t, v2)
	v2first := used(v2, v2l2, 0)
	packed, packedDisk := fixture(t, "qemu-zlib-4k")
	_, packedL2 := tablesOf(t, packed)
	packedFirst := used(packed, packedL2, 0)
	shared, longest := packed, uint64(0) // all entries name the longest compressed cluster
	for i := range 512 {
		if e := be64(packed, packedL2+8*i); e>>62 == 1 && e>>58&15 > longest>>58&15 {
			longest = e
		}
	}
	for i := range 512 {
		shared = mutate(shared, packedL2+8*i, 8, longest)
	}
	set := func(name string, off int, value uint64, reason disk.Reason, text string, seen scope) rule {
		r := rule{name: name, file: mutate(plain, off, 8, value), reason: reason, at: int64(off), text: text, seen: seen}
		if reason == "" {
			r.want = disk0
		}
		return r
	}
	at := func(off int64, r rule) rule { r.at = off; return r }
	end := int64(len(plain))
	without := func(off, n int) []byte { p := bytes.Clone(disk0); clear(p[off : off+n]); return p }
	firstGuest := (first - l2) / 8 * 4096
	zeroed := func(name string, value uint64) rule {
		return rule{name: name, file: mutate(plain, first, 8, value), want: without(firstGuest, 4096)}
	}
	return []rule{
		set("L2 table unaligned", l1, be64(plain, l1)+512, disk.TableUnaligned, "L1 entry", everywhere),
		withDisk(disk0, at(end, set("L2 table past the end", l1, 1<<63|1<<40, disk.Truncated, "", everywhere))),
		{name: "L2 table at 0", file: mutate(plain, l1, 8, 1<<63), want: without(0, min(len(disk0), 2<<20))},
		set("L2 table on the L1 table", l1, 1<<63|uint64(l1), disk.OverlapsMetadata, "L1 entry", byWalk),
		set("L2 table on the refcount table", l1, 1<<63|4096, disk.OverlapsMetadata, "L1 entry", byWalk),
		set("two L1 entries, one L2 table", l1+8, be64(plain, l1), disk.OverlapsMetadata, "L1 entry", byWalk),
		set("reserved bits of L1", l1, be64(plain, l1)|0x1ff|1<<60, "", "", everywhere),
		set("no copied flag in L1", l1, be64(plain, l1)&^(1<<63), "", "", everywhere),
		set("cluster unaligned", first, be64(plain, first)+512, disk.BadEntry, "L2 entry", everywhere),
		withDisk(disk0, at(end, set("cluster past the end", first, 1<<63|1<<40, disk.Truncated, "", everywhere))),
		set("cluster on the L2 table", first, 1<<63|uint64(l2), disk.OverlapsMetadata, "L2 entry", byWalk),
		set("cluster on the L1 table", first, 1<<63|uint64(l1), disk.OverlapsMetadata, "L2 entry", byWalk),
		set("cluster on the refcount table", first, 1<<63|4096, disk.OverlapsMetadata, "L2 entry", byWalk),
		set("one cluster mapped twice", second, be64(plain, first), disk.SharedCluster, "L2 entry", byWalk),
		set("no copied flag in L2", first, be64(plain, first)&^(1<<63), "", "", everywhere),
		set("reserved bits of L2", first, be64(plain, first)|1<<56|2, "", "", everywhere),
		zeroed("cluster at 0", 1<<63),
		zeroed("zero cluster, allocated", be64(plain, first)|1),
		zeroed("zero cluster, allocated past the end", 1<<63|1<<40|1),
		zeroed("zero cluster", 1),
		set("zero cluster, unaligned", first, be64(plain, first)+512|1, disk.BadEntry, "L2 entry", everywhere),
		{name: "zero cluster in version 2", file: mutate(v2, v2first, 8, be64(v2, v2first)|1), reason: disk.BadEntry, at: int64(v2first), text: "version 2"},
		set("refcount block on the L1 table", 4096, uint64(l1), disk.OverlapsMetadata, "refcount table entry", byWalk),
		set("reserved bits of the refcount table", 4096+8, 0x1ff, "", "", everywhere),
		at(int64(first), set("refcount block on a cluster", 4096+8, be64(plain, first)&^(1<<63), disk.OverlapsMetadata, "L2 entry", byWalk)),
		set("two refcount table entries, one block", 4096+8, be64(plain, 4096), disk.OverlapsMetadata, "refcount table entry", byWalk),
		set("refcount block unaligned", 4096+8, be64(plain, 4096)+512, "", "", everywhere),
		set("refcount block past the end", 4096+8, 1<<40, "", "", everywhere),
		set("refcount block beyond int64", 4096+8, 1<<64-4096, "", "", everywhere),
		set("no refcount block", 4096, 0, "", "", everywhere),
		{name: "refcounts all zero", file: concat(plain[:8192], make([]byte, 4096), plain[12288:]), want: disk0},
		{name: "trailing garbage", file: append(bytes.Clone(plain), []byte(strings.Repeat("garbage", 1000))...), want: disk0},
		{name: "snapshots counted", file: mutate(mutate(plain, 60, 4, 1), 64, 8, 4096), want: disk0},

		{name: "compressed cluster at 0", file: mutate(packed, packedFirst, 8, 1<<62), reason: disk.BadEntry, at: int64(packedFirst), text: "inside the header"},
		{name: "compressed cluster past the end", file: mutate(packed, packedFirst, 8, 1<<62|1<<40), reason: disk.Truncated, at: anywhere},
		{name: "compressed clusters on each other", file: shared, reason: disk.SharedCluster, at: int64(packedL2), text: "compressed clusters", seen: byWalk},
		{name: "compressed cluster, copied flag", file: mutate(packed, packedFirst, 8, be64(packed, packedFirst)|1<<63), want: packedDisk},
		{name: "compressed cluster on the L2 table", file: mutate(packed, packedFirst, 8, 1<<62|uint64(packedL2)), reason: disk.OverlapsMetadata, at: int64(packedFirst), seen: byWalk},
	}
}

// subclusterRules break extended L2 entries.
func subclusterRules(t *testing.T) []rule {
	good, want := fixture(t, "qemu-extended-l2") // 3 KiB at 100 KiB, clusters of 16 KiB
	_, l2 := tablesOf(t, good)
	at := l2
	for ; be64(good, at) == 0; at += 16 {
	}
	bitmap := be64(good, at+8)
	require.Equal(t, uint64(0x3f<<8), bitmap, "subclusters of 512 bytes, 4 to 7 KiB of the cluster")
	small := text(512, 3)
	c := craft{bits: 14, extended: true, data: small}
	c.entries, c.bitmaps = []uint64{c.plain(0), 0}, []uint64{1, 0}
	one := c.build()
	c.bitmaps[0] = 3
	two := c.build()
	c.bitmaps[0] = 0
	none := c.build()
	p := craft{bits: 14, extended: true, data: deflated(t, text(16<<10, 4), true)}
	p.entries, p.bitmaps = []uint64{p.packed(0, int64(len(p.data)))}, []uint64{0xffff_ffff_0000_0001}
	return []rule{
		{name: "allocated and zero", file: mutate(good, at+8, 8, bitmap|1<<40), reason: disk.BadEntry, at: int64(at) + 8, text: "subcluster bitmap"},
		{name: "allocated and no cluster", file: mutate(good, at, 8, 0), reason: disk.BadEntry, at: int64(at) + 8, text: "subcluster bitmap"},
		{name: "subclusters, unaligned", file: mutate(good, at, 8, be64(good, at)+512), reason: disk.BadEntry, at: int64(at)},
		{name: "bit 0 is no zero flag", file: mutate(good, at, 8, be64(good, at)|1), want: want},
		{name: "zero without a cluster", file: mutate(good, l2+8, 8, 0xffffffff<<32), want: want},
		{name: "zero beside data", file: mutate(good, at+8, 8, bitmap|1<<32), want: want},
		{name: "extended entries and clusters of 8 KiB", file: mutate(good, 20, 4, 13), reason: disk.BadClusterSize, at: 20, seen: atOpen},
		{name: "a cluster of which nothing is allocated", file: none, want: disk4(16 << 10)},
		{name: "file ends with the one subcluster that is allocated", file: one, want: disk4(16<<10, small)},
		{name: "file ends before a subcluster that is allocated", file: two, want: disk4(16<<10, small), reason: disk.Truncated, at: int64(len(two))},
		{name: "bitmap beside a compressed cluster", file: p.build(), want: disk4(16<<10, text(16<<10, 4))},
	}
}

// deflateRules are about compressed clusters of the older kind, each in an image made by hand.
func deflateRules(t *testing.T) []rule {
	a, b := text(4096, 1), text(4096, 2)
	packedA, packedB := deflated(t, a, true), deflated(t, b, true)
	require.Greater(t, len(packedA), 1024)
	pad := func(p []byte) []byte { return concat(p, make([]byte, 8192)) }
	// image has one compressed cluster at byte off of data, of n bytes by its entry.
	image := func(data []byte, off, n int64) []byte {
		c := craft{data: data}
		c.entries = []uint64{c.packed(off, n)}
		return c.build()
	}
	whole := func(p []byte) []byte { return image(pad(p), 0, int64(len(p))) }
	n := int64(len(packedA))
	reads := func(name string, file []byte, parts ...[]byte) rule {
		return rule{name: "deflate, " + name, file: file, want: disk4(4096, parts...)}
	}
	fails := func(name string, file []byte) rule {
		return rule{name: "deflate, " + name, file: file, reason: disk.DecompressFailed, at: 5 * 4096}
	}
	var withHeader bytes.Buffer
	z := zlib.NewWriter(&withHeader)
	_, err := z.Write(a)
	require.NoError(t, err)
	require.NoError(t, z.Close())

	two := craft{data: concat(packedA, packedB)}
	two.entries = []uint64{two.packed(0, n), two.packed(n, int64(len(packedB)))}
	longEnd := craft{data: packedA}
	longEnd.entries = []uint64{longEnd.packedSectors(0, 15)}
	longPadded := craft{data: pad(packedA)}
	longPadded.entries = []uint64{longPadded.packedSectors(0, 15)}
	// A distance near 32 KiB, in the only clusters that are larger than that.
	far := concat(text(30000, 5), text(30000, 5), text(5536, 6))
	wide := craft{bits: 16, data: deflated(t, far, true)}
	wide.entries = []uint64{wide.packed(0, int64(len(wide.data)))}
	require.Less(t, len(wide.data), 24000, "it takes long distances")
	mixed := craft{data: pad(packedA)}
	mixed.entries = []uint64{mixed.packed(0, n), mixed.plain(0)}
	small := craft{bits: 9, size: 2048, data: pad(deflated(t, text(512, 7), true))}
	small.entries = []uint64{small.packed(0, 400) | 1<<57}
	tiny := deflated(t, bytes.Repeat([]byte{'x'}, 4096), true)
	many := craft{data: concat(tiny, tiny, tiny, tiny)}
	for i := range 4 {
		many.entries = append(many.entries, many.packed(int64(i*len(tiny)), int64(len(tiny))))
	}
	return []rule{
		reads("as it should be", whole(packedA), a),
		reads("in the midst of a sector", image(concat(make([]byte, 100), pad(packedA)), 100, n), a),
		reads("over two host clusters", image(concat(make([]byte, 3333), pad(packedA)), 3333, n), a),
		reads("two in one sector", two.build(), a, b),
		reads("four in one sector", many.build(), bytes.Repeat([]byte{'x'}, 4*4096)),
		fails("one sector too few", image(pad(packedA), 0, n-512)),
		reads("more sectors than needed", longPadded.build(), a),
		reads("more sectors than the file has", longEnd.build(), a),
		{name: "deflate, the last ten bytes missing", file: image(packedA[:n-10], 0, n), want: disk4(4096, a), reason: disk.Truncated, at: 5 * 4096},
		fails("a zlib header", whole(withHeader.Bytes())),
		fails("a byte too little", whole(deflated(t, a[:4095], true))),
		reads("more than a cluster", whole(deflated(t, concat(a, b), true)), a),
		reads("no last block, then padding", whole(deflated(t, a, false)), a),
		reads("no last block, then the end", image(deflated(t, a, false), 0, int64(len(deflated(t, a, false)))), a),
		fails("nothing but zeros", whole(make([]byte, 600))),
		{name: "deflate, distances up to 30000", file: wide.build(), want: disk4(64<<10, far)},
		{name: "deflate, plain data in the same host cluster", file: mixed.build(), reason: disk.SharedCluster, at: mixed.l2At() + 8, seen: byWalk},
		{name: "deflate, beyond 2^56", file: small.build(), reason: disk.BadEntry, at: small.l2At()},
	}
}

// zstdRules are about those of the newer kind.
func zstdRules(t *testing.T) []rule {
	a, b := text(4096, 1), text(4096, 2)
	image := func(data []byte, n int) []byte {
		c := craft{zstd: true, data: data}
		c.entries = []uint64{c.packed(0, int64(n))}
		return c.build()
	}
	whole := func(parts ...[]byte) []byte {
		p := concat(parts...)
		return image(concat(p, make([]byte, 8192)), len(p))
	}
	reads := func(name string, file []byte, parts ...[]byte) rule {
		return rule{name: "zstd, " + name, file: file, want: disk4(4096, parts...)}
	}
	fails := func(name string, file []byte) rule {
		return rule{name: "zstd, " + name, file: file, reason: disk.DecompressFailed, at: 5 * 4096}
	}
	packedA, packedB := zstandard(t, a), zstandard(t, b)
	checked := zstandard(t, a, zstd.WithEncoderCRC(true))
	wrong := bytes.Clone(checked)
	wrong[len(wrong)-1] ^= 1
	x := bytes.Repeat([]byte{'x'}, 4096)
	window := func(descriptor byte) []byte { return frame([]byte{0, descriptor}, 1, 4096, 'x') }
	half := frame([]byte{0, 0x50}, 1, 2048, 'x')
	two := craft{zstd: true, data: concat(packedA, packedB)}
	two.entries = []uint64{two.packed(0, int64(len(packedA))), two.packed(int64(len(packedA)), int64(len(packedB)))}
	longEnd := craft{zstd: true, data: packedA}
	longEnd.entries = []uint64{longEnd.packedSectors(0, 15)}
	return []rule{
		reads("as it should be", whole(packedA), a),
		reads("two in one sector", two.build(), a, b),
		fails("one sector too few", image(concat(packedA, make([]byte, 8192)), len(packedA)-512)),
		reads("more sectors than the file has", longEnd.build(), a),
		{name: "zstd, the last byte missing", file: image(packedA[:len(packedA)-1], len(packedA)), want: disk4(4096, a), reason: disk.Truncated, at: 5 * 4096},
		reads("two frames", whole(zstandard(t, a[:1000]), zstandard(t, a[1000:])), a),
		reads("a frame of nothing first", whole(frame([]byte{0, 0x50}, 0, 0), packedA), a),
		reads("a skippable frame first", whole(skippable(1, 2, 3), packedA), a),
		reads("skippable frames between", whole(half, skippable(), skippable(0x28, 0xb5, 0x2f, 0xfd), half), x),
		reads("a skippable frame behind", whole(packedA, skippable(1)), a),
		fails("a skippable frame over the end", whole(concat(skippable()[:4], []byte{0, 0, 1, 0}), packedA)),
		fails("skippable frames only", whole(skippable(1, 2, 3))),
		reads("garbage behind", whole(packedA, []byte("garbage")), a),
		reads("checksum", whole(checked), a),
		fails("checksum wrong", whole(wrong)),
		reads("no content size", whole(window(0x50)), x),
		fails("content size wrong", whole(frame([]byte{0x60, 0xff, 0x0e}, 1, 4096, 'x'))), // says 4095
		fails("content size huge", whole(frame([]byte{0xe0, 0, 0, 0, 0, 0, 1, 0, 0}, 1, 4096, 'x'))),
		fails("frame over a cluster", whole(zstandard(t, concat(a, b)))),
		fails("second frame over the cluster", whole(half, window(0x50))),
		fails("a byte too little", whole(zstandard(t, a[:4095]))),
		reads("window of 8 MiB", whole(window(13<<3)), x),
		withDisk(disk4(4096, x), fails("window of 9 MiB", whole(window(13<<3|1)))),
		fails("window of 3.75 TiB", whole(window(0xff))),
		fails("dictionary", whole(frame([]byte{1, 0x50, 7}, 1, 4096, 'x'))),
		fails("reserved block", whole(frame([]byte{0, 0x50}, 3, 4096, 'x'))),
		fails("no frame", whole(make([]byte, 600))),
		fails("deflate in its place", whole(deflated(t, a, true))),
	}
}

// endRules are about files that end too early, or seem to.
func endRules(t *testing.T) []rule {
	a := text(4096, 1)
	full := craft{size: 3*4096 + 512, data: concat(a, a, a, a)}
	full.entries = []uint64{full.plain(0), full.plain(1), full.plain(2), full.plain(3)}
	file := full.build()
	want := concat(a, a, a, a[:512])
	needed := full.dataAt() + 3*4096 + 512
	none := craft{noL2: true}.build()
	cut := func(name string, n int64) rule {
		return rule{name: name, file: file[:n], want: want, reason: disk.Truncated, at: n}
	}
	return []rule{
		{name: "file ends with L1's entries", file: none, want: disk4(4096)},
		{name: "file ends before L1's last byte", file: none[:len(none)-1], reason: disk.Truncated, at: int64(len(none) - 1)},
		cut("file ends before L1", 3*4096),
		cut("file ends before L2", 4*4096),
		cut("file ends before L2's last byte", 5*4096-1),
		cut("file ends before the data", 5*4096),
		cut("file ends before the disk's last byte", needed-1),
		{name: "file ends with the disk's last byte", file: file[:needed], want: want},
		{name: "file ends with the cluster", file: file, want: want},
	}
}

// answer says what qemu-img makes of an image: that it "refuses", "reads the same" as want,
// "reads other bytes", or without want "reads".
func answer(t *testing.T, file, want []byte) string {
	qemu, err := exec.LookPath("qemu-img")
	if err != nil {
		if os.Getenv("ARCHDISK_REQUIRE_PEERS") == "1" {
			peer.Require(t, "qemu-img")
		}
		return "is not here"
	}
	dir := t.TempDir()
	image, raw := filepath.Join(dir, "m.qcow2"), filepath.Join(dir, "m.raw")
	require.NoError(t, os.WriteFile(image, file, 0o600))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if out, err := exec.CommandContext(ctx, qemu, "convert", "-t", "unsafe", "-f", "qcow2", "-O", "raw", image, raw).CombinedOutput(); err != nil {
		require.NoError(t, ctx.Err())
		_, why, _ := strings.Cut(strings.TrimSpace(string(out)), "m.qcow2': ")
		return "refuses: " + why
	}
	if want == nil {
		return "reads"
	}
	info, err := os.Stat(raw)
	require.NoError(t, err)
	if info.Size() == int64(len(want)) {
		got, err := os.ReadFile(raw)
		require.NoError(t, err)
		if bytes.Equal(want, got) {
			return "reads the same"
		}
	}
	return "reads other bytes"
}

// TestValidity: every rule about what an image may have, and what is done where one is broken,
// through every way in, beside what qemu-img does. Where both read they read the same.
func TestValidity(t *testing.T) {
	refused, read := 0, 0
	count := map[string]int{}
	for _, group := range []struct {
		name  string
		rules []rule
	}{
		{"header", headerRules(t)}, {"tables", tableRules(t)}, {"subclusters", subclusterRules(t)},
		{"deflate", deflateRules(t)}, {"zstd", zstdRules(t)}, {"end", endRules(t)},
	} {
		for _, r := range group.rules {
			t.Run(r.name, func(t *testing.T) {
				ours := "read"
				if r.reason == "" {
					read++
					r.reads(t)
				} else {
					refused++
					ours = fmt.Sprintf("%s at %#x", r.reason, r.refused(t))
				}
				theirs := answer(t, r.file, r.want)
				verdict, _, _ := strings.Cut(theirs, ":")
				if r.reason == "" {
					require.NotEqual(t, "reads other bytes", verdict)
					count["read; qemu-img "+verdict]++
				} else {
					count["refused; qemu-img "+verdict]++
				}
				t.Logf("| %s | %s | %s | %s |", group.name, r.name, ours, theirs)
			})
		}
	}
	t.Logf("parity: validity: %d rules refused, %d read: %v", refused, read, count)
}

// reads checks that the image is read by every way in.
func (r rule) reads(t *testing.T) {
	require.True(t, bytes.Equal(r.want, readAll(t, r.file)), "ReadAt")
	for way, src := range r.sources() {
		var m disktest.Memory
		stats, err := qcowCase(r.file, nil).Convert(t.Context(), r.file, src, &m, disk.ConvertOptions{Workers: 2})
		require.NoError(t, err, way)
		require.EqualValues(t, len(r.want), stats.Size)
		require.NoError(t, m.Covered(stats.Size), way)
		got := make([]byte, stats.Size)
		_, err = m.ReadAt(got, 0)
		require.NoError(t, err)
		require.True(t, bytes.Equal(r.want, got), way)
	}
}

func (r rule) sources() map[string]disk.Source {
	return map[string]disk.Source{
		"file":   disk.File(bytes.NewReader(r.file), int64(len(r.file))),
		"stream": disk.Stream(bytes.NewReader(r.file)),
	}
}

// refused checks that the image is refused by every way in that can see it, with the same
// reason, and returns where that is.
func (r rule) refused(t *testing.T) (at int64) {
	check := func(way string, err error) {
		t.Helper()
		var fe *disk.FormatError
		require.ErrorAs(t, err, &fe, "%s: %v", way, err)
		require.Equal(t, r.reason, fe.Reason, "%s: %v", way, err)
		require.ErrorIs(t, err, r.reason.Sentinel())
		if r.at != anywhere {
			require.Equal(t, r.at, fe.Offset, "%s: %v", way, err)
		}
		require.Contains(t, err.Error(), r.text, way)
		require.NotContains(t, err.Error(), "\n")
		at = fe.Offset
	}
	if r.seen == atOpen {
		_, err := qcow.NewLayout(r.file[:min(len(r.file), 64<<10)], disk.Limits{})
		check("layout", err)
		_, err = qcow.Open(bytes.NewReader(r.file), int64(len(r.file)), qcow.OpenOptions{})
		check("open", err)
		return at
	}
	for way, src := range r.sources() {
		_, err := qcowCase(r.file, nil).Convert(t.Context(), r.file, src, new(disktest.Memory), disk.ConvertOptions{NoGuess: true})
		check(way, err)
	}
	if r.seen == byWalk {
		return at
	}
	img, err := qcow.Open(bytes.NewReader(r.file), int64(len(r.file)), qcow.OpenOptions{})
	if err == nil {
		defer img.Close()
		if _, err = img.ReadAt(make([]byte, img.Size()), 0); errors.Is(err, io.EOF) {
			err = nil
		}
	}
	check("image", err)
	return at
}

// TestShortHeader: a file that ends inside its header is no image, and no disk.
func TestShortHeader(t *testing.T) {
	good := testdata.Read("qcow2/qemu-v3-64k.qcow2")
	for n := range 105 { // up to compression_type
		_, err := qcow.NewLayout(good[:n], disk.Limits{})
		var fe *disk.FormatError
		require.ErrorAs(t, err, &fe, "%d bytes", n)
	}
}
