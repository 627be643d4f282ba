package archive

import (
	"bytes"
	"strconv"
	"strings"
)

// IsTar says whether head is the start of a tar archive: a header block with a right
// checksum, or the zero block that ends an empty one.
// Spec: POSIX.1-2017 pax, ustar Interchange Format.
func IsTar(head []byte) bool {
	const block, sumOff, sumLen = 512, 148, 8
	if len(head) < block {
		return len(head) == 0
	}
	head = head[:block]
	if isZero(head) {
		return true
	}
	field, _, _ := strings.Cut(strings.Trim(string(head[sumOff:sumOff+sumLen]), " \x00"), "\x00")
	stated, err := strconv.ParseUint(field, 8, 32)
	if err != nil {
		return false
	}
	var unsigned, signed int64 // old writers summed signed bytes
	for i, b := range head {
		if i >= sumOff && i < sumOff+sumLen {
			b = ' '
		}
		unsigned += int64(b)
		signed += int64(int8(b))
	}
	return int64(stated) == unsigned || int64(stated) == signed
}

// IsDisk says whether head is the start of a disk that stands in a layer by itself: a
// magic of an image format, a partition table, a boot sector or an ISO 9660 volume.
func IsDisk(head []byte) bool {
	at := func(off int, magic string) bool {
		return len(head) >= off+len(magic) && string(head[off:off+len(magic)]) == magic
	}
	for _, magic := range []string{"QFI\xfb", "KDMV", "COWD", "vhdxfile", "conectix", "zIPL"} {
		if at(0, magic) {
			return true
		}
	}
	return at(0x40, "\x7f\x10\xda\xbe") || at(510, "\x55\xaa") || at(512, "EFI PART") || at(4096, "EFI PART") || at(0x8001, "CD001")
}

func isZero(p []byte) bool {
	return len(p) == 0 || p[0] == 0 && bytes.Equal(p[1:], p[:len(p)-1])
}
