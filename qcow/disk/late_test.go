package disk_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"testing/iotest"

	"github.com/archdisk/archdisk/qcow/disk"
	"github.com/archdisk/archdisk/qcow/disk/disktest"
	"github.com/stretchr/testify/require"
)

// script is a layout whose extents are known in advance: those of meta i once it has passed.
type script struct {
	size  int64
	steps [][]disk.Extent
	fed   int
}

func (s *script) Start() ([]disk.Extent, error) { return s.steps[0], nil }
func (s *script) Feed(disk.Extent, []byte) ([]disk.Extent, error) {
	s.fed++
	return s.steps[s.fed], nil
}
func (s *script) End(int64) ([]disk.Extent, error) { return nil, nil }
func (s *script) State() disk.State {
	return disk.State{Format: "script", Size: s.size, Unit: 4096, Complete: s.fed == len(s.steps)-1}
}

// TestLatePieces: compressed pieces packed into shared sectors, some of them named only by a
// table behind them all. What stands between two known pieces is kept for them, and no more.
func TestLatePieces(t *testing.T) {
	const meta, pieces = 512, 40
	for _, codec := range []disk.Codec{disk.Deflate, disk.Zstd} {
		for pattern := range 8 { // which pieces come late
			t.Run(fmt.Sprintf("%s/%d", codec, pattern), func(t *testing.T) {
				file, want := make([]byte, meta), []byte{}
				var early, late []disk.Extent
				for i := range pieces {
					data := bytes.Repeat(fmt.Appendf(nil, "piece %d; ", i), 4096)[:4096]
					if i%5 == 3 {
						copy(data, noiseOf(3000, uint64(i))) // over several sectors
					}
					packed := deflate(t, data)
					if codec == disk.Zstd {
						packed = zstdFrame(t, data)
					}
					off := int64(len(file))
					file, want = append(file, packed...), append(want, data...)
					end := (int64(len(file)) + disk.SectorSize - 1) &^ (disk.SectorSize - 1)
					e := disk.Extent{Kind: disk.Data, Codec: codec, Unit: 4096, File: disk.Range{Off: off, Len: end - off},
						Guest: disk.Range{Off: int64(i) * 4096, Len: 4096}}
					if isLate := []bool{i%2 == 1, i%2 == 0, i%3 == 1, i%3 != 1, i > 20, i < 20, i%7 < 3, true}[pattern]; isLate {
						late = append(late, e)
					} else {
						early = append(early, e)
					}
				}
				file = append(file, make([]byte, -len(file)&511+meta)...)
				first := disk.Extent{Kind: disk.Meta, File: disk.Range{Off: 0, Len: meta}}
				last := disk.Extent{Kind: disk.Meta, File: disk.Range{Off: int64(len(file)) - meta, Len: meta}}
				c := disktest.Case{File: file, Want: want, NewLayout: func([]byte) (disk.Layout, error) {
					return &script{size: int64(len(want)), steps: [][]disk.Extent{{first}, append(slices.Clone(early), last), slices.Clone(late)}}, nil
				}}
				for name, src := range map[string]disk.Source{
					"stream": disk.Stream(bytes.NewReader(file)),
					"half":   disk.Stream(iotest.HalfReader(bytes.NewReader(file))),
					"file":   disk.File(bytes.NewReader(file), int64(len(file))),
				} {
					var m disktest.Memory
					stats, err := c.Convert(t.Context(), file, src, &m, disk.ConvertOptions{Workers: 3})
					require.NoError(t, err, name)
					require.NoError(t, m.Covered(stats.Size))
					got := make([]byte, len(want))
					_, err = m.ReadAt(got, 0)
					require.NoError(t, err)
					require.True(t, bytes.Equal(want, got), name)
					lateBytes := int64(0)
					for _, e := range late {
						lateBytes += e.File.Len
					}
					require.LessOrEqual(t, stats.PeakParked, lateBytes+disk.SectorSize, "%s: only what is late, and the last padding", name)
				}
			})
		}
	}
}

// noiseOf returns n bytes that do not compress.
func noiseOf(n int, seed uint64) []byte {
	p, x := make([]byte, n), seed*2+88172645463325253
	for i := range p {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		p[i] = byte(x >> 32)
	}
	return p
}
