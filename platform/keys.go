package platform

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// encoding/json takes "Manifests" for "manifests" and, of two equal members, the last.
// Another reader, such as the one that checked a signature policy, may see the other
// one. Such documents have no single meaning and are refused before they are decoded.

// members are the names that decide anything in a kind of document.
type members struct {
	names []string
	// open reports whether the value of a member is a map with free keys, in which
	// Os and os may be two things.
	open func(member string) bool
}

// documentMembers are those of an index, a manifest, their descriptors and platforms.
func documentMembers() members {
	return members{
		names: []string{
			"schemaVersion", "mediaType", "artifactType", "manifests", "config", "layers", "fsLayers", "annotations",
			"digest", "size", "platform", "architecture", "os", "os.version", "os.features", "variant",
		},
		open: func(member string) bool { return member == "annotations" },
	}
}

// configMembers are those of an image config, where everything below the top belongs to
// the container runtime.
func configMembers() members {
	return members{
		names: []string{"architecture", "os", "os.version", "os.features", "variant"},
		open:  func(string) bool { return true },
	}
}

// maxComposites is how many objects and arrays one document may hold: room for an index
// of some thousand entries. Without it, 4 MiB of empty layers would decode into forty
// times as much memory.
const maxComposites = 1 << 15

// checkMembers refuses a JSON text that is not one object, repeats a member in any
// object, has a member that differs from one of m's names in case only, or is past
// maxComposites (an [ErrLimit]).
func checkMembers(raw []byte, m members) error {
	if trimmed := bytes.TrimLeft(raw, " \t\r\n"); len(trimmed) == 0 || trimmed[0] != '{' {
		return errors.New("not a JSON object")
	}
	// Unmarshal finds syntax errors and bounds the nesting, which Decoder.Token does
	// not: value recurses no deeper than encoding/json itself.
	var whole json.RawMessage
	if err := json.Unmarshal(raw, &whole); err != nil {
		return err
	}
	c := memberCheck{dec: json.NewDecoder(bytes.NewReader(raw))}
	return c.value(m)
}

// memberCheck is one reading of a document.
type memberCheck struct {
	dec        *json.Decoder
	composites int
}

func (c *memberCheck) value(m members) error {
	token, err := c.dec.Token()
	if err != nil {
		return err
	}
	if _, composite := token.(json.Delim); !composite {
		return nil
	}
	if c.composites++; c.composites > maxComposites {
		return ErrLimit
	}
	seen := make(map[string]bool)
	for c.dec.More() {
		below := m
		if token == json.Delim('{') {
			name, err := c.dec.Token()
			if err != nil {
				return err
			}
			member, _ := name.(string) // what stands here in valid JSON
			if seen[member] {
				return fmt.Errorf("member %s appears twice", quote(member))
			}
			seen[member] = true
			for _, known := range m.names {
				if member != known && strings.EqualFold(member, known) {
					return fmt.Errorf("member %s differs from %q in case only", quote(member), known)
				}
			}
			if len(m.names) > 0 && m.open(member) {
				below = members{}
			}
		}
		if err := c.value(below); err != nil {
			return err
		}
	}
	_, err = c.dec.Token()
	return err
}
