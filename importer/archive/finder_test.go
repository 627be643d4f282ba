package archive_test

import (
	"archive/tar"
	"fmt"
	"strings"
	"testing"

	"github.com/archdisk/archdisk/importer/archive"
	"github.com/archdisk/archdisk/qcow/disk"
	"github.com/stretchr/testify/require"
)

func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "/": "", ".": "", "./": "", "..": "", "disk": "disk", "/disk": "disk", "./disk/": "disk", "disk//x": "disk/x",
		"../../etc/x": "etc/x", "a/../../b": "b", "/a/./b/..": "a", "disk/..x": "disk/..x", ".wh.x": ".wh.x",
	} {
		require.Equal(t, want, archive.Clean(in), "%q", in)
	}
}

// step is one entry, or the start of the next layer if it has no name.
type step struct {
	kind byte
	name string
	link string
}

func reg(name string) step { return step{kind: tar.TypeReg, name: name} }

var below = step{}

// TestFinder pins what the Finder itself says; which file an import takes in the end is
// tested in the importer.
func TestFinder(t *testing.T) {
	disk := archive.Search{Want: "disk"}
	exact := archive.Search{Want: "/disk/x", Exact: true}
	for name, test := range map[string]struct {
		search  archive.Search
		steps   []step
		takes   int
		found   string
		next    *archive.Search
		settled bool
		err     error
	}{
		"file":                   {search: disk, steps: []step{reg("disk/x")}, takes: 1, found: "disk/x"},
		"gnu sparse":             {search: disk, steps: []step{{kind: tar.TypeGNUSparse, name: "disk/x"}}, takes: 1, found: "disk/x"},
		"whole tree":             {search: archive.Search{}, steps: []step{reg("a/b/x")}, takes: 1, found: "a/b/x"},
		"nothing":                {search: disk, err: archive.ErrNoDisk},
		"exact":                  {search: exact, steps: []step{reg("disk/y"), reg("./disk/x")}, takes: 1, found: "disk/x", settled: true},
		"exact, below it":        {search: exact, steps: []step{reg("disk/x/y")}, settled: true, err: archive.ErrNotAFile},
		"exact, directory":       {search: exact, steps: []step{{kind: tar.TypeDir, name: "disk/x/"}}, settled: true, err: archive.ErrNotAFile},
		"exact, hidden by above": {search: exact, steps: []step{reg("disk/.wh.x"), below, reg("disk/x")}, err: archive.ErrNoDisk},
		"directory behind file":  {search: exact, steps: []step{reg("disk/.wh.x"), below, {kind: tar.TypeDir, name: "disk/x"}}, err: archive.ErrNoDisk},
		"ancestor is a file":     {search: exact, steps: []step{reg("disk"), below, reg("disk/x")}, err: archive.ErrNoDisk},
		"global header":          {search: archive.Search{}, steps: []step{{kind: tar.TypeXGlobalHeader, name: "g"}}, err: archive.ErrNoDisk},
		"symlink": {search: disk, steps: []step{{tar.TypeSymlink, "disk/x", "../y"}}, found: "disk/x",
			next: &archive.Search{Want: "y", Exact: true}},
		"hard link": {search: disk, steps: []step{below, {tar.TypeLink, "disk/x", "y"}}, found: "disk/x",
			next: &archive.Search{Want: "y", Exact: true, Layer: 2}},
		"symlinked parent": {search: archive.Search{Want: "a/b/disk"}, steps: []step{{tar.TypeSymlink, "a", "/c"}},
			next: &archive.Search{Want: "c/b/disk"}, settled: true},
		"symlinked parent, exact": {search: exact, steps: []step{{tar.TypeSymlink, "disk", "./img"}},
			next: &archive.Search{Want: "img/x", Exact: true}, settled: true},
		"exact, root":       {search: archive.Search{Want: "/", Exact: true}, steps: []step{reg("/"), reg("x")}, settled: true, err: archive.ErrNotAFile},
		"root as a file":    {search: archive.Search{}, steps: []step{reg("./"), reg("x")}, takes: 1, found: "x"},
		"another layer":     {search: archive.Search{Want: "x", Exact: true, Layer: 2}, steps: []step{reg("x")}, err: archive.ErrNoDisk},
		"the one layer":     {search: archive.Search{Want: "x", Exact: true, Layer: 2}, steps: []step{reg(".wh.x"), below, reg("x")}, takes: 1, found: "x", settled: true},
		"whiteouts of none": {search: disk, steps: []step{reg(".wh."), reg("disk/.wh."), reg("disk/.wh.."), reg("disk/.wh..."), reg(".wh..wh."), reg("disk/.wh..wh.aufs"), below, reg("disk/x")}, takes: 1, found: "disk/x"},
	} {
		t.Run(name, func(t *testing.T) {
			f := archive.NewFinder(test.search)
			f.NextLayer()
			takes := 0
			for _, s := range test.steps {
				if s == below {
					f.NextLayer()
					continue
				}
				take, err := f.Entry(&tar.Header{Typeflag: s.kind, Name: s.name, Linkname: s.link})
				require.NoError(t, err)
				if take {
					takes++
				}
			}
			require.Equal(t, test.takes, takes)
			require.Equal(t, test.settled, f.Settled())
			found, next, err := f.Result()
			require.ErrorIs(t, err, test.err)
			require.Equal(t, test.found, found)
			require.Equal(t, test.next, next)
		})
	}
}

func TestFinderDisk(t *testing.T) {
	f := archive.NewFinder(archive.Search{Want: "disk"})
	f.NextLayer()
	take, err := f.Disk("root")
	require.NoError(t, err)
	require.True(t, take)
	_, err = f.Disk("data")
	require.ErrorIs(t, err, archive.ErrSeveral)

	f = archive.NewFinder(archive.Search{Want: "data", Exact: true})
	f.NextLayer()
	take, err = f.Disk("root")
	require.NoError(t, err)
	require.False(t, take)
	take, err = f.Disk("/data")
	require.NoError(t, err)
	require.True(t, take)
	require.True(t, f.Settled())
}

func TestFinderSkips(t *testing.T) {
	f := archive.NewFinder(archive.Search{Want: "x", Exact: true, Layer: 2})
	for _, want := range []bool{true, false, false} {
		f.NextLayer()
		require.Equal(t, want, f.Skips())
	}
}

// TestFinderLimits: neither many names nor long ones take memory or time without bound.
func TestFinderLimits(t *testing.T) {
	for name, entry := range map[string]func(i int) *tar.Header{
		"whiteouts": func(i int) *tar.Header {
			return &tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("disk/.wh.%d", i)}
		},
		"directories": func(i int) *tar.Header {
			return &tar.Header{Typeflag: tar.TypeDir, Name: fmt.Sprintf("disk/%d", i)}
		},
		"long whiteouts": func(i int) *tar.Header {
			return &tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("disk/.wh.%d%s", i, strings.Repeat("x", 4000))}
		},
		"deep directories": func(i int) *tar.Header {
			return &tar.Header{Typeflag: tar.TypeDir, Name: fmt.Sprintf("disk/%d/%s", i, strings.Repeat("x/", 2000))}
		},
		"long name": func(int) *tar.Header {
			return &tar.Header{Typeflag: tar.TypeReg, Name: "disk/" + strings.Repeat("x/", 1<<18)}
		},
		"long link": func(int) *tar.Header {
			return &tar.Header{Typeflag: tar.TypeSymlink, Name: "disk/x", Linkname: strings.Repeat("x/", 1<<18)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := archive.NewFinder(archive.Search{Want: "disk"})
			var err error
			for i := 0; err == nil && i < 20_000; i++ {
				if i%100 == 0 {
					f.NextLayer() // the limit is over all layers
				}
				_, err = f.Entry(entry(i))
			}
			require.ErrorIs(t, err, disk.ErrLimit)
			require.Less(t, len(err.Error()), 200)
		})
	}
	f := archive.NewFinder(archive.Search{Want: "disk"})
	f.NextLayer()
	for i := range 50_000 { // what is elsewhere does not count
		_, err := f.Entry(&tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("usr/%d", i)})
		require.NoError(t, err)
	}
}
