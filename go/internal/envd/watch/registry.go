package watch

import (
	"crypto/rand"
	"encoding/hex"
	"sync"

	"forkyard.dev/forkyard/internal/envd/connect"
)

// maxWatchers bounds the watchers of a sandbox, each of which holds a file and a queue.
const maxWatchers = 256

// Registry knows all living watchers.
type Registry struct {
	mu    sync.Mutex
	all   map[*Watcher]struct{}
	named map[string]Named
}

// Named is a watcher that a client polls by its id, with what its owner keeps about it.
type Named struct {
	Watcher *Watcher
	Owner   any
}

// NewRegistry makes an empty registry.
func NewRegistry() *Registry {
	return &Registry{all: map[*Watcher]struct{}{}, named: map[string]Named{}}
}

// Open starts a watcher and registers it; end it with Drop.
func (r *Registry) Open(root string, recursive bool) (*Watcher, error) {
	r.mu.Lock()
	full := len(r.all) >= maxWatchers
	r.mu.Unlock()
	if full {
		return nil, connect.Errorf(connect.CodeResourceExhausted, "a sandbox can have %d watchers at most", maxWatchers)
	}
	watcher, err := New(root, recursive)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all[watcher] = struct{}{}
	return watcher, nil
}

// Drop closes a watcher.
func (r *Registry) Drop(watcher *Watcher) {
	r.mu.Lock()
	delete(r.all, watcher)
	r.mu.Unlock()
	watcher.Close()
}

// Name gives a watcher an id for polling.
func (r *Registry) Name(watcher *Watcher, owner any) string {
	var raw [16]byte
	_, _ = rand.Read(raw[:]) // never fails since Go 1.24
	id := hex.EncodeToString(raw[:])
	r.mu.Lock()
	defer r.mu.Unlock()
	r.named[id] = Named{Watcher: watcher, Owner: owner}
	return id
}

// Get finds a watcher by its id.
func (r *Registry) Get(id string) (Named, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	named, ok := r.named[id]
	return named, ok
}

// Forget takes an id away; false if there is none.
func (r *Registry) Forget(id string) bool {
	r.mu.Lock()
	named, ok := r.named[id]
	delete(r.named, id)
	r.mu.Unlock()
	if ok {
		r.Drop(named.Watcher)
	}
	return ok
}

// Settle lets every watcher take in what has happened up to now. envd calls it after it has made a
// directory, so that a recursive watcher misses nothing that follows.
func (r *Registry) Settle() {
	r.mu.Lock()
	watchers := make([]*Watcher, 0, len(r.all))
	for watcher := range r.all {
		watchers = append(watchers, watcher)
	}
	r.mu.Unlock()
	for _, watcher := range watchers {
		watcher.Settle()
	}
}
