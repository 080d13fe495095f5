// Package events keeps what happened to sandboxes, for readers that come and go.
package events

import (
	"context"
	"sync"
	"time"
)

// Types of events.
const (
	Exit      = "exit"
	Unhealthy = "unhealthy"
	Healthy   = "healthy"
	Memory    = "memory"
)

// Event is one thing that happened to one sandbox.
type Event struct {
	Seq         int64     `json:"seq"`
	At          time.Time `json:"at"`
	Type        string    `json:"type"`
	ID          string    `json:"id"`
	Pid         int       `json:"pid,omitempty"`
	ExitCode    *int      `json:"exit_code,omitempty"`
	Signal      string    `json:"signal,omitempty"`
	MemoryBytes int64     `json:"memory_bytes,omitempty"`
	Reason      string    `json:"reason,omitempty"`
}

// Log keeps the last events. Its sequence goes on rising over restarts of the keeper.
type Log struct {
	mu      sync.Mutex
	limit   int
	events  []Event
	next    int64
	changed chan struct{} // closed and replaced at each new event
}

// NewLog makes a log of the last limit events. The first sequence number is taken from the clock (microseconds), so
// that a reader that remembers one of an earlier keeper gets everything of this one.
func NewLog(limit int, now time.Time) *Log {
	return &Log{limit: limit, next: now.UnixMicro(), changed: make(chan struct{})}
}

// Add appends an event and gives it its number and time.
func (l *Log) Add(e Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.Seq, e.At = l.next, time.Now().UTC()
	l.next++
	l.events = append(l.events, e)
	if len(l.events) > l.limit {
		l.events = append(l.events[:0], l.events[len(l.events)-l.limit:]...)
	}
	close(l.changed)
	l.changed = make(chan struct{})
}

// After returns the kept events with a number above seq, and a channel that is closed when there are more.
func (l *Log) After(seq int64) ([]Event, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	first := len(l.events)
	for first > 0 && l.events[first-1].Seq > seq {
		first--
	}
	return append([]Event(nil), l.events[first:]...), l.changed
}

// Last is the number of the newest event, or the one before the first.
func (l *Log) Last() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.next - 1
}

// Follow calls each with every event after seq, in order, and with nil when nothing has happened for idle; until ctx
// ends or each returns an error.
func (l *Log) Follow(ctx context.Context, seq int64, idle time.Duration, each func(*Event) error) error {
	timer := time.NewTimer(idle)
	defer timer.Stop()
	for {
		events, more := l.After(seq)
		for i := range events {
			if err := each(&events[i]); err != nil {
				return err
			}
			seq = events[i].Seq
		}
		timer.Reset(idle)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-more:
		case <-timer.C:
			if err := each(nil); err != nil {
				return err
			}
		}
	}
}
