package importer_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"sync/atomic"
	"testing"

	"github.com/archdisk/archdisk/importer"
	"github.com/archdisk/archdisk/importer/target"
	"github.com/archdisk/archdisk/internal/golden"
	"github.com/archdisk/archdisk/qcow/disk"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/require"
)

// lateQCOW2 returns a QCOW2 image of the disk content whose L2 table stands behind the data and
// whose L1 table behind that, as after qemu-img resize. What was the L1 table before names
// nothing, or as a decoy another L2 table of the same clusters. Spec: qcow2, Header.
func lateQCOW2(content []byte, decoy bool) []byte {
	const cluster, first = 64 << 10, 5
	n := len(content) / cluster
	l2, l1 := first+n, first+1+n
	file := make([]byte, (l1+1)*cluster)
	be := binary.BigEndian
	copy(file, "QFI\xfb")
	be.PutUint32(file[4:], 3)
	be.PutUint32(file[20:], 16)
	be.PutUint64(file[24:], uint64(len(content)))
	be.PutUint32(file[36:], 1)
	be.PutUint64(file[40:], uint64(l1*cluster))
	be.PutUint64(file[48:], cluster)
	be.PutUint32(file[56:], 1)
	be.PutUint32(file[96:], 4)
	be.PutUint32(file[100:], 104)
	copy(file[first*cluster:], content)
	for i := range n {
		be.PutUint64(file[l2*cluster+8*i:], 1<<63|uint64((first+i)*cluster))
		be.PutUint64(file[4*cluster+8*i:], 1<<63|uint64((first+n-1-i)*cluster))
	}
	if decoy {
		be.PutUint64(file[3*cluster:], 1<<63|4*cluster)
	}
	be.PutUint64(file[l1*cluster:], 1<<63|uint64(l2*cluster))
	return file
}

// again is a source whose blobs are different from the nth fetch on.
type again struct {
	*golden.Source
	nth   int64
	count atomic.Int64
}

func (s *again) Blob(ctx context.Context, ref string, d ocispec.Descriptor) (io.ReadCloser, error) {
	body, err := s.Source.Blob(ctx, ref, d)
	if err != nil || s.count.Add(1) < s.nth {
		return body, err
	}
	p, err := io.ReadAll(body)
	body.Close()
	p[len(p)/2] ^= 1
	return io.NopCloser(bytes.NewReader(p)), err
}

// TestPasses: an image whose tables stand behind more data than may be parked is fetched
// again, or parked in scratch.
func TestPasses(t *testing.T) {
	content := noise("late", 4<<20)
	image := lateQCOW2(content, false)
	little := func() importer.Options { return importer.Options{Budget: disk.NewBudget(4 << 20), Workers: 1} }
	for _, compression := range []golden.Compression{golden.None, golden.Zstd} {
		src, layers := layered(diskLayer(compression, image))
		o := little()
		if compression == golden.Zstd {
			o.Budget = disk.NewBudget(16 << 20) // its window
			o.Limits.Metadata = 1 << 20
		}
		var m memory
		res, err := run(t.Context(), t, src, &m, o)
		require.NoError(t, err)
		require.Equal(t, sha(content), m.sum(t))
		if compression == golden.None {
			require.Equal(t, 3, res.Passes, "for L1, for L2, for the data")
			require.Equal(t, 3*layers[0].Size, res.BytesFetched)
			require.Less(t, res.PeakParked, int64(4<<20))
		}
	}
	t.Run("other bytes the second time", func(t *testing.T) {
		src, _ := layered(diskLayer(golden.None, image))
		for nth := int64(2); nth <= 3; nth++ {
			var m memory
			_, err := importer.Import(t.Context(), &again{Source: src, nth: nth}, ref, &m, little())
			require.ErrorIs(t, err, importer.ErrDigest)
			require.False(t, m.committed)
		}
	})
	t.Run("one of several layers, through a link", func(t *testing.T) {
		src, _ := layered(tarLayer(golden.LayerOptions{}, file("data/x", image)), tarLayer(golden.LayerOptions{}, symlink("disk/x", "/data/x")),
			tarLayer(golden.LayerOptions{}, file("other", body("y"))))
		var m memory
		res, err := run(t.Context(), t, src, &m, little())
		require.NoError(t, err)
		require.Equal(t, 3, res.Passes)
		require.Equal(t, sha(content), m.sum(t))
	})
	t.Run("scratch", func(t *testing.T) {
		src, layers := layered(diskLayer(golden.None, image))
		scratch, err := target.OpenScratch(t.TempDir())
		require.NoError(t, err)
		defer scratch.Close()
		o := little()
		o.Scratch = scratch
		var m memory
		res, err := run(t.Context(), t, src, &m, o)
		require.NoError(t, err)
		require.Equal(t, 1, res.Passes)
		require.Equal(t, layers[0].Size, res.BytesFetched)
		require.Equal(t, sha(content), m.sum(t))
		require.Greater(t, res.PeakParked, int64(4<<20))
	})
	read := func(r io.Reader, o importer.Options) (*importer.Result, *memory, error) {
		var m memory
		res, err := settle(t, nil, &m, o, func(o importer.Options) (*importer.Result, error) {
			return importer.ImportReader(t.Context(), r, &m, o)
		})
		return res, &m, err
	}
	t.Run("a guess that is wrong", func(t *testing.T) {
		image := lateQCOW2(content, true)
		binary.BigEndian.PutUint32(image[60:], 1) // an internal snapshot, whose table no pass reads
		binary.BigEndian.PutUint64(image[64:], 64<<20)
		src, layers := layered(diskLayer(golden.None, image))
		var m memory
		res, err := run(t.Context(), t, src, &m, little())
		require.NoError(t, err)
		require.Equal(t, 4, res.Passes, "one for nothing")
		require.Len(t, res.Notes, 1, "of the snapshot, once")
		require.Equal(t, 4*layers[0].Size, res.BytesFetched)
		require.Equal(t, sha(content), m.sum(t))
		res, again, err := read(bytes.NewReader(golden.Compress(golden.Gzip, image)), little())
		require.NoError(t, err)
		require.Equal(t, 4, res.Passes)
		require.Equal(t, sha(content), again.sum(t))
		_, _, err = read(io.MultiReader(bytes.NewReader(image)), little())
		require.ErrorIs(t, err, disk.ErrWrongGuess)
		wantError(t, err, importer.StageConvert, importer.Permanent, "needs-parking")
	})
	packed := golden.Compress(golden.Gzip, image)
	t.Run("a compressed file is read again", func(t *testing.T) {
		res, m, err := read(bytes.NewReader(packed), little())
		require.NoError(t, err)
		require.Equal(t, 3, res.Passes)
		require.Equal(t, sha(content), m.sum(t))
	})
	t.Run("a stream cannot be", func(t *testing.T) {
		_, _, err := read(io.MultiReader(bytes.NewReader(packed)), little())
		require.ErrorIs(t, err, disk.ErrNeedsParking)
		wantError(t, err, importer.StageConvert, importer.Permanent, "needs-parking")
	})
}
