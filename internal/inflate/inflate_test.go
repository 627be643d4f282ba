package inflate

import (
	"bytes"
	stdflate "compress/flate"
	stdgzip "compress/gzip"
	stdzlib "compress/zlib"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/gzip"
	"github.com/stretchr/testify/require"
)

// contents are what the tests compress: by name, so that a failure says which.
func contents(size int) map[string][]byte {
	random := rand.NewChaCha8([32]byte{1})
	noise := make([]byte, size)
	_, _ = random.Read(noise)
	few := make([]byte, size)
	for i := range few {
		few[i] = "acgt"[noise[i]&3]
	}
	periods := make([]byte, 0, size)
	for d := 1; len(periods) < size; d++ {
		periods = append(periods, bytes.Repeat(noise[:1+d%40], 1+300/(1+d%40))...)
	}
	return map[string][]byte{
		"nothing": {}, "a byte": {7}, "zeros": make([]byte, size), "noise": noise, "few": few,
		"periods": periods[:size], "text": goTree(size),
	}
}

// goTree returns the first size bytes of the files of the Go tree: text and binaries.
func goTree(size int) []byte {
	var p []byte
	root, _ := exec.LookPath("go") // go test puts its own first on the path
	root, _ = filepath.EvalSymlinks(root)
	root = filepath.Dir(filepath.Dir(root))
	for _, dir := range []string{"src/compress", "src/encoding", "bin", "pkg/tool", "src/net", "src/runtime"} {
		_ = filepath.WalkDir(filepath.Join(root, dir), func(path string, d os.DirEntry, err error) error {
			if len(p) >= size {
				return filepath.SkipAll
			}
			if err == nil && d.Type().IsRegular() {
				var file []byte
				file, err = os.ReadFile(path)
				p = append(p, file...)
			}
			return err
		})
	}
	for len(p) < size { // where there is no tree
		p = append(p, strings.Repeat("the quick brown fox jumps over the lazy dog. ", 1+len(p)%7)...)
		p = append(p, byte(len(p)>>8), byte(len(p)>>3))
	}
	return p[:size]
}

func deflated(t testing.TB, p []byte, level int) []byte {
	var out bytes.Buffer
	w, err := stdflate.NewWriter(&out, level)
	require.NoError(t, err)
	_, err = w.Write(p)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return out.Bytes()
}

func levels() []int {
	return []int{stdflate.HuffmanOnly, stdflate.NoCompression, 1, 6, 9}
}

func TestInflate(t *testing.T) {
	var d Decoder
	size := 300 << 10
	if testing.Short() {
		size = 70 << 10
	}
	for name, p := range contents(size) {
		for _, level := range levels() {
			z := append(deflated(t, p, level), "behind"...)
			dst := make([]byte, len(p)+100)
			n, used, err := d.Inflate(dst, z)
			require.NoError(t, err, "%s %d", name, level)
			require.Equal(t, len(z)-len("behind"), used)
			require.True(t, bytes.Equal(p, dst[:n]), "%s %d", name, level)

			dst = make([]byte, len(p))
			n, used, err = d.Inflate(dst, z)
			require.NoError(t, err, "%s %d", name, level)
			require.Equal(t, len(z)-len("behind"), used)
			require.True(t, bytes.Equal(p, dst[:n]), "%s %d", name, level)
			if len(p) == 0 {
				continue
			}
			for _, short := range []int{0, len(p) / 3, len(p) / 2, len(p) - 1} {
				n, _, err = d.Inflate(dst[:short], z)
				require.ErrorIs(t, err, ErrFull)
				require.Equal(t, short, n)
				require.True(t, bytes.Equal(p[:short], dst[:n]))
			}
			for _, cut := range []int{0, 1, len(z) / 2, len(z) - len("behind") - 1} {
				_, _, err = d.Inflate(dst, z[:cut])
				require.ErrorIs(t, err, io.ErrUnexpectedEOF, "%s %d cut at %d", name, level, cut)
			}
		}
	}
}

func TestReader(t *testing.T) {
	size := 900 << 10
	if testing.Short() {
		size = 70 << 10
	}
	for name, p := range contents(size) {
		var member, zlibbed bytes.Buffer
		w, err := stdgzip.NewWriterLevel(&member, 6)
		require.NoError(t, err)
		w.Name, w.Comment, w.Extra = "name", "comment", []byte("extra")
		_, _ = w.Write(p)
		require.NoError(t, w.Close())
		zw := stdzlib.NewWriter(&zlibbed)
		_, _ = zw.Write(p)
		require.NoError(t, zw.Close())
		for format, z := range map[Format][]byte{Raw: deflated(t, p, 1), Zlib: zlibbed.Bytes(), Gzip: bytes.Repeat(member.Bytes(), 3)} {
			want := p
			if format == Gzip {
				want = bytes.Repeat(p, 3)
			}
			for _, split := range []func(io.Reader) io.Reader{
				func(r io.Reader) io.Reader { return r }, iotest.OneByteReader, iotest.HalfReader, iotest.DataErrReader,
			} {
				r, err := NewReader(split(bytes.NewReader(z)), format)
				require.NoError(t, err)
				got, err := io.ReadAll(r)
				require.NoError(t, err, "%s %d", name, format)
				require.True(t, bytes.Equal(want, got), "%s %d", name, format)
				require.NoError(t, r.Reset(bytes.NewReader(z)))
				got, err = io.ReadAll(iotest.HalfReader(r))
				require.NoError(t, err)
				require.True(t, bytes.Equal(want, got))
			}
			for _, cut := range []int{0, 1, len(z) / 2, len(z) - 1} {
				if format == Gzip && cut == 0 {
					continue
				}
				r, err := NewReader(bytes.NewReader(z[:cut]), format)
				if err == nil {
					_, err = io.ReadAll(r)
				}
				require.ErrorIs(t, err, io.ErrUnexpectedEOF, "%s %d %d", name, format, cut)
			}
		}
	}
}

// TestReaderError: what the source says in the end is passed on, behind all that came before,
// and not instead of what is wrong with that.
func TestReaderError(t *testing.T) {
	failure := errors.New("failure")
	p := contents(100 << 10)["few"]
	var z bytes.Buffer
	w := stdgzip.NewWriter(&z)
	_, _ = w.Write(p)
	require.NoError(t, w.Close())
	ending := func(z []byte) io.Reader { return io.MultiReader(bytes.NewReader(z), iotest.ErrReader(failure)) }
	for _, cut := range []int{10, 100, z.Len() - 9, z.Len() - 3, z.Len()} {
		r, err := NewReader(ending(z.Bytes()[:cut]), Gzip)
		require.NoError(t, err)
		got, err := io.ReadAll(r)
		require.ErrorIs(t, err, failure)
		require.True(t, bytes.HasPrefix(p, got))
		require.True(t, cut < z.Len()-8 || len(got) == len(p))
		_, err = r.Read(make([]byte, 1))
		require.ErrorIs(t, err, failure)
	}
	_, err := NewReader(ending(z.Bytes()[:5]), Gzip)
	require.ErrorIs(t, err, failure)
	z.Bytes()[z.Len()-6] ^= 1
	r, err := NewReader(ending(z.Bytes()), Gzip)
	require.NoError(t, err)
	_, err = io.ReadAll(r)
	var corrupt *CorruptError
	require.ErrorAs(t, err, &corrupt)
	require.EqualValues(t, z.Len()-8, corrupt.Offset)
}

// benchContent is what is measured: text and binaries.
func benchContent() []byte {
	if testing.Short() {
		return goTree(1 << 20)
	}
	return goTree(16 << 20)
}

func clusters(b *testing.B, corpus []byte, level int) (z [][]byte) {
	w, err := stdflate.NewWriter(nil, level)
	require.NoError(b, err)
	for off := 0; off+64<<10 <= len(corpus); off += 64 << 10 {
		var out bytes.Buffer
		w.Reset(&out)
		_, _ = w.Write(corpus[off : off+64<<10])
		_ = w.Close()
		z = append(z, out.Bytes())
	}
	return z
}

func BenchmarkClusters(b *testing.B) {
	corpus := benchContent()
	z := clusters(b, corpus, 6)
	dst := make([]byte, 64<<10)
	b.Run("archdisk", func(b *testing.B) {
		var d Decoder
		b.SetBytes(int64(len(corpus)))
		b.ReportAllocs()
		for b.Loop() {
			for _, p := range z {
				if n, _, err := d.Inflate(dst, p); err != nil || n != len(dst) {
					b.Fatal(n, err)
				}
			}
		}
	})
	b.Run("klauspost", func(b *testing.B) {
		b.SetBytes(int64(len(corpus)))
		var in bytes.Reader
		r := flate.NewReader(&in)
		for b.Loop() {
			for _, p := range z {
				in.Reset(p)
				_ = r.(flate.Resetter).Reset(&in, nil)
				if _, err := io.ReadFull(r, dst); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
}

func BenchmarkGzip(b *testing.B) {
	corpus := benchContent()
	packed := corpus
	var out bytes.Buffer
	for off := 0; off < len(packed); off += 64 << 10 {
		out.Write(deflated(b, packed[off:off+64<<10], 6))
	}
	for name, p := range map[string][]byte{"plain": corpus, "packed": out.Bytes()} {
		for _, level := range []int{1, 6} {
			var z bytes.Buffer
			w, _ := stdgzip.NewWriterLevel(&z, level)
			_, _ = w.Write(p)
			_ = w.Close()
			name := name + "-" + string(rune('0'+level))
			b.Run(name+"/archdisk", func(b *testing.B) {
				b.SetBytes(int64(len(p)))
				b.ReportAllocs()
				r, err := NewReader(bytes.NewReader(z.Bytes()), Gzip)
				require.NoError(b, err)
				for b.Loop() {
					_ = r.Reset(bytes.NewReader(z.Bytes()))
					for {
						if _, err := r.Next(); err == io.EOF {
							break
						} else if err != nil {
							b.Fatal(err)
						}
					}
				}
			})
			b.Run(name+"/klauspost", func(b *testing.B) {
				b.SetBytes(int64(len(p)))
				r := new(gzip.Reader)
				buf := make([]byte, 256<<10)
				for b.Loop() {
					_ = r.Reset(bytes.NewReader(z.Bytes()))
					for {
						if _, err := r.Read(buf); err == io.EOF {
							break
						} else if err != nil {
							b.Fatal(err)
						}
					}
				}
			})
		}
	}
}
