package itest

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"forkyard.dev/forkyard/internal/keeper/containers"
	"forkyard.dev/forkyard/internal/keeper/events"
)

func (w *world) checkpoint(id, name string) containers.CheckpointResult {
	w.Helper()
	var result containers.CheckpointResult
	w.call("POST", "/v1/containers/"+id+"/checkpoint",
		containers.CheckpointRequest{Dir: inNode + "/snapshots/" + name, LeaveRunning: true}, &result)
	return result
}

func TestCheckpointAndTwoRestores(t *testing.T) {
	w := newWorld(t)
	n := w.slot()
	w.run("a", n)
	w.ask(n, "/write?path=/root-file&mb=3")
	w.eventually("it counted", func() bool { return w.count(n) > 10 })
	before := w.count(n)
	result := w.checkpoint("a", "s")
	var total int64
	for _, file := range result.Files {
		info, err := os.Stat(filepath.Join(w.node, "snapshots/s", file.Name))
		must(t, err)
		if info.Size() != file.Size {
			t.Errorf("%s has %d bytes, answered %d", file.Name, info.Size(), file.Size)
		}
		total += file.Size
	}
	if total < 3<<20 || total > 20<<20 {
		t.Errorf("the checkpoint has %d bytes", total)
	}
	if after := w.count(n); after < before {
		t.Errorf("the source counts %d after the checkpoint, %d before", after, before)
	}

	var wg sync.WaitGroup
	for _, id := range []string{"b", "c"} {
		other := w.slot()
		wg.Go(func() {
			w.create(id, other)
			var view containers.View
			w.call("POST", "/v1/containers/"+id+"/restore",
				containers.RestoreRequest{Dir: inNode + "/snapshots/s", Net: other}, &view)
			if view.Status != containers.StatusRunning {
				t.Errorf("restored as %+v", view)
			}
			w.answers(other)
			if count := w.count(other); count < before || count > before+6_000 {
				t.Errorf("%s counts %d, at the checkpoint it was %d", id, count, before)
			}
			if text := w.ask(other, "/read?path=/root-file"); len(text) != 3<<20 {
				t.Errorf("%s has %d bytes of the file", id, len(text))
			}
		})
	}
	wg.Wait()
	if left := w.list(); len(left) != 3 {
		t.Errorf("containers: %+v", left)
	}
	w.refused(w.try("POST", "/v1/containers/a/checkpoint",
		containers.CheckpointRequest{Dir: inNode + "/snapshots/s", LeaveRunning: true}, nil), 400, "invalid")
}

func TestCheckpointThatEnds(t *testing.T) {
	w := newWorld(t)
	n := w.slot()
	w.run("a", n)
	follow := w.follow(0)
	w.call("POST", "/v1/containers/a/checkpoint", containers.CheckpointRequest{Dir: inNode + "/snapshots/s"}, nil)
	if e := w.next(follow, events.Exit, "a"); e.Reason != "checkpointed" {
		t.Errorf("reported as %+v", e)
	}
}

func TestFailedRestoreLeavesNothing(t *testing.T) {
	w := newWorld(t)
	n := w.slot()
	w.run("a", n)
	w.checkpoint("a", "s")
	state := filepath.Join(w.node, "snapshots/s/checkpoint.img")
	must(t, os.Truncate(state, 4096))
	other := w.slot()
	view := w.create("b", other)
	follow := w.follow(0)
	err := w.try("POST", "/v1/containers/b/restore",
		containers.RestoreRequest{Dir: inNode + "/snapshots/s", Net: other}, nil)
	w.refused(err, 500, "internal")
	w.nothingLeft(view)
	w.refused(w.try("GET", "/v1/containers/b", nil, nil), 404, "not_found")
	// The address was taken off the interface; the next one in the namespace gets it back.
	w.run("c", other)
	must(t, syscall.Kill(w.list()[1].Pid, syscall.SIGKILL))
	if e := <-follow; e.ID != "c" {
		t.Errorf("a failed restore was reported as an exit: %+v", e)
	}
	w.threadsAreHome()
}

// A restore with another spec is refused by the runtime, and leaves nothing either.
func TestRestoreOfAnotherShape(t *testing.T) {
	w := newWorld(t)
	n := w.slot()
	w.run("a", n)
	w.checkpoint("a", "s")
	other := w.slot()
	view := w.create("b", other, func(spec map[string]any) {
		spec["annotations"].(map[string]string)["dev.gvisor.spec.rootfs.options"] = "size=2g"
	})
	err := w.try("POST", "/v1/containers/b/restore", containers.RestoreRequest{Dir: inNode + "/snapshots/s", Net: other}, nil)
	w.refused(err, 500, "internal")
	w.nothingLeft(view)
}

func TestFullDisk(t *testing.T) {
	w := newWorldWith(t, func(w *world) {
		snapshots := filepath.Join(w.node, "snapshots")
		must(w, syscall.Mount("tmpfs", snapshots, "tmpfs", 0, "size=20m"))
		w.Cleanup(func() { _ = syscall.Unmount(snapshots, syscall.MNT_DETACH) })
	})
	n := w.slot()
	w.run("a", n)
	w.ask(n, "/grow?mb=60")
	before := w.count(n)
	err := w.try("POST", "/v1/containers/a/checkpoint",
		containers.CheckpointRequest{Dir: inNode + "/snapshots/s", LeaveRunning: true}, nil)
	w.refused(err, 507, "no_space")
	if _, err := os.Stat(filepath.Join(w.node, "snapshots/s")); !os.IsNotExist(err) {
		t.Errorf("the unfinished checkpoint is still there: %v", err)
	}
	if after := w.count(n); after < before {
		t.Errorf("counts %d after the failed checkpoint, %d before", after, before)
	}
	w.ask(n, "/grow?mb=0")
	w.eventually("a checkpoint that fits works again", func() bool {
		return w.try("POST", "/v1/containers/a/checkpoint",
			containers.CheckpointRequest{Dir: inNode + "/snapshots/s", LeaveRunning: true}, nil) == nil
	})
	other := w.slot()
	w.create("b", other)
	w.call("POST", "/v1/containers/b/restore", containers.RestoreRequest{Dir: inNode + "/snapshots/s", Net: other}, nil)
	w.answers(other)
}

// A sandbox that does not answer makes its own calls fail, in bounded time, and no others.
func TestSilentSandbox(t *testing.T) {
	w := newWorld(t, "--call-timeout=1s")
	n := w.slot()
	view := w.run("a", n)
	other := w.slot()
	w.run("b", other)
	must(t, syscall.Kill(view.Pid, syscall.SIGSTOP))
	started := time.Now()
	done := make(chan error, 1)
	go func() {
		done <- w.try("POST", "/v1/containers/a/checkpoint",
			containers.CheckpointRequest{Dir: inNode + "/snapshots/s", LeaveRunning: true}, nil)
	}()
	w.checkpoint("b", "other")
	w.refused(<-done, 504, "timeout")
	if took := time.Since(started); took > 8*time.Second {
		t.Errorf("the call took %v", took)
	}
	if _, err := os.Stat(filepath.Join(w.node, "snapshots/s")); !os.IsNotExist(err) {
		t.Errorf("the unfinished checkpoint is still there: %v", err)
	}
	var status containers.View
	w.call("GET", "/v1/containers/a", nil, &status)
	if status.Status != containers.StatusRunning {
		t.Errorf("it is %s", status.Status)
	}
	must(t, syscall.Kill(view.Pid, syscall.SIGCONT))
	w.answers(n)
	w.checkpoint("a", "again")
	must(t, syscall.Kill(view.Pid, syscall.SIGSTOP))
	w.call("DELETE", "/v1/containers/a", nil, nil)
	w.nothingLeft(view)

	created := w.create("c", n)
	must(t, syscall.Kill(created.Pid, syscall.SIGSTOP))
	w.refused(w.try("POST", "/v1/containers/c/restore",
		containers.RestoreRequest{Dir: inNode + "/snapshots/again", Net: n}, nil), 504, "timeout")
	w.nothingLeft(created)
	w.answers(other)
}

// A DELETE does not wait for a checkpoint that hangs.
func TestDestroyDuringCheckpoint(t *testing.T) {
	w := newWorld(t)
	view := w.run("a", w.slot())
	must(t, syscall.Kill(view.Pid, syscall.SIGSTOP))
	done := make(chan error, 1)
	go func() {
		done <- w.try("POST", "/v1/containers/a/checkpoint",
			containers.CheckpointRequest{Dir: inNode + "/snapshots/s", LeaveRunning: true}, nil)
	}()
	w.eventually("the checkpoint is going on", func() bool {
		_, err := os.Stat(filepath.Join(w.node, "snapshots/s/checkpoint.img"))
		return err == nil
	})
	w.call("DELETE", "/v1/containers/a", nil, nil)
	w.nothingLeft(view)
	if err := <-done; err == nil {
		t.Error("the checkpoint of a destroyed sandbox worked")
	}
}

// What runsc leaves open until it exits must not stay open in the keeper: a packet socket of a dead sandbox would get
// its share of the packets for the next one in the namespace.
func TestSandboxesFollowEachOtherInOneNamespace(t *testing.T) {
	w := newWorld(t)
	w.run("a", w.slot())
	w.checkpoint("a", "s")
	n := w.slot()
	sockets := 0
	for round := range 12 {
		w.create("b", n)
		w.call("POST", "/v1/containers/b/restore", containers.RestoreRequest{Dir: inNode + "/snapshots/s", Net: n}, nil)
		client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
		response, err := client.Get(guest(n) + "/health") // one connection, no second try
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		response.Body.Close()
		w.call("DELETE", "/v1/containers/b", nil, nil)
		open := w.openSockets()
		if round == 1 {
			sockets = open
		} else if round > 1 && open > sockets+1 {
			t.Fatalf("round %d: the keeper has %d sockets open, %d after the second", round, open, sockets)
		}
	}
}

func (w *world) openSockets() int {
	dir := fmt.Sprintf("/proc/%d/fd/", w.process.Process.Pid)
	entries, err := os.ReadDir(dir)
	must(w, err)
	sockets := 0
	for _, entry := range entries {
		if target, err := os.Readlink(dir + entry.Name()); err == nil && strings.HasPrefix(target, "socket:") {
			sockets++
		}
	}
	return sockets
}
