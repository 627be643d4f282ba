package importer_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/archdisk/archdisk/arch"
	"github.com/archdisk/archdisk/importer"
	"github.com/archdisk/archdisk/importer/target"
	"github.com/archdisk/archdisk/internal/golden"
	"github.com/archdisk/archdisk/platform"
)

// The source here is an image in memory; registry.New gives one over the network.
func ExampleImport() {
	dir, err := os.MkdirTemp("", "archdisk")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	dst, err := target.CreateFile(filepath.Join(dir, "disk.img"), target.FileOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer dst.Close()

	src := golden.NewSource(golden.OCI())
	const ref = "registry.example/disks/vm:1"
	res, err := importer.Import(context.Background(), src, ref, dst, importer.Options{Arch: arch.S390X})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(res.Platform.Architecture, res.Entry, res.Format, res.Size)

	_, err = importer.Import(context.Background(), src, ref, dst, importer.Options{Arch: arch.RISCV64})
	var none *platform.NoMatchError
	if errors.As(err, &none) {
		fmt.Println(importer.ClassOf(err), none)
	}
	// Output:
	// s390x disk/disk.img qcow2 4194304
	// permanent platform: no match: linux/riscv64 asked; the image offers linux/amd64, linux/arm64, linux/s390x
}

func ExampleProbe() {
	src := golden.NewSource(golden.Docker())
	res, err := importer.Probe(context.Background(), src, "registry.example/disks/vm:1", importer.ProbeOptions{Arch: arch.ARM64})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(res.Format, res.VirtualSize)
	// Output: qcow2 6291456
}
