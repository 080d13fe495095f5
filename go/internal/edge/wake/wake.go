// Package wake brings sandboxes up on request: one call to the control plane per sandbox, however many wait for it.
package wake

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"forkyard.dev/forkyard/internal/edge/controlplane"
	"forkyard.dev/forkyard/internal/edge/metrics"
	"forkyard.dev/forkyard/internal/edge/table"
)

// Reason tells the control plane why it is called.
type Reason string

// Reasons of a wake call.
const (
	Request Reason = "request" // the sandbox is paused and wakes on requests
	Held    Reason = "held"    // a transition is in progress
	Unknown Reason = "unknown" // the edge has no route
)

const (
	// MaxWait bounds one wake call, and with it what a request waits.
	MaxWait = 60 * time.Second

	unknownMemory   = time.Second
	maxUnknown      = 4096 // ids remembered as unknown, per generation of the memory
	maxUnknownCalls = 16   // wake calls for unknown ids at once
	maxCalls        = 4096 // wake calls in flight or queued
)

// Outcome is what waiting for a sandbox came to.
type Outcome int

// Outcomes of Wait.
const (
	LookAgain Outcome = iota // the table may have changed
	NotFound                 // no such sandbox, or it will not run
	Refused                  // the control plane says so, see the answer
	Away                     // the control plane does not answer
	TimedOut                 // the context ended first
	Busy                     // too many sandboxes are being woken
	Limited                  // the client asks for too many unknown sandboxes
)

// Caller makes wake calls; controlplane.Client is the real one.
type Caller interface {
	Wake(ctx context.Context, id, reason string) (controlplane.WakeAnswer, error)
}

// Waker joins requests that wait for the same sandbox.
type Waker struct {
	table   *table.Table
	caller  Caller
	metrics *metrics.Set
	log     *slog.Logger
	now     func() time.Time
	slots   chan struct{} // for calls about unknown ids

	mu      sync.Mutex
	calls   map[string]*call
	unknown [2]map[string]time.Time // newer and older memory of unknown ids
}

type call struct {
	done    chan struct{}
	outcome Outcome
	answer  controlplane.WakeAnswer
	// touched is closed, and replaced, when a push names the sandbox; overtaken stays set from then on.
	touched   chan struct{}
	overtaken bool
}

// New makes a waker and registers it with the table. now is the clock.
func New(t *table.Table, caller Caller, set *metrics.Set, log *slog.Logger, now func() time.Time) *Waker {
	w := &Waker{
		table: t, caller: caller, metrics: set, log: log, now: now,
		slots: make(chan struct{}, maxUnknownCalls),
		calls: make(map[string]*call),
	}
	w.unknown[0] = make(map[string]time.Time)
	t.OnTouch(w.touch)
	return w
}

// Wait wakes the sandbox, or joins the call that does, until there is an outcome, a push names the sandbox or ctx ends.
// The call goes on when the caller leaves. The answer is set when the outcome is Refused. mayAsk is asked before a call
// about an unknown sandbox is made for this client.
func (w *Waker) Wait(ctx context.Context, id string, reason Reason, mayAsk func() bool) (Outcome, controlplane.WakeAnswer) {
	w.mu.Lock()
	c := w.calls[id]
	if c == nil {
		outcome := LookAgain
		switch {
		case reason == Unknown && w.remembered(id):
			outcome = NotFound
		case len(w.calls) >= maxCalls:
			outcome = Busy
		case reason == Unknown && !mayAsk():
			outcome = Limited
		}
		if outcome != LookAgain {
			w.mu.Unlock()
			return outcome, controlplane.WakeAnswer{}
		}
		c = &call{done: make(chan struct{}), touched: make(chan struct{})}
		w.calls[id] = c
		go w.run(c, id, reason)
	}
	touched := c.touched
	w.mu.Unlock()

	select {
	case <-c.done:
		return c.outcome, c.answer
	case <-touched:
		return LookAgain, controlplane.WakeAnswer{}
	case <-ctx.Done():
		return TimedOut, controlplane.WakeAnswer{}
	}
}

// run makes the wake call and ends c.
func (w *Waker) run(c *call, id string, reason Reason) {
	started := w.now()
	ctx, cancel := context.WithTimeout(context.Background(), MaxWait)
	defer cancel()
	outcome, answer := w.ask(ctx, c, id, reason)
	switch outcome {
	case LookAgain:
		w.metrics.Woke(metrics.WakeRunning, w.now().Sub(started))
	case NotFound:
		w.metrics.Woke(metrics.WakeNotFound, w.now().Sub(started))
	case Refused:
		w.metrics.Woke(metrics.WakeRefused, w.now().Sub(started))
	default:
		w.metrics.Woke(metrics.WakeAway, w.now().Sub(started))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if outcome == NotFound && reason == Unknown {
		w.remember(id)
	}
	c.outcome, c.answer = outcome, answer
	delete(w.calls, id)
	close(c.done)
}

func (w *Waker) ask(ctx context.Context, c *call, id string, reason Reason) (Outcome, controlplane.WakeAnswer) {
	if reason == Unknown {
		select {
		case w.slots <- struct{}{}:
			defer func() { <-w.slots }()
		case <-ctx.Done():
			return TimedOut, controlplane.WakeAnswer{}
		}
	}
	answer, err := w.caller.Wake(ctx, id, string(reason))
	for reason != Unknown && errors.Is(err, controlplane.ErrAway) && ctx.Err() == nil {
		// We know the sandbox: its control plane restarts in the middle of a transition, and will end it.
		answer, err = w.caller.Wake(ctx, id, string(reason))
	}
	switch {
	case ctx.Err() != nil:
		return TimedOut, answer
	case err != nil:
		w.log.Error("wake failed", "sandbox", id, "reason", string(reason), "error", err.Error())
		return Away, answer
	case answer.Status == http.StatusOK:
		w.table.Adopt(answer.Route, func() bool { return !w.isOvertaken(c) })
		return LookAgain, answer
	case answer.Status == http.StatusNotFound:
		return NotFound, answer
	}
	return Refused, answer
}

func (w *Waker) isOvertaken(c *call) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return c.overtaken
}

// touch is called by the table, while it is locked, with the id that a push names ("" for all).
func (w *Waker) touch(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if id != "" {
		w.calls[id].touch()
		return
	}
	for _, c := range w.calls {
		c.touch()
	}
}

func (c *call) touch() {
	if c == nil {
		return
	}
	c.overtaken = true
	close(c.touched)
	c.touched = make(chan struct{})
}

func (w *Waker) remembered(id string) bool {
	now := w.now()
	for _, memory := range w.unknown {
		if at, ok := memory[id]; ok && now.Sub(at) < unknownMemory {
			return true
		}
	}
	return false
}

func (w *Waker) remember(id string) {
	if len(w.unknown[0]) >= maxUnknown {
		w.unknown[0], w.unknown[1] = make(map[string]time.Time), w.unknown[0]
	}
	w.unknown[0][id] = w.now()
}
