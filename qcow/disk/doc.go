// Package disk holds what disk image formats share: the vocabulary of extents, the
// [Layout] that a format gives of one image file, and [Convert], which walks that file
// once from front to back and writes the guest's disk.
//
//	head := ...                                     // the first bytes of src
//	layout, err := formats.NewLayout(head, disk.Limits{})
//	stats, err := disk.Convert(ctx, dst, layout, disk.Stream(src), disk.ConvertOptions{})
//
// A disk image file is pieces: bytes of the file that belong at some place of the
// guest's disk, known once the right metadata has been read. Convert takes the pieces in
// the order of the file, so that a stream needs no seeking: metadata is handed to the
// Layout as it passes, data whose place is known goes to a worker, data whose place is not
// known yet is parked in memory up to a budget, and what is known to be useless is dropped.
// A file that can be read at any offset takes the same path, with nothing parked.
//
// Not here: any format but raw; see the sibling packages. Names found inside an image
// (a backing file, a data file) are never opened.
//
// Input is hostile until proven otherwise: any bytes may give an error, none may panic,
// loop, or use more memory than the budget.
package disk
