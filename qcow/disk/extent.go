package disk

import "fmt"

// Range is a half-open run of bytes [Off, Off+Len) of a file or of a guest's disk.
type Range struct {
	Off, Len int64
}

// End returns the offset behind the last byte.
func (r Range) End() int64 { return r.Off + r.Len }

func (r Range) String() string { return fmt.Sprintf("[%#x, %#x)", r.Off, r.End()) }

// Kind says what a piece of an image file or of a disk is.
type Kind uint8

// The kinds of extent.
const (
	Meta Kind = iota + 1 // file bytes that the Layout wants to read
	Data                 // file bytes that belong at a place of the guest's disk
	Drop                 // file bytes known to be of no use
	Zero                 // guest bytes that read as zeros; File, if any, is of no use
	Peek                 // as Meta, but its bytes may be another thing's, and the file may end before
	Hole                 // as Zero, since no image holds them: a backing file would show here
)

// zeros says that guest bytes of this kind read as zeros.
func (k Kind) zeros() bool { return k == Zero || k == Hole }

func (k Kind) String() string {
	switch k {
	case Meta:
		return "metadata"
	case Data:
		return "data"
	case Drop:
		return "drop"
	case Zero:
		return "zero"
	case Peek:
		return "possible metadata"
	case Hole:
		return "hole"
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Codec says how the file bytes of a Data extent are to be decoded.
type Codec uint8

// The codecs of disk image formats.
const (
	Plain   Codec = iota // as they are
	Deflate              // raw DEFLATE, no zlib header: qcow2 compression type 0
	Zstd                 // Zstandard frames: qcow2 compression type 1
)

func (c Codec) String() string {
	switch c {
	case Plain:
		return "plain"
	case Deflate:
		return "deflate"
	case Zstd:
		return "zstd"
	}
	return fmt.Sprintf("codec %d", uint8(c))
}

// ToEnd is the length of a Data extent that runs to the end of its file.
const ToEnd = int64(-1)

// Extent is one piece: where it stands in the file, where it belongs on the disk.
type Extent struct {
	Kind  Kind
	Codec Codec // of Data
	// File is where the bytes stand. The stated end of compressed data is
	// an upper bound: such pieces may share bytes with the next one, and the last one of a
	// file may be cut short there. Len may be ToEnd for plain Data.
	File Range
	// Guest is where they belong, cut to the virtual size. For plain Data its length is
	// File's; for Meta it is the Layout's own note; Drop has none.
	Guest Range
	// Unit is the length of what a codec decodes to, before Guest cuts it. 0 for Plain.
	Unit int64
}

// String says what the file bytes of e are, for errors.
func (e Extent) String() string {
	if e.Codec != Plain {
		return fmt.Sprintf("compressed %s %s", e.Kind, e.File)
	}
	return fmt.Sprintf("%s %s", e.Kind, e.File)
}

// Append adds e to a list, joining it to the last one where the two are one run: zeros
// that follow zeros, plain data that follows on in both the file and the guest.
func Append(list []Extent, e Extent) []Extent {
	if len(list) > 0 {
		last := &list[len(list)-1]
		if last.Kind == e.Kind && last.Codec == Plain && e.Codec == Plain && last.Guest.End() == e.Guest.Off {
			noFile := e.Kind.zeros() && last.File.Len == 0 && e.File.Len == 0
			if noFile || (e.Kind.zeros() || e.Kind == Data) && e.File.Len > 0 && last.File.End() == e.File.Off {
				last.Guest.Len += e.Guest.Len
				last.File.Len += e.File.Len
				return list
			}
		}
	}
	return append(list, e)
}
