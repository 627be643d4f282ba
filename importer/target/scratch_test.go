package target_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/archdisk/archdisk/importer/target"
	"github.com/stretchr/testify/require"
)

func TestScratch(t *testing.T) {
	dir := t.TempDir()
	s, err := target.OpenScratch(dir)
	require.NoError(t, err)
	_, err = s.WriteAt([]byte("kept"), 1<<20)
	require.NoError(t, err)
	p := make([]byte, 4)
	_, err = s.ReadAt(p, 1<<20)
	require.NoError(t, err)
	require.Equal(t, "kept", string(p))
	info, err := s.Stat()
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries, "it has no name")
	require.NoError(t, s.Close())
	_, err = target.OpenScratch(filepath.Join(dir, "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
}
