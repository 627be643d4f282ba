package target

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
)

// ErrBusy: another process is writing to the same destination.
var ErrBusy = errors.New("destination is being written by another process")

// FileOptions adjusts [CreateFile]. The zero value is ready.
type FileOptions struct {
	Mode fs.FileMode // permission bits of the finished disk; default 0640
}

// File is a raw disk in a file, sparse where the disk is zero. It writes into a temporary
// file of mode 0600 beside the destination, of one fixed name and locked, so that what a
// killed process has left is found and used up by the next. Commit makes that durable, renames
// it over the destination and makes the name durable.
//
// WriteAt and ZeroRange may be called by several goroutines at once, everything else by one.
type File struct {
	path string // the destination, symlinks resolved
	mode fs.FileMode

	mu   sync.Mutex
	tmp  *os.File // between Begin and Commit or Abort
	done *os.File // after Commit, for ReadAt

	writeback writeback
}

// CreateFile returns a target for the disk at path. Nothing is created yet, and an existing
// file is kept until Commit. A path that is a symlink to a file stands for that file.
//
// Errors: the path is a directory or a special file, or its directory is missing.
func CreateFile(path string, o FileOptions) (*File, error) {
	if o.Mode == 0 {
		o.Mode = 0o640
	}
	resolved, err := resolve(path)
	if err != nil {
		return nil, fmt.Errorf("target: %w", err)
	}
	return &File{path: resolved, mode: o.Mode.Perm()}, nil
}

// resolve returns where a rename to path must go, and checks that a file may be there.
func resolve(path string) (string, error) {
	resolved, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Lstat(path); err == nil {
			return "", &PathError{Path: path, Detail: "a symlink to nothing"}
		}
		dir, err := filepath.EvalSymlinks(filepath.Dir(path))
		if errors.Is(err, fs.ErrNotExist) {
			err = &fs.PathError{Op: "destination", Path: path, Err: noDirectory{}}
		}
		return filepath.Join(dir, filepath.Base(path)), err
	}
	if err != nil {
		return "", err
	}
	info, err := os.Stat(resolved)
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", &PathError{Path: path, Detail: kind(info.Mode())}
	}
	return resolved, nil
}

// noDirectory is why no file can be made at a path.
type noDirectory struct{}

func (noDirectory) Error() string { return "directory does not exist" }
func (noDirectory) Unwrap() error { return fs.ErrNotExist }

// kind names what is no regular file.
func kind(mode fs.FileMode) string {
	for bit, name := range map[fs.FileMode]string{
		fs.ModeDir: "a directory", fs.ModeNamedPipe: "a named pipe", fs.ModeSocket: "a socket",
		fs.ModeCharDevice: "a character device",
	} {
		if mode&bit != 0 {
			return name
		}
	}
	if mode&fs.ModeDevice != 0 {
		return "a block device"
	}
	return "of type " + mode.Type().String()
}

// ErrNotAFile: the destination is neither a regular file nor a place for one.
var ErrNotAFile = errors.New("destination is not a regular file")

// PathError is a destination that no file can be made at. It unwraps to [ErrNotAFile].
type PathError struct {
	Path   string
	Detail string // what it is instead
}

func (e *PathError) Error() string { return fmt.Sprintf("%s: %v: %s", e.Path, ErrNotAFile, e.Detail) }

// Unwrap returns [ErrNotAFile].
func (e *PathError) Unwrap() error { return ErrNotAFile }

// Temporary says that trying again does not help.
func (e *PathError) Temporary() bool { return false }

const (
	temporarySuffix = ".archdisk-partial"
	maxName         = 255 // bytes that file systems take
)

// temporary returns the path that the disk is written to.
func (f *File) temporary() string {
	dir, base := filepath.Split(f.path)
	name := "." + base + temporarySuffix
	if len(name) > maxName {
		name = fmt.Sprintf(".%x%s", sha256.Sum256([]byte(base)), temporarySuffix)
	}
	return filepath.Join(dir, name)
}

// Begin creates the temporary file, taking over what a killed process has left.
func (f *File) Begin(_ context.Context, size int64) error {
	if err := f.Abort(); err != nil {
		return err
	}
	tmp, err := openLocked(f.temporary())
	if err != nil {
		return fmt.Errorf("target: %w", err)
	}
	err = tmp.Truncate(0)
	if err == nil && size > 0 {
		err = tmp.Truncate(size) // a file system that cannot hold it says so now
	}
	if err != nil {
		return fmt.Errorf("target: %w", errors.Join(err, os.Remove(f.temporary()), tmp.Close()))
	}
	f.mu.Lock()
	f.tmp = tmp
	f.mu.Unlock()
	return nil
}

var errNotBegun = errors.New("target: no disk has been begun")

// open returns the file that reads and writes go to.
func (f *File) open() (*os.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.tmp == nil {
		return nil, errNotBegun
	}
	return f.tmp, nil
}

// WriteAt writes to the disk at off.
func (f *File) WriteAt(p []byte, off int64) (int, error) {
	file, err := f.open()
	if err != nil {
		return 0, err
	}
	n, err := file.WriteAt(p, off)
	f.writeback.wrote(file, n)
	return n, err
}

// ZeroRange does nothing: the file is new, and reads as zeros where it was not written.
func (f *File) ZeroRange(_, _ int64) error { return nil }

// ReadAt reads the disk back: the one being written, or else the one committed last.
func (f *File) ReadAt(p []byte, off int64) (int, error) {
	f.mu.Lock()
	file := f.tmp
	if file == nil {
		file = f.done
	}
	f.mu.Unlock()
	if file == nil {
		return 0, errNotBegun
	}
	return file.ReadAt(p, off)
}

// Commit makes the disk size bytes long and durable, then puts it in the destination's
// place. After an error the destination is as it was, unless only the last step failed: the
// flush of the directory, after which it may be either.
func (f *File) Commit(ctx context.Context, size int64) error {
	file, err := f.open()
	if err != nil {
		return err
	}
	f.writeback.stop()
	steps := []func() error{
		ctx.Err,
		func() error { return file.Truncate(size) },
		func() error { return file.Chmod(f.mode) },
		file.Sync,
		ctx.Err,
		func() error { return os.Rename(f.temporary(), f.path) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return fmt.Errorf("target: %w", err)
		}
	}
	f.mu.Lock()
	f.tmp, f.done = nil, file
	f.mu.Unlock()
	if err := syncDir(filepath.Dir(f.path)); err != nil {
		return fmt.Errorf("target: %w", err)
	}
	return nil
}

// Abort removes the temporary file, a killed process's included. The destination is as it was.
func (f *File) Abort() error {
	f.mu.Lock()
	tmp, done := f.tmp, f.done
	f.tmp, f.done = nil, nil
	f.mu.Unlock()
	f.writeback.stop()
	var err error
	if tmp != nil {
		err = errors.Join(os.Remove(f.temporary()), tmp.Close()) // in this order: the lock guards the name
	}
	if tmp == nil && done == nil {
		f.removeLeftover()
	}
	if done != nil {
		err = errors.Join(err, done.Close())
	}
	if err != nil {
		err = fmt.Errorf("target: %w", err)
	}
	return err
}

// removeLeftover removes what a killed process has left, unless another one is at work on it.
func (f *File) removeLeftover() {
	if _, err := os.Lstat(f.temporary()); err != nil {
		return
	}
	if left, err := openLocked(f.temporary()); err == nil {
		_ = os.Remove(f.temporary())
		_ = left.Close()
	}
}

// Close aborts what is not committed and closes the file. It may be called again.
func (f *File) Close() error { return f.Abort() }

// Path returns the destination.
func (f *File) Path() string { return f.path }

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
