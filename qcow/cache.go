package qcow

import "container/list"

// cache keeps the most recently used values up to a number. Not safe for concurrent use.
type cache[V any] struct {
	limit int
	order list.List // of entry[V], most recent first
	byKey map[int64]*list.Element
}

type entry[V any] struct {
	key   int64
	value V
}

func newCache[V any](limit int) *cache[V] {
	return &cache[V]{limit: max(limit, 1), byKey: map[int64]*list.Element{}}
}

func (c *cache[V]) get(key int64) (v V, ok bool) {
	e, ok := c.byKey[key]
	if !ok {
		return v, false
	}
	c.order.MoveToFront(e)
	return e.Value.(entry[V]).value, true
}

func (c *cache[V]) put(key int64, v V) {
	if e, ok := c.byKey[key]; ok {
		e.Value = entry[V]{key, v}
		c.order.MoveToFront(e)
		return
	}
	c.byKey[key] = c.order.PushFront(entry[V]{key, v})
	if len(c.byKey) > c.limit {
		last := c.order.Back()
		c.order.Remove(last)
		delete(c.byKey, last.Value.(entry[V]).key)
	}
}
