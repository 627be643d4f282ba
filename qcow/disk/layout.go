package disk

// Layout is what a format knows about one image file: which of its bytes are metadata that
// it wants, and where the rest belongs. It does no I/O. A Layout serves one conversion and
// is not safe for concurrent use.
//
// Pieces come as extents from Start, Feed and End. Each Meta extent is answered by one
// Feed with exactly its bytes, in the order of their file offsets as far as they are known;
// each Data, Drop and Zero extent is final. A list handed out is the caller's. Nothing bounds
// a list before it is there: a Layout counts first where much could come of little.
type Layout interface {
	// Start returns what is known before the walk: as a rule the header as Meta.
	Start() ([]Extent, error)
	// Feed hands over one Meta extent's bytes, which are the Layout's only for this call.
	Feed(meta Extent, p []byte) ([]Extent, error)
	// End is told where the file ends, for formats that keep metadata there.
	End(size int64) ([]Extent, error)
	// State may be asked at any time.
	State() State
}

// Guesser is an optional ability of a Layout whose tables stand far behind the data: to say
// earlier what they will probably say. [Converter] uses it for streams that cannot be kept so long.
type Guesser interface {
	// Guess returns what to read for a guess, as Peek extents, after Start; nothing if the tables
	// stand in the next reach bytes. What rests on a guess is written like the rest. It is
	// confirmed or refused, with ErrWrongGuess, when the tables have passed.
	Guess(reach int64) []Extent
}

// State is what a Layout has found out so far.
type State struct {
	Format   string // the format's name, for errors
	Size     int64  // virtual size in bytes, -1 while it is not known
	MaxSize  int64  // largest virtual size allowed, 0 for any: holds while Size is not known
	Unit     int64  // largest Extent.Unit there can be, 0 where nothing is compressed
	Memory   int64  // bytes that the Layout itself holds, counted in the budget
	Guessing bool   // extents rest on a guess that is not confirmed yet
	Complete bool   // no further extent will come: bytes that none has named are of no use
}

// Limits bounds what an image may ask for. The zero value gives the defaults.
type Limits struct {
	VirtualSize int64 // largest virtual size in bytes; default 64 TiB
	Metadata    int64 // memory for tables in bytes; default 32 MiB
	// Lenient: an image that is marked as corrupt by its last user, and clusters that are
	// mapped twice or stand on metadata, are read as they stand, as QEMU does.
	Lenient bool
}

// WithDefaults returns l with its zero fields replaced.
func (l Limits) WithDefaults() Limits {
	if l.VirtualSize <= 0 {
		l.VirtualSize = 64 << 40
	}
	if l.Metadata <= 0 {
		l.Metadata = 32 << 20
	}
	return l
}

// SectorSize is the unit that every virtual size must be a multiple of.
const SectorSize = 512
