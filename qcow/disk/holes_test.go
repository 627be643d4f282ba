package disk_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/archdisk/archdisk/qcow/disk"
	"github.com/archdisk/archdisk/qcow/disk/disktest"
	"github.com/stretchr/testify/require"
)

// mapped is a file that knows where it has data, and is not to be read elsewhere.
type mapped struct {
	*bytes.Reader
	data []disk.Range
	err  error
	bad  func(off int64) disk.Range
}

func (m *mapped) NextData(off int64) (disk.Range, error) {
	if m.bad != nil {
		return m.bad(off), m.err
	}
	for _, r := range m.data {
		if off < r.End() {
			start := max(off, r.Off)
			return disk.Range{Off: start, Len: r.End() - start}, m.err
		}
	}
	return disk.Range{Off: m.Size()}, m.err
}

func (m *mapped) ReadAt(p []byte, off int64) (int, error) {
	clear(p) // a hole that is read anyway is seen: it is not zeros here
	n, err := m.Reader.ReadAt(p, off)
	if !slices.ContainsFunc(m.data, func(r disk.Range) bool { return off < r.End() && off+int64(len(p)) > r.Off }) {
		return 0, fmt.Errorf("read of a hole at %#x", off)
	}
	return n, err
}

// TestHoles: what a file says it has nothing of is zeros and is not read.
func TestHoles(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		file := make([]byte, 512*(1+rnd.IntN(20_000)))
		m := &mapped{}
		for at := rnd.Int64N(int64(len(file))); at < int64(len(file)); {
			r := disk.Range{Off: at, Len: min(1+rnd.Int64N(3<<20), int64(len(file))-at)}
			m.data = append(m.data, r)
			for i := r.Off; i < r.End(); i++ {
				file[i] = byte(rnd.Uint32() | 1)
			}
			at = r.End() + 1 + rnd.Int64N(3<<20)
		}
		m.Reader = bytes.NewReader(file)
		c := disktest.Case{NewLayout: func([]byte) (disk.Layout, error) { return disk.NewRawLayout(disk.Limits{}), nil }}
		var got disktest.Memory
		stats, err := c.Convert(t.Context(), file, disk.File(m, int64(len(file))), &got, disk.ConvertOptions{Workers: 3})
		require.NoError(t, err)
		require.EqualValues(t, len(file), stats.Size)
		require.EqualValues(t, len(file), stats.Read)
		require.NoError(t, got.Covered(stats.Size))
		p := make([]byte, len(file))
		_, err = got.ReadAt(p, 0)
		require.NoError(t, err)
		require.True(t, bytes.Equal(file, p))
	}
	file := make([]byte, 1<<20)
	convert := func(m *mapped, limit int64) error {
		m.Reader = bytes.NewReader(file)
		_, err := disk.Convert(t.Context(), new(disktest.Memory), disk.NewRawLayout(disk.Limits{VirtualSize: limit}), disk.File(m, int64(len(file))), disk.ConvertOptions{})
		return err
	}
	require.NoError(t, convert(&mapped{}, 0), "nothing but a hole")
	require.ErrorIs(t, convert(&mapped{}, 1<<19), disk.ErrLimit)
	broken := errors.New("broken")
	require.ErrorIs(t, convert(&mapped{err: broken}, 0), broken)
	require.Error(t, convert(&mapped{bad: func(off int64) disk.Range { return disk.Range{Off: off - 1, Len: 10} }}, 0))
}
