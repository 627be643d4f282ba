package arch_test

import (
	"debug/elf"
	"encoding/json"
	"strings"
	"testing"

	"github.com/archdisk/archdisk/arch"
	"github.com/stretchr/testify/require"
)

func TestParse(t *testing.T) {
	spellings := map[arch.Arch][]string{
		arch.AMD64:   {"amd64", "AMD64", "x86_64", "X86_64", "x86-64", "x64", "amd64/v1", "amd64/1", "amd64/V1", "x86_64/v1"},
		arch.ARM64:   {"arm64", "ARM64", "aarch64", "AArch64", "arm64v8", "armv8", "arm64/v8", "arm64/8", "arm64/v8.0", "arm64/8.0", "arm64/armv8", "aarch64/V8"},
		arch.S390X:   {"s390x", "S390X"},
		arch.I386:    {"386", "i386", "i486", "i586", "i686", "x86"},
		arch.ARM:     {"arm", "armhf", "armel", "armv5l", "armv6l", "armv7", "armv7l", "armv8l", "arm32v5", "arm32v6", "arm32v7", "arm/v7", "arm/7", "arm/armv7"},
		arch.PPC64LE: {"ppc64le", "ppc64el", "powerpc64le"},
		arch.RISCV64: {"riscv64"},
		arch.LOONG64: {"loong64", "loongarch64"},
	}
	require.Len(t, spellings, len(arch.All()))
	for want, words := range spellings {
		for _, word := range words {
			t.Run(word, func(t *testing.T) {
				got, err := arch.Parse(word)
				require.NoError(t, err)
				require.Equal(t, want, got)
			})
		}
	}
}

func TestParseUnknown(t *testing.T) {
	for _, word := range []string{"", "unknown", "mips", "s390", "ppc64", "arm65", "arm64v9", " amd64", "amd64 ", "linux/amd64", "/v8", "armv8b", "x86_64_v2", "\x00"} {
		t.Run(word, func(t *testing.T) {
			got, err := arch.Parse(word)
			require.ErrorIs(t, err, arch.ErrUnknown)
			require.Equal(t, arch.Unknown, got)
			var unknown *arch.UnknownError
			require.ErrorAs(t, err, &unknown)
		})
	}

	_, err := arch.Parse("vax\n\x1b[31m")
	require.EqualError(t, err, `arch: unknown architecture "vax\n\x1b[31m"; known: amd64, arm64, s390x, 386, arm, ppc64le, riscv64, loong64`)
	_, err = arch.Parse(strings.Repeat("w", 1<<20))
	require.Less(t, len(err.Error()), 200)
}

func TestParseRefusesVariants(t *testing.T) {
	for _, word := range []string{"amd64/v3", "x86_64/2", "arm64/v9", "arm64/v8.2", "arm/v6", "ppc64le/power9", "s390x/z13"} {
		t.Run(word, func(t *testing.T) {
			_, err := arch.Parse(word)
			require.ErrorIs(t, err, arch.ErrVariant)
			require.ErrorContains(t, err, "platform.ParseWant")
			_, _, err = arch.ParseVariant(word)
			require.NoError(t, err)
		})
	}
}

func TestParseVariant(t *testing.T) {
	tests := []struct {
		in      string
		arch    arch.Arch
		variant string
	}{
		{"amd64", arch.AMD64, ""},
		{"amd64/v1", arch.AMD64, ""},
		{"amd64/V3", arch.AMD64, "v3"},
		{"x86_64/3", arch.AMD64, "v3"},
		{"arm64/v8", arch.ARM64, ""},
		{"arm64/8", arch.ARM64, ""},
		{"arm64/v8.0", arch.ARM64, ""},
		{"arm64/armv8", arch.ARM64, ""},
		{"arm64/ARMV8.2", arch.ARM64, "v8.2"},
		{"arm64/v8.10", arch.ARM64, "v8.10"},
		{"arm64/9", arch.ARM64, "v9"},
		{"arm64/9.0", arch.ARM64, "v9"},
		{"arm64/v9.2", arch.ARM64, "v9.2"},
		{"arm", arch.ARM, ""},
		{"arm/v7", arch.ARM, ""},
		{"arm/v6", arch.ARM, "v6"},
		{"armhf", arch.ARM, ""},
		{"armel", arch.ARM, "v6"},
		{"armel/v5", arch.ARM, "v5"},
		{"armv8l", arch.ARM, "v8"},
		{"ppc64le/Power9", arch.PPC64LE, "power9"},
		{"riscv64/rva22u64", arch.RISCV64, "rva22u64"},
	}
	for _, test := range tests {
		t.Run(test.in, func(t *testing.T) {
			a, variant, err := arch.ParseVariant(test.in)
			require.NoError(t, err)
			require.Equal(t, test.arch, a)
			require.Equal(t, test.variant, variant)
		})
	}

	for _, in := range []string{"amd64/", "amd64/aarch64", "arm64/banana", "amd64/v3/x", "amd64/v1.", "amd64/v333", "arm64/v.", "riscv64/a b", "s390x/" + strings.Repeat("z", 17)} {
		t.Run(in, func(t *testing.T) {
			_, _, err := arch.ParseVariant(in)
			require.ErrorIs(t, err, arch.ErrVariant)
			var variant *arch.VariantError
			require.ErrorAs(t, err, &variant)
		})
	}
	_, _, err := arch.ParseVariant("arm64/\x07")
	require.EqualError(t, err, `arch: unusable variant "arm64/\a": not a variant of arm64`)
}

func TestNormalizeVariantKeepsWhatItDoesNotKnow(t *testing.T) {
	require.Equal(t, "banana", arch.ARM64.NormalizeVariant("Banana"))
	require.Equal(t, "v1", arch.S390X.NormalizeVariant("1"))
	require.Equal(t, "v1", arch.ARM64.NormalizeVariant("v1"))
	require.Equal(t, "x.0", arch.ARM64.NormalizeVariant("x.0"))
	require.Equal(t, "v3", arch.Unknown.NormalizeVariant("3"))
}

func TestNames(t *testing.T) {
	tests := []struct {
		arch                    arch.Arch
		oci, uname, qemu, dpkg  string
		efi                     string
		elf                     elf.Machine
		bigEndian, firstClassVM bool
	}{
		{arch.Unknown, "", "", "", "", "", 0, false, false},
		{arch.AMD64, "amd64", "x86_64", "x86_64", "amd64", "BOOTX64.EFI", elf.EM_X86_64, false, true},
		{arch.ARM64, "arm64", "aarch64", "aarch64", "arm64", "BOOTAA64.EFI", elf.EM_AARCH64, false, true},
		{arch.S390X, "s390x", "s390x", "s390x", "s390x", "", elf.EM_S390, true, true},
		{arch.I386, "386", "i686", "i386", "i386", "BOOTIA32.EFI", elf.EM_386, false, false},
		{arch.ARM, "arm", "armv7l", "arm", "armhf", "BOOTARM.EFI", elf.EM_ARM, false, false},
		{arch.PPC64LE, "ppc64le", "ppc64le", "ppc64", "ppc64el", "", elf.EM_PPC64, false, false},
		{arch.RISCV64, "riscv64", "riscv64", "riscv64", "riscv64", "BOOTRISCV64.EFI", elf.EM_RISCV, false, false},
		{arch.LOONG64, "loong64", "loongarch64", "loongarch64", "loong64", "BOOTLOONGARCH64.EFI", elf.EM_LOONGARCH, false, false},
	}
	require.Len(t, tests, len(arch.All())+1)
	for _, test := range tests {
		t.Run(test.arch.String(), func(t *testing.T) {
			a := test.arch
			require.Equal(t, test.oci, a.In(arch.OCI))
			require.Equal(t, test.uname, a.In(arch.Uname))
			require.Equal(t, test.qemu, a.In(arch.QEMU))
			require.Equal(t, test.dpkg, a.In(arch.Debian))
			require.Empty(t, a.In(arch.Debian+1))
			require.Equal(t, test.efi, a.EFILoader())
			require.EqualValues(t, test.elf, a.ELFMachine())
			require.Equal(t, test.bigEndian, a.BigEndian())
			require.Equal(t, test.firstClassVM, a.FirstClass())
			if a == arch.Unknown {
				require.Equal(t, "unknown", a.String())
				return
			}
			require.Equal(t, test.oci, a.String())
			for _, v := range []arch.Vocabulary{arch.OCI, arch.Uname, arch.QEMU, arch.Debian} {
				if a == arch.PPC64LE && v == arch.QEMU {
					continue // see In
				}
				back, err := arch.Parse(a.In(v))
				require.NoError(t, err)
				require.Equal(t, a, back)
			}
		})
	}
}

func TestBaseline(t *testing.T) {
	for a, want := range map[arch.Arch]string{arch.AMD64: "v1", arch.ARM64: "v8", arch.ARM: "v7", arch.S390X: "", arch.Unknown: ""} {
		require.Equal(t, want, a.Baseline())
		require.Empty(t, a.NormalizeVariant(want))
	}
}

func TestOutOfRange(t *testing.T) {
	a := arch.Arch(200)
	require.Equal(t, "unknown", a.String())
	require.Zero(t, a.ELFMachine())
	_, err := a.MarshalText()
	require.ErrorIs(t, err, arch.ErrUnknown)
}

func TestAllIsTheCallersOwn(t *testing.T) {
	first := arch.All()
	first[0] = arch.Unknown
	require.Equal(t, arch.AMD64, arch.All()[0])
}

func TestText(t *testing.T) {
	type record struct {
		A   arch.Arch         `json:"a"`
		Map map[arch.Arch]int `json:"map"`
	}
	in := record{A: arch.S390X, Map: map[arch.Arch]int{arch.ARM64: 1, arch.Unknown: 2}}
	text, err := json.Marshal(in)
	require.NoError(t, err)
	require.JSONEq(t, `{"a":"s390x","map":{"arm64":1,"unknown":2}}`, string(text))
	var out record
	require.NoError(t, json.Unmarshal(text, &out))
	require.Equal(t, in, out)

	require.NoError(t, json.Unmarshal([]byte(`{"a":"x86_64"}`), &out))
	require.Equal(t, arch.AMD64, out.A)
	require.NoError(t, json.Unmarshal([]byte(`{"a":""}`), &out))
	require.Equal(t, arch.Unknown, out.A)
	require.ErrorIs(t, json.Unmarshal([]byte(`{"a":"vax"}`), &out), arch.ErrUnknown)
}
