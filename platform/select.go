package platform

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/archdisk/archdisk/arch"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// SelectOptions says what is wanted. The zero value asks for the sole architecture
// that the image offers.
type SelectOptions struct {
	Want Want
	// Strict refuses what is otherwise chosen with a note: an entry whose config
	// states another platform, and a variant above the wanted one.
	Strict bool
	// PreferGzip takes the gzip one of two images that differ in compression
	// alone, instead of the zstd one, which is faster to unpack.
	PreferGzip bool
	Limits     Limits
}

// Selection is the one image manifest that was chosen.
type Selection struct {
	Descriptor ocispec.Descriptor // of the manifest, media type, digest and size filled in
	Manifest   ocispec.Manifest
	Raw        []byte           // the manifest's bytes, as the digest names them
	Platform   ocispec.Platform // normalised; empty fields are stated nowhere
	// Config is the image config; nil if the config is something else, such as
	// KubeVirt's virtualmachine.config or the OCI empty config.
	Config *ocispec.Image
	// Notes say, a sentence each, what a careful user would want to know of the
	// choice. Strings of the image in them are quoted and cut.
	Notes []string
}

// Select chooses the image manifest for a platform. root describes the index or
// manifest raw; its media type, digest and size may be empty if they are not known, and
// are checked if they are. The choice follows the table in the package documentation; it
// depends on the documents and opts alone, and on the order of index entries only where
// a note says so.
//
// Errors: [*NoMatchError] and [*MismatchError] (both [ErrNoMatch]), [*DocumentError],
// [*LimitError], [*DigestError], and what fetch and ctx report.
func Select(ctx context.Context, root ocispec.Descriptor, raw []byte, fetch Fetch, opts SelectOptions) (*Selection, error) {
	want, err := opts.Want.normalized()
	if err != nil {
		return nil, err
	}
	w, err := open(ctx, root, raw, fetch, opts.Limits)
	if err != nil {
		return nil, err
	}
	s := selector{walk: w, opts: opts, want: want}
	if err := s.checkSingle(); err != nil {
		return nil, err
	}
	l, err := s.choose(ctx)
	if err != nil {
		return nil, err
	}
	sel := &Selection{Descriptor: l.descriptor, Platform: l.platform, Notes: s.notes}
	if sel.Manifest, sel.Config, sel.Raw, err = w.decode(ctx, l); err != nil {
		return nil, err
	}
	return sel, nil
}

// selector is one choice in progress.
type selector struct {
	walk  *walk
	opts  SelectOptions
	want  Want // normalised
	notes []string
}

// checkSingle holds the config of an image that is no index against what was asked:
// there is no index to say better. It fills in the wanted operating system.
func (s *selector) checkSingle() error {
	asked := s.want
	if s.want.OS == "" {
		s.want.OS = defaultOS
	}
	if !s.walk.single {
		return nil
	}
	l := s.walk.leaves[0]
	have := l.platform
	if asked == (Want{}) && have.OS != "" {
		if have.OS != s.want.OS {
			s.note("the image is for %s", Format(have))
		}
		s.want.OS = have.OS
	}
	otherArch := asked.Arch != arch.Unknown && have.Architecture != asked.Arch.String()
	otherOS := have.OS != "" && have.OS != s.want.OS
	if l.source == SourceConfig && (otherArch || otherOS) {
		return &MismatchError{Want: s.want, Config: have, Digest: l.descriptor.Digest}
	}
	return nil
}

// choose reads the best entries until the best ones are images.
func (s *selector) choose(ctx context.Context) (*leaf, error) {
	for {
		leaves, err := s.eligible()
		if err != nil {
			return nil, err
		}
		group, fit := best(leaves, s.want.Variant)
		if fit == fitOther {
			if err := s.checkOther(leaves); err != nil {
				return nil, err
			}
		}
		for _, l := range group {
			if err := s.walk.read(ctx, l); err != nil {
				return nil, err
			}
		}
		if s.walk.dropArtifacts() {
			continue // an SBOM that claims a platform must not hide a disk
		}
		l, twins := winner(group, s.opts.PreferGzip)
		if err := s.describe(l, group, fit, twins); err != nil {
			return nil, err
		}
		return l, nil
	}
}

// eligible returns the leaves of the wanted operating system and the one wanted or sole
// architecture. Never another one: a disk of a foreign architecture fails without a word
// at boot, so i386 is no substitute for amd64 here, nor arm for arm64.
func (s *selector) eligible() ([]*leaf, error) {
	byArch := make(map[string][]*leaf)
	for _, l := range s.walk.leaves {
		if l.platform.OS == s.want.OS || l.platform.OS == "" {
			byArch[l.platform.Architecture] = append(byArch[l.platform.Architecture], l)
		}
	}
	silent := byArch[""]
	if s.walk.single && len(silent) > 0 {
		return silent, nil
	}
	if s.want.Arch != arch.Unknown {
		if leaves := byArch[s.want.Arch.String()]; len(leaves) > 0 {
			return leaves, nil
		}
		return nil, s.noMatch("")
	}

	delete(byArch, "")
	if len(byArch) == 0 {
		// Nothing states an architecture: one such image is the sole one, of two
		// nobody knows whether they are alike.
		for _, l := range silent {
			if l.descriptor.Digest != silent[0].descriptor.Digest {
				return nil, s.noMatch("")
			}
		}
		if len(silent) > 0 {
			return silent, nil
		}
	}
	if len(byArch) == 1 {
		for _, sole := range byArch {
			return sole, nil
		}
	}
	return nil, s.noMatch("")
}

// checkOther allows a variant that is not known to run where the wanted one does, if it
// is the only one of its architecture.
func (s *selector) checkOther(leaves []*leaf) error {
	for _, l := range leaves {
		if l.platform.Variant != leaves[0].platform.Variant {
			return s.noMatch("several variants, none of them the wanted one or below it; ask for one of them")
		}
	}
	if s.opts.Strict {
		return s.noMatch("the only variant is not the wanted one or below it")
	}
	return nil
}

// describe writes the notes about a choice; with Strict, a disagreement is an error.
func (s *selector) describe(l *leaf, group []*leaf, fit fit, twins int) error {
	have, config := Format(l.platform), Format(l.image.platform)
	agreement := agreementOf(l)
	if agreement == disagrees && s.opts.Strict {
		return &MismatchError{Want: s.want, Descriptor: l.platform, Config: l.image.platform, Digest: l.descriptor.Digest}
	}
	switch {
	case l.platform.Architecture == "":
		s.note("the image states no architecture; it was taken as it is")
	case agreement == disagrees:
		s.note("the index says %s, the config of the image says %s; the index decides", have, config)
	case l.platform.OS == "":
		s.note("the image states no operating system; it was taken as one for %s", s.want.OS)
	}
	if agreement != disagrees {
		others := slices.DeleteFunc(slices.Clone(group), func(l *leaf) bool { return agreementOf(l) != disagrees })
		if len(others) > 0 {
			s.note("%d more of the entries for %s passed over: their configs state another platform", len(others), have)
		}
	}
	if silent := s.silent(); silent > 0 && l.platform.Architecture != "" {
		s.note("%d of the entries left out: nothing states their architecture", silent)
	}
	switch {
	case fit != fitExact && s.want.Variant != "":
		s.note("variant %s wanted, the closest is %s", word(s.want.Variant), have)
	case fit == fitOther:
		s.note("%s is the only variant of its architecture and may need more than the baseline", have)
	case fit == fitLower:
		s.note("%s is below the baseline of its architecture", have)
	}
	if len(l.platform.OSFeatures) > 0 {
		s.note("the image asks for os.features %s", quote(strings.Join(l.platform.OSFeatures, ",")))
	}
	if twins > 0 {
		s.note("%d more of the entries for %s differ in nothing that decides; the first was taken", twins, have)
	}
	return nil
}

// silent counts the leaves whose architecture is stated nowhere.
func (s *selector) silent() int {
	n := 0
	for _, l := range s.walk.leaves {
		if l.platform.Architecture == "" {
			n++
		}
	}
	return n
}

func (s *selector) note(format string, args ...any) {
	s.notes = append(s.notes, fmt.Sprintf(format, args...))
}

// noMatch lists all leaves: what is of another operating system is worth knowing, too.
func (s *selector) noMatch(reason string) error {
	e := &NoMatchError{Want: s.want, Reason: reason}
	seen := make(map[string]bool)
	offered := 0
	for _, l := range s.walk.leaves {
		if l.platform.OS == s.want.OS || l.platform.OS == "" {
			offered++
		}
		if k := Format(l.platform); !seen[k] {
			seen[k] = true
			p := l.platform
			e.Have = append(e.Have, ocispec.Platform{OS: p.OS, Architecture: p.Architecture, Variant: p.Variant})
		}
	}
	slices.SortFunc(e.Have, func(a, b ocispec.Platform) int { return strings.Compare(Format(a), Format(b)) })
	e.Ambiguous = s.want.Arch == arch.Unknown && offered > 0 && reason == ""
	return e
}
