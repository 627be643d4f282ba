// Package testdata holds small disk images made by other projects' tools, for tests and for the demo.
//
//	for _, f := range testdata.Fixtures() {
//		file := testdata.Read(f.File)
//		// open file as f.Format and compare its content with f.SHA256
//	}
//
// README.md has the tables, and build.sh the commands. Slices are the caller's own.
package testdata

import (
	"bytes"
	"compress/gzip"
	"embed"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
)

// FS holds the fixtures as they are stored and manifest.json. QCOW2 files that are mostly zeros are
// in it with .gz added to their name: [Read] knows that, and FS does not.
//
//go:embed manifest.json guest/*.qcow2* qcow2 raw
var FS embed.FS

// Fixture is a disk image and what must be read from it.
type Fixture struct {
	File        string `json:"file"`         // name for Read: folder/producer-feature.extension
	Format      string `json:"format"`       // "qcow2" or "raw"
	Compression string `json:"compression"`  // around the whole file: "", "gzip", "xz" or "zstd"
	VirtualSize int64  `json:"virtual_size"` // of the disk, a multiple of 512
	SHA256      string `json:"sha256"`       // of the disk's content, VirtualSize bytes, in hex; "" if Refused
	Refused     string `json:"refused"`      // reason why the disk must not be read: "" for none
	Command     string `json:"command"`      // that made the file
}

// The reasons of [Fixture.Refused].
const (
	BackingFile                = "backing-file"
	ExternalDataFile           = "external-data-file"
	Encrypted                  = "encrypted"
	CorruptBit                 = "corrupt-bit"
	UnknownIncompatibleFeature = "unknown-incompatible-feature"
)

// Fixtures lists every fixture. It panics if the embedded manifest.json is broken, and only then.
func Fixtures() []Fixture {
	p, err := FS.ReadFile("manifest.json")
	if err != nil {
		panic("testdata: " + err.Error())
	}
	var all []Fixture
	if err := json.Unmarshal(p, &all); err != nil {
		panic("testdata: manifest.json: " + err.Error())
	}
	return all
}

// Read returns the bytes of a fixture, which [Fixture.File] names. What is stored packed is unpacked;
// a disk image whose fixture is its compression is returned compressed. It panics for a name that is
// not a fixture's: names are constants of tests.
func Read(name string) []byte {
	p, err := FS.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		if p, err = FS.ReadFile(name + ".gz"); err == nil {
			p, err = gunzip(p)
		}
	}
	if err != nil {
		panic("testdata: " + err.Error())
	}
	return p
}

func gunzip(p []byte) ([]byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(p))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(z)
}
