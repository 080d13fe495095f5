package itest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"forkyard.dev/forkyard/internal/keeper/containers"
	"forkyard.dev/forkyard/internal/keeper/events"
)

// A keeper that is killed takes no sandbox with it, and the next one can do everything with what it finds.
func TestAdoption(t *testing.T) {
	w := newWorld(t)
	n := w.slot()
	view := w.run("a", n)
	w.call("POST", "/v1/containers/a/watch", containers.Watch{MemoryEventBytes: []int64{200 << 20}}, nil)
	empty := w.slot()
	w.create("b", empty)
	dead := w.run("c", w.slot())
	w.checkpoint("a", "s")
	w.killKeeper()
	w.answers(n)
	must(t, syscall.Kill(dead.Pid, syscall.SIGKILL))
	w.eventually("c has ended", func() bool { return !exists(dead.Pid) })
	w.startKeeper()

	follow := w.follow(0)
	if e := w.next(follow, events.Exit, "c"); e.Pid != dead.Pid {
		t.Errorf("reported as %+v", e)
	}
	found := map[string]containers.View{}
	for _, c := range w.list() {
		found[c.ID] = c
	}
	if a := found["a"]; a.Status != containers.StatusRunning || a.Pid != view.Pid || a.PidStartTime != view.PidStartTime {
		t.Errorf("a was found as %+v", a)
	}
	if found["b"].Status != containers.StatusCreated || found["c"].Status != containers.StatusStopped {
		t.Errorf("found %+v", found)
	}
	w.checkpoint("a", "after")
	w.call("POST", "/v1/containers/b/restore", containers.RestoreRequest{Dir: inNode + "/snapshots/after", Net: empty}, nil)
	w.answers(empty)
	w.ask(n, "/grow?mb=220") // its watch was adopted too
	w.next(follow, events.Memory, "a")

	w.call("DELETE", "/v1/containers/c", nil, nil)
	w.nothingLeft(dead)
	killed := time.Now()
	must(t, syscall.Kill(view.Pid, syscall.SIGKILL))
	w.next(follow, events.Exit, "a")
	if took := time.Since(killed); took > 2*time.Second {
		t.Errorf("the exit of an adopted sandbox came after %v", took)
	}
	started := time.Now()
	w.call("DELETE", "/v1/containers/b", nil, nil)
	if took := time.Since(started); took > time.Second {
		t.Errorf("destroying an adopted sandbox took %v", took)
	}
	w.call("DELETE", "/v1/containers/a", nil, nil)
	w.nothingLeft(view)
	w.run("d", w.slot())
}

// What was half done when the keeper was killed is undone.
func TestHalfDoneIsUndone(t *testing.T) {
	w := newWorld(t)
	n := w.slot()
	for i := range 4 {
		go func() { _ = w.try("PUT", "/v1/containers/a", w.request("a", n), nil) }()
		w.eventually("the sandbox was forked", func() bool {
			data, err := os.ReadFile(filepath.Join(w.dir, "root/a/keeper.json"))
			var record struct {
				Gofer struct{ Pid int }
			}
			return err == nil && json.Unmarshal(data, &record) == nil && record.Gofer.Pid > 0
		})
		time.Sleep(time.Duration(i) * 8 * time.Millisecond)
		w.killKeeper()
		w.startKeeper()
		for _, c := range w.list() { // it was complete
			w.call("DELETE", "/v1/containers/"+c.ID, nil, nil)
		}
		w.nothingLeft(containers.View{ID: "a"})
		if left := w.processesOf("a"); len(left) > 0 {
			t.Fatalf("processes left: %v", left)
		}
	}
	w.run("a", n)
}

func TestShutdownLeavesSandboxes(t *testing.T) {
	w := newWorld(t)
	n := w.slot()
	w.run("a", n)
	w.call("POST", "/v1/shutdown", nil, nil)
	must(t, w.process.Wait())
	w.answers(n)
	w.startKeeper()
	w.call("DELETE", "/v1/containers/a", nil, nil)
}
