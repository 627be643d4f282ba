package arch

// Arch is a processor architecture. The set is closed, values are comparable and fit
// for map keys; the zero value is [Unknown]. The numbers are not stable between
// versions: store the text.
type Arch uint8

// The known architectures.
const (
	Unknown Arch = iota // not stated, or not known
	AMD64
	ARM64
	S390X
	I386
	ARM
	PPC64LE
	RISCV64
	LOONG64
)

// Vocabulary is a set of architecture names that some family of tools uses.
type Vocabulary uint8

// The vocabularies that [Arch.In] speaks.
const (
	OCI    Vocabulary = iota // image-spec, GOARCH, Kubernetes node labels: amd64, arm64, 386
	Uname                    // uname -m, RPM, libvirt: x86_64, aarch64, i686
	QEMU                     // the X of qemu-system-X: x86_64, aarch64, i386, ppc64
	Debian                   // dpkg --print-architecture: amd64, armhf, ppc64el
	vocabularies
)

// machine is what is known of one architecture.
type machine struct {
	names      [vocabularies]string
	aliases    []alias // spellings beyond the names
	baseline   string  // the variant that the bare name means; where there is one, variants are version numbers
	bigEndian  bool
	firstClass bool
	efiLoader  string // UEFI specification, 3.5.1.1 Removable Media Boot Behavior
	elfMachine uint16 // e_machine of the ELF gABI and its registry
}

// alias is one further word for an architecture, with the variant it implies.
type alias struct{ word, variant string }

var machines = [...]machine{
	AMD64: {
		names:    [vocabularies]string{"amd64", "x86_64", "x86_64", "amd64"},
		aliases:  []alias{{"x86-64", ""}, {"x64", ""}},
		baseline: "v1", firstClass: true,
		efiLoader: "BOOTX64.EFI", elfMachine: 62,
	},
	ARM64: {
		names: [vocabularies]string{"arm64", "aarch64", "aarch64", "arm64"},
		// arm64v8 is a Docker Hub organisation; armv8 is seen both as an
		// architecture and as a variant in lists annotated by hand.
		aliases:  []alias{{"arm64v8", ""}, {"armv8", ""}},
		baseline: "v8", firstClass: true,
		efiLoader: "BOOTAA64.EFI", elfMachine: 183,
	},
	S390X: {
		names:     [vocabularies]string{"s390x", "s390x", "s390x", "s390x"},
		bigEndian: true, firstClass: true,
		elfMachine: 22,
	},
	I386: {
		names:     [vocabularies]string{"386", "i686", "i386", "i386"},
		aliases:   []alias{{"i486", ""}, {"i586", ""}, {"x86", ""}},
		efiLoader: "BOOTIA32.EFI", elfMachine: 3,
	},
	ARM: {
		names: [vocabularies]string{"arm", "armv7l", "arm", "armhf"},
		aliases: []alias{
			{"armv7", ""}, {"arm32v7", ""}, {"armv8l", "v8"},
			{"armel", "v6"}, {"armv6", "v6"}, {"armv6l", "v6"}, {"arm32v6", "v6"},
			{"armv5", "v5"}, {"armv5l", "v5"}, {"armv5tel", "v5"}, {"armv5tejl", "v5"}, {"arm32v5", "v5"},
		},
		baseline:  "v7",
		efiLoader: "BOOTARM.EFI", elfMachine: 40,
	},
	PPC64LE: {
		names:      [vocabularies]string{"ppc64le", "ppc64le", "ppc64", "ppc64el"},
		aliases:    []alias{{"powerpc64le", ""}},
		elfMachine: 21,
	},
	RISCV64: {
		names:     [vocabularies]string{"riscv64", "riscv64", "riscv64", "riscv64"},
		efiLoader: "BOOTRISCV64.EFI", elfMachine: 243,
	},
	LOONG64: {
		names:     [vocabularies]string{"loong64", "loongarch64", "loongarch64", "loong64"},
		efiLoader: "BOOTLOONGARCH64.EFI", elfMachine: 258,
	},
}

// All returns the known architectures in a fixed order, the first-class ones first.
// The slice is the caller's.
func All() []Arch {
	all := make([]Arch, 0, len(machines)-1)
	for a := Unknown + 1; int(a) < len(machines); a++ {
		all = append(all, a)
	}
	return all
}

// String returns the OCI spelling, or "unknown".
func (a Arch) String() string {
	if s := a.In(OCI); s != "" {
		return s
	}
	return "unknown"
}

// In returns the architecture's name in a vocabulary, "" for [Unknown]. [Parse] reads
// every such name back but one: QEMU's ppc64 serves both byte orders, while the same
// word means big-endian everywhere else.
func (a Arch) In(v Vocabulary) string {
	if v >= vocabularies {
		return ""
	}
	return a.machine().names[v]
}

// BigEndian reports whether guests of the architecture store the most significant
// byte first.
func (a Arch) BigEndian() bool { return a.machine().bigEndian }

// Baseline returns the variant that the architecture's bare name means: v1 for amd64,
// v8 for arm64, v7 for arm, "" for those whose variants have no known order.
func (a Arch) Baseline() string { return a.machine().baseline }

// EFILoader returns the name of the boot loader that UEFI firmware looks for in
// /EFI/BOOT of a removable medium, such as BOOTX64.EFI; "" where UEFI does not exist.
func (a Arch) EFILoader() string { return a.machine().efiLoader }

// ELFMachine returns the e_machine of the architecture's ELF files, 0 for [Unknown].
func (a Arch) ELFMachine() uint16 { return a.machine().elfMachine }

// FirstClass reports whether KubeVirt runs virtual machines of the architecture and
// this library is tested on it: amd64, arm64, s390x.
func (a Arch) FirstClass() bool { return a.machine().firstClass }

// machine returns the facts of a; those of Unknown are all zero.
func (a Arch) machine() *machine {
	if int(a) >= len(machines) {
		a = Unknown
	}
	return &machines[a]
}
