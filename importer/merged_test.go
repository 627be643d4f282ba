package importer_test

import (
	"fmt"
	"testing"

	"github.com/archdisk/archdisk/importer"
	"github.com/archdisk/archdisk/importer/archive"
	"github.com/archdisk/archdisk/internal/golden"
	"github.com/archdisk/archdisk/qcow/disk"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/require"
)

type entries = []golden.Entry

// TestMerged: which file is the disk, in the tree that an image's layers make together.
func TestMerged(t *testing.T) {
	a, b := body("a"), body("b")
	dir := func(name string) golden.Entry { return golden.Entry{Name: name + "/"} }
	opaque := file("disk/.wh..wh..opq", nil)
	tests := map[string]struct {
		layers  []entries // lowest first
		path    string
		want    string // name of the body that is the disk
		entry   string
		is      error
		code    string
		skipped int // lowest layers that must not be fetched
		passes  int // over the top layer, 0: 1
	}{
		// Names.
		"dot slash":              {layers: []entries{{file("./disk/x", a)}}, want: "a", entry: "disk/x"},
		"absolute":               {layers: []entries{{file("/disk/x", a)}}, want: "a", entry: "disk/x"},
		"plain":                  {layers: []entries{{file("disk/x", a)}}, want: "a", entry: "disk/x"},
		"deep":                   {layers: []entries{{file("disk/sub/x", a)}}, want: "a", entry: "disk/sub/x"},
		"one path spelled twice": {layers: []entries{{file("./disk/x", b)}, {file("/disk/x", a)}}, want: "a"},
		"names beside it":        {layers: []entries{{file("disk-notes.txt", b), file("diskimages/x", b), file("disk/x", a), file("a/disk/x", b)}}, want: "a"},
		"only names beside it":   {layers: []entries{{file("disk-notes.txt", b), file("diskimages/x", b)}}, is: archive.ErrNoDisk, code: "no-disk"},

		// Layers.
		"upper replaces":           {layers: []entries{{file("disk/disk.img", b)}, {file("disk/disk.img", a)}}, want: "a"},
		"in the lowest":            {layers: []entries{{file("disk/x", a)}, {dir("etc")}, {file("etc/y", b)}}, want: "a"},
		"empty layers":             {layers: []entries{{}, {file("disk/x", a)}, {}, {}}, want: "a"},
		"only empty layers":        {layers: []entries{{}, {}}, is: archive.ErrNoDisk, code: "no-disk"},
		"no layers":                {is: archive.ErrNoDisk, code: "no-disk"},
		"whiteout":                 {layers: []entries{{file("disk/disk.img", b)}, {file("disk/.wh.disk.img", nil), file("disk/new", a)}}, want: "a", entry: "disk/new"},
		"whiteout, nothing left":   {layers: []entries{{file("disk/disk.img", b)}, {file("disk/.wh.disk.img", nil)}}, is: archive.ErrNoDisk, code: "no-disk"},
		"whiteout in own layer":    {layers: []entries{{file("disk/.wh.disk.img", nil), file("disk/disk.img", a)}}, want: "a"},
		"two, one whited out":      {layers: []entries{{file("disk/x", b), file("disk/y", a)}, {file("disk/.wh.x", nil)}}, want: "a"},
		"whited out, made again":   {layers: []entries{{file("disk/x", b)}, {file("disk/.wh.x", nil)}, {file("disk/x", a)}}, want: "a"},
		"opaque":                   {layers: []entries{{file("disk/disk.img", b)}, {opaque, file("disk/new", a)}}, want: "a"},
		"opaque after its file":    {layers: []entries{{file("disk/disk.img", b)}, {file("disk/new", a), opaque}}, want: "a"},
		"opaque root":              {layers: []entries{{file("disk/disk.img", b)}, {file(".wh..wh..opq", nil), file("disk/new", a)}}, want: "a"},
		"opaque, two layers down":  {layers: []entries{{file("disk/x", b)}, {}, {opaque, file("disk/new", a)}}, want: "a"},
		"aufs's own file":          {layers: []entries{{file("disk/.wh..wh.plnk", nil), file("disk/x", a)}}, want: "a"},
		"whiteout of directory":    {layers: []entries{{file("disk/disk.img", b)}, {file(".wh.disk", nil)}}, is: archive.ErrNoDisk, code: "no-disk"},
		"directory made again":     {layers: []entries{{file("disk/disk.img", b)}, {file(".wh.disk", nil), file("disk/new", a)}}, want: "a"},
		"file over directory":      {layers: []entries{{file("disk/disk.img", b)}, {file("disk", b)}}, is: archive.ErrNoDisk, code: "no-disk"},
		"directory over file":      {layers: []entries{{file("disk/x", b)}, {dir("disk/x"), file("disk/x/y", a)}}, want: "a", entry: "disk/x/y"},
		"directory over symlink":   {layers: []entries{{symlink("disk", "images"), file("images/x", b)}, {dir("disk"), file("disk/x", a)}}, want: "a"},
		"two in one layer":         {layers: []entries{{file("disk/a", a), file("disk/b", b)}}, is: archive.ErrSeveral, code: "several-files"},
		"two over two layers":      {layers: []entries{{file("disk/b", b)}, {file("disk/a", a)}}, is: archive.ErrSeveral, code: "several-files"},
		"two in two directories":   {layers: []entries{{file("disk/1/a", a), file("disk/2/a", b)}}, is: archive.ErrSeveral, code: "several-files"},
		"too many whiteouts":       {layers: []entries{whiteouts(10_001)}, is: disk.ErrLimit, code: "limit-exceeded"},
		"path that cannot be made": {layers: []entries{{file("disk/"+longPath(), a)}}, is: disk.ErrLimit, code: "limit-exceeded"},

		// Symlinks.
		"symlink, target before":          {layers: []entries{{file("img/x", a), symlink("disk/d", "../img/x")}}, want: "a", entry: "img/x", passes: 2},
		"symlink, target after":           {layers: []entries{{symlink("disk/d", "/img/x"), file("img/x", a)}}, want: "a", passes: 2},
		"symlink, target lower":           {layers: []entries{{file("img/x", a)}, {symlink("disk/d", "../img/x")}}, want: "a", passes: 2},
		"symlink, target upper":           {layers: []entries{{symlink("disk/d", "/img/x")}, {file("img/x", a)}}, want: "a", passes: 2},
		"symlink, target replaced":        {layers: []entries{{file("img/x", b), symlink("disk/d", "/img/x")}, {file("img/x", a)}}, want: "a", passes: 2},
		"symlink, target whited out":      {layers: []entries{{file("img/x", b), symlink("disk/d", "/img/x")}, {file("img/.wh.x", nil)}}, is: archive.ErrNoDisk, code: "no-disk"},
		"symlink replaced":                {layers: []entries{{file("img/x", b), symlink("disk/d", "/img/x")}, {file("disk/d", a)}}, want: "a"},
		"symlink inside, both in /disk":   {layers: []entries{{file("disk/x", a), symlink("disk/d", "x")}}, is: archive.ErrSeveral, code: "several-files"},
		"symlink out of the root":         {layers: []entries{{file("etc/x", a), symlink("disk/d", "../../../../etc/x")}}, want: "a", passes: 2},
		"symlink chain":                   {layers: []entries{{file("3", a), symlink("2", "3"), symlink("1", "/2"), symlink("disk/d", "../1")}}, want: "a", passes: 4},
		"symlink loop":                    {layers: []entries{{symlink("disk/d", "../1"), symlink("1", "disk/d")}}, is: archive.ErrNotAFile, code: "not-a-file"},
		"symlink to itself":               {layers: []entries{{symlink("disk/d", "d")}}, is: archive.ErrNotAFile, code: "not-a-file"},
		"dangling symlink":                {layers: []entries{{symlink("disk/d", "gone")}}, is: archive.ErrNoDisk, code: "no-disk"},
		"symlink to a directory":          {layers: []entries{{dir("img"), file("img/x", b), symlink("disk/d", "../img")}}, is: archive.ErrNotAFile, code: "not-a-file"},
		"symlink to a directory unsaid":   {layers: []entries{{file("img/x", b), symlink("disk/d", "../img")}}, is: archive.ErrNotAFile, code: "not-a-file"},
		"symlink to the root":             {layers: []entries{{file("x", b), symlink("disk/d", "/")}}, is: archive.ErrNotAFile, code: "not-a-file"},
		"symlink to device":               {layers: []entries{{golden.Entry{Name: "dev/sda", Type: '4'}, symlink("disk/d", "/dev/sda")}}, is: archive.ErrNotAFile, code: "not-a-file"},
		"symlinked parent":                {layers: []entries{{file("images/x", a), symlink("disk", "images")}}, want: "a", entry: "images/x", passes: 2},
		"symlinked parent, lower":         {layers: []entries{{file("images/x", a)}, {symlink("disk", "/images")}}, want: "a", passes: 2},
		"symlinked parent, two there":     {layers: []entries{{file("images/x", a)}, {file("images/y", b), symlink("disk", "/images")}}, is: archive.ErrSeveral, code: "several-files"},
		"symlinked parent over directory": {layers: []entries{{file("disk/x", b), file("images/x", a)}, {symlink("disk", "images")}}, want: "a", passes: 2},
		"disk and then a symlink there":   {layers: []entries{{file("disk/x", b), symlink("disk", "images"), file("images/x", a)}}, want: "a", passes: 2},
		"symlinked parent of the target":  {layers: []entries{{file("real/x", a), symlink("img", "real"), symlink("disk/d", "/img/x")}}, want: "a", passes: 3},
		"symlinked parent loop":           {layers: []entries{{symlink("disk", "img"), symlink("img", "disk")}}, is: archive.ErrNotAFile, code: "not-a-file"},

		// Hard links.
		"hard link":               {layers: []entries{{file("img/x", a), hardlink("disk/d", "img/x")}}, want: "a", passes: 2},
		"hard link, dot slash":    {layers: []entries{{file("./img/x", a), hardlink("./disk/d", "./img/x")}}, want: "a", passes: 2},
		"hard link in lower":      {layers: []entries{{file("img/x", a), hardlink("disk/d", "img/x")}, {file("img/x", b)}}, want: "a"},
		"hard link, name removed": {layers: []entries{{file("img/x", a), hardlink("disk/d", "img/x")}, {file("img/.wh.x", nil)}}, want: "a"},
		"hard link to symlink":    {layers: []entries{{file("img/x", a), symlink("img/l", "/img/x"), hardlink("disk/d", "img/l")}}, want: "a", passes: 3},
		"hard link to nothing":    {layers: []entries{{hardlink("disk/d", "img/x")}}, is: archive.ErrNoDisk, code: "no-disk"},
		"hard link to itself":     {layers: []entries{{hardlink("disk/d", "disk/d")}}, is: archive.ErrNotAFile, code: "not-a-file"},
		"hard link out":           {layers: []entries{{file("etc/x", a), hardlink("disk/d", "../../etc/x")}}, want: "a", passes: 2},

		// What is no file.
		"directory only": {layers: []entries{{dir("disk"), dir("disk/x")}}, is: archive.ErrNoDisk, code: "no-disk"},
		"char device":    {layers: []entries{{golden.Entry{Name: "disk/x", Type: '3'}}}, is: archive.ErrNotAFile, code: "not-a-file"},
		"block device":   {layers: []entries{{golden.Entry{Name: "disk/x", Type: '4'}}}, is: archive.ErrNotAFile, code: "not-a-file"},
		"fifo":           {layers: []entries{{golden.Entry{Name: "disk/x", Type: '6'}}}, is: archive.ErrNotAFile, code: "not-a-file"},
		"device and file": {layers: []entries{{file("disk/y", b), golden.Entry{Name: "disk/x", Type: '6'}}}, is: archive.ErrSeveral,
			code: "several-files"},

		// A stated path.
		"path":                    {layers: []entries{{file("disk/a", a), file("disk/b", b)}}, path: "disk/a", want: "a"},
		"path, leading slash":     {layers: []entries{{file("disk/a", a), file("disk/b", b)}}, path: "/disk/a", want: "a"},
		"path, unclean":           {layers: []entries{{file("disk/a", a)}}, path: "./x/../disk//a", want: "a"},
		"path elsewhere":          {layers: []entries{{file("opt/vm/a", a), file("disk/b", b)}}, path: "opt/vm/a", want: "a"},
		"path, lower not fetched": {layers: []entries{{file("disk/a", b)}, {file("disk/b", b)}, {file("disk/a", a)}}, path: "disk/a", want: "a", skipped: 2},
		"path in the middle":      {layers: []entries{{file("disk/b", b)}, {file("disk/a", a)}, {file("disk/b", b)}}, path: "disk/a", want: "a", skipped: 1},
		"path, whited out":        {layers: []entries{{file("disk/a", b)}, {file("disk/.wh.a", nil)}}, path: "disk/a", is: archive.ErrNoDisk, code: "no-disk"},
		"path not there":          {layers: []entries{{file("disk/a", a)}}, path: "disk/b", is: archive.ErrNoDisk, code: "no-disk"},
		"path of a prefix":        {layers: []entries{{file("disk/ab", b)}}, path: "disk/a", is: archive.ErrNoDisk, code: "no-disk"},
		"path of a directory":     {layers: []entries{{file("disk/a", b)}}, path: "disk", is: archive.ErrNotAFile, code: "not-a-file"},
		"path of stated dir":      {layers: []entries{{dir("disk"), file("disk/a", b)}}, path: "disk", is: archive.ErrNotAFile, code: "not-a-file"},
		"path, root":              {layers: []entries{{file("a", b)}}, path: "/", is: archive.ErrNotAFile, code: "not-a-file"},
		"path, symlink":           {layers: []entries{{file("img/x", a), symlink("cur", "img/x")}}, path: "cur", want: "a", passes: 2},
		"path below symlink":      {layers: []entries{{file("img/x", a), symlink("cur", "img")}}, path: "cur/x", want: "a", passes: 2},
		"path below file":         {layers: []entries{{file("cur", b)}}, path: "cur/x", is: archive.ErrNoDisk, code: "no-disk"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var layers []func(*golden.Builder) ocispec.Descriptor
			for i, l := range test.layers {
				// Layers alike would be one blob: let each have something of its own.
				l = append(entries{file(fmt.Sprintf("layer-%d", i), nil)}, l...)
				layers = append(layers, tarLayer(golden.LayerOptions{Compression: golden.Compression(i % 3)}, l...))
			}
			src, ds := layered(layers...)
			var dst memory
			res, err := run(t.Context(), t, src, &dst, importer.Options{Path: test.path})
			for _, d := range ds[:test.skipped] {
				require.Zero(t, src.Count(d.Digest), "a layer that cannot matter is fetched")
			}
			if test.is != nil {
				require.ErrorIs(t, err, test.is)
				wantError(t, err, importer.StageUnpack, importer.Permanent, test.code)
				return
			}
			require.NoError(t, err)
			require.Equal(t, sha(body(test.want)), dst.sum(t))
			if test.entry != "" {
				require.Equal(t, test.entry, res.Entry)
			}
			require.Equal(t, max(test.passes, 1), src.Count(ds[len(ds)-1].Digest))
		})
	}
}

func whiteouts(n int) entries {
	var all entries
	for i := range n {
		all = append(all, file(fmt.Sprintf("disk/.wh.%d", i), nil))
	}
	return all
}

// longPath returns a path that no Linux file system takes, with very many directories.
func longPath() string {
	p := make([]byte, 1<<17)
	for i := range p {
		p[i] = "a/"[i%2]
	}
	return string(p[:len(p)-1])
}
