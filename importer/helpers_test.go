package importer_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/archdisk/archdisk/arch"
	"github.com/archdisk/archdisk/importer"
	"github.com/archdisk/archdisk/importer/target"
	"github.com/archdisk/archdisk/internal/golden"
	"github.com/archdisk/archdisk/qcow/disk"
	"github.com/archdisk/archdisk/qcow/disk/disktest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/require"
)

const ref = "registry.example/disks/vm:1"

// memory is a target that holds everyone to the contract of importer.Target, and fails
// where it is told to.
type memory struct {
	onBegin  func() error
	onWrite  func(n int) error // before the nth write or zeroing, from 1
	onRead   func() error
	onCommit func() error

	mu        sync.Mutex
	disk      *disktest.Memory // between Begin and Abort
	size      int64
	begins    int
	committed bool
	aborts    int
	wrong     error // the first breach of the contract
}

func (m *memory) breach(what string) error {
	err := errors.New("breach of contract: " + what)
	if m.wrong == nil {
		m.wrong = err
	}
	return err
}

func (m *memory) Begin(ctx context.Context, size int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.disk != nil {
		return m.breach("Begin before Commit or Abort")
	}
	if m.onBegin != nil {
		if err := m.onBegin(); err != nil {
			return err
		}
	}
	m.begins++
	m.disk = &disktest.Memory{FailWrite: m.onWrite}
	return ctx.Err()
}

func (m *memory) open() (*disktest.Memory, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.disk == nil || m.committed {
		return nil, m.breach("a write without Begin")
	}
	return m.disk, nil
}

func (m *memory) WriteAt(p []byte, off int64) (int, error) {
	d, err := m.open()
	if err != nil {
		return 0, err
	}
	return d.WriteAt(p, off)
}

func (m *memory) ZeroRange(off, n int64) error {
	d, err := m.open()
	if err != nil {
		return err
	}
	return d.ZeroRange(off, n)
}

func (m *memory) ReadAt(p []byte, off int64) (int, error) {
	if m.onRead != nil {
		if err := m.onRead(); err != nil {
			return 0, err
		}
	}
	return m.disk.ReadAt(p, off)
}

func (m *memory) Commit(ctx context.Context, size int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.disk == nil || m.committed {
		return m.breach("Commit without Begin")
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if m.onCommit != nil {
		if err := m.onCommit(); err != nil {
			return err
		}
	}
	m.committed, m.size = true, size
	return nil
}

func (m *memory) Abort() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.aborts++
	m.disk, m.committed = nil, false
	return nil
}

// sum returns the SHA-256 of the committed disk.
func (m *memory) sum(t testing.TB) string {
	t.Helper()
	require.True(t, m.committed, "nothing is committed")
	h := sha256.New()
	_, err := io.Copy(h, m.disk.Reader(m.size))
	require.NoError(t, err)
	return hex.EncodeToString(h.Sum(nil))
}

// run imports into dst and checks what holds for every import, good or bad.
func run(ctx context.Context, t testing.TB, src *golden.Source, dst *memory, o importer.Options) (*importer.Result, error) {
	t.Helper()
	return settle(t, src, dst, o, func(o importer.Options) (*importer.Result, error) {
		return importer.Import(ctx, src, ref, dst, o)
	})
}

func settle(t testing.TB, src *golden.Source, dst *memory, o importer.Options, do func(importer.Options) (*importer.Result, error)) (*importer.Result, error) {
	t.Helper()
	if o.Budget == nil {
		o.Budget = disk.NewBudget(0)
	}
	before := o.Budget.Left()
	res, err := do(o)
	require.NotNil(t, res)
	require.Equal(t, before, o.Budget.Left(), "memory is given back")
	if src != nil {
		require.Zero(t, src.Open(), "blobs are closed")
	}
	require.NoError(t, dst.wrong)
	if err == nil {
		require.True(t, dst.committed, "success without commit")
		require.NoError(t, dst.disk.Covered(dst.size))
		require.Equal(t, dst.size, res.Size)
		return res, nil
	}
	require.False(t, dst.committed, "committed in spite of %v", err)
	require.NotZero(t, dst.aborts, "neither committed nor aborted")
	require.Nil(t, dst.disk, "the last word was not Abort")
	require.Zero(t, res.Size)
	var e *importer.Error
	require.ErrorAs(t, err, &e)
	require.NotEmpty(t, e.Code)
	require.NotContains(t, err.Error(), "\n")
	return res, err
}

// wantError checks the three words of an import's error.
func wantError(t testing.TB, err error, stage importer.Stage, class importer.Class, code string) *importer.Error {
	t.Helper()
	var e *importer.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, []string{string(stage), string(class), code}, []string{string(e.Stage), string(e.Class), e.Code}, "%v", err)
	require.Equal(t, class, importer.ClassOf(err))
	return e
}

// body returns a raw disk whose content follows from its name.
func body(name string) []byte { return noise(name, 8<<10) }

// noise returns n bytes that do not compress and follow from name.
func noise(name string, n int) []byte {
	seed := sha256.Sum256([]byte(name))
	p := make([]byte, n)
	_, _ = rand.NewChaCha8(seed).Read(p)
	return p
}

func sha(p []byte) string {
	s := sha256.Sum256(p)
	return hex.EncodeToString(s[:])
}

func file(name string, p []byte) golden.Entry { return golden.Entry{Name: name, Body: p} }

func symlink(name, to string) golden.Entry { return golden.Entry{Name: name, Type: '2', Link: to} }

func hardlink(name, to string) golden.Entry { return golden.Entry{Name: name, Type: '1', Link: to} }

// layered returns a source of one amd64 image with the given layers, lowest first.
func layered(layers ...func(*golden.Builder) ocispec.Descriptor) (*golden.Source, []ocispec.Descriptor) {
	return labelled(golden.ImageOptions{Arch: "amd64"}, layers...)
}

func labelled(o golden.ImageOptions, layers ...func(*golden.Builder) ocispec.Descriptor) (*golden.Source, []ocispec.Descriptor) {
	b := golden.NewBuilder()
	var all []ocispec.Descriptor
	for _, layer := range layers {
		all = append(all, layer(b))
	}
	return golden.NewSource(b.Build(b.Image(o, all...))), all
}

func tarLayer(o golden.LayerOptions, entries ...golden.Entry) func(*golden.Builder) ocispec.Descriptor {
	return func(b *golden.Builder) ocispec.Descriptor { return b.Layer(o, entries...) }
}

func blobLayer(mediaType string, p []byte) func(*golden.Builder) ocispec.Descriptor {
	return func(b *golden.Builder) ocispec.Descriptor { return b.Blob(mediaType, p) }
}

// diskLayer is a containerdisk's layer with p as its disk.
func diskLayer(c golden.Compression, p []byte) func(*golden.Builder) ocispec.Descriptor {
	return tarLayer(golden.LayerOptions{Compression: c}, golden.DiskEntries(p)...)
}

func parse(t testing.TB, name string) arch.Arch {
	t.Helper()
	a, err := arch.Parse(name)
	require.NoError(t, err)
	return a
}

// newFile returns a file target, with old content at its destination if there is any.
func newFile(t testing.TB, old []byte) (*target.File, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk.img")
	if old != nil {
		require.NoError(t, os.WriteFile(path, old, 0o600))
	}
	dst, err := target.CreateFile(path, target.FileOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dst.Close()) })
	return dst, path
}

// onlyFile checks that path holds content and stands alone in its directory; nil: nothing does.
func onlyFile(t testing.TB, path string, content []byte) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	if content == nil {
		require.Empty(t, entries)
		return
	}
	require.Len(t, entries, 1)
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, sha(content), sha(got))
}

// noLeak waits until there are no more goroutines than before.
func noLeak(t testing.TB, before int) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > before; runtime.Gosched() {
		if time.Now().After(end) {
			all := make([]byte, 1<<20)
			t.Fatalf("goroutines are left:\n%s", all[:runtime.Stack(all, true)])
		}
	}
}

// trouble is an error of a network that passes.
type trouble struct{}

func (trouble) Error() string   { return "connection reset" }
func (trouble) Temporary() bool { return true }

type readFunc func(p []byte) (int, error)

func (f readFunc) Read(p []byte) (int, error) { return f(p) }

// steps returns n values spread over [0, size), the ends included.
func steps(size int64, n int) []int64 {
	var at []int64
	for i := range int64(n) {
		at = append(at, i*(size-1)/int64(n-1))
	}
	return at
}

// few returns long, or short under -short, which is how tests run in emulation.
func few(long, short int) int {
	if testing.Short() {
		return short
	}
	return long
}
