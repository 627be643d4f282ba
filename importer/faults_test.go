package importer_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/archdisk/archdisk/importer"
	"github.com/archdisk/archdisk/internal/golden"
	"github.com/archdisk/archdisk/qcow/disk"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/require"
)

// TestFailingWrite: the target is full from the nth write on, for all n.
func TestFailingWrite(t *testing.T) {
	before := runtime.NumGoroutine()
	q := golden.Disks()[0]
	src, _ := layered(diskLayer(golden.Gzip, q.File))
	for _, workers := range []int{1, 4} {
		done := false
		for n := 1; !done; n += 1 + n/4 {
			var writes atomic.Int64
			dst := memory{onWrite: func(i int) error {
				writes.Store(int64(i))
				if i >= n {
					return syscall.ENOSPC
				}
				return nil
			}}
			_, err := run(t.Context(), t, src, &dst, importer.Options{Workers: workers})
			if done = writes.Load() < int64(n); done {
				require.NoError(t, err)
				break
			}
			require.ErrorIs(t, err, syscall.ENOSPC, "write %d", n)
			wantError(t, err, importer.StageWrite, importer.Transient, "no-space")
			var write *disk.WriteError
			require.ErrorAs(t, err, &write)
		}
	}
	noLeak(t, before)
}

// TestFailingWriteOnStall: a full target ends an import whose network has nothing to say.
func TestFailingWriteOnStall(t *testing.T) {
	content := noise("x", 4<<20)
	src, layers := layered(diskLayer(golden.None, content))
	src.Fault(layers[0].Digest, golden.BlockAfter(3<<20))
	_, err := run(t.Context(), t, src, &memory{onWrite: func(int) error { return syscall.ENOSPC }}, importer.Options{})
	wantError(t, err, importer.StageWrite, importer.Transient, "no-space")
}

func TestFailingTarget(t *testing.T) {
	broken := errors.New("broken")
	for name, test := range map[string]struct {
		dst   *memory
		stage importer.Stage
		class importer.Class
		code  string
	}{
		"begin":        {&memory{onBegin: func() error { return broken }}, importer.StageWrite, importer.Permanent, "write"},
		"begin, full":  {&memory{onBegin: func() error { return syscall.ENOSPC }}, importer.StageWrite, importer.Transient, "no-space"},
		"commit":       {&memory{onCommit: func() error { return broken }}, importer.StageCommit, importer.Permanent, "commit"},
		"commit, full": {&memory{onCommit: func() error { return syscall.EDQUOT }}, importer.StageCommit, importer.Transient, "no-space"},
		"read back":    {&memory{onRead: func() error { return syscall.EIO }}, importer.StageVerify, importer.Transient, "verify"},
	} {
		t.Run(name, func(t *testing.T) {
			src, _ := layered(diskLayer(golden.Gzip, body("a")))
			_, err := run(t.Context(), t, src, test.dst, importer.Options{HashDisk: true})
			wantError(t, err, test.stage, test.class, test.code)
		})
	}
}

// slowly calls step before each read and reads little at a time.
func slowly(step func()) golden.Fault {
	return func(_ context.Context, r io.Reader) io.Reader {
		return readFunc(func(p []byte) (int, error) {
			step()
			return r.Read(p[:min(len(p), 1<<10)])
		})
	}
}

// TestCancelled: an import that is cancelled at any read or write commits nothing, says
// that it was cancelled and leaves nothing running.
func TestCancelled(t *testing.T) {
	before := runtime.NumGoroutine()
	q := golden.Disks()[0]
	why := errors.New("the user has gone")
	for _, c := range []golden.Compression{golden.None, golden.Gzip, golden.Zstd} {
		src, layers := layered(diskLayer(c, q.File))
		for _, where := range []string{"read", "write", "read, with a cause"} {
			t.Run(fmt.Sprintf("%d/%s", c, where), func(t *testing.T) {
				for n := int64(1); ; n += 1 + n/int64(few(5, 1)) {
					ctx, cancel := context.WithCancelCause(t.Context())
					var cause error
					if where == "read, with a cause" {
						cause = why
					}
					var steps atomic.Int64
					step := func() {
						if steps.Add(1) == n {
							cancel(cause)
						}
					}
					var dst memory
					if where == "write" {
						dst.onWrite = func(int) error { step(); return nil }
					} else {
						src.Fault(layers[0].Digest, slowly(step))
					}
					_, err := run(ctx, t, src, &dst, importer.Options{HashDisk: true, Workers: 2})
					cancel(nil)
					if steps.Load() < n {
						require.NoError(t, err)
						break
					}
					require.Error(t, err, "cancelled at %s %d", where, n)
					require.ErrorIs(t, err, context.Canceled)
					if cause != nil {
						require.ErrorIs(t, err, cause)
					}
					var e *importer.Error
					require.ErrorAs(t, err, &e)
					require.Equal(t, importer.Transient, e.Class, "%v", err)
					require.Equal(t, "cancelled", e.Code, "%v", err)
				}
			})
		}
	}
	noLeak(t, before)
}

func TestCancelledEarly(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	src, _ := layered(diskLayer(golden.Gzip, body("a")))
	var dst memory
	_, err := run(ctx, t, src, &dst, importer.Options{})
	wantError(t, err, importer.StageResolve, importer.Transient, "cancelled")
	require.Zero(t, dst.begins)
}

// TestStall: a download that has stopped is left at once when the import is cancelled.
func TestStall(t *testing.T) {
	before := runtime.NumGoroutine()
	src, layers := layered(diskLayer(golden.Gzip, golden.Disks()[0].File))
	for _, n := range steps(layers[0].Size+1, few(20, 4)) {
		ctx, cancel := context.WithCancel(t.Context())
		src.Fault(layers[0].Digest, func(ctx context.Context, r io.Reader) io.Reader {
			return io.MultiReader(io.LimitReader(r, n), readFunc(func([]byte) (int, error) {
				cancel()
				<-ctx.Done()
				return 0, context.Cause(ctx)
			}))
		})
		_, err := run(ctx, t, src, new(memory), importer.Options{})
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, importer.Transient, importer.ClassOf(err))
		var e *importer.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, "cancelled", e.Code)
		cancel()
	}
	noLeak(t, before)
}

// TestRandomFaults: whatever happens to whatever is fetched, only the right disk is ever
// committed.
func TestRandomFaults(t *testing.T) {
	q := golden.Disks()[0]
	image := golden.OCI()
	child := image.Children(image.Root)[0]
	parts := append([]ocispec.Descriptor{image.Root, child}, image.Children(child)...)
	broken := 0
	for seed := range uint64(few(100, 20)) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		src := golden.NewSource(image)
		for range 1 + rnd.IntN(2) {
			d := parts[rnd.IntN(len(parts))]
			if rnd.IntN(2) == 0 {
				d = parts[3] // the layer
			}
			at := rnd.Int64N(d.Size + 1)
			src.Fault(d.Digest, []golden.Fault{
				golden.FlipByte(at), golden.Truncate(at), golden.FailAfter(at, trouble{}), golden.Append(noise("tail", rnd.IntN(100))),
			}[rnd.IntN(4)])
		}
		var dst memory
		_, err := run(t.Context(), t, src, &dst, importer.Options{Arch: parse(t, "amd64")})
		if err != nil {
			broken++
			continue
		}
		require.Equal(t, q.SHA256, dst.sum(t), "seed %d", seed)
	}
	require.Greater(t, broken, few(80, 15))
}

// TestSharedBudget: imports at the same time share one budget, and give it back.
func TestSharedBudget(t *testing.T) {
	budget := disk.NewBudget(0)
	image := golden.OCI()
	src := golden.NewSource(image)
	errs := make(chan error)
	for _, q := range golden.Disks() {
		go func() {
			var dst memory
			_, err := importer.Import(context.Background(), src, ref, &dst, importer.Options{Arch: parse(t, q.Arch), Budget: budget, ExpectSHA256: q.SHA256})
			errs <- err
		}()
	}
	for range golden.Disks() {
		require.NoError(t, <-errs)
	}
	require.EqualValues(t, disk.DefaultMemory, budget.Left())
}
