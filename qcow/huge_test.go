package qcow_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/archdisk/archdisk/internal/peer"
	"github.com/archdisk/archdisk/qcow"
	"github.com/archdisk/archdisk/qcow/disk"
	"github.com/archdisk/archdisk/qcow/disk/disktest"
	"github.com/stretchr/testify/require"
)

// TestVirtualSize: memory and time follow the data, not the size of the disk.
func TestVirtualSize(t *testing.T) {
	qemu, qemuIO := peer.Require(t, "qemu-img"), peer.Require(t, "qemu-io")
	for _, tt := range []struct {
		size    string
		bytes   int64
		cluster string
		ends    bool // 64 KiB of data at each end
	}{
		{"64T", 64 << 40, "64k", false},
		{"64T", 64 << 40, "2M", false},
		{"10T", 10 << 40, "64k", true},
		{"10T", 10 << 40, "2M", true},
		{"16G", 16 << 30, "512", true},
		{"1T", 1 << 40, "4k", true},
	} {
		t.Run(tt.size+" "+tt.cluster, func(t *testing.T) {
			image := filepath.Join(t.TempDir(), "m.qcow2")
			peer.Run(t, qemu, "create", "-q", "-f", "qcow2", "-o", "cluster_size="+tt.cluster, image, tt.size)
			if tt.ends {
				peer.Run(t, qemuIO, "-f", "qcow2", "-c", "write -q -P 7 0 64k", "-c", fmt.Sprintf("write -q -P 9 %d 64k", tt.bytes-64<<10), image)
			}
			f, err := os.Open(image)
			require.NoError(t, err)
			defer f.Close()
			info, err := f.Stat()
			require.NoError(t, err)
			head := make([]byte, 64<<10)
			n, err := f.ReadAt(head, 0)
			if err != io.EOF {
				require.NoError(t, err)
			}
			for name, src := range map[string]disk.Source{"file": disk.File(f, info.Size()), "stream": disk.Stream(io.NewSectionReader(f, 0, info.Size()))} {
				layout, err := qcow.NewLayout(head[:n], disk.Limits{})
				require.NoError(t, err)
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				start := time.Now()
				var m disktest.Memory
				stats, err := disk.Convert(t.Context(), &m, layout, src, disk.ConvertOptions{Workers: 2})
				took := time.Since(start)
				runtime.ReadMemStats(&after)
				require.NoError(t, err, name)
				require.Equal(t, tt.bytes, stats.Size)
				require.NoError(t, m.Covered(stats.Size))
				allocated := after.TotalAlloc - before.TotalAlloc
				t.Logf("%s: %d bytes of file, %.1f MiB allocated, %v", name, info.Size(), float64(allocated)/(1<<20), took.Round(time.Millisecond))
				require.Less(t, allocated, uint64(64<<20))
				if tt.ends {
					require.EqualValues(t, 128<<10, stats.Written)
					p := make([]byte, 2)
					for off, b := range map[int64]byte{0: 7, tt.bytes - 2: 9} {
						_, err := m.ReadAt(p, off)
						require.NoError(t, err)
						require.Equal(t, []byte{b, b}, p)
					}
				} else {
					require.Zero(t, stats.Written)
				}
			}
		})
	}
}
