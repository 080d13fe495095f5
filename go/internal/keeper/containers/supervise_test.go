package containers

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	goruntime "runtime"
	"testing"
	"time"

	"forkyard.dev/forkyard/internal/keeper/cgroups"
	"forkyard.dev/forkyard/internal/keeper/events"
	"forkyard.dev/forkyard/internal/keeper/proc"
)

// A sandbox that the kernel kills for its memory closes its files at once, so that its gofer ends, and then takes its
// time to give the memory back: the gofer's end is not the reason.
func TestOutOfMemoryIsTheReasonAlthoughTheGoferEndsFirst(t *testing.T) {
	group := groupThatRanOutOfMemory(t)
	if reason := reasonWhenTheGoferEndsFirst(t, group); reason != "oom_killed" {
		t.Errorf("reported as %q", reason)
	}
}

func TestAGoferThatEndsFirstIsTheReason(t *testing.T) {
	if reason := reasonWhenTheGoferEndsFirst(t, nil); reason != "the gofer ended before its sandbox" {
		t.Errorf("reported as %q", reason)
	}
}

// reasonWhenTheGoferEndsFirst is what is reported of a sandbox that outlives its gofer.
func reasonWhenTheGoferEndsFirst(t *testing.T, group *cgroups.Group) string {
	t.Helper()
	sandbox, gofer := watched(t, "sleep", "60"), watched(t, "sleep", "60")
	c := &container{id: "a", dir: t.TempDir(), sandbox: sandbox, gofer: gofer, group: group}
	c.record.Sandbox = sandbox.ID
	m := &Manager{Options: Options{
		Events: events.NewLog(10, time.Now()), Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}}
	if err := gofer.Kill(); err != nil {
		t.Fatal(err)
	}
	m.supervise(c)
	told, _ := m.Events.After(0)
	for _, e := range told {
		if e.Type == events.Exit && e.ID == "a" {
			return e.Reason
		}
	}
	t.Fatalf("no exit among %+v", told)
	return ""
}

func watched(t *testing.T, name string, args ...string) *proc.Process {
	t.Helper()
	cmd := exec.Command(name, args...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	id, err := proc.Identify(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	p, err := proc.Watch(id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.Kill()
		<-p.Done()
	})
	return p
}

// groupThatRanOutOfMemory is a control group in which the kernel has killed a process because of its limit.
func groupThatRanOutOfMemory(t *testing.T) *cgroups.Group {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	hierarchy, err := cgroups.Detect()
	if err != nil || hierarchy.Version() == 0 {
		t.Skip("the host has no control groups")
	}
	group, err := hierarchy.Group(fmt.Sprintf("/forkyard-test-oom-%d", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	if err := group.Create(cgroups.Limits{MemoryBytes: 16 << 20}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := group.Remove(ctx); err != nil {
			t.Error(err)
		}
	})
	if _, err := group.MemoryUsage(); err != nil {
		t.Skip("the host cannot limit memory here")
	}
	hungry := exec.Command("tail", "/dev/zero") // looks for the end of a line that has none
	goruntime.LockOSThread()
	defer goruntime.UnlockOSThread()
	after, err := group.Place(hungry)
	if err != nil {
		t.Fatal(err)
	}
	if err := hungry.Start(); err != nil {
		t.Fatal(err)
	}
	after()
	_ = hungry.Wait()
	if group.OOMKills() == 0 {
		t.Fatalf("%v: nothing was killed", hungry.ProcessState)
	}
	return group
}
