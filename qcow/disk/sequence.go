package disk

import "context"

// Sequencer is an optional ability of a destination: to be told the order of the source,
// where what it makes depends on that order. An image that places clusters as they come has
// the same bytes again only if they come in an order that does not depend on the speed of
// workers.
type Sequencer interface {
	// PutAt takes piece n of the source, counted from 0 without gaps: p belongs at
	// guest.Off and is guest.Len bytes long, or nil for zeros. Several goroutines put pieces
	// at once, and each may be made to wait until all pieces before its own are in: so they
	// must be begun in their order. p is the caller's again when PutAt returns. An error is final.
	PutAt(ctx context.Context, n int64, guest Range, p []byte) error
}
