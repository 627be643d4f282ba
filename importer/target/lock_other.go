//go:build !unix

package target

import "os"

// openLocked opens the file at path, made if need be. There is no lock on this system: two
// processes that write to one destination are not told of each other.
func openLocked(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
}
