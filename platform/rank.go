package platform

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/archdisk/archdisk/arch"
)

// fit says how a variant that is offered suits the one that is wanted.
type fit uint8

const (
	fitExact fit = iota
	fitLower     // runs wherever the wanted one does
	fitOther     // needs more, or cannot be compared: only if it is all there is
)

// level is a variant as a number pair, v8.2 = {8, 2}.
type level struct{ major, minor int }

// compare orders levels of one architecture.
func (l level) compare(m level) int {
	return cmp.Or(cmp.Compare(l.major, m.major), cmp.Compare(l.minor, m.minor))
}

// levelOf reads a normalised variant; ok is false if it has no place in an order.
func levelOf(a arch.Arch, variant string) (l level, ok bool) {
	if variant == "" {
		variant = a.Baseline()
	}
	if a.Baseline() == "" || len(variant) > len("v99.99") {
		return level{}, false
	}
	major, minor, dot := strings.Cut(strings.TrimPrefix(variant, "v"), ".")
	x, err := strconv.ParseUint(major, 10, 8)
	if err != nil {
		return level{}, false
	}
	y, err := strconv.ParseUint(minor, 10, 8)
	if dot && err != nil {
		return level{}, false
	}
	return level{int(x), int(y)}, true
}

// suits compares two normalised variants of one architecture.
func suits(a arch.Arch, want, have string) fit {
	if want == have {
		return fitExact
	}
	w, wantOrdered := levelOf(a, want)
	h, haveOrdered := levelOf(a, have)
	if !wantOrdered || !haveOrdered {
		if have == "" {
			return fitLower // the baseline runs everywhere
		}
		return fitOther
	}
	if a == arch.ARM64 && w.major == 9 && h.major == 8 {
		// Armv9.n is built on Armv8.(n+5) (Arm ARM, DDI 0487).
		w = level{8, w.minor + 5}
	}
	if h.compare(w) <= 0 {
		return fitLower
	}
	return fitOther
}

// rank is how well a leaf suits, before its config is read. Less is better.
type rank struct {
	fit        fit
	level      level // with fitLower the greatest is the closest
	noOS       int   // 1: no operating system is stated anywhere
	osFeatures int   // 1: it asks for features, which nobody here can promise
}

func (r rank) compare(s rank) int {
	return cmp.Or(
		cmp.Compare(r.fit, s.fit),
		s.level.compare(r.level),
		cmp.Compare(r.noOS, s.noOS),
		cmp.Compare(r.osFeatures, s.osFeatures),
	)
}

func rankOf(l *leaf, want string) rank {
	a, _ := arch.Parse(l.platform.Architecture) // Unknown: a word of its own, variants without order
	r := rank{fit: suits(a, want, l.platform.Variant)}
	if r.fit == fitLower {
		r.level, _ = levelOf(a, l.platform.Variant)
	}
	if l.platform.OS == "" {
		r.noOS = 1
	}
	if len(l.platform.OSFeatures) > 0 {
		r.osFeatures = 1
	}
	return r
}

// best returns the leaves of the least rank and their fit. All leaves are of one
// architecture.
func best(leaves []*leaf, want string) ([]*leaf, fit) {
	least := rankOf(leaves[0], want)
	for _, l := range leaves[1:] {
		if r := rankOf(l, want); r.compare(least) < 0 {
			least = r
		}
	}
	var group []*leaf
	for _, l := range leaves {
		if rankOf(l, want).compare(least) == 0 {
			group = append(group, l)
		}
	}
	return group, least.fit
}

// agreement is what an image config says about the platform its descriptor states.
type agreement int

const (
	agrees agreement = iota
	silent
	disagrees
)

// agreementOf compares operating system and architecture. Variants are left out: most
// builders of amd64/v2 images write none into the config.
func agreementOf(l *leaf) agreement {
	config := l.image.platform
	switch {
	case config.Architecture == "":
		return silent
	case config.Architecture != l.platform.Architecture:
		return disagrees
	case config.OS != "" && config.OS != l.platform.OS:
		return disagrees
	}
	return agrees
}

// tie orders leaves of one rank, after their configs are read. Less is better.
type tie struct {
	agreement   agreement
	compression int // 1: not the one preferred
	fromConfig  int // 1: the index itself states nothing
}

func (t tie) compare(u tie) int {
	return cmp.Or(
		cmp.Compare(t.agreement, u.agreement),
		cmp.Compare(t.compression, u.compression),
		cmp.Compare(t.fromConfig, u.fromConfig),
	)
}

func tieOf(l *leaf, preferGzip bool) tie {
	t := tie{agreement: agreementOf(l)}
	zstd := isAnnotatedZstd(l.descriptor) || l.image.zstd
	if zstd == preferGzip {
		t.compression = 1
	}
	if l.source != SourceDescriptor {
		t.fromConfig = 1
	}
	return t
}

// winner returns the best of a group that was read, and those that only the order of
// the index set behind it. The same manifest listed twice is no twin.
func winner(group []*leaf, preferGzip bool) (first *leaf, twins int) {
	sorted := slices.Clone(group)
	slices.SortStableFunc(sorted, func(a, b *leaf) int { return tieOf(a, preferGzip).compare(tieOf(b, preferGzip)) })
	first = sorted[0]
	digests := map[string]bool{string(first.descriptor.Digest): true}
	for _, l := range sorted[1:] {
		if tieOf(l, preferGzip).compare(tieOf(first, preferGzip)) == 0 {
			digests[string(l.descriptor.Digest)] = true
		}
	}
	return first, len(digests) - 1
}
