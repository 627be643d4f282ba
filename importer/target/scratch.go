package target

import (
	"fmt"
	"os"
)

// Scratch is room on disk for what a conversion has to keep for a while. Its file has mode 0600
// and no name from the start, so that nothing is left behind whatever happens.
type Scratch struct{ *os.File }

// OpenScratch makes room in directory dir. Close gives it back.
func OpenScratch(dir string) (*Scratch, error) {
	f, err := os.CreateTemp(dir, ".archdisk-scratch-*")
	if err != nil {
		return nil, fmt.Errorf("target: scratch: %w", err)
	}
	if err := os.Remove(f.Name()); err != nil {
		f.Close()
		return nil, fmt.Errorf("target: scratch: %w", err)
	}
	return &Scratch{f}, nil
}
