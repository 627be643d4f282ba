package qcow_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/archdisk/archdisk/internal/peer"
	"github.com/archdisk/archdisk/qcow"
	"github.com/archdisk/archdisk/qcow/disk"
	"github.com/archdisk/archdisk/testdata"
	"github.com/stretchr/testify/require"
)

func check(t testing.TB, file []byte, o qcow.CheckOptions) (*qcow.CheckResult, error) {
	t.Helper()
	if o.Budget == nil {
		o.Budget = disk.NewBudget(0)
	}
	left := o.Budget.Left()
	result, err := qcow.Check(context.Background(), bytes.NewReader(file), int64(len(file)), o)
	require.Equal(t, left, o.Budget.Left(), "all of the budget comes back")
	require.Equal(t, err != nil, result == nil)
	return result, err
}

// judged is what qemu-img check says of a file: its exit code, and its counts unless
// it gave up.
type judged struct {
	exit   int
	counts *qcow.CheckResult
	said   string
}

// qemuCheck runs qemu-img check; image are the arguments that name the image.
func qemuCheck(t testing.TB, qemu string, image ...string) judged {
	t.Helper()
	cmd := exec.Command(qemu, append([]string{"check", "--output=json"}, image...)...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	j := judged{exit: cmd.ProcessState.ExitCode(), said: said.String()}
	if out.Len() > 0 {
		j.counts = new(qcow.CheckResult)
		require.NoError(t, json.Unmarshal(out.Bytes(), j.counts), "%s", out.String())
	}
	return j
}

// counts returns the part of a result that qemu-img check has as well.
func counts(r *qcow.CheckResult) qcow.CheckResult {
	c := *r
	c.Findings, c.Omitted, c.Snapshots, c.Bitmaps = nil, 0, nil, nil
	return c
}

// parity counts the images that were judged alike, by what qemu-img said of them.
type parity struct {
	mu                             sync.Mutex
	clean, leaky, corrupt, refused int
	counted                        int // with the same counts, not the verdict alone
}

func (p *parity) add(j judged) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch j.exit {
	case 0:
		p.clean++
	case 1:
		p.refused++
	case 2:
		p.corrupt++
	case 3:
		p.leaky++
	}
	if j.counts != nil {
		p.counted++
	}
}

func (p *parity) String() string {
	return fmt.Sprintf("parity: check: %d images judged as qemu-img does, %d with its counts: %d clean, %d leaky, %d corrupt, %d refused or not checked to the end",
		p.clean+p.leaky+p.corrupt+p.refused, p.counted, p.clean, p.leaky, p.corrupt, p.refused)
}

// requireParity checks that file, which stands at path, is judged alike by both: the same
// verdict, the same counts. image are qemu-img's arguments for it, if a path is not enough. The
// differences there are:
//
//	the image                           qemu-img check            Check
//	encrypted                           wants the key             checks without
//	a backing or data file is missing   exit 1                    checks without
//	a part cannot be checked, and       exit 1, no counts         Failed, counts of the rest
//	  qemu-img gives up there
//	the header leads nowhere            exit 1, no counts         FormatError
//	tables that overlap for ever,       runs on                   ErrLimit
//	  more memory than the budget
func requireParity(t *testing.T, qemu, path string, file []byte, image ...string) judged {
	t.Helper()
	if image == nil {
		image = []string{"-f", "qcow2", path}
	}
	theirs := qemuCheck(t, qemu, image...)
	result, err := check(t, file, qcow.CheckOptions{})
	if err != nil {
		requireFormatError(t, err)
		require.Equal(t, 1, theirs.exit, "we refuse: %v, they say: %s", err, theirs.said)
		return theirs
	}
	detail := func() string {
		var s strings.Builder
		for _, f := range result.Findings {
			fmt.Fprintln(&s, f)
		}
		return s.String() + "they say: " + theirs.said
	}
	elsewhere := func(f qcow.Finding) bool { // the first two rows
		return f.Kind == qcow.FoundState && (f.Offset == 8 || f.Offset == 32 || strings.Contains(f.Text, "another file"))
	}
	if theirs.counts == nil && slices.ContainsFunc(result.Findings, elsewhere) {
		require.Equal(t, 1, theirs.exit, "%s", detail())
		return theirs
	}
	require.Equal(t, theirs.exit, int(result.Verdict()), "%s", detail())
	if theirs.counts != nil {
		require.Equal(t, *theirs.counts, counts(result), "%s", detail())
	}
	return theirs
}

// chosen says whether case i of a list is held against qemu-img: all are, but in short runs
// each fourth, since to start a program takes longer than the check.
func chosen(i int) bool { return !testing.Short() || i%4 == 3 }

// write stores file as name in a new folder and returns its path.
func write(t testing.TB, name string, file []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, file, 0o600))
	return path
}

// TestCheckFixtures: what other tools made is clean, as qemu-img says, and where qemu-img
// cannot look without a key or another file it is too.
func TestCheckFixtures(t *testing.T) {
	var p parity
	for i, f := range testdata.Fixtures() {
		if f.Format != "qcow2" || f.Compression != "" {
			continue
		}
		t.Run(f.File, func(t *testing.T) {
			file := testdata.Read(f.File)
			result, err := check(t, file, qcow.CheckOptions{})
			if f.Refused == string(disk.UnknownFeature) {
				require.ErrorIs(t, err, disk.ErrUnsupported)
			} else {
				require.NoError(t, err)
				want := qcow.Clean
				switch f.File {
				case "qcow2/qemu-dirty.qcow2": // lazy refcounts, not written yet
					want = qcow.Corrupt
				case "qcow2/qemu-luks.qcow2": // cut behind its first cluster
					want = qcow.Corrupt
				}
				require.Equal(t, want, result.Verdict(), "%v", result.Findings)
			}
			if f.Refused == string(disk.Encrypted) || f.Refused == string(disk.ExternalDataFile) || !chosen(i) {
				return
			}
			p.add(requireParity(t, peer.Require(t, "qemu-img"), write(t, "a.qcow2", file), file))
		})
	}
	t.Log(&p)
}

// maker makes images with qemu-img and qemu-io, in ways that rnd picks.
type maker struct {
	t        testing.TB
	img, qio string
	rnd      *rand.Rand
	path     string
	size     int64
	cluster  int64
	log      []string
}

func newMaker(t testing.TB, seed uint64) *maker {
	return &maker{t: t, img: peer.Require(t, "qemu-img"), qio: peer.Require(t, "qemu-io"),
		rnd: rand.New(rand.NewPCG(seed, 1)), path: filepath.Join(t.TempDir(), "a.qcow2")}
}

func (m *maker) run(program string, args ...string) {
	m.log = append(m.log, filepath.Base(program)+" "+strings.Join(args, " "))
	// Some steps are refused, a snapshot in a narrow refcount for one: the image stays as it was.
	out, err := peer.Try(m.t.Context(), program, args...)
	if err != nil {
		m.log[len(m.log)-1] += " => " + strings.TrimSpace(string(out))
	}
}

func pick[T any](rnd *rand.Rand, list ...T) T { return list[rnd.IntN(len(list))] }

// make creates an image and works on it.
func (m *maker) make() []byte {
	m.cluster = 1 << pick(m.rnd, 9, 10, 12, 14, 16, 16, 18, 21)
	opts := []string{fmt.Sprintf("cluster_size=%d", m.cluster)}
	v3 := m.rnd.IntN(5) > 0
	if !v3 {
		opts = append(opts, "compat=0.10")
	} else {
		opts = append(opts, fmt.Sprintf("refcount_bits=%d", pick(m.rnd, 1, 2, 4, 8, 16, 16, 16, 32, 64)))
		if m.rnd.IntN(4) == 0 && m.cluster >= 1<<14 {
			opts = append(opts, "extended_l2=on")
		}
		if m.rnd.IntN(3) == 0 {
			opts = append(opts, "compression_type=zstd")
		}
		if m.rnd.IntN(4) == 0 {
			opts = append(opts, "lazy_refcounts=on")
		}
	}
	switch m.rnd.IntN(10) {
	case 0:
		if v3 {
			opts = append(opts, "data_file="+m.path+".data")
		}
	case 1:
		m.run(m.img, "create", "-q", "-f", "raw", m.path+".base", "1M")
		opts = append(opts, "backing_fmt=raw,backing_file="+m.path+".base")
	case 2, 3:
		opts = append(opts, "preallocation="+pick(m.rnd, "metadata", "falloc", "full"))
	}
	m.size = int64(1+m.rnd.IntN(64)) * 64 << 10
	m.run(m.img, "create", "-q", "-f", "qcow2", "-o", strings.Join(opts, ","), m.path, fmt.Sprint(m.size))
	for range 1 + m.rnd.IntN(6) {
		m.step(v3)
	}
	return m.read()
}

func (m *maker) read() []byte {
	m.t.Helper()
	file, err := os.ReadFile(m.path)
	require.NoError(m.t, err)
	return file
}

func (m *maker) step(v3 bool) {
	switch m.rnd.IntN(10) { // refcount_bits is not amended: that never ends in QEMU 7.2
	case 0, 1, 2, 3:
		args := []string{"-f", "qcow2"}
		if m.rnd.IntN(2) == 0 {
			args = append(args, "-d", "unmap")
		}
		for range 1 + m.rnd.IntN(8) {
			off := m.rnd.Int64N(m.size) &^ 511
			n := min(m.rnd.Int64N(256<<10)&^511+512, m.size-off)
			cmd := pick(m.rnd, "write -P 7", "write -P 9", "write -z", "write -zu", "discard", "write -c -P 3", "write -c -P 5")
			if strings.Contains(cmd, "-c") { // whole clusters only
				off = off &^ (m.cluster - 1)
				n = min((n+m.cluster-1)&^(m.cluster-1), m.size-off)
			}
			args = append(args, "-c", fmt.Sprintf("%s %d %d", cmd, off, n))
		}
		if m.rnd.IntN(6) == 0 { // what is in memory is lost: leaks, with lazy refcounts more
			args = append(args, "-c", "abort")
		}
		m.run(m.qio, append(args, m.path)...)
	case 4, 5:
		m.run(m.img, "snapshot", pick(m.rnd, "-c", "-c", "-d", "-a"), pick(m.rnd, "one", "two", "three \"\n\x1b"), m.path)
	case 6:
		if v3 {
			m.run(m.img, "bitmap", pick(m.rnd, "--add", "--add", "--remove", "--clear"), m.path, pick(m.rnd, "a", "b", "c d"))
		}
	case 7:
		m.size = int64(1+m.rnd.IntN(128)) * 64 << 10
		m.run(m.img, "resize", "--shrink", "-q", "-f", "qcow2", m.path, fmt.Sprint(m.size))
	case 8:
		out := m.path + ".new"
		m.run(m.img, "convert", "-c", "-f", "qcow2", "-O", "qcow2", "-o", "cluster_size="+fmt.Sprint(m.cluster), m.path, out)
		if os.Rename(out, m.path) != nil {
			m.log = append(m.log, "not converted")
		}
	case 9:
		m.run(m.img, "amend", "-f", "qcow2", "-o", pick(m.rnd, "compat=1.1", "lazy_refcounts=on", "lazy_refcounts=off"), m.path)
	}
}

// TestCheckMade: images that were written, discarded, snapshotted, resized and amended at
// random, by programs that were killed at times, are judged as qemu-img judges them.
func TestCheckMade(t *testing.T) {
	n := 60
	if testing.Short() {
		n = 4
	}
	seed := seedOf(t)
	var p parity
	t.Run("seeds", func(t *testing.T) {
		for i := range n {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				m := newMaker(t, seed+uint64(i))
				file := m.make()
				t.Cleanup(func() {
					if t.Failed() {
						t.Log(strings.Join(m.log, "\n"))
					}
				})
				p.add(requireParity(t, m.img, m.path, file))
			})
		}
	})
	t.Log(&p)
	require.Greater(t, p.clean, n/2)
}

// damager edits the structures of an image.
type damager struct {
	rnd  *rand.Rand
	file []byte
	cs   int
	log  []string
}

func (d *damager) u64(off int) uint64 {
	if off < 0 || off > len(d.file)-8 {
		return 0
	}
	return binary.BigEndian.Uint64(d.file[off:])
}

func (d *damager) set(what string, off int, v uint64) {
	if off < 0 || off > len(d.file)-8 {
		return
	}
	d.log = append(d.log, fmt.Sprintf("%s: %#x at %#x, was %#x", what, v, off, d.u64(off)))
	binary.BigEndian.PutUint64(d.file[off:], v)
}

// entries returns the offsets of the entries of a table that are not 0.
func (d *damager) entries(off, n int) []int {
	var list []int
	for i := range min(n, len(d.file)/8) {
		if d.u64(off+8*i) != 0 {
			list = append(list, off+8*i)
		}
	}
	return list
}

func (d *damager) l1() []int {
	return d.entries(int(d.u64(40)), int(binary.BigEndian.Uint32(d.file[36:])))
}

func (d *damager) l2() []int {
	var list []int
	for _, e := range d.l1()[:min(len(d.l1()), 64)] {
		list = append(list, d.entries(int(d.u64(e)&0xfffffffffffe00), d.cs/8)...)
	}
	return list
}

func (d *damager) reftable() []int {
	return d.entries(int(d.u64(48)), int(binary.BigEndian.Uint32(d.file[56:]))*d.cs/8)
}

func (d *damager) one(list []int) int {
	if len(list) == 0 {
		return -1
	}
	return list[d.rnd.IntN(len(list))]
}

// entry returns a bad value for a table's entry that is v.
func (d *damager) entry(v uint64, others []int) uint64 {
	switch d.rnd.IntN(9) {
	case 0:
		return v ^ 1<<63
	case 1:
		return d.u64(d.one(others))
	case 2:
		return v&^0xfffffffffffe00 | uint64(len(d.file)+d.rnd.IntN(4)*d.cs)&0xfffffffffffe00
	case 3:
		return v ^ 1<<(9+d.rnd.IntN(8))
	case 4:
		return v ^ 1<<d.rnd.IntN(64)
	case 5:
		return v&^0xfffffffffffe00 | uint64(d.rnd.IntN(8)*d.cs)
	case 6:
		return v ^ 1
	case 7:
		return d.rnd.Uint64()
	}
	return 0
}

// damage makes one edit.
func (d *damager) damage() {
	switch d.rnd.IntN(12) {
	case 0, 1:
		if e := d.one(d.reftable()); e >= 0 {
			block := int(d.u64(e) & 0xfffffffffffe00)
			d.set("refcounts", block+d.rnd.IntN(min(d.cs, 256)), d.rnd.Uint64N(4)<<(8*d.rnd.IntN(8)))
		}
	case 2, 3, 4:
		e := d.one(d.l2())
		d.set("L2", e, d.entry(d.u64(e), d.l2()))
	case 5:
		e := d.one(d.l1())
		d.set("L1", e, d.entry(d.u64(e), d.l1()))
	case 6:
		e := d.one(d.reftable())
		d.set("reftable", e, d.entry(d.u64(e), d.reftable()))
	case 7:
		n := 1 + d.rnd.IntN(3*d.cs)
		d.file = append(d.file, make([]byte, n)...)
		d.log = append(d.log, fmt.Sprintf("%d bytes appended", n))
	case 8:
		if binary.BigEndian.Uint32(d.file[60:]) > 0 {
			off := int(d.u64(64)) + d.rnd.IntN(80)
			d.set("snapshot table", off, d.u64(off)^1<<d.rnd.IntN(64))
		}
	case 9:
		n := d.rnd.IntN(2*d.cs) + 1
		if n < len(d.file)-d.cs {
			d.file = d.file[:len(d.file)-n]
			d.log = append(d.log, fmt.Sprintf("%d bytes cut off", n))
		}
	case 10:
		off := pick(d.rnd, 8, 24, 32, 36, 40, 48, 56, 60, 64, 72, 88, 96, 100, 112, 120, 128)
		d.set("header", off, d.u64(off)^1<<d.rnd.IntN(64))
	case 11:
		i := bytes.Index(d.file[:min(len(d.file), 512)], []byte{0x23, 0x85, 0x28, 0x75})
		if i < 0 {
			return
		}
		dir := int(d.u64(i+24) & (1<<32 - 1))
		off := pick(d.rnd, i+8, i+16, i+24, dir, dir+8, dir+16, int(d.u64(dir)))
		d.set("bitmaps", off, d.u64(off)^1<<d.rnd.IntN(64))
	}
}

// edits checks n copies of an image with an edit or two each.
func (m *maker) edits(t *testing.T, p *parity, good []byte, n int, image ...string) {
	for range n {
		d := &damager{rnd: m.rnd, file: bytes.Clone(good), cs: 1 << good[23]}
		for k := 1 + m.rnd.IntN(2); k > 0 || len(d.log) == 0; k-- { // not each image has what is to be edited
			d.damage()
		}
		require.NoError(t, os.WriteFile(m.path, d.file, 0o600))
		if !t.Run("", func(t *testing.T) { p.add(requireParity(t, m.img, m.path, d.file, image...)) }) {
			t.Log(strings.Join(append(m.log, d.log...), "\n"))
		}
	}
}

// TestCheckDamaged: images with a few bytes of their structures edited are judged as
// qemu-img judges them.
func TestCheckDamaged(t *testing.T) {
	images, edits := 20, 20
	if testing.Short() {
		images, edits = 2, 8
	}
	seed := seedOf(t)
	var p parity
	t.Run("seeds", func(t *testing.T) {
		for i := range images {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				m := newMaker(t, seed+uint64(i))
				m.edits(t, &p, m.make(), edits)
			})
		}
	})
	t.Log(&p)
}

// TestCheckKinds: one image of each kind, and edits of it.
func TestCheckKinds(t *testing.T) {
	edits := 12
	if testing.Short() {
		edits = 0
	}
	seed := seedOf(t)
	var p parity
	t.Run("kinds", func(t *testing.T) {
		for i, tt := range []struct {
			name, create, write string
			exit                int // of the image before edits
		}{
			{"LUKS", "encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10", "", 0},
			{"AES", "encrypt.format=aes,encrypt.key-secret=s", "", 0},
			{"data file", "data_file=PATH.data", "", 0},
			{"raw data file", "data_file=PATH.data,data_file_raw=on", "", 0},
			{"data file with extended L2", "data_file=PATH.data,extended_l2=on", "", 0},
			{"data file preallocated", "data_file=PATH.data,preallocation=metadata", "", 0},
			{"extended L2", "extended_l2=on", "", 0},
			{"extended L2, compressed", "extended_l2=on,cluster_size=16k", "write -c -P 1 1M 128k", 0},
			{"metadata", "preallocation=metadata", "", 0},
			{"falloc, small clusters", "preallocation=falloc,cluster_size=512", "", 0},
			{"full", "preallocation=full,cluster_size=2M", "", 0},
			{"killed", "cluster_size=4k", "abort", 0}, // with write-through refcounts
			{"killed, lazy refcounts", "lazy_refcounts=on", "abort", 2},
			{"killed, lazy refcounts of one bit", "lazy_refcounts=on,refcount_bits=1", "abort", 2},
			{"killed, lazy refcounts of 64 bits", "lazy_refcounts=on,refcount_bits=64", "abort", 2},
			{"version 2, compressed", "compat=0.10", "write -c -P 1 1M 128k", 0},
			{"zstd", "compression_type=zstd", "write -c -P 1 1M 128k", 0},
		} {
			if !chosen(i) {
				continue
			}
			t.Run(tt.name, func(t *testing.T) {
				t.Parallel()
				m := newMaker(t, seed+uint64(i))
				key, image := []string{"--object", "secret,id=s,data=abc"}, []string{"-f", "qcow2", m.path}
				if strings.Contains(tt.create, "encrypt") {
					image = append(slices.Clone(key), "--image-opts", "driver=qcow2,encrypt.key-secret=s,file.filename="+m.path)
				}
				create := append([]string{"create", "-q", "-f", "qcow2", "-o", strings.ReplaceAll(tt.create, "PATH", m.path)}, key...)
				m.run(m.img, append(create, m.path, "4M")...)
				script := []string{"-c", "write -P 1 10k 200k", "-c", "write -z 100k 64k", "-c", "discard 64k 64k", "-c", "write -P 2 2M 2k"}
				if tt.write != "" {
					script = append(script, "-c", tt.write)
				}
				m.run(m.qio, append(script, image...)...)
				good := m.read()
				j := requireParity(t, m.img, m.path, good, image...)
				require.Equal(t, tt.exit, j.exit, "%s\n%v", j.said, m.log)
				p.add(j)
				m.edits(t, &p, good, edits, image...)
			})
		}
	})
	t.Log(&p)
}

// TestCheckReaderFails: each read that fails ends the check with its error.
func TestCheckReaderFails(t *testing.T) {
	file := testdata.Read("qcow2/qemu-snapshot.qcow2")
	for n := 0; ; n++ {
		r := &failing{r: bytes.NewReader(file), left: n}
		result, err := qcow.Check(t.Context(), r, int64(len(file)), qcow.CheckOptions{})
		if err == nil {
			require.Equal(t, qcow.Clean, result.Verdict())
			require.Greater(t, n, 5)
			return
		}
		require.ErrorIs(t, err, iotest.ErrTimeout, "read %d", n)
	}
}

// TestCheckCancelled: a context that ends in the middle ends the check.
func TestCheckCancelled(t *testing.T) {
	file := testdata.Read("qcow2/qemu-snapshot.qcow2")
	for n := range 6 {
		ctx, cancel := context.WithCancel(t.Context())
		_, err := qcow.Check(ctx, &failing{bytes.NewReader(file), n, cancel}, int64(len(file)), qcow.CheckOptions{})
		require.ErrorIs(t, err, context.Canceled, "read %d", n)
	}
}

// failing fails after some reads, or calls a function then.
type failing struct {
	r    *bytes.Reader
	left int
	then func()
}

func (f *failing) ReadAt(p []byte, off int64) (int, error) {
	switch {
	case f.left == 0 && f.then != nil:
		f.then()
	case f.left == 0:
		return 0, iotest.ErrTimeout
	}
	f.left--
	return f.r.ReadAt(p, off)
}
