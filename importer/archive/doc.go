// Package archive unwraps what stands around a disk in a stream: compression, recognised
// by its magic and never by a media type, and the tar layers of a container image, seen as the
// one merged tree that they are for the image's users.
//
//	s, err := archive.Decompress(r, budget)  // gzip, zstd, xz or none
//	defer s.Close()
//	f := archive.NewFinder(archive.Search{Want: "disk"})
//	found, err := f.Entry(header)            // of each layer, the top one first
//
// Nothing here is written anywhere: paths of entries are compared, never opened. Input is
// hostile: any bytes may give an error, none may panic, loop, or take more memory than the
// budget allows.
package archive
