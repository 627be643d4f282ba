package main

import (
	"github.com/archdisk/archdisk/importer"
	"github.com/archdisk/archdisk/importer/target"
	"github.com/archdisk/archdisk/qcow/formats"
	"github.com/spf13/cobra"
)

// diskFlags say what disk is written, and with what means.
type diskFlags struct {
	format  choice
	size    size
	scratch string
	memory  memory
}

func (f *diskFlags) add(c *cobra.Command) {
	f.format = oneOf("raw", "qcow2")
	c.Flags().Var(&f.format, "format", "`raw` or qcow2")
	c.Flags().Var(&f.size, "size", "size of the resulting disk: a smaller image is grown, a larger one refused")
	c.Flags().StringVar(&f.scratch, "scratch", "", "directory `DIR` for data whose place is not known yet, if --memory does not hold it")
	c.Flags().Var(&f.memory, "memory", "memory for buffers, windows and tables (default 64Mi)")
}

// write writes a disk to the file dest and prints what was done.
func (f *diskFlags) write(c *cobra.Command, out outputFlags, dest string, o importer.Options,
	work func(importer.Target, importer.Options) (*importer.Result, error)) error {
	if dest == "-" {
		return usage("a disk is not written to standard output: name a file")
	}
	if isDevice(dest) {
		return usage("%s: block devices are not available yet", dest)
	}
	o.Format, o.Size, o.Budget = formats.Format(f.format.value), int64(f.size), f.memory.budget()
	if f.scratch != "" {
		scratch, err := target.OpenScratch(f.scratch)
		if err != nil {
			return err
		}
		defer scratch.Close()
		o.Scratch = scratch
	}
	dst, err := target.CreateFile(dest, target.FileOptions{})
	if err != nil {
		return err
	}
	defer dst.Close()
	report, stop := out.progress(c.ErrOrStderr())
	o.Progress = report
	res, err := work(dst, o)
	stop()
	if err != nil {
		return &failure{error: err, done: res}
	}
	return out.done(c, res, dest)
}
