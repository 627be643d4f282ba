package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/archdisk/archdisk/importer"
	"github.com/archdisk/archdisk/importer/archive"
	"github.com/archdisk/archdisk/platform"
	"github.com/archdisk/archdisk/qcow/disk"
	"github.com/spf13/cobra"
)

// The exit codes.
const (
	exitDone      = 0
	exitTransient = 1 // trying again may help
	exitUsage     = 2
	exitPermanent = 3
)

// usageError is a command line that is wrong, or asks for what does not exist yet.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func usage(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

func isUsage(err error) bool {
	var u *usageError
	return errors.As(err, &u) || errors.Is(err, importer.ErrOptions)
}

// failure is an error with what was done before it.
type failure struct {
	error
	done *importer.Result
	told bool // the JSON object has been printed
}

// Unwrap returns the error.
func (f *failure) Unwrap() error { return f.error }

// reportError is a failure in the JSON object.
type reportError struct {
	Stage   importer.Stage `json:"stage"`
	Class   importer.Class `json:"class"`
	Code    string         `json:"code"`
	Message string         `json:"message"`
}

// fail tells of whatever ended a command: in one line on the error stream and, if JSON is
// wanted, in the object. It returns the exit code.
func (a *app) fail(c *cobra.Command, args []string, err error) int {
	text := oneLine(wording(c, err))
	fmt.Fprintln(a.err, "archdisk: "+text)
	f := failure{done: &importer.Result{VirtualSize: -1}}
	if known := (*failure)(nil); errors.As(err, &known) {
		f = *known
	}
	if wantsJSON(c, args) && !f.told {
		if f.done.Reference == "" {
			f.done.Reference = c.Flags().Arg(0)
		}
		e := &importer.Error{Stage: "setup", Code: "setup", Class: importer.ClassOf(err)}
		switch {
		case errors.As(err, &e):
		case isUsage(err):
			e.Code = "usage"
		case errors.Is(err, context.Canceled):
			e.Code = "cancelled"
		}
		// If the output is gone, the line above and the exit code have told.
		_ = json.NewEncoder(a.out).Encode(report{f.done, &reportError{e.Stage, e.Class, e.Code, text}})
	}
	switch {
	case isUsage(err):
		return exitUsage
	case importer.ClassOf(err) == importer.Transient:
		return exitTransient
	}
	return exitPermanent
}

// wantsJSON says whether --json is given, be it behind a flag that could not be parsed.
func wantsJSON(c *cobra.Command, args []string) bool {
	f := c.Flags().Lookup("json")
	return f != nil && (f.Value.String() == "true" || slices.Contains(args, "--json"))
}

// wording is an error's text in the words of the command: where a flag helps, it names it.
func wording(c *cobra.Command, err error) string {
	if errors.Is(err, context.Canceled) && c.Context().Err() != nil {
		if strings.Contains(c.Use, "DEST") { // a file, which only the last step of a commit touches
			return "interrupted; the destination is as it was"
		}
		return "interrupted"
	}
	text := err.Error()
	var (
		large *importer.TooLargeError
		none  *platform.NoMatchError
		short *disk.BudgetError
	)
	has := func(flag string) bool { return c.Flags().Lookup(flag) != nil }
	switch {
	case errors.As(err, &large) && has("size") && c.Flags().Lookup("size").Value.String() == strconv.FormatInt(large.Have, 10):
		ours := fmt.Sprintf("%v: it needs %d bytes, --size allows %d", importer.ErrTooLarge, large.Need, large.Have)
		return strings.Replace(text, large.Error(), ours, 1)
	case errors.As(err, &none) && len(none.Have) > 0 && has("arch"):
		return text + "; choose one with --arch"
	case errors.Is(err, archive.ErrSeveral) && has("path") && !c.Flags().Changed("path"):
		return text + "; choose one with --path"
	case errors.Is(err, importer.ErrOptions) && has("size") && strings.HasSuffix(text, "state one"):
		return strings.TrimSuffix(text, "state one") + "give --size"
	case errors.As(err, &short) && has("memory"):
		return text + "; give more --memory"
	case errors.Is(err, disk.ErrNeedsParking) && has("scratch"):
		return text + "; give --scratch DIR with that much room, or more --memory"
	}
	return text
}

// oneLine keeps a message on its line and to what can be seen, whatever an image or a
// server has put into it.
func oneLine(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '\n' || r == '\r' || r == '\t':
			b.WriteByte(' ')
		case unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return b.String()
}
