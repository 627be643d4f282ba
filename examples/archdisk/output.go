package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/archdisk/archdisk/importer"
	"github.com/spf13/cobra"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"
)

// outputFlags say how to tell what is going on.
type outputFlags struct {
	json         bool
	progressMode choice
}

func (o *outputFlags) add(c *cobra.Command) {
	c.Flags().BoolVar(&o.json, "json", false, "print one JSON object")
	o.progressMode = oneOf("auto", "plain", "none")
	c.Flags().Var(&o.progressMode, "progress", "`auto` (bars on a terminal), plain (a line every ten seconds) or none")
}

// report is the JSON object: the result, and the error if there is one.
type report struct {
	*importer.Result
	Error *reportError `json:"error,omitempty"`
}

// done prints what an import or a conversion has done.
func (o *outputFlags) done(c *cobra.Command, res *importer.Result, dest string) error {
	if o.json {
		return json.NewEncoder(c.OutOrStdout()).Encode(report{Result: res})
	}
	w := tabwriter.NewWriter(c.OutOrStdout(), 0, 0, 2, ' ', 0)
	what := "raw"
	if res.FileSize != res.Size {
		what = fmt.Sprintf("qcow2 in %s (%d bytes)", human(res.FileSize), res.FileSize)
	}
	fmt.Fprintf(w, "%s\t%s (%d bytes), %s\n", dest, human(res.Size), res.Size, what)
	o.facts(w, res)
	read := human(res.BytesFetched)
	if res.Passes > 1 {
		read += fmt.Sprintf(", in %d passes: its tables stand behind its data", res.Passes)
	}
	fmt.Fprintf(w, "read\t%s\n", read)
	fmt.Fprintf(w, "written\t%s, %s are zeros\n", human(res.BytesWritten), human(res.BytesZeroed))
	total := 0.0
	for _, s := range res.Seconds {
		total += s
	}
	fmt.Fprintf(w, "time\t%.2f s\n", total)
	return w.Flush()
}

// probed prints what is known of a disk from its first bytes.
func (o *outputFlags) probed(c *cobra.Command, res *importer.Result) error {
	if o.json {
		return json.NewEncoder(c.OutOrStdout()).Encode(report{Result: res})
	}
	w := tabwriter.NewWriter(c.OutOrStdout(), 0, 0, 2, ' ', 0)
	o.facts(w, res)
	if res.VirtualSize >= 0 {
		fmt.Fprintf(w, "virtual size\t%s (%d bytes)\n", human(res.VirtualSize), res.VirtualSize)
	} else {
		fmt.Fprintf(w, "virtual size\tonly the end of the file tells\n")
	}
	return w.Flush()
}

func (o *outputFlags) facts(w io.Writer, res *importer.Result) {
	row := func(name, value string) {
		if value != "" {
			fmt.Fprintf(w, "%s\t%s\n", name, oneLine(value))
		}
	}
	row("image", res.Reference)
	if p := res.Platform; p != nil {
		name := p.OS + "/" + p.Architecture
		if p.Variant != "" {
			name += "/" + p.Variant
		}
		row("platform", name)
	}
	row("manifest", res.ManifestDigest)
	row("layer", res.LayerDigest)
	row("file", res.Entry)
	row("format", string(res.Format))
	row("sha256", res.SHA256)
	for _, note := range res.Notes {
		row("note", note)
	}
}

// human writes a number of bytes for people.
func human(n int64) string {
	const units = "KMGTPE"
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	f, i := float64(n)/1024, 0
	for ; f >= 1024 && i < len(units)-1; i++ {
		f /= 1024
	}
	return fmt.Sprintf("%.1f %ciB", f, units[i])
}

// progress returns the function that an import reports to, nil for none, and the one that
// ends the reporting.
func (o *outputFlags) progress(w io.Writer) (report func(importer.Progress), stop func()) {
	switch {
	case o.progressMode.value == "plain":
		return plainProgress(w, time.Now), func() {}
	case o.progressMode.value == "auto" && isTerminal(w):
		return barProgress(w)
	}
	return nil, func() {}
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

const plainInterval = 10 * time.Second

func plainProgress(w io.Writer, now func() time.Time) func(importer.Progress) {
	last := now()
	return func(p importer.Progress) {
		if now().Sub(last) < plainInterval {
			return
		}
		last = now()
		line := fmt.Sprintf("archdisk: read %s of %s, disk %s", human(p.Fetched), human(p.FetchTotal), human(p.Done))
		if p.DiskSize >= 0 {
			line += " of " + human(p.DiskSize)
		}
		fmt.Fprintln(w, line)
	}
}

// barProgress draws two bars: what has been read of the image, by download as a rule, and
// what is done of the disk.
func barProgress(w io.Writer) (func(importer.Progress), func()) {
	bars := mpb.New(mpb.WithOutput(w), mpb.WithWidth(40))
	add := func(name string) *mpb.Bar {
		return bars.AddBar(0,
			mpb.PrependDecorators(decor.Name(name, decor.WCSyncSpaceR), decor.Any(amount, decor.WCSyncSpace)),
			mpb.AppendDecorators(decor.AverageSpeed(decor.SizeB1024(0), "% .1f", decor.WCSyncSpace),
				decor.Any(timeLeft(time.Now()), decor.WCSyncSpace)),
		)
	}
	read, disk := add("read"), add("disk")
	report := func(p importer.Progress) {
		advance(read, p.Fetched, p.FetchTotal)
		advance(disk, p.Done, p.DiskSize)
	}
	var once sync.Once
	return report, func() {
		once.Do(func() {
			read.Abort(false)
			disk.Abort(false)
			bars.Wait()
		})
	}
}

// amount writes how far a bar is, and of how much if that is known.
func amount(s decor.Statistics) string {
	if s.Total <= 0 {
		return human(s.Current)
	}
	return human(s.Current) + " of " + human(s.Total)
}

// timeLeft guesses from the average since start.
func timeLeft(start time.Time) decor.DecorFunc {
	return func(s decor.Statistics) string {
		if s.Total <= 0 || s.Current <= 0 {
			return ""
		}
		left := time.Since(start).Seconds() * float64(s.Total-s.Current) / float64(s.Current)
		return time.Duration(left*float64(time.Second)).Round(time.Second).String() + " left"
	}
}

func advance(b *mpb.Bar, now, total int64) {
	if total > 0 {
		b.SetTotal(total, false)
	}
	b.SetCurrent(now)
}
