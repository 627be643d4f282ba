package qcow_test

import (
	"bytes"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/archdisk/archdisk/qcow"
	"github.com/archdisk/archdisk/qcow/disk"
	"github.com/archdisk/archdisk/testdata"
	"github.com/stretchr/testify/require"
)

// FuzzCheck: any bytes give a result or a FormatError, within the memory allowed, the same
// each time; and a result's counts are those of its findings. seed picks further damage,
// done where the structures are.
func FuzzCheck(f *testing.F) {
	for _, x := range testdata.Fixtures() {
		if x.Format != "qcow2" || x.Compression != "" {
			continue
		}
		if file := testdata.Read(x.File); len(file) < 512<<10 {
			f.Add(file, uint64(0))
			f.Add(file, uint64(1))
		}
	}
	f.Fuzz(func(t *testing.T, file []byte, seed uint64) {
		file = bytes.Clone(file)
		if len(file) >= 112 && file[23] >= 9 && file[23] <= 21 && seed != 0 {
			d := &damager{rnd: rand.New(rand.NewPCG(seed, 2)), file: file, cs: 1 << file[23]}
			for range 1 + seed%4 {
				if len(d.file) >= 136 {
					d.damage()
				}
			}
			file = d.file
		}
		const budget = 8 << 20
		run := func() (*qcow.CheckResult, error) {
			return check(t, file, qcow.CheckOptions{Budget: disk.NewBudget(budget), MaxFindings: 100})
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		result, err := run()
		runtime.ReadMemStats(&after)
		// The budget is for what is held at once; lists grow by doubling, and findings add theirs.
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(4*budget+len(file)))
		again, err2 := run()
		require.Equal(t, result, again)
		requireFormatError(t, err)
		if err != nil {
			require.EqualError(t, err2, err.Error())
			return
		}
		require.NoError(t, err2)
		require.LessOrEqual(t, len(result.Findings), 100)
		sums := map[qcow.Severity]int64{}
		for _, x := range result.Findings {
			sums[x.Severity] += x.Count
			require.NotContains(t, x.String(), "\n")
		}
		if result.Omitted == 0 {
			require.Equal(t, result.Corruptions, sums[qcow.Corruption])
			require.Equal(t, result.Leaks, sums[qcow.Leak])
			require.Equal(t, result.CheckErrors, sums[qcow.CheckError])
		}
		require.LessOrEqual(t, result.FragmentedClusters, result.AllocatedClusters)
		require.LessOrEqual(t, result.CompressedClusters, result.AllocatedClusters)
		require.Zero(t, sums[qcow.Note])
	})
}
