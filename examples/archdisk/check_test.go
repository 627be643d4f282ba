package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/archdisk/archdisk/testdata"
	"github.com/stretchr/testify/require"
)

// TestCheckCommand: a sound image, one with lost clusters, a damaged one, and no image.
func TestCheckCommand(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, p []byte) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, p, 0o600))
		return path
	}
	good := testdata.Read("qcow2/qemu-v3-4k.qcow2")
	refcounts := 2 * 4096 // the first refcount block
	leaky := append(append([]byte{}, good...), make([]byte, 4096)...)
	leaky[refcounts+2*len(good)/4096+1] = 1
	corrupt := append([]byte{}, good...)
	corrupt[refcounts+2*3+1] = 0 // L1's cluster

	for _, tt := range []struct {
		name, verdict, text string
		file                []byte
		code                int
	}{
		{"good", "clean", "", good, 0},
		{"leaky", "leaks", "1 clusters are lost", leaky, 3},
		{"corrupt", "corrupt", "1 faults", corrupt, 3},
	} {
		path := write(tt.name, tt.file)
		got := archdisk(t, nil, "check", path, "--json")
		require.Equal(t, tt.code, got.code, got.stderr)
		require.Contains(t, got.stderr, tt.text)
		var r checkReport
		require.NoError(t, json.Unmarshal([]byte(got.stdout), &r), got.stdout)
		require.Equal(t, tt.verdict, r.Verdict)
		require.Equal(t, "qcow2", string(r.Format))
		require.Equal(t, tt.code == 0, r.Error == nil)
		got = archdisk(t, nil, "check", path)
		require.Equal(t, tt.code, got.code)
		require.Contains(t, got.stdout, tt.verdict)
	}
	got := archdisk(t, nil, "check", write("raw", make([]byte, 4096)))
	require.Equal(t, 3, got.code)
	requireOneLine(t, got.stderr)
	require.Contains(t, got.stderr, "no tables")
	got = archdisk(t, nil, "check", filepath.Join(dir, "none"))
	require.NotZero(t, got.code)
	requireOneLine(t, got.stderr)
}
