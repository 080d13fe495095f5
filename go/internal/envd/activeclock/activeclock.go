// Package activeclock has timers that stand still while the sandbox is paused. The kernel's own clocks go
// on after a restore as if no pause had been, so every timer that ran out meanwhile would fire at once.
package activeclock

import (
	"sync"
	"time"
)

const (
	// beat is how often the clock looks at the time while timers wait. A pause is known by a beat that came
	// too late; it counts as one beat of active time.
	beat = 500 * time.Millisecond
	// pauseGap is how late that must be. Shorter pauses are not noticed: the timers run through them.
	pauseGap = 3 * beat
)

// Clock counts the time in which the sandbox ran.
type Clock struct {
	now func() time.Time

	mu      sync.Mutex
	last    time.Time
	skipped time.Duration
	timers  map[*Timer]struct{}
	beating bool
}

// New makes a clock.
func New() *Clock { return &Clock{now: time.Now, timers: map[*Timer]struct{}{}} }

// Timer is one pending call.
type Timer struct {
	clock *Clock
	due   time.Time // as clock.activeLocked counts
	call  func()
	timer *time.Timer
}

// AfterFunc calls f in its own goroutine when the sandbox has run for d.
func (c *Clock) AfterFunc(d time.Duration, f func()) *Timer {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.beating {
		c.beating, c.last = true, c.now()
		go c.run()
	}
	t := &Timer{clock: c, due: c.activeLocked().Add(d), call: f}
	c.timers[t] = struct{}{}
	t.timer = time.AfterFunc(d, t.fire)
	return t
}

// Stop keeps the call from being made, if it was not yet.
func (t *Timer) Stop() {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	t.timer.Stop()
	delete(t.clock.timers, t)
}

func (t *Timer) fire() {
	c := t.clock
	c.mu.Lock()
	_, pending := c.timers[t]
	left := t.due.Sub(c.activeLocked())
	if pending && left > 0 { // there was a pause
		t.timer.Reset(left)
	}
	if pending && left <= 0 {
		delete(c.timers, t)
	}
	c.mu.Unlock()
	if pending && left <= 0 {
		t.call()
	}
}

// activeLocked is the present time less all pauses.
func (c *Clock) activeLocked() time.Time {
	now := c.now()
	if gap := now.Sub(c.last); gap > pauseGap {
		c.skipped += gap - beat
	}
	c.last = now
	return now.Add(-c.skipped)
}

func (c *Clock) run() {
	ticker := time.NewTicker(beat)
	defer ticker.Stop()
	for range ticker.C {
		if !c.beatOnce() {
			return
		}
	}
}

// beatOnce notices a pause; false when no timer is left to care.
func (c *Clock) beatOnce() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.activeLocked()
	c.beating = len(c.timers) > 0
	return c.beating
}
