package activeclock

import (
	"testing"
	"time"
)

// fakeNow is a time that a test moves.
type fakeNow struct{ at time.Time }

func (f *fakeNow) advance(c *Clock, d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f.at = f.at.Add(d)
}

func newFake() (*Clock, *fakeNow) {
	fake := &fakeNow{at: time.Unix(1000, 0)}
	clock := New()
	clock.now = func() time.Time { return fake.at }
	clock.beating, clock.last = true, fake.at // no goroutine of its own: the test makes the beats
	return clock, fake
}

func TestTimeOfAPauseDoesNotCount(t *testing.T) {
	clock, fake := newFake()
	fired := make(chan struct{}, 1)
	timer := clock.AfterFunc(time.Hour, func() { fired <- struct{}{} })
	for range 4 {
		fake.advance(clock, beat)
		clock.beatOnce()
	}
	fake.advance(clock, 24*time.Hour) // the pause
	timer.fire()                      // as the kernel does after it
	select {
	case <-fired:
		t.Fatal("the timer fired because of the pause")
	default:
	}
	for elapsed := time.Duration(0); elapsed < time.Hour-4*beat; elapsed += beat {
		fake.advance(clock, beat)
		clock.beatOnce()
	}
	timer.fire()
	select {
	case <-fired:
	default:
		t.Fatal("the timer did not fire after its time of running")
	}
}

func TestAStoppedTimerDoesNotFire(t *testing.T) {
	clock, fake := newFake()
	timer := clock.AfterFunc(time.Millisecond, func() { t.Error("fired") })
	timer.Stop()
	fake.advance(clock, time.Second)
	timer.fire()
	if clock.beatOnce() {
		t.Fatal("the clock goes on beating without timers")
	}
}

func TestItFiresByItself(t *testing.T) {
	fired := make(chan time.Time, 1)
	start := time.Now()
	New().AfterFunc(30*time.Millisecond, func() { fired <- time.Now() })
	select {
	case at := <-fired:
		if at.Sub(start) < 30*time.Millisecond {
			t.Fatalf("fired after %v", at.Sub(start))
		}
	case <-time.After(5 * time.Second):
		t.Fatal("did not fire")
	}
}
