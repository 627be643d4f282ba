package disk_test

import (
	"bytes"
	"context"
	"io"
	"testing"

	"github.com/archdisk/archdisk/qcow/disk"
	"github.com/archdisk/archdisk/qcow/disk/disktest"
	"github.com/stretchr/testify/require"
)

// endless gives bytes without end, or nothing without end.
type endless struct {
	bytes bool
	read  int64
	then  func(read int64)
}

func (e *endless) Read(p []byte) (int, error) {
	if !e.bytes {
		return 0, nil
	}
	for i := range p {
		p[i] = 1
	}
	e.read += int64(len(p))
	if e.then != nil {
		e.then(e.read)
	}
	return len(p), nil
}

// TestEndless: sources that never end are left in time.
func TestEndless(t *testing.T) {
	t.Run("raw stream over the layout's limit", func(t *testing.T) {
		src := &endless{bytes: true}
		_, err := disk.Convert(t.Context(), new(disktest.Memory), disk.NewRawLayout(disk.Limits{VirtualSize: 1 << 20}), disk.Stream(src), disk.ConvertOptions{})
		var fe *disk.FormatError
		require.ErrorAs(t, err, &fe)
		require.Equal(t, disk.VirtualSizeTooLarge, fe.Reason)
		require.LessOrEqual(t, src.read, int64(4<<20))
	})
	t.Run("cancelled in a long useless run", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		src := &endless{bytes: true, then: func(n int64) {
			if n > 4<<20 {
				cancel()
			}
		}}
		layout := &script{size: 512, steps: [][]disk.Extent{{{Kind: disk.Drop, File: disk.Range{Off: 0, Len: 1 << 50}}}}}
		var count disk.Counters
		_, err := disk.Convert(ctx, new(disktest.Memory), layout, disk.Stream(src), disk.ConvertOptions{Counters: &count})
		require.ErrorIs(t, err, context.Canceled)
		require.LessOrEqual(t, src.read, int64(8<<20))
		require.GreaterOrEqual(t, count.Read.Load(), int64(3<<20), "progress is seen")
	})
	t.Run("a reader that returns nothing", func(t *testing.T) {
		_, err := disk.Convert(t.Context(), new(disktest.Memory), disk.NewRawLayout(disk.Limits{}), disk.Stream(&endless{}), disk.ConvertOptions{})
		require.ErrorIs(t, err, io.ErrNoProgress)
	})
	t.Run("no source", func(t *testing.T) {
		_, err := disk.Convert(t.Context(), new(disktest.Memory), disk.NewRawLayout(disk.Limits{}), disk.Source{}, disk.ConvertOptions{})
		require.ErrorContains(t, err, "Source")
	})
}

// hungry is a layout that holds memory of its own.
type hungry struct{ *disk.RawLayout }

func (h hungry) State() disk.State {
	s := h.RawLayout.State()
	s.Memory = 20 << 20
	return s
}

// TestLayoutMemory: what a layout holds is counted, and given back.
func TestLayoutMemory(t *testing.T) {
	for _, limit := range []int64{16 << 20, 64 << 20} {
		b := disk.NewBudget(limit)
		_, err := disk.Convert(t.Context(), new(disktest.Memory), hungry{disk.NewRawLayout(disk.Limits{})}, disk.Stream(bytes.NewReader(make([]byte, 512))),
			disk.ConvertOptions{Budget: b})
		if limit < 20<<20 {
			require.ErrorIs(t, err, disk.ErrLimit)
		} else {
			require.NoError(t, err)
		}
		require.Equal(t, limit, b.Left())
	}
}
