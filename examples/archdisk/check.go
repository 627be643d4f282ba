package main

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/archdisk/archdisk/qcow"
	"github.com/archdisk/archdisk/qcow/disk"
	"github.com/archdisk/archdisk/qcow/formats"
	"github.com/spf13/cobra"
)

// checkReport is the JSON object of check: counts have the names of qemu-img check.
type checkReport struct {
	Reference string         `json:"reference"`
	Format    formats.Format `json:"format"`
	Verdict   string         `json:"verdict"` // clean, leaks, corrupt or check failed
	*qcow.CheckResult
	Error *reportError `json:"error,omitempty"`
}

func (a *app) check() *cobra.Command {
	var (
		asJSON bool
		memory memory
	)
	c := &cobra.Command{
		Use:   "check FILE",
		Short: "Check an image's consistency",
		Long: `Check the tables of the disk image FILE against each other: clusters that are lost
(leaks), used twice, or outside the file, wrong refcounts, broken entries. Internal
snapshots and bitmaps are looked at, the data is not. Nothing is repaired.

The exit code is 0 for an image without a fault, else 3.`,
		Args: cobra.ExactArgs(1),
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		in, err := openInput(c.Context(), args[0], nil)
		if err != nil {
			return err
		}
		defer in.Close()
		file, ok := in.(interface {
			io.ReaderAt
			Size() int64
		})
		if !ok {
			return usage("check: %s: a regular file is needed, to be read at any place", args[0])
		}
		format, res, err := formats.Check(c.Context(), file, file.Size(), memory.budget())
		if err != nil {
			return fmt.Errorf("check: %w", err)
		}
		bad := judge(res)
		report := checkReport{Reference: args[0], Format: format, Verdict: res.Verdict().String(), CheckResult: res}
		if asJSON {
			if bad != nil {
				report.Error = &reportError{Stage: "check", Class: "permanent", Code: "inconsistent", Message: oneLine(bad.Error())}
			}
			err = json.NewEncoder(c.OutOrStdout()).Encode(report)
		} else {
			err = report.print(c.OutOrStdout())
		}
		if err != nil || bad == nil {
			return err
		}
		return &failure{error: bad, told: true}
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	c.Flags().Var(&memory, "memory", "memory for tables and counters (default 64Mi)")
	return c
}

// judge returns what is wrong with an image in one line, nil for nothing.
func judge(res *qcow.CheckResult) error {
	switch res.Verdict() {
	case qcow.Clean:
		return nil
	case qcow.Leaky:
		return fmt.Errorf("check: %w: %d clusters are lost to the file; the disk is not affected", disk.ErrCorrupt, res.Leaks)
	case qcow.Corrupt:
		return fmt.Errorf("check: %w: %d faults, %d leaks", disk.ErrCorrupt, res.Corruptions, res.Leaks)
	}
	return fmt.Errorf("check: %w: %d parts could not be checked, %d faults, %d leaks", disk.ErrCorrupt, res.CheckErrors, res.Corruptions, res.Leaks)
}

func (r checkReport) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "%s\t%s, %s\n", oneLine(r.Reference), r.Format, r.Verdict)
	fmt.Fprintf(w, "clusters\t%d, %d allocated, %d compressed, %d not in sequence\n", r.TotalClusters, r.AllocatedClusters, r.CompressedClusters, r.FragmentedClusters)
	if r.ImageEndOffset > 0 {
		fmt.Fprintf(w, "end\t%#x\n", r.ImageEndOffset)
	}
	for _, s := range r.Snapshots {
		fmt.Fprintf(w, "snapshot\t%s %s, %s, of %s\n", oneLine(s.ID), oneLine(s.Name), human(s.Size), s.Date.UTC().Format("2006-01-02 15:04:05"))
	}
	for _, b := range r.Bitmaps {
		fmt.Fprintf(w, "bitmap\t%s, %s a bit\n", oneLine(b.Name), human(b.Granularity))
	}
	for _, f := range r.Findings {
		fmt.Fprintf(w, "%s\t%s\n", f.Severity, oneLine(f.Text)+where(f))
	}
	if r.Omitted > 0 {
		fmt.Fprintf(w, "and\t%d more\n", r.Omitted)
	}
	return w.Flush()
}

// where says which place of the file a finding is about, and which of the disk.
func where(f qcow.Finding) string {
	s := ""
	if f.Offset >= 0 {
		s += fmt.Sprintf(" (%s at %#x", f.Kind, f.Offset)
	} else {
		s += fmt.Sprintf(" (%s", f.Kind)
	}
	if f.Guest >= 0 {
		s += fmt.Sprintf(", for disk offset %#x", f.Guest)
	}
	return s + ")"
}
