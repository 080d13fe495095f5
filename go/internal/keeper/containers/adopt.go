package containers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"forkyard.dev/forkyard/internal/keeper/events"
	"forkyard.dev/forkyard/internal/keeper/proc"
	"forkyard.dev/forkyard/internal/keeper/runtime"
)

// adoptAll finds the containers that an earlier keeper left under the root.
func (m *Manager) adoptAll(ctx context.Context) error {
	entries, err := os.ReadDir(m.Root)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if !entry.IsDir() || checkID(entry.Name()) != nil {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		m.adopt(entry.Name())
	}
	return nil
}

// adopt takes one container over. What was half done when the earlier keeper ended is undone: nobody was told that it
// had worked.
func (m *Manager) adopt(id string) {
	c := newContainer(id, filepath.Join(m.Root, id))
	r, err := readRecord(c.dir)
	if err != nil {
		m.Log.Warn("removing a container without a record", "id", id, "error", err)
		if err := os.RemoveAll(c.dir); err != nil {
			m.Log.Error("removing it", "id", id, "error", err)
		}
		return
	}
	c.record = r
	c.sandbox, c.gofer = watchKnown(r.Sandbox), watchKnown(r.Gofer)
	if r.Cgroup != "" {
		if c.group, err = m.Hierarchy.Group(r.Cgroup); err != nil {
			m.Log.Error("the cgroup of a container", "id", id, "error", err)
		}
	}
	m.mu.Lock()
	m.containers[id] = c
	m.mu.Unlock()

	if r.Phase != phaseCreated && r.Phase != phaseRunning {
		m.undoHalfDone(c)
		return
	}
	if c.runtime, err = runtime.Load(m.Runtime, c.dir); err != nil {
		m.Log.Error("runsc's record of a container", "id", id, "error", err)
		m.undoHalfDone(c)
		return
	}
	if c.sandbox == nil {
		m.adoptDead(c)
		return
	}
	m.Log.Info("adopted", "id", id, "pid", r.Sandbox.Pid, "phase", r.Phase)
	go m.supervise(c)
	if r.Phase == phaseRunning {
		if err := m.startWatch(c, r.Watch, true); err != nil {
			m.Log.Warn("the watch of an adopted container", "id", id, "error", err)
		}
	}
}

// watchKnown follows a process of an earlier keeper; nil if it has gone.
func watchKnown(id proc.ID) *proc.Process {
	p, err := proc.Watch(id)
	if err != nil {
		return nil
	}
	return p
}

func (m *Manager) undoHalfDone(c *container) {
	<-c.turn
	m.abandon(c)
	m.Events.Add(events.Event{
		Type: events.Exit, ID: c.id, Pid: c.record.Sandbox.Pid,
		Reason: "the keeper ended while the container was " + c.record.Phase,
	})
	m.Log.Info("undid what an earlier keeper had half done", "id", c.id, "phase", c.record.Phase)
}

// adoptDead reports a sandbox that ended while no keeper was there to see it.
func (m *Manager) adoptDead(c *container) {
	if c.gofer != nil {
		_ = c.gofer.Kill()
	}
	if c.record.Exit != nil {
		return // reported by the keeper that saw it
	}
	reason := c.exitReason()
	if reason == "" {
		reason = "it ended while there was no keeper"
	}
	if err := c.change(func(r *record) { r.Exit = &exit{Reason: reason} }); err != nil {
		m.Log.Error("recording an exit", "id", c.id, "error", err)
	}
	m.Events.Add(events.Event{Type: events.Exit, ID: c.id, Pid: c.record.Sandbox.Pid, Reason: reason})
}

// LockRoot makes sure that one keeper at a time looks after the containers under root. The lock ends with the process.
func LockRoot(root string) (*os.File, error) {
	file, err := os.OpenFile(filepath.Join(root, ".lock"), os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		file.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("another keeper looks after %s", root)
		}
		return nil, err
	}
	return file, nil
}
