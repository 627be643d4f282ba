package qcow

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/archdisk/archdisk/endian"
	"github.com/archdisk/archdisk/qcow/disk"
)

// Extension is a header extension. Spec: qcow2, Header extensions.
type Extension struct {
	Type uint32
	Data disk.Range // its bytes in the file, padding not counted
}

// The types of header extensions that are known.
const (
	extensionEnd           = 0
	extensionBackingFormat = 0xe2792aca
	extensionFeatures      = 0x6803f857
	extensionBitmaps       = 0x23852875
	extensionCrypto        = 0x0537be77
	extensionDataFile      = 0x44415441
)

// String names the extension, an unknown one by its number.
func (e Extension) String() string {
	switch e.Type {
	case extensionBackingFormat:
		return "backing file format"
	case extensionFeatures:
		return "feature names"
	case extensionBitmaps:
		return "bitmaps"
	case extensionCrypto:
		return "full disk encryption"
	case extensionDataFile:
		return "external data file"
	}
	return fmt.Sprintf("unknown extension %#08x", e.Type)
}

// eachExtension calls f for each extension of the header area, as far as p, the first bytes
// of the file, has it; data is nil if it has not all of that. Spec: qcow2, Header extensions.
func (h *Header) eachExtension(p []byte, f func(e Extension, data []byte) error) error {
	end := h.ClusterSize()
	if h.BackingFileOffset != 0 {
		end = h.BackingFileOffset
	}
	for off := int64(h.HeaderLength); off+8 <= min(end, int64(len(p))); {
		d := endian.Big(p[off:], off)
		kind, n := d.U32("type"), int64(d.U32("length"))
		e := Extension{kind, disk.Range{Off: off + 8, Len: n}}
		if n > end-e.Data.Off { // of the one that says end, too, as in QEMU
			return fault(disk.BadHeader, "header extension", off, uint64(kind), "its %d bytes of data would end behind the header area, at %#x", n, end)
		}
		if kind == extensionEnd {
			return nil
		}
		var data []byte
		if e.Data.End() <= int64(len(p)) {
			data = p[e.Data.Off:e.Data.End()]
		}
		if err := f(e, data); err != nil {
			return err
		}
		off = e.Data.Off + (n+7)&^7
	}
	return nil
}

// readExtensions notes the extensions and takes over what they say. It returns the names of
// incompatible bits.
func (h *Header) readExtensions(p []byte) (names map[uint8]string, err error) {
	return names, h.eachExtension(p, func(e Extension, data []byte) error {
		h.Extensions = append(h.Extensions, e)
		switch e.Type {
		case extensionBackingFormat:
			h.BackingFormat = string(data)
			return e.checkBackingFormat()
		case extensionCrypto:
			if h.CryptMethod != cryptLUKS { // QEMU's rule
				return fault(disk.BadHeader, e.String(), e.Data.Off-8, extensionCrypto, "encryption method %d has none", h.CryptMethod)
			}
		case extensionBitmaps:
			_, err := h.checkBitmaps(e, data)
			return err
		case extensionDataFile:
			h.DataFile = string(data)
		case extensionFeatures:
			names = featureNames(data)
		}
		return nil
	})
}

func (e Extension) checkBackingFormat() error {
	if e.Data.Len >= 16 { // QEMU's limit
		return fault(disk.BadHeader, e.String(), e.Data.Off-8, extensionBackingFormat, "%d bytes long, at most 15 are allowed", e.Data.Len)
	}
	return nil
}

// featureNames reads the names of incompatible bits. Spec: qcow2, Feature name table.
func featureNames(table []byte) map[uint8]string {
	names := map[uint8]string{}
	for ; len(table) >= 48; table = table[48:] {
		if class, bit := table[0], table[1]; class == 0 {
			name, _, _ := bytes.Cut(table[2:48], []byte{0})
			names[bit] = string(name)
		}
	}
	return names
}

// unknownFeatures describes incompatible bits that nobody here knows, by the image's own
// names where it has them.
func unknownFeatures(names map[uint8]string, bits uint64) string {
	var list []string
	for bit := range uint8(64) {
		if bits>>bit&1 == 0 {
			continue
		}
		s := fmt.Sprintf("bit %d", bit)
		if name, ok := names[bit]; ok {
			s += fmt.Sprintf(" %q", name)
		}
		list = append(list, s)
	}
	return "features nobody here knows: " + strings.Join(list, ", ")
}
