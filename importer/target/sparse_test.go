package target_test

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/archdisk/archdisk/importer/target"
	"github.com/archdisk/archdisk/qcow/disk"
	"github.com/stretchr/testify/require"
)

// TestSparse: whatever the file system tells, data is never taken for a hole.
func TestSparse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	f, err := os.Create(path)
	require.NoError(t, err)
	require.NoError(t, f.Truncate(64<<20))
	for _, off := range []int64{5 << 20, 20<<20 + 123} {
		_, err := f.WriteAt([]byte("data"), off)
		require.NoError(t, err)
	}
	require.NoError(t, f.Close())
	s, err := target.OpenSparse(path)
	require.NoError(t, err)
	defer s.Close()
	require.EqualValues(t, 64<<20, s.Size())
	covered := func(off int64) bool {
		for at := int64(0); at < s.Size(); {
			r, err := s.NextData(at)
			require.NoError(t, err)
			require.GreaterOrEqual(t, r.Off, at)
			if r.Len == 0 {
				require.Equal(t, s.Size(), r.Off)
				return false
			}
			if off >= r.Off && off < r.End() {
				return true
			}
			at = r.End()
		}
		return false
	}
	require.True(t, covered(5<<20))
	require.True(t, covered(20<<20+126))
	r, err := s.NextData(64 << 20)
	require.NoError(t, err)
	require.Equal(t, disk.Range{Off: 64 << 20}, r)
	p, err := io.ReadAll(io.LimitReader(s, 10))
	require.NoError(t, err)
	require.Len(t, p, 10)
	_, err = target.OpenSparse(t.TempDir())
	require.Error(t, err)
}
