package target

import (
	"errors"
	"math"
	"os"
	"syscall"
)

// Values of whence. See lseek(2).
const (
	seekData = 3
	seekHole = 4
)

// nextData returns the first run of data at off or behind, and one behind all files if there
// is none.
func nextData(f *os.File, off int64) (start, end int64, err error) {
	start, err = f.Seek(off, seekData)
	if errors.Is(err, syscall.ENXIO) {
		return math.MaxInt64, math.MaxInt64, nil
	}
	if err != nil {
		return 0, 0, err
	}
	end, err = f.Seek(start, seekHole)
	return start, end, err
}
