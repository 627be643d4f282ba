//go:build unix

package target

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// openLocked opens the file at path, made if need be, under an exclusive lock that lasts
// until it is closed or the process ends. A link in its place is not followed.
func openLocked(path string) (*os.File, error) {
	for {
		file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, err
		}
		if err := lock(file); err != nil {
			return nil, errors.Join(&fs.PathError{Op: "lock", Path: path, Err: err}, file.Close())
		}
		same, err := isAt(file, path)
		if err == nil && same {
			if err = file.Chmod(0o600); err == nil {
				return file, nil
			}
		}
		// Whoever held the lock has renamed or removed it meanwhile: this one is theirs.
		if err := errors.Join(err, file.Close()); err != nil {
			return nil, err
		}
	}
}

func lock(file *os.File) error {
	err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return ErrBusy
	}
	return err
}

// isAt says whether path still names file, a regular one.
func isAt(file *os.File, path string) (bool, error) {
	held, err := file.Stat()
	if err != nil {
		return false, err
	}
	if !held.Mode().IsRegular() {
		return false, &PathError{Path: path, Detail: kind(held.Mode())}
	}
	named, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(held, named), err
}
