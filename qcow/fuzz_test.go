package qcow_test

import (
	"bytes"
	"errors"
	"io"
	"runtime"
	"testing"

	"github.com/archdisk/archdisk/qcow"
	"github.com/archdisk/archdisk/qcow/disk"
	"github.com/archdisk/archdisk/qcow/disk/disktest"
	"github.com/archdisk/archdisk/testdata"
	"github.com/stretchr/testify/require"
)

// fuzzLimits keep one input's work small.
func fuzzLimits() disk.Limits { return disk.Limits{VirtualSize: 32 << 20, Metadata: 1 << 20} }

// fuzzBudget is the memory of one conversion.
const fuzzBudget = 24 << 20

func addFixtures(f *testing.F) {
	for _, x := range testdata.Fixtures() {
		if x.Format == "qcow2" && x.Compression == "" && x.VirtualSize <= 32<<20 {
			if file := testdata.Read(x.File); len(file) < 128<<10 {
				f.Add(file)
			}
		}
	}
}

// FuzzOpen: any bytes give a disk or a FormatError, within the memory allowed.
func FuzzOpen(f *testing.F) {
	addFixtures(f)
	f.Fuzz(func(t *testing.T, file []byte) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		img, err := qcow.Open(bytes.NewReader(file), int64(len(file)), qcow.OpenOptions{Limits: fuzzLimits(), Cache: 1 << 20})
		if err == nil {
			require.LessOrEqual(t, img.Size(), int64(32<<20))
			p := make([]byte, 4096)
			for off := int64(0); off < img.Size(); off += max(img.Size()/64, 512) {
				if _, err = img.ReadAt(p, off); err != nil && err != io.EOF {
					break
				}
			}
			img.Close()
		}
		runtime.ReadMemStats(&after)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<30))
		requireFormatError(t, err)
	})
}

func requireFormatError(t *testing.T, err error) {
	var fe *disk.FormatError
	if err != nil && err != io.EOF && !errors.As(err, &fe) {
		t.Fatalf("%T %v is no FormatError", err, err)
	}
}

// FuzzConvertStream: the forward pass over a stream and over a file, and the random-access
// reader, agree: one disk, or an error. Nothing is written outside the disk, or twice, and all
// of the budget comes back.
func FuzzConvertStream(f *testing.F) {
	addFixtures(f)
	f.Fuzz(requireAgreement)
}

// requireAgreement converts file in each way and reads it, as FuzzConvertStream says.
func requireAgreement(t *testing.T, file []byte) {
	convert := func(src disk.Source) (*disktest.Memory, disk.Stats, error) {
		layout, err := qcow.NewLayout(file[:min(len(file), 64<<10)], fuzzLimits())
		if err != nil {
			return nil, disk.Stats{}, err
		}
		m, b := new(disktest.Memory), disk.NewBudget(fuzzBudget)
		stats, err := disk.Convert(t.Context(), m, layout, src, disk.ConvertOptions{Workers: 2, Budget: b})
		require.EqualValues(t, fuzzBudget, b.Left())
		if err == nil {
			require.NoError(t, m.Covered(stats.Size))
		}
		return m, stats, err
	}
	laddered := func(noGuess bool) (m *disktest.Memory, stats disk.Stats, err error) {
		layout, err := qcow.NewLayout(file[:min(len(file), 64<<10)], fuzzLimits())
		if err != nil {
			return nil, stats, err
		}
		m = new(disktest.Memory)
		b := disk.NewBudget(fuzzBudget)
		c := disk.NewConverter(m, layout, disk.ConvertOptions{Workers: 2, Budget: b, MaxParked: 1, Passes: 3, NoGuess: noGuess})
		for more := true; more && err == nil; {
			more, err = c.Pass(t.Context(), disk.Stream(bytes.NewReader(file)))
		}
		stats = c.Stats()
		c.Close()
		require.EqualValues(t, fuzzBudget, b.Left())
		if err == nil {
			require.NoError(t, m.Covered(stats.Size))
		}
		return m, stats, err
	}
	streamed, s1, err1 := convert(disk.Stream(bytes.NewReader(file)))
	filed, s2, err2 := convert(disk.File(bytes.NewReader(file), int64(len(file))))
	laddered1, s3, err3 := laddered(false)
	if errors.Is(err3, disk.ErrWrongGuess) {
		laddered1, s3, err3 = laddered(true)
		require.NotErrorIs(t, err3, disk.ErrWrongGuess)
	}
	requireFormatError(t, err1)
	requireFormatError(t, err2)
	requireFormatError(t, err3)
	if err3 == nil { // in passes, what one pass with enough room gives
		require.NoError(t, err2)
		require.Equal(t, s2.Size, s3.Size)
		a, b := make([]byte, s2.Size), make([]byte, s2.Size)
		_, _ = laddered1.ReadAt(a, 0)
		_, _ = filed.ReadAt(b, 0)
		require.True(t, bytes.Equal(a, b))
	} else if err2 == nil && !errors.Is(err3, disk.ErrLimit) { // three passes are enough, unless something is needed twice
		require.ErrorIs(t, err3, disk.ErrNeedsParking)
	}
	if errors.Is(err1, disk.ErrNeedsParking) {
		return
	}
	require.Equal(t, err1 == nil, err2 == nil, "stream: %v, file: %v", err1, err2)
	if err1 != nil {
		return
	}
	require.Equal(t, s1.Size, s2.Size)
	img, err := qcow.Open(bytes.NewReader(file), int64(len(file)), qcow.OpenOptions{Limits: fuzzLimits()})
	require.NoError(t, err)
	defer img.Close()
	a, b, c := make([]byte, s1.Size), make([]byte, s1.Size), make([]byte, s1.Size)
	_, _ = streamed.ReadAt(a, 0)
	_, _ = filed.ReadAt(b, 0)
	_, err = img.ReadAt(c, 0)
	require.NoError(t, err)
	require.True(t, bytes.Equal(a, b) && bytes.Equal(a, c))
}
