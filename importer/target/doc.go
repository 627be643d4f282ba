// Package target holds the places that a disk is written to. System calls live here and
// nowhere else in the library.
//
//	dst, err := target.CreateFile("/data/disk.img", target.FileOptions{})
//	defer dst.Close()
//
// A [File] is written beside its destination and renamed over it, so that at any moment,
// a power failure included, the destination is the old content or the whole new disk.
//
// Not here yet: block devices.
package target
