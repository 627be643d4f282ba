// Package peer finds the programs of other projects that tests compare with.
package peer

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"testing"
)

// Require returns the path of a program. Where it is missing the test is skipped with that
// as its reason, or failed if ARCHDISK_REQUIRE_PEERS=1 says that this machine must have it.
func Require(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	switch {
	case err == nil:
		return path
	case os.Getenv("ARCHDISK_REQUIRE_PEERS") == "1":
		t.Fatalf("%s is required here and not installed", name)
	default:
		t.Skipf("%s is not installed: nothing to compare with", name)
	}
	return ""
}

// Run runs a program and fails the test, with what it said, if it fails.
func Run(t testing.TB, path string, args ...string) []byte {
	t.Helper()
	out, err := Try(t.Context(), path, args...)
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", path, args, err, out)
	}
	return out
}

// Try runs a program and returns what it said. QEMU measures the processor before it makes
// a key for LUKS and gives up where the machine is too busy for that: then it is run again.
func Try(ctx context.Context, path string, args ...string) ([]byte, error) {
	for tries := 1; ; tries++ {
		out, err := exec.CommandContext(ctx, path, args...).CombinedOutput()
		if err == nil || tries == 20 || !bytes.Contains(out, []byte("Unable to get accurate CPU usage")) {
			return out, err
		}
	}
}
