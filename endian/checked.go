package endian

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
)

// ErrRange is what checked arithmetic returns when a value from a file does not fit:
// a sum or product beyond int64, or a table outside its file.
var ErrRange = errors.New("value out of range")

// Int64 returns v as an int64, or [ErrRange] above its maximum.
func Int64(v uint64) (int64, error) {
	if v > math.MaxInt64 {
		return 0, fmt.Errorf("%w: %#x is beyond 2^63-1", ErrRange, v)
	}
	return int64(v), nil
}

// Add returns a+b of two values that are not negative, or [ErrRange].
func Add(a, b int64) (int64, error) {
	if a < 0 || b < 0 || a > math.MaxInt64-b {
		return 0, fmt.Errorf("%w: %d + %d", ErrRange, a, b)
	}
	return a + b, nil
}

// Mul returns a*b of two values that are not negative, or [ErrRange].
func Mul(a, b int64) (int64, error) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if a < 0 || b < 0 || hi != 0 || lo > math.MaxInt64 {
		return 0, fmt.Errorf("%w: %d * %d", ErrRange, a, b)
	}
	return int64(lo), nil
}

// Table returns the length in bytes of a table of count entries of size bytes each that
// starts at off, or [ErrRange] if it would end past end. All arguments are checked; none
// may be negative.
func Table(off, count, size, end int64) (int64, error) {
	n, err := Mul(count, size)
	if err != nil {
		return 0, err
	}
	last, err := Add(off, n)
	if err != nil {
		return 0, err
	}
	if last > end {
		return 0, fmt.Errorf("%w: table at %#x of %d entries would end at %#x, past %#x", ErrRange, off, count, last, end)
	}
	return n, nil
}
