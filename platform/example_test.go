package platform_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/archdisk/archdisk/platform"
)

func ExampleSelect() {
	images := newRegistry() // stands for a registry: documents by digest
	root := images.index(
		entry{name: "x86 disk", on: "linux/amd64"},
		entry{name: "Arm disk", on: "linux/arm64/v8", config: "linux/amd64"},
	)

	want, err := platform.ParseWant("aarch64")
	if err != nil {
		fmt.Println(err)
		return
	}
	sel, err := platform.Select(context.Background(), root, images.blobs[root.Digest], images.fetch, platform.SelectOptions{Want: want})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(sel.Manifest.Annotations["name"], "for", platform.Format(sel.Platform))
	fmt.Println(sel.Notes[0])
	// Output:
	// Arm disk for linux/arm64
	// the index says linux/arm64, the config of the image says linux/amd64; the index decides
}

func ExampleNoMatchError() {
	images := newRegistry()
	root := images.index(entry{on: "linux/amd64"}, entry{on: "linux/arm64"})

	// No architecture asked, two offered: a choice that is the user's.
	_, err := platform.Select(context.Background(), root, images.blobs[root.Digest], images.fetch, platform.SelectOptions{})
	var none *platform.NoMatchError
	if errors.As(err, &none) && none.Ambiguous {
		for _, p := range none.Have {
			fmt.Println("--arch", p.Architecture)
		}
	}
	fmt.Println(err)
	// Output:
	// --arch amd64
	// --arch arm64
	// platform: no match: no architecture asked and several are offered: linux/amd64, linux/arm64
}

func ExampleList() {
	images := newRegistry()
	root := images.index(entry{on: "linux/x86_64"}, entry{on: "-", config: "linux/s390x"})

	list, err := platform.List(context.Background(), root, images.blobs[root.Digest], images.fetch)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, c := range list {
		fmt.Println(platform.Format(c.Platform), "by", c.Source)
	}
	// Output:
	// linux/amd64 by descriptor
	// linux/s390x by config
}

func ExampleParseWant() {
	for _, s := range []string{"x86_64", "arm64/v8", "linux/arm64/v9", ""} {
		want, err := platform.ParseWant(s)
		fmt.Println(want, err)
	}
	// Output:
	// linux/amd64 <nil>
	// linux/arm64 <nil>
	// linux/arm64/v9 <nil>
	// linux/* <nil>
}
