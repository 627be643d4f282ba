// Package disktest holds what the tests of disk formats share: a sparse disk in memory
// that accounts for every write, and [TestDisk], the conformance test that every format's
// readers go through.
package disktest

import (
	"fmt"
	"io"
	"sync"
)

const pageSize = 64 << 10

// Memory is a disk in memory that takes room only where something was written. It is a
// destination for disk.Convert that complains when a byte is written or zeroed twice.
// The zero value is an empty disk. Safe for concurrent use.
type Memory struct {
	// FailWrite, if set, is asked before each write or zeroing, counted from 1.
	FailWrite func(n int) error

	mu     sync.Mutex
	pages  map[int64]*[pageSize]byte
	writes int
	spans  map[int64]int64 // start to end of what has been written or zeroed
	size   int64
}

// WriteAt writes p at off.
func (m *Memory) WriteAt(p []byte, off int64) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.touch(off, int64(len(p))); err != nil {
		return 0, err
	}
	if m.pages == nil {
		m.pages = map[int64]*[pageSize]byte{}
	}
	for n := 0; n < len(p); {
		at := off + int64(n)
		page := m.pages[at/pageSize]
		if page == nil {
			page = new([pageSize]byte)
			m.pages[at/pageSize] = page
		}
		n += copy(page[at%pageSize:], p[n:])
	}
	return len(p), nil
}

// ZeroRange notes that n bytes at off are zeros, as they are at first.
func (m *Memory) ZeroRange(off, n int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.touch(off, n)
}

func (m *Memory) touch(off, n int64) error {
	m.writes++
	if m.FailWrite != nil {
		if err := m.FailWrite(m.writes); err != nil {
			return err
		}
	}
	if m.spans == nil {
		m.spans = map[int64]int64{}
	}
	if _, twice := m.spans[off]; twice {
		return fmt.Errorf("disktest: disk offset %#x is written twice", off)
	}
	m.spans[off] = off + n
	m.size = max(m.size, off+n)
	return nil
}

// ReadAt reads what has been written, zeros elsewhere; it never ends.
func (m *Memory) ReadAt(p []byte, off int64) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for n := 0; n < len(p); {
		at := off + int64(n)
		part := p[n:min(len(p), n+int(pageSize-at%pageSize))]
		if page := m.pages[at/pageSize]; page != nil {
			copy(part, page[at%pageSize:])
		} else {
			clear(part)
		}
		n += len(part)
	}
	return len(p), nil
}

// Covered returns an error unless [0, size) was written or zeroed exactly once and
// nothing else was.
func (m *Memory) Covered(size int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	at := int64(0)
	for range m.spans {
		end, ok := m.spans[at]
		if !ok {
			return fmt.Errorf("disktest: nothing at %#x", at)
		}
		at = end
	}
	if at != size {
		return fmt.Errorf("disktest: %d bytes covered, not %d", at, size)
	}
	return nil
}

// Writes returns how many writes and zeroings there were.
func (m *Memory) Writes() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.writes
}

// Pages returns how many pages of 64 KiB hold something.
func (m *Memory) Pages() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.pages)
}

// Reader returns the first size bytes as a stream.
func (m *Memory) Reader(size int64) *io.SectionReader { return io.NewSectionReader(m, 0, size) }
