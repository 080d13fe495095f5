package containers

import (
	"context"
	"time"

	"forkyard.dev/forkyard/internal/keeper/cgroups"
	"forkyard.dev/forkyard/internal/keeper/events"
	"forkyard.dev/forkyard/internal/keeper/fault"
	"forkyard.dev/forkyard/internal/keeper/runtime"
	"forkyard.dev/forkyard/internal/keeper/watch"
)

// supervise reports the end of a container's sandbox process, and ends it when it has lost its gofer: without one it
// cannot open a file.
func (m *Manager) supervise(c *container) {
	c.mu.Lock()
	sandbox, gofer := c.sandbox, c.gofer
	c.mu.Unlock()
	goferEnded := make(<-chan struct{})
	if gofer != nil {
		goferEnded = gofer.Done()
	}
	select {
	case <-sandbox.Done():
		m.reportExit(c, "")
	case <-goferEnded:
		// A gofer ends when its sandbox does, and may be seen to end first.
		reason := ""
		select {
		case <-sandbox.Done():
		case <-time.After(goferGrace):
			// One that the kernel kills for its memory closes its files long before it has given all of that back.
			if !c.outOfMemory() {
				reason = "the gofer ended before its sandbox"
			}
			_ = sandbox.Kill()
			<-sandbox.Done()
		}
		m.reportExit(c, reason)
	}
}

// goferGrace is how much later than its gofer a sandbox may end by itself.
const goferGrace = 300 * time.Millisecond

// reportExit records how the sandbox process ended and tells readers of events, unless somebody asked for that end.
func (m *Manager) reportExit(c *container, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopWatch != nil {
		c.stopWatch()
		c.stopWatch = nil
	}
	if c.destruction != nil || c.record.Exit != nil {
		return
	}
	if reason == "" {
		reason = c.endReason
	}
	if reason == "" {
		reason = c.exitReason()
	}
	c.record.Exit = newExit(c.sandbox.Exit(), reason)
	if err := c.record.write(c.dir); err != nil {
		m.Log.Error("recording an exit", "id", c.id, "error", err)
	}
	m.Events.Add(events.Event{
		Type: events.Exit, ID: c.id, Pid: c.record.Sandbox.Pid,
		ExitCode: c.record.Exit.Code, Signal: c.record.Exit.Signal, Reason: reason,
	})
	m.Log.Info("sandbox ended", "id", c.id, "pid", c.record.Sandbox.Pid,
		"signal", c.record.Exit.Signal, "code", c.record.Exit.Code, "reason", reason)
	if c.gofer != nil {
		_ = c.gofer.Kill()
	}
}

// exitReason looks for why the sandbox process ended.
func (c *container) exitReason() string {
	if c.outOfMemory() {
		return "oom_killed"
	}
	const enough = 400
	return fault.Clean(runtime.FailureReason(c.dir, enough))
}

// outOfMemory tells whether the kernel has killed something of the container because it was at its memory limit.
func (c *container) outOfMemory() bool { return c.group != nil && c.group.OOMKills() > 0 }

// startWatch begins to look at the container, instead of what was looked at before; unsure if that was by an earlier
// keeper.
func (m *Manager) startWatch(c *container, w Watch, unsure bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopWatch != nil {
		c.stopWatch()
		c.stopWatch = nil
	}
	if c.sandbox.Ended() || c.destruction != nil {
		return fault.New(fault.Conflict, "container %s has ended", c.id)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	c.stopWatch = func() { cancel(errWatchStopped) }
	pid := c.record.Sandbox.Pid
	if h := w.health(); h != nil {
		h.Unsure = unsure
		go h.Run(ctx, func(reason string) {
			kind := events.Unhealthy
			if reason == "" {
				kind = events.Healthy
			}
			m.Events.Add(events.Event{Type: kind, ID: c.id, Pid: pid, Reason: fault.Clean(reason)})
		})
	}
	if c.group != nil && len(w.MemoryEventBytes) > 0 {
		go m.watchMemory(ctx, c, c.group, pid, w)
	}
	return nil
}

// watchMemory tells readers of events, and the daemon inside, when memory is running out, until ctx ends.
func (m *Manager) watchMemory(ctx context.Context, c *container, group *cgroups.Group, pid int, w Watch) {
	err := group.WatchMemory(ctx, w.MemoryEventBytes, func(used int64) {
		m.Events.Add(events.Event{Type: events.Memory, ID: c.id, Pid: pid, MemoryBytes: used})
		if w.MemoryAlertURL == "" {
			return
		}
		go func() {
			if err := watch.Alert(ctx, w.MemoryAlertURL); err != nil && ctx.Err() == nil {
				m.Log.Warn("a guest does not hear that its memory is running out", "id", c.id, "error", err)
			}
		}()
	})
	if ctx.Err() == nil && err != nil {
		m.Log.Warn("no memory events for a container", "id", c.id, "error", err)
	}
}
