// Command archdisk imports, converts and examines disk images of virtual machines.
//
// It needs no other program, no temporary directory and no configuration.
package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process, whatever it waits for
	debug.SetMemoryLimit(softMemoryLimit)
	a := &app{in: os.Stdin, out: os.Stdout, err: os.Stderr}
	os.Exit(a.run(ctx, os.Args[1:]))
}

// softMemoryLimit makes the garbage collector work harder well before 96 MiB.
const softMemoryLimit = 80 << 20

// app is the command with its three streams.
type app struct {
	in       io.Reader
	out, err io.Writer
}

// run executes a command line and returns the exit code.
func (a *app) run(ctx context.Context, args []string) int {
	root := a.root()
	root.SetArgs(args)
	root.SetIn(interruptible(ctx, a.in))
	root.SetOut(a.out)
	root.SetErr(a.err)
	if c, err := root.ExecuteContextC(ctx); err != nil {
		return a.fail(c, args, err)
	}
	return exitDone
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "archdisk",
		Short:         "Turn a registry reference and an architecture into a verified disk",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage("%v", err) })
	root.AddCommand(a.platforms(), a.importCommand(), a.probe(), a.convert(), a.check(), a.demo())
	root.AddCommand(a.later()...)
	for _, c := range root.Commands() {
		if check := c.Args; check != nil {
			c.Args = func(c *cobra.Command, args []string) error {
				err := check(c, args)
				if err == nil && slices.Contains(args, "") {
					err = errors.New("an argument is empty")
				}
				if err != nil {
					return usage("%s: %v; try archdisk %s --help", c.Name(), err, c.Name())
				}
				return nil
			}
		}
	}
	root.Args = func(_ *cobra.Command, args []string) error {
		if len(args) > 0 {
			return usage("unknown command %q; try archdisk --help", args[0])
		}
		return nil
	}
	return root
}

// later are the commands that are not there yet: they parse, and say so.
func (a *app) later() []*cobra.Command {
	missing := func(use, short string, flags func(*cobra.Command)) *cobra.Command {
		c := &cobra.Command{Use: use, Short: short + " (not available yet)", RunE: func(c *cobra.Command, _ []string) error {
			return usage("%s is not available yet", c.Name())
		}}
		c.Flags().Bool("json", false, "print one JSON object")
		flags(c)
		return c
	}
	return []*cobra.Command{
		missing("inspect FILE", "Tell a disk's architecture and how it boots", func(*cobra.Command) {}),
		missing("map FILE", "Draw an image's allocation", func(c *cobra.Command) {
			c.Flags().String("svg", "", "write the drawing to `F`")
		}),
		missing("plan REF", "Plan the boot sources of a cluster", func(c *cobra.Command) {
			c.Flags().String("name", "", "name of the boot source")
			c.Flags().String("declared", "", "declared architectures")
			c.Flags().String("nodes", "", "architectures of the workload nodes")
			c.Flags().String("control-plane", "", "architecture of the control plane")
			c.Flags().Bool("strict", false, "findings are errors")
			c.Flags().Bool("yaml", false, "print manifests")
		}),
	}
}
