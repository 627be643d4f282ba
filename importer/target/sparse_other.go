//go:build !linux

package target

import (
	"errors"
	"os"
)

func nextData(*os.File, int64) (start, end int64, err error) { return 0, 0, errors.ErrUnsupported }
