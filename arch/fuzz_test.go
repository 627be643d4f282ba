package arch_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/archdisk/archdisk/arch"
	"github.com/stretchr/testify/require"
)

// FuzzParse asserts that any word is an architecture or a short typed error, that
// case does not matter, and that the normal spelling is a fixed point.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{"", "amd64", "x86_64", "arm64/v8", "arm64/8.0", "amd64/v3", "armel", "ppc64le/power9", "arm64/armarmv8", "386/", "ſ390x", "arm64/v9.0.0"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, variant, err := arch.ParseVariant(s)
		if err != nil {
			require.True(t, errors.Is(err, arch.ErrUnknown) || errors.Is(err, arch.ErrVariant))
			require.Less(t, len(err.Error()), 600)
			require.NotContains(t, err.Error(), "\n")
			_, err = arch.Parse(s)
			require.Error(t, err)
			return
		}
		require.Contains(t, arch.All(), a)
		require.Equal(t, variant, a.NormalizeVariant(variant))
		again, same, err := arch.ParseVariant(join(a, variant))
		require.NoError(t, err)
		require.Equal(t, a, again)
		require.Equal(t, variant, same)

		upper, same, err := arch.ParseVariant(strings.ToUpper(s))
		require.NoError(t, err)
		require.Equal(t, a, upper)
		require.Equal(t, variant, same)

		alone, err := arch.Parse(s)
		if variant == "" {
			require.NoError(t, err)
		}
		if err == nil {
			require.Equal(t, a, alone)
		}
	})
}

func join(a arch.Arch, variant string) string {
	if variant == "" {
		return a.String()
	}
	return a.String() + "/" + variant
}
