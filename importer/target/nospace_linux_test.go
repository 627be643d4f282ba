package target_test

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/archdisk/archdisk/importer"
	"github.com/archdisk/archdisk/importer/target"
	"github.com/stretchr/testify/require"
)

// TestRootNoSpace: a file system that fills up in the middle is an error of the class that
// may pass, and nothing of the attempt is left to keep it full.
func TestRootNoSpace(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("a small file system can be mounted by root only")
	}
	dir := t.TempDir()
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("no tmpfs can be mounted here: %v", err)
	}
	defer func() { require.NoError(t, syscall.Unmount(dir, 0)) }()
	path := filepath.Join(dir, "disk.img")
	require.NoError(t, os.WriteFile(path, []byte("old"), 0o600))
	f, err := target.CreateFile(path, target.FileOptions{})
	require.NoError(t, err)
	defer f.Close()

	disk := bytes.Repeat([]byte("data"), 1<<20)
	_, err = importer.ImportReader(t.Context(), struct{ io.Reader }{bytes.NewReader(disk)}, f, importer.Options{})
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.Equal(t, importer.Transient, importer.ClassOf(err))
	var e *importer.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, importer.StageWrite, e.Stage)
	require.Equal(t, "no-space", e.Code)
	require.Equal(t, []string{"disk.img"}, names(t, dir))

	_, err = importer.ImportReader(t.Context(), bytes.NewReader(disk[:64<<10]), f, importer.Options{})
	require.NoError(t, err, "what fits fits again")
}
