package target_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/archdisk/archdisk/importer"
	"github.com/archdisk/archdisk/importer/target"
	"github.com/archdisk/archdisk/qcow/disk"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	_ importer.Target = (*target.File)(nil)
	_ disk.Zeroer     = (*target.File)(nil)
)

func create(t *testing.T, path string) *target.File {
	t.Helper()
	f, err := target.CreateFile(path, target.FileOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	return f
}

// names lists a directory, hidden files included.
func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	list := []string{}
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

func TestFileCommit(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "disk.img")
	require.NoError(t, os.WriteFile(path, []byte("old"), 0o600))
	f := create(t, path)
	require.Equal(t, []string{"disk.img"}, names(t, dir), "nothing is made before Begin")

	require.NoError(t, f.Begin(t.Context(), 1<<20))
	_, err := f.WriteAt([]byte("data"), 4096)
	require.NoError(t, err)
	require.NoError(t, f.ZeroRange(8192, 4096))
	old, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "old", string(old), "the old content stays until Commit")
	got := make([]byte, 4)
	_, err = f.ReadAt(got, 4096)
	require.NoError(t, err)
	require.Equal(t, "data", string(got))

	require.NoError(t, f.Commit(t.Context(), 2<<20))
	require.Equal(t, []string{"disk.img"}, names(t, dir))
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.EqualValues(t, 2<<20, info.Size())
	require.Equal(t, fs.FileMode(0o640), info.Mode())
	require.Less(t, info.Sys().(*syscall.Stat_t).Blocks*512, int64(64<<10), "sparse")
	_, err = f.ReadAt(got, 4096)
	require.NoError(t, err, "reads go on after Commit")
	require.Equal(t, "data", string(got))
	require.NoError(t, f.Close())
	require.NoError(t, f.Close(), "idempotent")
	require.FileExists(t, path)
}

func TestFileAbort(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "disk.img")
	require.NoError(t, os.WriteFile(path, []byte("old"), 0o600))
	f := create(t, path)
	require.NoError(t, f.Abort(), "nothing to abort")
	for range 2 { // and it may be used again
		require.NoError(t, f.Begin(t.Context(), -1))
		_, err := f.WriteAt([]byte("new"), 0)
		require.NoError(t, err)
		require.NoError(t, f.Abort())
		require.Equal(t, []string{"disk.img"}, names(t, dir))
		old, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, "old", string(old))
	}
	_, err := f.WriteAt([]byte("x"), 0)
	require.Error(t, err, "not begun")
	require.Error(t, f.Commit(t.Context(), 1))
}

// TestFileLeftover: what a killed process has left is used up by the next, not added to.
func TestFileLeftover(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "disk.img")
	killed := create(t, path)
	require.NoError(t, killed.Begin(t.Context(), 1<<20))
	left := names(t, dir)
	require.Len(t, left, 1)
	content := make([]byte, 8192)
	content[0] = 1
	info, err := os.Stat(filepath.Join(dir, left[0]))
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), info.Mode())
	require.NoError(t, killed.Abort())
	require.NoError(t, os.WriteFile(filepath.Join(dir, left[0]), content, 0o644)) // as a killed one would leave it

	f := create(t, path)
	require.NoError(t, f.Begin(t.Context(), 4096))
	require.Equal(t, left, names(t, dir), "the same name")
	got := make([]byte, 1)
	_, err = f.ReadAt(got, 0)
	require.NoError(t, err)
	require.Zero(t, got[0], "old bytes are gone")
	require.NoError(t, f.Commit(t.Context(), 4096))
	require.Equal(t, []string{"disk.img"}, names(t, dir))
}

// TestFileLeftoverWithoutBegin: a run that fails before its first write removes it, too.
func TestFileLeftoverWithoutBegin(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, ".disk.img.archdisk-partial"), []byte("left"), 0o600))
	f := create(t, filepath.Join(dir, "disk.img"))
	require.NoError(t, f.Abort())
	require.Empty(t, names(t, dir))
}

func TestFileBusy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.img")
	first, second := create(t, path), create(t, path)
	require.NoError(t, first.Begin(t.Context(), 4096))
	err := second.Begin(t.Context(), 4096)
	require.ErrorIs(t, err, target.ErrBusy)
	require.Equal(t, importer.Transient, importer.ClassOf(err))
	require.NoError(t, first.Commit(t.Context(), 4096), "the first is not disturbed")
	require.NoError(t, second.Begin(t.Context(), 4096), "free again")
}

func TestCreateFileRefuses(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	dangling := filepath.Join(dir, "dangling")
	require.NoError(t, os.Symlink(filepath.Join(dir, "none"), dangling))
	for name, path := range map[string]string{"directory": dir, "fifo": fifo, "dangling symlink": dangling} {
		t.Run(name, func(t *testing.T) {
			_, err := target.CreateFile(path, target.FileOptions{})
			require.ErrorIs(t, err, target.ErrNotAFile)
			require.Equal(t, importer.Permanent, importer.ClassOf(err))
		})
	}
	_, err := target.CreateFile(filepath.Join(dir, "none", "disk.img"), target.FileOptions{})
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, "none/disk.img: directory does not exist")
	require.Equal(t, importer.Permanent, importer.ClassOf(err))
	_, err = target.CreateFile(filepath.Join(write(t, dir, "file"), "disk.img"), target.FileOptions{})
	require.ErrorIs(t, err, syscall.ENOTDIR)
	require.Equal(t, importer.Permanent, importer.ClassOf(err))
	_, err = target.CreateFile(filepath.Join(dir, strings.Repeat("n", 256)), target.FileOptions{})
	require.ErrorIs(t, err, syscall.ENAMETOOLONG)
	require.Equal(t, importer.Permanent, importer.ClassOf(err))
}

func write(t *testing.T, dir, name string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	require.NoError(t, os.WriteFile(path, []byte("old"), 0o600))
	return path
}

// TestFileLongName: the temporary name fits wherever the destination's does, and differs
// for destinations that differ.
func TestFileLongName(t *testing.T) {
	dir := t.TempDir()
	seen := map[string]bool{}
	for _, last := range []string{"a", "b"} {
		path := filepath.Join(dir, strings.Repeat("n", 254)+last)
		f := create(t, path)
		require.NoError(t, f.Begin(t.Context(), 512))
		list := names(t, dir)
		require.Len(t, list, 1)
		seen[list[0]] = true
		require.NoError(t, f.Commit(t.Context(), 512))
		require.NoError(t, os.Remove(path))
	}
	require.Len(t, seen, 2)
}

// TestFileSymlink: the file that a symlink names is replaced, not the symlink.
func TestFileSymlink(t *testing.T) {
	dir := t.TempDir()
	real, link := filepath.Join(dir, "real.img"), filepath.Join(dir, "link.img")
	require.NoError(t, os.WriteFile(real, []byte("old"), 0o600))
	require.NoError(t, os.Symlink("real.img", link))
	f := create(t, link)
	require.NoError(t, f.Begin(t.Context(), 512))
	require.NoError(t, f.Commit(t.Context(), 512))
	info, err := os.Lstat(link)
	require.NoError(t, err)
	require.NotZero(t, info.Mode()&fs.ModeSymlink)
	info, err = os.Stat(real)
	require.NoError(t, err)
	require.EqualValues(t, 512, info.Size())
}

// TestFileSymlinkTemporary: a link planted in place of the temporary file is not followed.
func TestFileSymlinkTemporary(t *testing.T) {
	dir := t.TempDir()
	victim := filepath.Join(dir, "victim")
	require.NoError(t, os.WriteFile(victim, []byte("precious"), 0o600))
	require.NoError(t, os.Symlink(victim, filepath.Join(dir, ".disk.img.archdisk-partial")))
	f := create(t, filepath.Join(dir, "disk.img"))
	require.Error(t, f.Begin(t.Context(), 512))
	content, err := os.ReadFile(victim)
	require.NoError(t, err)
	require.Equal(t, "precious", string(content))
}

func TestFileCommitCancelled(t *testing.T) {
	dir := t.TempDir()
	f := create(t, filepath.Join(dir, "disk.img"))
	require.NoError(t, f.Begin(t.Context(), 512))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, f.Commit(ctx, 512), context.Canceled)
	require.NoError(t, f.Abort())
	require.Empty(t, names(t, dir))
}

func TestFileTooLargeForFileSystem(t *testing.T) {
	dir := t.TempDir()
	f := create(t, filepath.Join(dir, "disk.img"))
	err := f.Begin(t.Context(), 1<<62)
	require.Error(t, err)
	var errno syscall.Errno
	require.True(t, errors.As(err, &errno), "%v", err)
	require.Empty(t, names(t, dir))
}

// What is pushed to disk along the way changes nothing of the outcome, and ends with the file.
func TestFileWriteback(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "disk.img")
	f := create(t, path)
	want := make([]byte, 40<<20)
	for i := range want {
		want[i] = byte(i>>20 + i)
	}
	write := func(to int) {
		var wait sync.WaitGroup
		for worker := range 4 {
			wait.Go(func() {
				for off := worker << 20; off < to; off += 4 << 20 {
					_, err := f.WriteAt(want[off:off+1<<20], int64(off))
					assert.NoError(t, err)
				}
			})
		}
		wait.Wait()
	}
	require.NoError(t, f.Begin(t.Context(), int64(len(want))))
	write(16 << 20)
	require.NoError(t, f.Abort())
	require.Empty(t, names(t, dir))

	require.NoError(t, f.Begin(t.Context(), int64(len(want))))
	write(len(want))
	require.NoError(t, f.Commit(t.Context(), int64(len(want))))
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got))
}
