// Package qcow reads and writes QCOW2 disk images. It reads versions 2 and 3: the header, the
// two levels of tables, clusters that are plain, zero, or compressed by zlib or zstd.
//
//	img, err := qcow.Open(file, size, qcow.OpenOptions{}) // the guest's disk as an io.ReaderAt
//	defer img.Close()
//	n, err := img.ReadAt(buf, 1<<20)
//
//	layout, err := qcow.NewLayout(head, disk.Limits{})    // the same image for disk.Convert
//
// It writes version 3, plain or compressed, the same bytes for the same disk:
//
//	w, err := qcow.Create(file, size, qcow.CreateOptions{Compression: disk.Zstd})
//	_, err = disk.Convert(ctx, w, layout, source, disk.ConvertOptions{})
//	err = w.Finish(ctx) // the header comes last
//
//	stats, err := qcow.EncodeAt(ctx, file, img, qcow.CreateOptions{}) // a disk read at any offset
//	stats, err = qcow.Encode(ctx, pipe, img, qcow.CreateOptions{})    // the same to a stream
//
//	result, err := qcow.Check(ctx, file, size, qcow.CheckOptions{})
//	ok := err == nil && result.Verdict() == qcow.Clean
//
// Spec: docs/interop/qcow2.rst of the QEMU project.
//
// [Check] is the equivalent of qemu-img check: refcounts rebuilt and compared, with the same
// verdict and the same counts, and each finding with its place. It repairs nothing, and takes
// images that are refused otherwise. It differs where qemu-img gives up: an image that wants a
// key or another file is checked without, a part that cannot be checked does not keep the rest
// from being counted, and what would take too long or too much memory is [disk.ErrLimit].
//
// Read are all cluster sizes, refcount widths and header lengths, extended L2 entries with their
// subclusters, the dirty bit (as a note), and with [OpenOptions.Files] backing files and external
// data files: names inside an image are never opened by this package itself. Internal snapshots
// and persistent bitmaps are listed by [Check]; the active state is read.
//
// Refused, each with its [disk.Reason]: encryption, incompatible features nobody has defined,
// and unless [disk.Limits] say Lenient the corrupt bit and clusters that are used twice.
//
// Input is hostile: where qemu-img would read zeros past the end of a cut file, this package
// returns [disk.ErrTruncated]; tables and clusters that overlap are [disk.ErrCorrupt]. Any
// bytes may give an error, none may panic, loop, or use more memory than [disk.Limits] or a
// [disk.Budget] allow.
package qcow
