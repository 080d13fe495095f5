package process

import (
	"encoding/base64"
	"sync"
	"sync/atomic"

	"forkyard.dev/forkyard/internal/envd/connect"
)

// Stream names one of the outputs of a process, as the wire calls it.
type Stream string

// The outputs a process can have.
const (
	Stdout   Stream = "stdout"
	Stderr   Stream = "stderr"
	Terminal Stream = "pty"
)

// chunk is one piece of output, encoded once for all subscribers. The last one to release it gives its
// memory back for the next chunk.
type chunk struct {
	envelope []byte
	users    atomic.Int32
}

var chunkPool = sync.Pool{New: func() any { return &chunk{} }}

func (c *chunk) release() {
	if c.users.Add(-1) == 0 {
		chunkPool.Put(c)
	}
}

// newChunk frames {"event":{"data":{"<stream>":"<base64>"}}} for users subscribers.
func newChunk(stream Stream, data []byte, users int) *chunk {
	const head, tail = `{"event":{"data":{"`, `"}}}`
	c, _ := chunkPool.Get().(*chunk)
	c.users.Store(int32(users))
	c.envelope = append(c.envelope[:0], 0, 0, 0, 0, 0)
	c.envelope = append(c.envelope, head...)
	c.envelope = append(c.envelope, stream...)
	c.envelope = append(c.envelope, `":"`...)
	c.envelope = base64.StdEncoding.AppendEncode(c.envelope, data)
	c.envelope = append(c.envelope, tail...)
	connect.PutPrefix(c.envelope, 0, len(c.envelope)-5)
	return c
}

// hub hands the output of one process to its subscribers. A subscriber that does not read blocks the
// process, as a full pipe does; without any, output is dropped.
type hub struct {
	mu          sync.Mutex
	subscribers map[*Subscription]struct{}
	finished    bool
}

// Subscription is one reader of a process's output.
type Subscription struct {
	hub    *hub
	chunks chan *chunk // closed after the last chunk of the process
	gone   chan struct{}
	leave  sync.Once
}

func newHub() *hub { return &hub{subscribers: map[*Subscription]struct{}{}} }

// subscribe gives the output from now on.
func (h *hub) subscribe() *Subscription {
	sub := &Subscription{hub: h, chunks: make(chan *chunk, 2), gone: make(chan struct{})}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.finished {
		close(sub.chunks)
	} else {
		h.subscribers[sub] = struct{}{}
	}
	return sub
}

// Output hands data to every subscriber, and returns when each has taken it or left.
func (h *hub) Output(stream Stream, data []byte) {
	h.mu.Lock()
	receivers := make([]*Subscription, 0, len(h.subscribers))
	for sub := range h.subscribers {
		receivers = append(receivers, sub)
	}
	h.mu.Unlock()
	if len(receivers) == 0 {
		return
	}
	c := newChunk(stream, data, len(receivers))
	for _, sub := range receivers {
		select {
		case sub.chunks <- c:
		case <-sub.gone:
			c.release()
		}
	}
}

// Finish ends all subscriptions; no Output may follow or be under way.
func (h *hub) Finish() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.finished = true
	for sub := range h.subscribers {
		close(sub.chunks)
	}
	clear(h.subscribers)
}

// Close leaves; it may be called more than once.
func (s *Subscription) Close() {
	s.leave.Do(func() {
		close(s.gone)
		s.hub.mu.Lock()
		delete(s.hub.subscribers, s)
		s.hub.mu.Unlock()
	})
}
