package main

import (
	"encoding/json"
	"fmt"
	"text/tabwriter"

	"github.com/archdisk/archdisk/importer"
	"github.com/archdisk/archdisk/platform"
	"github.com/spf13/cobra"
)

func (a *app) platforms() *cobra.Command {
	var (
		source sourceFlags
		asJSON bool
	)
	c := &cobra.Command{
		Use:   "platforms REF",
		Short: "List the architectures that an image offers",
		Args:  cobra.ExactArgs(1),
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		src, err := source.open(c, args[0])
		if err != nil {
			return err
		}
		defer src.Close()
		index, list, err := importer.Platforms(c.Context(), src, args[0])
		if err != nil {
			return err
		}
		if asJSON {
			return json.NewEncoder(c.OutOrStdout()).Encode(platformList(args[0], index.String(), list))
		}
		w := tabwriter.NewWriter(c.OutOrStdout(), 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "PLATFORM\tSTATED BY\tMANIFEST")
		for _, p := range list {
			fmt.Fprintf(w, "%s\t%s\t%s\n", platform.Format(p.Platform), p.Source, p.Descriptor.Digest)
		}
		return w.Flush()
	}
	source.add(c)
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return c
}

type platformRow struct {
	Platform       importer.Platform `json:"platform"`
	ManifestDigest string            `json:"manifest_digest"`
	StatedBy       string            `json:"stated_by"`
}

func platformList(ref, index string, list []platform.Candidate) any {
	rows := []platformRow{}
	for _, p := range list {
		rows = append(rows, platformRow{
			Platform:       importer.Platform{OS: p.Platform.OS, Architecture: p.Platform.Architecture, Variant: p.Platform.Variant},
			ManifestDigest: p.Descriptor.Digest.String(),
			StatedBy:       p.Source.String(),
		})
	}
	return struct {
		Reference   string        `json:"reference"`
		IndexDigest string        `json:"index_digest"`
		Platforms   []platformRow `json:"platforms"`
	}{ref, index, rows}
}
