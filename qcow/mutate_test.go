package qcow_test

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/archdisk/archdisk/qcow"
	"github.com/archdisk/archdisk/qcow/disk"
	"github.com/archdisk/archdisk/testdata"
	"github.com/stretchr/testify/require"
)

// choices are the bytes by which a fuzzer steers; when they are used up, everything is 0.
type choices []byte

// next chooses one of n.
func (c *choices) next(n int) int {
	v := 0
	for range 2 {
		if len(*c) > 0 {
			v, *c = v<<8|int((*c)[0]), (*c)[1:]
		}
	}
	return v % n
}

// field is a number of n bytes in an image.
type field struct{ off, n int }

// anatomy knows where the fields of a good image are.
type anatomy struct {
	file       []byte
	cluster    int
	header     []field
	extensions []field // type and length of each
	l1, l2     []field
	bitmaps    []field // of subclusters
	refcounts  []field // of the table and the first block
	places     []uint64
}

// most entries of one kind that are kept: the first of them are in use.
const someEntries = 512

func dissect(file []byte) (*anatomy, error) {
	h, err := qcow.ParseHeader(file[:min(len(file), 64<<10)], disk.Limits{})
	if err != nil {
		return nil, err
	}
	a := &anatomy{file: file, cluster: int(h.ClusterSize())}
	for _, f := range []field{{4, 4}, {8, 8}, {16, 4}, {20, 4}, {24, 8}, {32, 4}, {36, 4}, {40, 8}, {48, 8}, {56, 4}, {60, 4}, {64, 8},
		{72, 8}, {80, 8}, {88, 8}, {96, 4}, {100, 4}, {104, 1}} {
		if uint32(f.off) < h.HeaderLength {
			a.header = append(a.header, f)
		}
	}
	for _, e := range h.Extensions {
		a.extensions = append(a.extensions, field{int(e.Data.Off) - 8, 4}, field{int(e.Data.Off) - 4, 4})
	}
	entries := func(off int64, n int) (list []field) {
		for i := range min(n, someEntries) {
			if at := int(off) + 8*i; at+8 <= len(file) {
				list = append(list, field{at, 8})
			}
		}
		return list
	}
	a.l1 = entries(h.L1TableOffset, int(h.L1Size))
	a.refcounts = entries(h.RefcountTableOffset, 2)
	if len(a.refcounts) > 0 {
		a.refcounts = append(a.refcounts, entries(int64(a.get(a.refcounts[0])), 4)...)
	}
	a.places = []uint64{0, uint64(h.L1TableOffset), uint64(h.RefcountTableOffset), uint64(len(file)), uint64(len(file)+a.cluster-1) &^ uint64(a.cluster-1)}
	for _, f := range a.l1 {
		table := a.get(f) & 0x00fffffffffffe00
		if table == 0 {
			continue
		}
		a.places = append(a.places, table)
		for i, f := range entries(int64(table), a.cluster/8) {
			if h.Extended() && i%2 == 1 {
				a.bitmaps = append(a.bitmaps, f)
			} else {
				a.l2 = append(a.l2, f)
			}
		}
	}
	return a, nil
}

func (a *anatomy) get(f field) uint64 {
	var p [8]byte
	copy(p[8-f.n:], a.file[f.off:f.off+f.n])
	return binary.BigEndian.Uint64(p[:])
}

// value chooses what could be of interest in the place of was.
func (a *anatomy) value(c *choices, f field, among []field) uint64 {
	was := a.get(f)
	switch c.next(12) {
	case 0:
		return 0
	case 1:
		return was + 1
	case 2:
		return was - 1
	case 3:
		return 1<<(8*f.n) - 1 // 0 shifted out: all ones
	case 4:
		return 1<<(8*f.n-1) - uint64(c.next(2))
	case 5:
		return was ^ 1<<c.next(8*f.n)
	case 6:
		return was << (1 + c.next(4))
	case 7:
		return was&^0x00fffffffffffe00 | a.places[c.next(len(a.places))]
	case 8:
		return a.get(among[c.next(len(among))])
	case 9:
		return was + uint64((c.next(16)-8)*a.cluster)
	case 10:
		return was + 512
	default:
		return was ^ uint64(c.next(4))<<62 ^ uint64(c.next(2))
	}
}

// change applies one to four mutations.
func (a *anatomy) change(c *choices) []byte {
	out := bytes.Clone(a.file)
	for range 1 + c.next(4) {
		if len(out) == 0 {
			break
		}
		var among []field
		switch c.next(16) {
		case 0, 1, 2, 3:
			among = a.header
		case 4:
			among = a.extensions
		case 5, 6, 7:
			among = a.l1
		case 8, 9, 10, 11:
			among = a.l2
		case 12:
			among = a.bitmaps
		case 13:
			among = a.refcounts
		case 14: // the file ends elsewhere
			out = out[:len(out)-c.next(min(len(out), 2*a.cluster)+1)]
			continue
		case 15: // a byte of whatever it is
			out[c.next(len(out))] ^= byte(1 << c.next(8))
			continue
		}
		if len(among) == 0 {
			continue
		}
		f := among[c.next(len(among))]
		if f.off+f.n <= len(out) {
			v := a.value(c, f, among)
			for i := range f.n {
				out[f.off+i] = byte(v >> (8 * (f.n - 1 - i)))
			}
		}
	}
	return out
}

// nothing is a destination that keeps nothing.
type nothing struct{}

func (nothing) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }
func (nothing) ZeroRange(_, _ int64) error             { return nil }

// requireMemory converts file and reads none of it afterwards: what that allocates, freed or
// not, has a bound that follows from the budget.
func requireMemory(t *testing.T, file []byte) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if layout, err := qcow.NewLayout(file[:min(len(file), 64<<10)], fuzzLimits()); err == nil {
		_, _ = disk.Convert(t.Context(), nothing{}, layout, disk.Stream(bytes.NewReader(file)),
			disk.ConvertOptions{Workers: 2, Budget: disk.NewBudget(fuzzBudget)})
	}
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(2*fuzzBudget))
}

// FuzzMutate: one to four fields of a good image changed to what may matter, in the manner of
// QEMU's image fuzzer, and then what FuzzConvertStream asserts, and a limit of memory.
func FuzzMutate(f *testing.F) {
	var good []*anatomy
	for _, x := range testdata.Fixtures() {
		if x.Format != "qcow2" || x.Compression != "" || x.VirtualSize > 32<<20 {
			continue
		}
		if file := testdata.Read(x.File); len(file) < 256<<10 {
			a, err := dissect(file)
			if err != nil {
				if x.Refused == "" {
					f.Fatalf("%s: %v", x.File, err)
				}
				continue
			}
			good = append(good, a)
		}
	}
	rnd := rand.New(rand.NewPCG(1, 1)) // the same at each start: a corpus is no place for chance
	for range 64 {
		seed := make([]byte, 48)
		for i := range seed {
			seed[i] = byte(rnd.Uint32())
		}
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed []byte) {
		c := choices(seed)
		file := good[c.next(len(good))].change(&c)
		requireMemory(t, file)
		requireAgreement(t, file)
	})
}
