package qcow

import "fmt"

// Verdict sums a [CheckResult] up. Its values are the exit codes of qemu-img check.
type Verdict int

// The verdicts.
const (
	Clean   Verdict = 0
	Failed  Verdict = 1 // parts of the image could not be checked
	Corrupt Verdict = 2
	Leaky   Verdict = 3 // clusters are lost to the file, and nothing is wrong with the disk
)

func (v Verdict) String() string {
	switch v {
	case Clean:
		return "clean"
	case Failed:
		return "check failed"
	case Corrupt:
		return "corrupt"
	case Leaky:
		return "leaks"
	}
	return fmt.Sprintf("verdict %d", int(v))
}

// CheckResult is what [Check] has found. Its counts and their names in JSON are those of
// qemu-img check --output=json; clusters are those of the disk, in the active state.
type CheckResult struct {
	Corruptions        int64 `json:"corruptions,omitempty"`
	Leaks              int64 `json:"leaks,omitempty"`
	CheckErrors        int64 `json:"check-errors"`
	ImageEndOffset     int64 `json:"image-end-offset,omitempty"` // behind the last cluster in use
	TotalClusters      int64 `json:"total-clusters,omitempty"`
	AllocatedClusters  int64 `json:"allocated-clusters,omitempty"`
	FragmentedClusters int64 `json:"fragmented-clusters,omitempty"`
	CompressedClusters int64 `json:"compressed-clusters,omitempty"`

	Findings []Finding `json:"findings,omitempty"` // in the order of the check, the first ones only
	Omitted  int64     `json:"findings-omitted,omitempty"`

	Snapshots []Snapshot `json:"-"` // internal ones, but for those whose entries make no sense
	Bitmaps   []Bitmap   `json:"-"` // persistent ones, none if their directory is broken
}

// Verdict returns the sum of the counts.
func (r *CheckResult) Verdict() Verdict {
	switch {
	case r.CheckErrors > 0:
		return Failed
	case r.Corruptions > 0:
		return Corrupt
	case r.Leaks > 0:
		return Leaky
	}
	return Clean
}

// Severity says which of a result's counts a finding is part of.
type Severity string

// The severities.
const (
	Note       Severity = "note" // counted nowhere: worth knowing, or wrong in a way that QEMU does not look for
	Leak       Severity = "leak"
	Corruption Severity = "corruption"
	CheckError Severity = "check-error"
)

// FindingKind is the stable code of what is wrong.
type FindingKind string

// The kinds of findings.
const (
	FoundRefcountTooHigh  FindingKind = "refcount-too-high"
	FoundRefcountTooLow   FindingKind = "refcount-too-low"
	FoundRefcountOverflow FindingKind = "refcount-overflow" // more references than a refcount can state
	FoundRefcountBlock    FindingKind = "refcount-block"    // an entry of the refcount table is wrong
	FoundRefcountUnknown  FindingKind = "refcount-unknown"  // it cannot be read
	FoundOutOfRange       FindingKind = "out-of-range"      // behind the end of the file
	FoundUnaligned        FindingKind = "unaligned"
	FoundReservedBits     FindingKind = "reserved-bits"
	FoundCopiedFlag       FindingKind = "copied-flag"
	FoundOverlap          FindingKind = "overlap" // a cluster used for two things
	FoundBadCompressed    FindingKind = "bad-compressed-entry"
	FoundBadSubclusters   FindingKind = "bad-subclusters"
	FoundBadSnapshot      FindingKind = "bad-snapshot"
	FoundBadBitmap        FindingKind = "bad-bitmap"
	FoundBadHeader        FindingKind = "bad-header"
	FoundState            FindingKind = "state" // dirty, marked as corrupt, needs other files
)

// Finding is one thing that is wrong, or worth a note.
type Finding struct {
	Severity Severity    `json:"severity"`
	Kind     FindingKind `json:"kind"`
	Count    int64       `json:"count"`        // how often it was counted, 0 for a note
	Offset   int64       `json:"offset"`       // in the file: the entry that is wrong, or the cluster whose refcount is
	Guest    int64       `json:"guest-offset"` // on the disk, -1 where it belongs to none or is not known
	Text     string      `json:"text"`         // one line
}

func (f Finding) String() string {
	s := fmt.Sprintf("%s: %s at %#x", f.Severity, f.Kind, f.Offset)
	if f.Guest >= 0 {
		s += fmt.Sprintf(", for disk offset %#x", f.Guest)
	}
	return s + ": " + f.Text
}
