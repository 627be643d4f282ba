package arch

import "fmt"

// MarshalText returns the OCI spelling, "unknown" for [Unknown].
func (a Arch) MarshalText() ([]byte, error) {
	if int(a) >= len(machines) {
		return nil, fmt.Errorf("%w: Arch(%d)", ErrUnknown, a)
	}
	return []byte(a.String()), nil
}

// UnmarshalText reads what [Parse] reads, and "" and "unknown" as [Unknown].
func (a *Arch) UnmarshalText(text []byte) error {
	if s := string(text); s == "" || s == Unknown.String() {
		*a = Unknown
		return nil
	}
	parsed, err := Parse(string(text))
	if err != nil {
		return err
	}
	*a = parsed
	return nil
}
