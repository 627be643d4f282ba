package archive

import (
	"archive/tar"
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/archdisk/archdisk/qcow/disk"
)

// What a caller does about the outcome of a search.
var (
	// ErrNoDisk: the image holds no file where a disk was looked for.
	ErrNoDisk = errors.New("no disk found")
	// ErrSeveral: more than one file stands where one was looked for. Name one.
	ErrSeveral = errors.New("more than one file")
	// ErrNotAFile: what stands there is neither a regular file nor a link to one.
	ErrNotAFile = errors.New("not a regular file")
)

// Search says what to look for in the merged tree of an image's layers.
type Search struct {
	// Want is a path inside the image, relative to its root: a directory that must hold
	// exactly one file in its whole subtree, or, with Exact, the file itself. "" is the root.
	Want  string
	Exact bool
	// Layer restricts the search to one layer, counted from 1, the top one, for what a
	// hard link there points to. 0: all layers.
	Layer int
}

// Bounds of the paths that a search looks at and keeps, over all layers; a sane directory
// for one disk holds few. A longer path than maxPath cannot be made on Linux (PATH_MAX).
const (
	maxPath  = 4096
	maxNames = 10_000
	maxBytes = 4 << 20
)

// Finder follows the layers of an image, the top one first, and finds the one file that a
// search is for, as the image's users would see it: an upper layer's file hides a lower one's,
// whiteouts and opaque directories hide what lies below them.
// Spec: OCI image-spec, Image Layer Filesystem Changeset, "Whiteouts".
type Finder struct {
	search Search
	layer  int
	above  names // what the layers above this one say
	here   names // what this one says, for those below it

	kept  int // names in above and here, and their bytes
	bytes int

	found     string // path of the one file, "" so far
	foundIn   int    // its layer
	directory bool   // the exact path is a directory's
	redirect  *Search
}

// names are the paths that hide something of lower layers.
type names struct {
	gone   map[string]bool // removed or replaced: hides the path and all below it
	opaque map[string]bool // hides all below the path
	dirs   map[string]bool // hides what is no directory at the path
}

func newNames() names {
	return names{gone: map[string]bool{}, opaque: map[string]bool{}, dirs: map[string]bool{}}
}

// NewFinder starts a search. Call NextLayer before the entries of each layer.
func NewFinder(s Search) *Finder {
	s.Want = Clean(s.Want)
	root := s.Exact && s.Want == ""
	return &Finder{search: s, above: newNames(), here: newNames(), directory: root}
}

// Clean returns a path of an image in the form that is compared: relative to the root,
// without "." and "..", which cannot leave the root. The root is "".
func Clean(name string) string { return strings.TrimPrefix(path.Join("/", name), "/") }

// NextLayer starts the next lower layer.
func (f *Finder) NextLayer() {
	f.layer++
	for _, set := range []struct{ to, from map[string]bool }{
		{f.above.gone, f.here.gone}, {f.above.opaque, f.here.opaque}, {f.above.dirs, f.here.dirs},
	} {
		for name := range set.from {
			set.to[name] = true
		}
	}
	f.here = newNames()
}

// Entry looks at one entry of the current layer. take says that it is the file searched
// for, a regular one: its data may be read now. That it is the only one is known when
// [Finder.Result] says so.
func (f *Finder) Entry(h *tar.Header) (take bool, err error) {
	if f.search.Layer != 0 && f.search.Layer != f.layer || h.Typeflag == tar.TypeXGlobalHeader {
		return false, nil
	}
	if n := max(len(h.Name), len(h.Linkname)); n > maxPath {
		return false, fmt.Errorf("archive: %w: path of %d bytes, %d are allowed", disk.ErrLimit, n, maxPath)
	}
	name := Clean(h.Name)
	dir, base := path.Split(name)
	dir = Clean(dir)
	switch {
	case base == ".wh..wh..opq":
		return false, f.note(f.here.opaque, dir)
	case strings.HasPrefix(base, ".wh..wh."):
		return false, nil // aufs's own
	case base == ".wh.", base == ".wh..", base == ".wh...":
		return false, nil // would remove the directory that it is in, or that one's
	case strings.HasPrefix(base, ".wh."):
		return false, f.note(f.here.gone, path.Join(dir, base[len(".wh."):]))
	}
	if name == "" || !f.relevant(name) || f.hidden(name, h.Typeflag == tar.TypeDir) {
		return false, nil
	}
	for up := path.Dir(name); up != "." && up != "/"; up = path.Dir(up) {
		if err := f.note(f.here.dirs, up); err != nil {
			return false, err
		}
	}
	below := f.below(name, f.search.Want)
	if h.Typeflag == tar.TypeDir {
		f.directory = f.directory || f.search.Exact && (below || name == f.search.Want)
		return false, f.note(f.here.dirs, name)
	}
	if err := f.note(f.here.gone, name); err != nil {
		return false, err
	}
	switch exact := f.search.Exact; {
	case exact && below:
		f.directory = true
		return false, nil
	case exact && name == f.search.Want, !exact && below:
		return f.candidate(name, h)
	default:
		return false, f.ancestor(name, h)
	}
}

// Disk is told of a layer that is itself a disk and no archive; name is what the image
// calls it, if it does.
func (f *Finder) Disk(name string) (take bool, err error) {
	if f.search.Exact && Clean(name) != f.search.Want {
		return false, nil
	}
	return f.candidate(name, &tar.Header{Typeflag: tar.TypeReg})
}

func (f *Finder) note(set map[string]bool, name string) error {
	if !f.relevant(name) || set[name] {
		return nil
	}
	set[name] = true
	f.kept++
	f.bytes += len(name)
	if f.kept > maxNames || f.bytes > maxBytes {
		return fmt.Errorf("archive: %w: more than %d entries around %q", disk.ErrLimit, f.kept-1, "/"+f.search.Want)
	}
	return nil
}

// below says whether name lies below dir.
func (f *Finder) below(name, dir string) bool {
	return dir == "" && name != "" || strings.HasPrefix(name, dir+"/")
}

// relevant says whether name is what is wanted, lies below it, or leads to it.
func (f *Finder) relevant(name string) bool {
	return name == f.search.Want || f.below(name, f.search.Want) || f.below(f.search.Want, name)
}

// hidden says whether the layers above hide name.
func (f *Finder) hidden(name string, isDir bool) bool {
	if f.above.gone[name] || !isDir && f.above.dirs[name] {
		return true
	}
	for up := name; up != ""; {
		if up = Clean(path.Dir("/" + up)); f.above.opaque[up] || f.above.gone[up] {
			return true
		}
	}
	return false
}

// ancestor handles a visible non-directory on the way to what is wanted, or in its place.
func (f *Finder) ancestor(name string, h *tar.Header) error {
	if h.Typeflag != tar.TypeSymlink {
		return nil // whatever is below it in lower layers is hidden now
	}
	rest := strings.TrimPrefix(f.search.Want, name)
	f.redirect = &Search{Want: path.Join(target(name, h), rest), Exact: f.search.Exact}
	return nil
}

// target returns where a symlink at name points, inside the image.
func target(name string, h *tar.Header) string {
	if path.IsAbs(h.Linkname) {
		return Clean(h.Linkname)
	}
	return Clean(path.Join(path.Dir("/"+name), h.Linkname))
}

func (f *Finder) candidate(name string, h *tar.Header) (take bool, err error) {
	if f.found != "" {
		return false, fmt.Errorf("archive: %w: %q and %q", ErrSeveral, f.found, name)
	}
	f.found, f.foundIn = name, f.layer
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeGNUSparse:
		return true, nil
	case tar.TypeSymlink:
		f.redirect = &Search{Want: target(name, h), Exact: true}
	case tar.TypeLink:
		f.redirect = &Search{Want: h.Linkname, Exact: true, Layer: f.layer}
	default:
		return false, fmt.Errorf("archive: %w: %q", ErrNotAFile, name)
	}
	return false, nil
}

// Settled says that lower layers cannot change the result any more.
func (f *Finder) Settled() bool {
	switch {
	case f.redirect != nil && f.found == "":
		return true // the way leads elsewhere
	case f.search.Exact && (f.found != "" || f.directory):
		return true
	default:
		return f.search.Layer != 0 && f.layer >= f.search.Layer
	}
}

// Skips says that nothing of the current layer matters, so that it need not be fetched.
func (f *Finder) Skips() bool { return f.search.Layer != 0 && f.layer < f.search.Layer }

// Again returns the search that finds the file that was found once more, and nothing else.
func (f *Finder) Again() Search { return Search{Want: f.found, Exact: true, Layer: f.foundIn} }

// Result returns the path of the file, or, where that is a link or reached through one,
// the search that goes on from there.
//
// Errors: [ErrNoDisk], [ErrNotAFile].
func (f *Finder) Result() (found string, next *Search, err error) {
	if f.redirect != nil {
		return f.found, f.redirect, nil
	}
	if f.found == "" && f.directory {
		return "", nil, fmt.Errorf("archive: %w: %q is a directory", ErrNotAFile, "/"+f.search.Want)
	}
	if f.found == "" {
		where := fmt.Sprintf("at %q", "/"+f.search.Want)
		if !f.search.Exact {
			where = fmt.Sprintf("in directory %q", "/"+f.search.Want)
		}
		return "", nil, fmt.Errorf("archive: %w %s", ErrNoDisk, where)
	}
	return f.found, nil, nil
}
