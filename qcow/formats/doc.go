// Package formats is the one table of disk image formats: what the first bytes of a file
// are, how it is laid out for [disk.Convert], and how it is read at any offset.
//
//	info, err := formats.Probe(head, disk.Limits{})  // nothing is written before this says yes
//	layout, err := formats.NewLayout(head, disk.Limits{})
//
// To add a format, write its package beside qcow/disk and give it a row in table.go.
//
// A format that is known and not read is refused by its name, never taken for raw.
package formats
