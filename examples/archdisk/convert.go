package main

import (
	"context"
	"io"
	"os"

	"github.com/archdisk/archdisk/importer"
	"github.com/archdisk/archdisk/importer/target"
	"github.com/archdisk/archdisk/qcow/disk"
	"github.com/spf13/cobra"
)

func (a *app) convert() *cobra.Command {
	var (
		to       diskFlags
		out      outputFlags
		path     string
		compress = oneOf("none", "zlib", "zstd")
	)
	c := &cobra.Command{
		Use:   "convert SRC DEST",
		Short: "Convert a disk image file",
		Long: `Convert the disk image SRC, or standard input if SRC is -, to the raw disk DEST, or
with --format qcow2 to an image.

gzip, zstd and xz around SRC are unwrapped; of a tar archive its only file is
taken, or the one at --path.`,
		Args: cobra.ExactArgs(2),
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		codec := map[string]disk.Codec{"none": disk.Plain, "zlib": disk.Deflate, "zstd": disk.Zstd}[compress.value]
		if codec != disk.Plain && to.format.value != "qcow2" {
			return usage("--compress %s is for --format qcow2", compress.value)
		}
		if sameFile(args[0], args[1]) {
			return usage("%s is the source, too; it would lose what a disk does not hold, such as snapshots", args[1])
		}
		o := importer.Options{Path: path, Compression: codec}
		return to.write(c, out, args[1], o, func(dst importer.Target, o importer.Options) (*importer.Result, error) {
			in, err := openInput(c.Context(), args[0], c.InOrStdin())
			if err != nil {
				return &importer.Result{VirtualSize: -1}, err
			}
			defer in.Close()
			res, err := importer.ImportReader(c.Context(), in, dst, o)
			res.Reference = args[0]
			return res, err
		})
	}
	to.add(c)
	out.add(c)
	f := c.Flags()
	f.Var(&compress, "compress", "`none`, zlib or zstd, for qcow2")
	f.StringVar(&path, "path", "", "path `P` of the disk inside an archive")
	return c
}

// openInput opens a file to be read at any offset, or standard input as a stream.
func openInput(ctx context.Context, name string, stdin io.Reader) (io.ReadCloser, error) {
	if name == "-" {
		return io.NopCloser(stdin), nil
	}
	info, err := os.Stat(name)
	if err == nil && info.Mode().IsRegular() {
		return target.OpenSparse(name)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	return struct { // a pipe or a device: from front to back
		io.Reader
		io.Closer
	}{interruptible(ctx, f), f}, nil
}

// sameFile says whether both names are of one file or device.
func sameFile(a, b string) bool {
	x, err := os.Stat(a)
	if err != nil || a == "-" {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}

// isDevice says whether name is a block device.
func isDevice(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.Mode()&os.ModeDevice != 0 && info.Mode()&os.ModeCharDevice == 0
}

// isFile says whether name is a file here, and so no reference.
func isFile(name string) bool {
	info, err := os.Stat(name)
	return err == nil && !info.IsDir() && name != "-"
}
