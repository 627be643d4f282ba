// Command import brings the disk of a container image to a file: import REF ARCH FILE.
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/archdisk/archdisk/arch"
	"github.com/archdisk/archdisk/importer"
	"github.com/archdisk/archdisk/importer/registry"
	"github.com/archdisk/archdisk/importer/target"
)

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: import REF ARCH FILE")
	}
	if err := run(context.Background(), os.Args[1], os.Args[2], os.Args[3]); err != nil {
		log.Fatalf("%v (%s)", err, importer.ClassOf(err))
	}
}

func run(ctx context.Context, ref, architecture, file string) error {
	want, err := arch.Parse(architecture)
	if err != nil {
		return err
	}
	src := registry.New(registry.Options{})
	defer src.Close()
	dst, err := target.CreateFile(file, target.FileOptions{})
	if err != nil {
		return err
	}
	defer dst.Close()
	res, err := importer.Import(ctx, src, ref, dst, importer.Options{Arch: want})
	if err != nil {
		return err
	}
	fmt.Printf("%s: %s of %s, %d bytes\n", file, res.Format, res.ManifestDigest, res.Size)
	return nil
}
