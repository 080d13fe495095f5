package table

import (
	"sync"

	"forkyard.dev/forkyard/internal/edge/metrics"
	"forkyard.dev/forkyard/internal/edge/upstream"
)

// Table maps sandbox ids to entries. Lookups are concurrent; changes come one after another.
type Table struct {
	metrics    *metrics.Set
	maxStreams int

	// change is held through a whole change, killing of backends included: when one change has been acknowledged,
	// all earlier ones hold too.
	change sync.Mutex

	mu      sync.RWMutex
	epoch   int64
	entries map[string]*Entry
	touched func(id string) // told of every route that a push names, under mu; "" means all
}

// New makes an empty table with epoch 0, under which nothing can be changed.
// maxStreams bounds the requests in flight to one sandbox (0: the default).
func New(set *metrics.Set, maxStreams int) *Table {
	return &Table{metrics: set, maxStreams: maxStreams, entries: make(map[string]*Entry), touched: func(string) {}}
}

// OnTouch sets the function that is told the id of every route that a push names ("" for a whole table), before the
// push is acknowledged. It must not call the table. Set it before the table is in use.
func (t *Table) OnTouch(touched func(id string)) { t.touched = touched }

// Get returns the entry of a sandbox, or nil.
func (t *Table) Get(id string) *Entry {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.entries[id]
}

// Epoch returns the current epoch, 0 before the first push.
func (t *Table) Epoch() int64 {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.epoch
}

// Entries returns all entries, in no order.
func (t *Table) Entries() []*Entry {
	t.mu.RLock()
	defer t.mu.RUnlock()
	all := make([]*Entry, 0, len(t.entries))
	for _, e := range t.entries {
		all = append(all, e)
	}
	return all
}

// Replace makes routes the whole table under epoch. Routes of generations lower than known ones leave those in place.
// It returns when removed and replaced generations serve nothing any more. Fails with ErrOldEpoch.
func (t *Table) Replace(epoch int64, routes []Route) error {
	t.change.Lock()
	defer t.change.Unlock()
	t.mu.Lock()
	if epoch < t.epoch {
		t.mu.Unlock()
		return ErrOldEpoch
	}
	t.epoch = epoch
	var dead []*upstream.Backend
	named := make(map[string]struct{}, len(routes))
	for i := range routes {
		named[routes[i].ID] = struct{}{}
		dead = append(dead, t.set(&routes[i])...)
	}
	for id := range t.entries {
		if _, ok := named[id]; !ok {
			dead = append(dead, t.drop(id)...)
		}
	}
	t.touched("")
	t.mu.Unlock()
	kill(dead)
	return nil
}

// Apply sets and removes single routes under the current epoch. It returns when removed and replaced generations serve
// nothing any more. Fails with ErrOtherEpoch.
func (t *Table) Apply(epoch int64, set []Route, remove []Removal) error {
	t.change.Lock()
	defer t.change.Unlock()
	t.mu.Lock()
	if epoch != t.epoch || epoch == 0 {
		t.mu.Unlock()
		return ErrOtherEpoch
	}
	var dead []*upstream.Backend
	for _, r := range remove {
		if known := t.entries[r.ID]; known != nil && known.Generation <= r.Generation {
			dead = append(dead, t.drop(r.ID)...)
		}
		t.touched(r.ID)
	}
	for i := range set {
		dead = append(dead, t.set(&set[i])...)
		t.touched(set[i].ID)
	}
	t.mu.Unlock()
	kill(dead)
	return nil
}

// Adopt sets a route that a wake call brought, unless valid (called while the table is locked) says that a push has
// overtaken it.
func (t *Table) Adopt(route Route, valid func() bool) {
	t.change.Lock()
	defer t.change.Unlock()
	t.mu.Lock()
	var dead []*upstream.Backend
	if valid() {
		dead = t.set(&route)
	}
	t.mu.Unlock()
	kill(dead)
}

// Close ends every backend, as at the end of the process.
func (t *Table) Close() {
	t.change.Lock()
	defer t.change.Unlock()
	t.mu.Lock()
	var dead []*upstream.Backend
	for id := range t.entries {
		dead = append(dead, t.drop(id)...)
	}
	t.mu.Unlock()
	kill(dead)
}

// set puts one route in and returns the backends that this ends. t.mu is held.
func (t *Table) set(route *Route) (dead []*upstream.Backend) {
	known := t.entries[route.ID]
	if known != nil && route.Generation < known.Generation {
		return nil
	}
	entry := &Entry{Route: *route}
	if known != nil && known.Backend != nil {
		same := route.Generation == known.Generation && route.State == Running && route.Address == known.Backend.Address()
		if same {
			entry.Backend = known.Backend
		} else {
			dead = append(dead, known.Backend)
		}
	}
	if route.State == Running && entry.Backend == nil {
		entry.Backend = upstream.New(route.Address, t.maxStreams, t.metrics)
	}
	t.entries[route.ID] = entry
	return dead
}

func (t *Table) drop(id string) []*upstream.Backend {
	entry := t.entries[id]
	delete(t.entries, id)
	if entry == nil || entry.Backend == nil {
		return nil
	}
	return []*upstream.Backend{entry.Backend}
}

func kill(backends []*upstream.Backend) {
	if len(backends) == 1 {
		backends[0].Kill()
		return
	}
	var all sync.WaitGroup
	for _, b := range backends {
		all.Go(b.Kill)
	}
	all.Wait()
}
