package archive_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"math"
	"testing"

	"github.com/archdisk/archdisk/importer/archive"
	"github.com/archdisk/archdisk/internal/golden"
	"github.com/archdisk/archdisk/qcow/disk"
	"github.com/archdisk/archdisk/testdata"
	"github.com/stretchr/testify/require"
)

// FuzzDecompress: any bytes decompress or give an error; no more is read than asked for, and the
// budget gets back what was taken.
func FuzzDecompress(f *testing.F) {
	for _, x := range testdata.Fixtures() {
		if x.Format == "raw" {
			f.Add(testdata.Read(x.File))
		}
	}
	small := []byte("some content, some content")
	f.Add(golden.Compress(golden.Gzip, small))
	f.Add(golden.Compress(golden.Zstd, small))
	f.Add(append([]byte("\x50\x2a\x4d\x18\x04\x00\x00\x00skip"), golden.Compress(golden.Zstd, small)...))
	f.Add(xzDictionary(40))
	f.Add(small)
	f.Fuzz(func(t *testing.T, p []byte) {
		const most = 1 << 20 // a bomb is the reader's to bound
		budget := disk.NewBudget(16 << 20)
		s, err := archive.Decompress(bytes.NewReader(p), budget)
		if err != nil {
			var e *archive.Error
			require.ErrorAs(t, err, &e)
			require.EqualValues(t, 16<<20, budget.Left())
			return
		}
		require.Equal(t, archive.Detect(p), s.Compression)
		head, err := s.Head()
		head = bytes.Clone(head)
		require.LessOrEqual(t, len(head), archive.HeadSize)
		out, readErr := io.ReadAll(io.LimitReader(s, most))
		require.True(t, bytes.HasPrefix(out, head))
		if err != nil {
			require.Error(t, readErr)
		}
		var e *archive.Error
		if readErr != nil {
			require.ErrorAs(t, readErr, &e)
			require.GreaterOrEqual(t, e.Offset, int64(len(out)))
		}
		if s.Compression == archive.None {
			require.True(t, bytes.Equal(p[:min(len(p), most)], out))
		}
		s.Close()
		require.EqualValues(t, 16<<20, budget.Left())
	})
}

// FuzzFinder: any archive, cut into layers anywhere, gives at most one file, and results
// that agree with what was taken; and what is no archive is none to IsTar and tar alike.
func FuzzFinder(f *testing.F) {
	f.Add(golden.Tar(golden.DiskEntries([]byte("x"))...), uint8(0), "")
	f.Add(golden.Tar(golden.Entry{Name: "disk/x"}, golden.Entry{Name: "disk/.wh..wh..opq"}, golden.Entry{Name: ".wh.disk"}, golden.Entry{Name: "disk/y"}), uint8(1), "disk/y")
	f.Add(golden.Tar(golden.Entry{Name: "disk", Type: '2', Link: "/img"}, golden.Entry{Name: "img/x"}), uint8(0), "")
	f.Add(golden.Tar(golden.Entry{Name: "img/x"}, golden.Entry{Name: "disk/x", Type: '1', Link: "img/x"}), uint8(2), "/")
	f.Add(golden.Tar(golden.Entry{Name: "disk/x", Type: '6'}, golden.Entry{Name: "../../disk/y"}), uint8(3), "../disk")
	f.Fuzz(func(t *testing.T, p []byte, split uint8, want string) {
		search := archive.Search{Want: "disk"}
		if want != "" {
			search = archive.Search{Want: want, Exact: true}
		}
		find := archive.NewFinder(search)
		find.NextLayer()
		r := tar.NewReader(bytes.NewReader(p))
		takes, taken := 0, ""
		for i := 0; ; i++ {
			h, err := r.Next()
			if err != nil && !errors.Is(err, tar.ErrInsecurePath) {
				if i == 0 && err != io.EOF && len(p) >= 512 && !archive.IsTar(p) {
					return
				}
				break
			}
			if i == 0 {
				require.True(t, archive.IsTar(p), "an archive that is not recognised")
			}
			if split > 0 && i%int(split) == 0 {
				find.NextLayer()
			}
			take, err := find.Entry(h)
			if err != nil {
				require.False(t, take)
				require.True(t, errors.Is(err, archive.ErrSeveral) || errors.Is(err, archive.ErrNotAFile) || errors.Is(err, disk.ErrLimit), "%v", err)
				return
			}
			if take {
				takes++
				taken = archive.Clean(h.Name)
				if search.Exact {
					require.Equal(t, archive.Clean(want), taken)
					require.True(t, find.Settled())
				}
			}
		}
		require.LessOrEqual(t, takes, 1)
		found, next, err := find.Result()
		switch {
		case err != nil:
			require.True(t, errors.Is(err, archive.ErrNoDisk) || errors.Is(err, archive.ErrNotAFile))
			require.Zero(t, takes)
			require.Nil(t, next)
		case next != nil:
			require.LessOrEqual(t, next.Layer, math.MaxInt16)
		default:
			require.Equal(t, 1, takes)
			require.Equal(t, taken, found)
		}
	})
}
