// Package golden builds containerdisk images in memory: the golden one, with a disk for each of three
// architectures, and whatever crooked one a test needs.
//
//	src := golden.NewSource(golden.Docker()) // Resolve, Manifest, Blob; with faults and a request log
//
//	b := golden.NewBuilder()
//	layer := b.Layer(golden.LayerOptions{Compression: golden.Zstd},
//		golden.Entry{Name: "disk/disk.img", Body: golden.Disks()[0].File})
//	amd64 := b.Image(golden.ImageOptions{Arch: "amd64"}, layer)
//	image := b.Build(b.Index(golden.IndexOptions{}, amd64))
//	err := image.WriteLayout(dir, "latest") // or image.Push to a registry
//
// Times, owners and compressor settings are fixed, so the same calls give the same digests on every
// machine. What cannot be built is a mistake in a test, and panics.
//
// Image and Source are safe for concurrent use, Builder is not.
package golden
