package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/archdisk/archdisk/arch"
	"github.com/archdisk/archdisk/importer"
	"github.com/archdisk/archdisk/importer/registry"
	"github.com/archdisk/archdisk/internal/golden"
	server "github.com/google/go-containerregistry/pkg/registry"
	"github.com/spf13/cobra"
)

func (a *app) demo() *cobra.Command {
	return &cobra.Command{
		Use:   "demo",
		Short: "Import a built-in image for three architectures from a built-in registry",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return demo(c.Context(), c.OutOrStdout())
		},
	}
}

// demo serves the golden containerdisk on loopback and imports it for each architecture,
// into memory.
func demo(ctx context.Context, out io.Writer) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: server.New(server.Logger(log.New(io.Discard, "", 0)))}
	var wg sync.WaitGroup
	wg.Go(func() { _ = srv.Serve(listener) })
	defer wg.Wait()
	defer srv.Close()

	host := listener.Addr().String()
	if err := golden.Docker().Push(ctx, http.DefaultClient, "http://"+host, "containerdisks/golden", "1"); err != nil {
		return fmt.Errorf("demo registry: %w", err)
	}
	ref := "docker://" + host + "/containerdisks/golden:1"
	src := registry.New(registry.Options{})
	defer src.Close()

	fmt.Fprintf(out, "%s, one manifest list, three architectures\n\n", ref)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ARCH\tMANIFEST\tFORMAT\tFETCHED\tDISK\tDATA\tTIME\tSHA256 OF THE DISK")
	for _, want := range arch.All() {
		if !want.FirstClass() {
			continue
		}
		start := time.Now()
		res, err := importer.Import(ctx, src, ref, new(memoryDisk), importer.Options{Arch: want, HashDisk: true})
		if err != nil {
			return err
		}
		if err := checkGolden(want.String(), res.SHA256); err != nil {
			return err
		}
		fmt.Fprintf(w, "%s\t%.19s\t%s\t%s\t%s\t%s\t%v\t%s\n", want, res.ManifestDigest, res.Format, human(res.BytesFetched),
			human(res.Size), human(res.BytesWritten), time.Since(start).Round(time.Millisecond), res.SHA256)
	}
	return w.Flush()
}

// checkGolden compares a disk with what qemu-img made of the same image.
func checkGolden(arch, sum string) error {
	for _, d := range golden.Disks() {
		if d.Arch == arch && d.SHA256 != sum {
			return fmt.Errorf("demo: the %s disk is %s, qemu-img's is %s", arch, sum, d.SHA256)
		}
	}
	return nil
}

// memoryDisk is a target in memory, for disks of a few MiB.
type memoryDisk struct {
	mu sync.Mutex
	p  []byte
}

func (m *memoryDisk) Begin(_ context.Context, size int64) error {
	m.p = make([]byte, max(size, 0))
	return nil
}

func (m *memoryDisk) WriteAt(p []byte, off int64) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if grow := off + int64(len(p)) - int64(len(m.p)); grow > 0 {
		m.p = append(m.p, make([]byte, grow)...)
	}
	return copy(m.p[off:], p), nil
}

func (m *memoryDisk) ReadAt(p []byte, off int64) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if off >= int64(len(m.p)) {
		return 0, io.EOF
	}
	n := copy(p, m.p[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (m *memoryDisk) Commit(context.Context, int64) error { return nil }
func (m *memoryDisk) Abort() error                        { m.p = nil; return nil }
