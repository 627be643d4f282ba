package arch_test

import (
	"fmt"

	"github.com/archdisk/archdisk/arch"
)

func Example() {
	a, err := arch.Parse("aarch64")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(a, a.In(arch.QEMU), a.EFILoader(), a.BigEndian())
	// Output: arm64 aarch64 BOOTAA64.EFI false
}

func ExampleParse_unknown() {
	_, err := arch.Parse("vax")
	fmt.Println(err)
	// Output: arch: unknown architecture "vax"; known: amd64, arm64, s390x, 386, arm, ppc64le, riscv64, loong64
}

func ExampleParseVariant() {
	for _, s := range []string{"x86_64", "arm64/v8", "AMD64/3"} {
		a, variant, err := arch.ParseVariant(s)
		fmt.Printf("%v %q %v\n", a, variant, err)
	}
	// Output:
	// amd64 "" <nil>
	// arm64 "" <nil>
	// amd64 "v3" <nil>
}
