package importer

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"

	"github.com/archdisk/archdisk/arch"
	"github.com/archdisk/archdisk/platform"
	"github.com/archdisk/archdisk/qcow/disk"
	"github.com/archdisk/archdisk/qcow/formats"
	"github.com/opencontainers/go-digest"
)

// DiskDir is the directory of a containerdisk that holds its disk.
const DiskDir = "disk"

// Options adjusts [Import] and [ImportReader]. The zero value takes the only architecture
// an image offers and the only file in its /disk.
type Options struct {
	// Arch and Variant are what is wanted. Without an architecture the only one offered is
	// taken; several are an error that lists them. OS is "linux" if empty.
	Arch    arch.Arch
	Variant string
	OS      string
	// Strict refuses an image whose index and config name different platforms.
	Strict bool
	// Path is the disk's path inside the image. "": the only file in /disk.
	Path string
	// Size is the size of the resulting disk, a multiple of 512: a smaller image is grown, a larger
	// one refused. 0: the image's own.
	Size int64
	// Format of the result: raw, which is the default, or qcow2.
	Format formats.Format
	// Compression of the clusters of a qcow2 image: [disk.Plain], [disk.Deflate] or [disk.Zstd].
	Compression disk.Codec
	// ExpectSHA256 is the hex SHA-256 that the decoded disk must have, as the image has it,
	// before it is grown. "": not checked.
	ExpectSHA256 string
	// HashDisk asks for the decoded disk's SHA-256 in the result, which costs reading it back.
	HashDisk bool
	// ExpectFileDigest is the digest that the disk image file must have, as it stands in the
	// layer. "": not checked.
	ExpectFileDigest digest.Digest
	// Policy is asked before a layer is fetched; nil allows.
	Policy Policy
	// Limits of the disk image; the zero value gives the defaults.
	Limits disk.Limits
	// Budget bounds memory and may be shared by several imports; nil: [disk.DefaultMemory].
	Budget *disk.Budget
	// Scratch takes what has to be kept of a disk image file beyond the budget, until its tables
	// have been read. Without it the file is read again, at most three times in all, if it can be.
	Scratch disk.Scratch
	// Workers that decode and write; 0: one for each processor.
	Workers int
	// Progress is called serially, at most ten times a second and once at the end. It must
	// not block.
	Progress func(Progress)
	// Log gets debug lines; nil: none.
	Log *slog.Logger
}

// ProbeOptions adjusts [Probe]; the fields are those of [Options].
type ProbeOptions struct {
	Arch    arch.Arch
	Variant string
	OS      string
	Strict  bool
	Path    string
	Policy  Policy
	Limits  disk.Limits
	Budget  *disk.Budget
	Log     *slog.Logger
}

// ResolveOptions adjusts [Resolve]; the fields are those of [Options].
type ResolveOptions struct {
	Arch    arch.Arch
	Variant string
	OS      string
	Strict  bool
}

func (o Options) resolve() platform.SelectOptions {
	return ResolveOptions{o.Arch, o.Variant, o.OS, o.Strict}.resolve()
}

func (o ResolveOptions) resolve() platform.SelectOptions {
	return platform.SelectOptions{Want: platform.Want{OS: o.OS, Arch: o.Arch, Variant: o.Variant}, Strict: o.Strict}
}

func (o ProbeOptions) options() Options {
	return Options{Arch: o.Arch, Variant: o.Variant, OS: o.OS, Strict: o.Strict, Path: o.Path,
		Policy: o.Policy, Limits: o.Limits, Budget: o.Budget, Log: o.Log}
}

// withDefaults fills in what every run needs.
func (o Options) withDefaults() Options {
	if o.Budget == nil {
		o.Budget = disk.NewBudget(0)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Limits = o.Limits.WithDefaults()
	if o.Size > 0 {
		o.Limits.VirtualSize = min(o.Limits.VirtualSize, o.Size)
	}
	return o
}

// missing is the error of an argument that is nil.
func missing(what string) error { return fmt.Errorf("%w: no %s", ErrOptions, what) }

// check refuses what no run could make sense of.
func (o Options) check() error {
	if o.Size < 0 || o.Size%disk.SectorSize != 0 {
		return fmt.Errorf("%w: a disk of %d bytes is no multiple of %d", ErrOptions, o.Size, disk.SectorSize)
	}
	if err := o.checkOutput(); err != nil {
		return err
	}
	if s := o.ExpectSHA256; s != "" {
		if p, err := hex.DecodeString(s); err != nil || len(p) != sha256.Size {
			return fmt.Errorf("%w: a SHA-256 has %d hexadecimal digits", ErrOptions, 2*sha256.Size)
		}
	}
	if d := o.ExpectFileDigest; d != "" {
		if _, err := newHash(d); err != nil {
			return fmt.Errorf("%w: %w", ErrOptions, err)
		}
	}
	return nil
}
