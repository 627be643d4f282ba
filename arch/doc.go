// Package arch names the processor architectures a disk image may be for. It is the
// one place that knows that x86_64, x86-64 and amd64 are one machine.
//
//	a, err := arch.Parse("aarch64") // or "arm64", "arm64/v8", "ARM64"
//	if err != nil {
//		return err // *arch.UnknownError: names the word and lists the known ones
//	}
//	a.String()          // "arm64": OCI, GOARCH, Kubernetes
//	a.In(arch.Uname)    // "aarch64"
//	a.EFILoader()       // "BOOTAA64.EFI"
//	a.ELFMachine()      // 183
//
// The zero value is [Unknown]: not stated, or not known. The architecture of the
// machine the program runs on is never consulted; a caller that wants it says so with
// Parse(runtime.GOARCH).
//
// # Variants
//
// A variant ("v3" in amd64/v3) says how much of an architecture's instruction set is
// needed. Every architecture has a baseline, which is what the bare name means:
//
//	amd64   v1
//	arm64   v8 (also written 8, v8.0, armv8)
//	arm     v7
//	others  no variant
//
// [Parse] answers with an architecture only and therefore refuses other variants.
// [ParseVariant] keeps them, in one spelling: lower case, a leading v, no ".0", and
// the baseline as "".
//
// # Not supported
//
// Big-endian PowerPC (ppc64), MIPS, SPARC and other machines that KubeVirt does not
// run are unknown words here; 31-bit s390 is not s390x.
//
// Any string may be given to the parsers. Words in error texts are quoted and cut.
package arch
