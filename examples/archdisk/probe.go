package main

import (
	"errors"
	"os"

	"github.com/archdisk/archdisk/importer"
	"github.com/spf13/cobra"
)

func (a *app) probe() *cobra.Command {
	var (
		source sourceFlags
		asJSON bool
		arch   string
		path   string
		memory memory
	)
	c := &cobra.Command{
		Use:   "probe REF|FILE",
		Short: "Look at the first bytes of a disk: format, size, safety",
		Long: `Look at the first bytes of the disk in the image REF or in FILE: its format, its
virtual size, whether it may be read at all. Digests are not checked, since little
more than those bytes is fetched.`,
		Args: cobra.ExactArgs(1),
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		want, err := parseArch(arch)
		if err != nil {
			return err
		}
		o := importer.ProbeOptions{Arch: want.Arch, Variant: want.Variant, OS: want.OS, Path: path, Budget: memory.budget()}
		res, err := a.probeAny(c, source, args[0], o)
		if err != nil {
			return &failure{error: err, done: res}
		}
		out := outputFlags{json: asJSON}
		return out.probed(c, res)
	}
	source.add(c)
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	c.Flags().StringVar(&arch, "arch", "", "architecture `A` of the guest; without it the only one offered")
	c.Flags().StringVar(&path, "path", "", "path `P` of the disk inside the image or archive")
	c.Flags().Var(&memory, "memory", "memory for buffers, windows and tables (default 64Mi)")
	return c
}

func (a *app) probeAny(c *cobra.Command, source sourceFlags, name string, o importer.ProbeOptions) (*importer.Result, error) {
	if isPath(name) && !isFile(name) {
		why := "not a file"
		if _, err := os.Stat(name); err != nil {
			why = errors.Unwrap(err).Error()
		}
		return &importer.Result{VirtualSize: -1}, usage("probe: %s: %s; a file or a reference (host/repository:tag) is expected", name, why)
	}
	if !isFile(name) {
		src, err := source.open(c, name)
		if err != nil {
			return &importer.Result{VirtualSize: -1}, err
		}
		defer src.Close()
		return importer.Probe(c.Context(), src, name, o)
	}
	in, err := openInput(c.Context(), name, nil)
	if err != nil {
		return &importer.Result{VirtualSize: -1}, err
	}
	defer in.Close()
	res, err := importer.ProbeReader(c.Context(), in, o)
	res.Reference = name
	return res, err
}
