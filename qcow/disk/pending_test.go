package disk

import (
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// TestPending: what waits comes out in the order of the file, the budget knows at any time
// how much memory it takes, and batches of which little is left hold little.
func TestPending(t *testing.T) {
	require.EqualValues(t, unsafe.Sizeof(Extent{}), extentSize)
	rnd := rand.New(rand.NewPCG(1, 2))
	p, count := pending{budget: NewBudget(64 << 20)}, 0
	held := func() int64 { return 64<<20 - p.budget.Left() }
	for range 50 {
		list := make([]Extent, rnd.IntN(1000), 1000+rnd.IntN(9000))
		for i := range list {
			list[i].File = Range{rnd.Int64N(1 << 20), 1}
		}
		count += len(list)
		require.NoError(t, p.add(list))
	}
	var before Extent
	for ; count > 0; count-- {
		memory := int64(0)
		for _, b := range p.batches {
			memory += b.memory()
		}
		require.Equal(t, memory, held())
		require.LessOrEqual(t, held(), int64(count)*2*extentSize)
		e, ok := p.peek()
		require.True(t, ok)
		require.LessOrEqual(t, before.File.Off, e.File.Off)
		before = e
		p.pop()
	}
	_, ok := p.peek()
	require.False(t, ok)
	require.Zero(t, held())

	require.NoError(t, p.add(make([]Extent, 10)))
	require.ErrorIs(t, p.add(make([]Extent, 2<<20)), ErrLimit)
	p.release()
	require.Zero(t, held())
}
