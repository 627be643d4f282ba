// Package endian decodes and encodes the fixed-layout records of disk image formats
// in a stated byte order, with every read checked against the bytes at hand.
//
// A [Decoder] walks one record field by field, in the order of the specification:
//
//	d := endian.Big(head, 0)
//	magic := d.U32("magic")
//	version := d.U32("version")
//	if err := d.Err(); err != nil { // the first short read, with its absolute offset
//		return err
//	}
//
// The first error sticks: later reads return zero and [Decoder.Err] reports where the
// record ended too early. The byte order of the host is never used, so that a record
// decodes alike on amd64, arm64 and s390x.
//
// [Add], [Mul] and [Table] are the checked arithmetic that offsets and counts taken
// from a file go through before anything is sized or sought by them.
package endian
