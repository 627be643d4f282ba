// Package qcow reads QCOW2 disk images, versions 2 and 3: the header, the two levels of
// tables, clusters that are plain, zero, or compressed by zlib or zstd.
//
//	img, err := qcow.Open(file, size, qcow.OpenOptions{}) // the guest's disk as an io.ReaderAt
//	defer img.Close()
//	n, err := img.ReadAt(buf, 1<<20)
//
//	layout, err := qcow.NewLayout(head, disk.Limits{})    // the same image for disk.Convert
//
// Spec: docs/interop/qcow2.rst of the QEMU project.
//
// Refused, each with its [disk.Reason]: backing files and external data files (names inside
// an image are never opened), encryption, extended L2 entries, the corrupt bit, incompatible
// features nobody has defined. Internal snapshots and bitmaps are passed over: the active
// state is read.
//
// Input is hostile: where qemu-img would read zeros past the end of a cut file, this package
// returns [disk.ErrTruncated]; tables and clusters that overlap are [disk.ErrCorrupt]. Any
// bytes may give an error, none may panic, loop, or use more memory than [disk.Limits] allow.
package qcow
