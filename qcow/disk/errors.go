package disk

import (
	"errors"
	"fmt"
)

// What a caller does about an error.
var (
	// ErrCorrupt: the image breaks its own format. Get another copy.
	ErrCorrupt = errors.New("corrupt image")
	// ErrTruncated: the image ends before a byte that its disk needs. Get it whole.
	ErrTruncated = errors.New("truncated image")
	// ErrUnsupported: a sound image with a feature that is refused or not read.
	ErrUnsupported = errors.New("unsupported image")
	// ErrLimit: the image asks for more than the caller allows.
	ErrLimit = errors.New("limit exceeded")
	// ErrNeedsParking: a stream keeps its tables behind its data, further than the memory
	// budget reaches. Give more memory, or a source that can be read at any offset.
	ErrNeedsParking = errors.New("stream needs parking")
	// ErrWrongGuess comes with ErrNeedsParking: what was written rests on a guess that the
	// image did not confirm. Begin again on an empty destination with ConvertOptions.NoGuess.
	ErrWrongGuess = errors.New("tables were not where they seemed to be")
)

// Reason is the stable code of one way in which an image is refused.
type Reason string

// The reasons. Each belongs to one of the sentinels above.
const (
	BackingFile          Reason = "backing-file"
	ExternalDataFile     Reason = "external-data-file"
	Encrypted            Reason = "encrypted"
	UnknownFeature       Reason = "unknown-incompatible-feature"
	CorruptBit           Reason = "corrupt-bit"
	UnsupportedVersion   Reason = "unsupported-version"
	BannedFormat         Reason = "banned-format"
	UnknownFormat        Reason = "unknown-format"
	BadClusterSize       Reason = "bad-cluster-size"
	BadHeader            Reason = "bad-header"
	BadEntry             Reason = "bad-entry"
	TableOutOfRange      Reason = "table-out-of-range"
	TableUnaligned       Reason = "table-unaligned"
	OverlapsMetadata     Reason = "overlaps-metadata"
	SharedCluster        Reason = "shared-cluster"
	DecompressFailed     Reason = "decompress-failed"
	Truncated            Reason = "truncated"
	VirtualSizeTooLarge  Reason = "virtual-size-too-large"
	VirtualSizeUnaligned Reason = "virtual-size-unaligned"
	LimitExceeded        Reason = "limit-exceeded"
	NeedsParking         Reason = "needs-parking"
)

// Sentinel returns the error that says what a caller does about r.
func (r Reason) Sentinel() error {
	switch r {
	case BackingFile, ExternalDataFile, Encrypted, UnknownFeature,
		UnsupportedVersion, BannedFormat, UnknownFormat, CorruptBit:
		return ErrUnsupported
	case Truncated:
		return ErrTruncated
	case VirtualSizeTooLarge, LimitExceeded:
		return ErrLimit
	case NeedsParking:
		return ErrNeedsParking
	default:
		return ErrCorrupt
	}
}

// FormatError says what is wrong with an image and where. It unwraps to the sentinel of
// its Reason and to Err.
type FormatError struct {
	Format string // "qcow2", "raw", ...
	Reason Reason
	Offset int64  // file offset of the field or data, -1 where there is none
	Field  string // the specification's name, "" where it is about no single field
	Value  uint64 // what the field held
	Detail string // what is wrong with it
	Err    error  // the cause, if another error is
}

func (e *FormatError) Error() string {
	s := e.Format + ": " + e.Reason.Sentinel().Error()
	if e.Field != "" {
		s += fmt.Sprintf(": %s = %#x", e.Field, e.Value)
	}
	if e.Offset >= 0 {
		s += fmt.Sprintf(" at %#x", e.Offset)
	}
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns the reason's sentinel and the cause.
func (e *FormatError) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Reason.Sentinel()}
	}
	return []error{e.Reason.Sentinel(), e.Err}
}

// WriteError is a failed write to the destination of a conversion.
type WriteError struct {
	Offset int64 // guest offset
	Len    int64 // bytes
	Err    error
}

func (e *WriteError) Error() string {
	return fmt.Sprintf("write of %d bytes at disk offset %#x: %v", e.Len, e.Offset, e.Err)
}

func (e *WriteError) Unwrap() error { return e.Err }
