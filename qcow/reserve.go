package qcow

import "github.com/archdisk/archdisk/qcow/disk"

// reservation is one image's part of a budget. Guarded by its user.
type reservation struct {
	b    *disk.Budget
	held int64
}

func (r *reservation) reserve(n int64, what string) error {
	if err := r.b.Reserve(n, what); err != nil {
		return &disk.FormatError{Format: "qcow2", Reason: disk.LimitExceeded, Offset: -1, Err: err}
	}
	r.held += n
	return nil
}

// share reserves cost for each of n workers, for fewer if that is more than half of what
// is left, and for one at least.
func (r *reservation) share(n int, cost int64, what string) (int, error) {
	for n > 1 && int64(n)*cost > r.b.Left()/2 {
		n--
	}
	return n, r.reserve(int64(n)*cost, what)
}

func (r *reservation) giveBack(n int64) {
	r.b.Release(n)
	r.held -= n
}

func (r *reservation) release() { r.giveBack(r.held) }
