// Package importer turns an image reference and an architecture into a verified disk: it
// resolves the manifest, streams the layers that hold the disk, checks their digests, decodes
// the disk image and commits it to its target, or leaves the target as it was.
//
//	src := registry.New(registry.Options{})
//	dst, err := target.CreateFile("disk.img", target.FileOptions{})
//	defer dst.Close()
//	res, err := importer.Import(ctx, src, "quay.io/containerdisks/fedora:41", dst, importer.Options{Arch: arch.S390X})
//
// [Probe] looks at the first bytes only, [Resolve] at the manifests only, [ImportReader]
// takes a disk from a stream or a file instead of an image.
//
// The architecture is never guessed and never the host's. Nothing is committed before every
// byte that was used has been verified; no file is written but the target; no name found
// inside a disk image is opened. Memory is bounded by one budget whatever the image's size.
// Input is hostile: any bytes may give an error, none may panic, loop, or pass the limits.
package importer
