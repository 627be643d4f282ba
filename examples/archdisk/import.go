package main

import (
	"github.com/archdisk/archdisk/importer"
	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"
)

func (a *app) importCommand() *cobra.Command {
	var (
		source                         sourceFlags
		to                             diskFlags
		out                            outputFlags
		arch, path                     string
		policy, file                   string
		expectSHA256, expectFileDigest string
		chunks                         int

		preallocate = oneOf("off", "falloc", "full")
		guestCheck  = oneOf("on", "strict", "warn", "off")
	)
	c := &cobra.Command{
		Use:   "import REF DEST --arch A",
		Short: "Import the disk of a container image",
		Long: `Import the disk that the image REF holds for one architecture to the file DEST.

REF is docker://host/repo:tag or host/repo:tag. The layer's digest, the image's
format and every reference inside it are checked before DEST appears; until then
an existing DEST stays as it is.`,
		Args: cobra.RangeArgs(1, 2),
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		if file != "" {
			return usage("-f is not available yet")
		}
		if len(args) != 2 {
			return usage("import: REF and DEST are needed; try archdisk import --help")
		}
		err := notYet(c, map[string]string{"preallocate": "off", "policy": "",
			"guest-check": "off", "chunks": "1"})
		if err != nil {
			return err
		}
		ref, dest := args[0], args[1]
		want, err := parseArch(arch)
		if err != nil {
			return err
		}
		o := importer.Options{Arch: want.Arch, Variant: want.Variant, OS: want.OS, Path: path,
			ExpectSHA256: expectSHA256, ExpectFileDigest: digest.Digest(expectFileDigest)}
		src, err := source.open(c, ref)
		if err != nil {
			return err
		}
		defer src.Close()
		return to.write(c, out, dest, o, func(dst importer.Target, o importer.Options) (*importer.Result, error) {
			res, err := importer.Import(c.Context(), src, ref, dst, o)
			if guestCheck.value != "off" {
				res.Notes = append(res.Notes, "the disk's own architecture was not looked at: not available yet")
			}
			return res, err
		})
	}
	source.add(c)
	to.add(c)
	out.add(c)
	f := c.Flags()
	f.StringVar(&arch, "arch", "", "architecture `A` of the guest, perhaps with its variant: amd64, arm64, s390x, arm64/v9; without it the only one offered")
	f.StringVar(&path, "path", "", "path `P` of the disk inside the image; without it the only file in /disk")
	f.Var(&preallocate, "preallocate", "`off`, falloc or full")
	f.StringVar(&policy, "policy", "", "signature policy in `F`")
	f.Var(&guestCheck, "guest-check", "`on`, strict, warn or off: look inside the finished disk for its architecture")
	f.StringVar(&expectSHA256, "expect-sha256", "", "SHA-256 in `HEX` that the decoded disk must have")
	f.StringVar(&expectFileDigest, "expect-file-digest", "", "digest `ALG:HEX` that the image file in the layer must have")
	f.IntVar(&chunks, "chunks", 1, "connections that fetch a layer side by side")
	f.StringVarP(&file, "file", "f", "", "DataVolume manifest in `F` instead of REF")
	return c
}
