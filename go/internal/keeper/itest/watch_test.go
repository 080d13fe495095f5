package itest

import (
	"testing"
	"time"

	"forkyard.dev/forkyard/internal/keeper/containers"
	"forkyard.dev/forkyard/internal/keeper/events"
)

func TestMemoryEvent(t *testing.T) {
	w := newWorld(t)
	n := w.slot()
	w.run("a", n)
	follow := w.follow(0)
	w.call("POST", "/v1/containers/a/watch", containers.Watch{MemoryEventBytes: []int64{200 << 20, 350 << 20}}, nil)
	w.ask(n, "/grow?mb=220")
	if e := w.next(follow, events.Memory, "a"); e.MemoryBytes < 200<<20 {
		t.Errorf("reported at %d bytes", e.MemoryBytes)
	}
	w.ask(n, "/grow?mb=150")
	if e := w.next(follow, events.Memory, "a"); e.MemoryBytes < 350<<20 {
		t.Errorf("reported at %d bytes", e.MemoryBytes)
	}
}

func TestOutOfMemoryIsTheReason(t *testing.T) {
	w := newWorld(t)
	n := w.slot()
	w.run("a", n)
	follow := w.follow(0)
	_, _ = tryAsk(n, "/grow?mb=900")
	if e := w.next(follow, events.Exit, "a"); e.Reason != "oom_killed" || e.Signal != "SIGKILL" {
		t.Errorf("reported as %+v", e)
	}
}

func TestHealth(t *testing.T) {
	w := newWorld(t)
	n := w.slot()
	w.run("a", n)
	follow := w.follow(0)
	w.call("POST", "/v1/containers/a/watch", containers.Watch{
		HealthURL: guest(n) + "/health", IntervalMS: 50, TimeoutMS: 100, Strikes: 3,
	}, nil)
	w.ask(n, "/freeze")
	if e := w.next(follow, events.Unhealthy, "a"); e.Reason == "" {
		t.Errorf("reported as %+v", e)
	}
	w.ask(n, "/freeze?off=1")
	w.next(follow, events.Healthy, "a")
	w.call("POST", "/v1/containers/a/watch", containers.Watch{}, nil)
	w.ask(n, "/freeze")
	select {
	case e := <-follow:
		t.Errorf("a watch that was taken off reports %+v", e)
	case <-time.After(500 * time.Millisecond):
	}
}
