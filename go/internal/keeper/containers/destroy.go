package containers

import (
	"context"
	"fmt"
	"os"
	"time"

	"forkyard.dev/forkyard/internal/keeper/fault"
)

// destroyTimeout bounds how long a killed process may take to be gone.
const destroyTimeout = 10 * time.Second

// Destroy ends a container and removes all of it. A second call joins the first; ctx bounds only the waiting.
func (m *Manager) Destroy(ctx context.Context, id string) (DestroyResult, error) {
	c, err := m.find(id)
	if err != nil {
		return DestroyResult{}, err
	}
	c.mu.Lock()
	d := c.destruction
	if d == nil {
		d = c.beginDestruction()
		go m.destroy(c, d, false)
	}
	c.mu.Unlock()
	select {
	case <-d.done:
		return d.result, d.err
	case <-ctx.Done():
		return DestroyResult{}, fault.New(fault.Timeout, "destroying %s goes on", id)
	}
}

// abandon destroys a container whose creation or start failed; the caller has its turn and does not give it back.
func (m *Manager) abandon(c *container) {
	c.mu.Lock()
	d := c.destruction
	if d != nil { // somebody else is at it, and waits for our turn
		c.mu.Unlock()
		c.release()
	} else {
		d = c.beginDestruction()
		c.mu.Unlock()
		m.destroy(c, d, true)
	}
	<-d.done
	if d.err != nil {
		m.Log.Error("what is left of a failed container", "id", c.id, "error", d.err)
	}
}

// beginDestruction needs c.mu.
func (c *container) beginDestruction() *destruction {
	d := &destruction{done: make(chan struct{})}
	c.destruction = d
	if c.record.Exit != nil {
		d.result = DestroyResult{Exited: true, ExitCode: c.record.Exit.Code, Signal: c.record.Exit.Signal}
	}
	if c.stopWatch != nil {
		c.stopWatch()
		c.stopWatch = nil
	}
	return d
}

func (m *Manager) destroy(c *container, d *destruction, haveTurn bool) {
	defer close(d.done)
	ctx, cancel := context.WithTimeout(context.Background(), destroyTimeout)
	defer cancel()
	haveTurn, err := m.destroyProcesses(ctx, c, haveTurn)
	if haveTurn {
		// Given back only if the container stays: nobody may operate on one that is gone.
		defer func() {
			if d.err != nil {
				c.release()
			}
		}()
	}
	if err != nil {
		m.giveUp(c, d, err)
		return
	}
	c.mu.Lock()
	inner, group := c.runtime, c.group
	c.mu.Unlock()
	if inner != nil {
		if err := inner.Forget(); err != nil {
			m.Log.Warn("runsc's part of a container", "id", c.id, "error", err)
		}
	}
	if group != nil {
		if err := group.Remove(ctx); err != nil {
			m.giveUp(c, d, err)
			return
		}
	}
	if err := os.RemoveAll(c.dir); err != nil {
		m.giveUp(c, d, err)
		return
	}
	m.forget(c)
	close(c.ended)
}

// destroyProcesses ends them, waits until they are gone, and takes the turn if the caller does not have it: whatever
// operation has it now fails with its sandbox. It tells whether it has the turn.
func (m *Manager) destroyProcesses(ctx context.Context, c *container, haveTurn bool) (bool, error) {
	for {
		if err := c.kill(); err != nil {
			return haveTurn, fmt.Errorf("killing the sandbox: %w", err)
		}
		if haveTurn {
			break
		}
		// An operation may be forking: what it makes after the kill is killed in the next round.
		c.mu.Lock()
		inner := c.runtime
		c.mu.Unlock()
		if inner != nil {
			inner.Interrupt()
		}
		select {
		case <-c.turn:
			haveTurn = true
		case <-ctx.Done():
			return haveTurn, fmt.Errorf("an operation on %s does not end", c.id)
		case <-time.After(20 * time.Millisecond):
		}
	}
	for _, p := range c.processes() {
		select {
		case <-p.Done():
		case <-ctx.Done():
			return haveTurn, fmt.Errorf("process %d does not end though it was killed", p.ID.Pid)
		}
	}
	return haveTurn, nil
}

// giveUp leaves the container where it is, so that it can be destroyed again.
func (m *Manager) giveUp(c *container, d *destruction, err error) {
	d.err = asFault(err, "destroying the container")
	m.Log.Error("a container cannot be destroyed", "id", c.id, "error", err)
	c.mu.Lock()
	c.destruction = nil
	c.mu.Unlock()
}
