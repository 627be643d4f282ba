package golden

import (
	"crypto/sha256"
	"encoding/hex"

	"github.com/archdisk/archdisk/testdata"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Disk is a guest disk of the golden images.
type Disk struct {
	Arch        string // as in image-spec: "amd64", "arm64" or "s390x"
	Name        string // in package testdata
	File        []byte // the disk's file
	Format      string // of File: "qcow2"
	VirtualSize int64  // of the disk
	SHA256      string // of the disk's content, VirtualSize bytes, in hex
}

// Disks returns the three golden guest disks: amd64, which boots by UEFI, compressed with zlib;
// arm64, which boots by UEFI, not compressed; s390x, which boots by zIPL, compressed with zstd.
func Disks() []Disk {
	var disks []Disk
	for _, arch := range []string{"amd64", "arm64", "s390x"} {
		name := "guest/" + arch + ".qcow2"
		for _, f := range testdata.Fixtures() {
			if f.File == name {
				disks = append(disks, Disk{
					Arch:        arch,
					Name:        name,
					File:        testdata.Read(name),
					Format:      f.Format,
					VirtualSize: f.VirtualSize,
					SHA256:      f.SHA256,
				})
			}
		}
	}
	return disks
}

// OCI returns the golden containerdisk as an OCI index of three OCI images.
func OCI() *Image { return containerdisk(false) }

// Docker returns the golden containerdisk as KubeVirt publishes its own: a Docker manifest list of
// three schema 2 images. The layers have the same bytes as those of [OCI].
func Docker() *Image { return containerdisk(true) }

func containerdisk(docker bool) *Image {
	b := NewBuilder()
	var children []ocispec.Descriptor
	for _, d := range Disks() {
		layer := b.Layer(LayerOptions{Docker: docker, Compression: Gzip}, DiskEntries(d.File)...)
		sum := sha256.Sum256(d.File)
		children = append(children, b.Image(ImageOptions{
			Docker: docker,
			Arch:   d.Arch,
			Env: []string{
				"INSTANCETYPE_KUBEVIRT_IO_DEFAULT_INSTANCETYPE=u1.small",
				"INSTANCETYPE_KUBEVIRT_IO_DEFAULT_PREFERENCE=linux",
			},
			Labels: map[string]string{"shasum": hex.EncodeToString(sum[:])},
		}, layer))
	}
	return b.Build(b.Index(IndexOptions{Docker: docker}, children...))
}

// DiskEntries returns the entries of a containerdisk's layer: the directory disk and the file
// disk/disk.img.
func DiskEntries(file []byte) []Entry {
	return []Entry{
		{Name: "disk/", Type: '5', Mode: 0o555},
		{Name: "disk/disk.img", Mode: 0o444, Body: file},
	}
}
