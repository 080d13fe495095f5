package containers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"forkyard.dev/forkyard/internal/keeper/cgroups"
	"forkyard.dev/forkyard/internal/keeper/fault"
	"forkyard.dev/forkyard/internal/keeper/proc"
	"forkyard.dev/forkyard/internal/keeper/runtime"
)

// Phases of a container, as its record on disk has them. An operation writes the phase it is in before it acts, so
// that a keeper that finds it knows what was going on.
const (
	phaseCreating = "creating"
	phaseCreated  = "created"
	phaseStarting = "starting" // or restoring
	phaseRunning  = "running"
)

// recordName is the file in a container's directory that says what a new keeper needs to know.
const recordName = "keeper.json"

type record struct {
	ID        string    `json:"id"`
	Phase     string    `json:"phase"`
	CreatedAt time.Time `json:"created_at"`
	Cgroup    string    `json:"cgroup,omitempty"` // path below the root of each hierarchy
	Sandbox   proc.ID   `json:"sandbox"`
	Gofer     proc.ID   `json:"gofer"`
	Stdio     []string  `json:"stdio,omitempty"`
	Watch     Watch     `json:"watch"`
	Exit      *exit     `json:"exit,omitempty"`
}

// exit is how the sandbox process ended.
type exit struct {
	Code   *int   `json:"code,omitempty"`
	Signal string `json:"signal,omitempty"`
	Reason string `json:"reason,omitempty"`
}

func newExit(e proc.Exit, reason string) *exit {
	out := &exit{Reason: reason}
	switch {
	case !e.Known:
	case e.Signal != 0:
		out.Signal = unix.SignalName(e.Signal)
	default:
		out.Code = &e.Code
	}
	return out
}

// container is one container and the operations on it.
type container struct {
	id  string
	dir string
	// turn holds one token: who has it may operate on the container.
	turn chan struct{}
	// ended is closed when the container is destroyed.
	ended chan struct{}

	mu          sync.Mutex // guards what follows
	record      record
	sandbox     *proc.Process
	gofer       *proc.Process
	runtime     *runtime.Container
	group       *cgroups.Group
	destruction *destruction
	endReason   string // why the sandbox is about to end, when it was asked to
	stopWatch   context.CancelFunc
}

// destruction is a DELETE in progress, which others join.
type destruction struct {
	done   chan struct{}
	result DestroyResult
	err    error
}

func newContainer(id, dir string) *container {
	c := &container{
		id: id, dir: dir,
		turn:   make(chan struct{}, 1),
		ended:  make(chan struct{}),
		record: record{ID: id, Phase: phaseCreating, CreatedAt: time.Now().UTC()},
	}
	c.turn <- struct{}{}
	return c
}

// acquire waits for the container's turn until ctx ends.
func (c *container) acquire(ctx context.Context) error {
	select {
	case <-c.turn:
	case <-c.ended:
		return notFound(c.id)
	case <-ctx.Done():
		return fault.New(fault.Timeout, "another operation on %s is still going on", c.id)
	}
	if c.destroying() {
		c.release()
		return notFound(c.id)
	}
	return nil
}

func (c *container) release() { c.turn <- struct{}{} }

func (c *container) destroying() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.destruction != nil
}

// setPhase writes the phase to disk before it counts.
func (c *container) setPhase(phase string) error {
	return c.change(func(r *record) { r.Phase = phase })
}

// change changes the record and writes it to disk: wholly or not at all.
func (c *container) change(apply func(*record)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	apply(&c.record)
	return c.record.write(c.dir)
}

func (r *record) write(dir string) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	temporary := filepath.Join(dir, "."+recordName)
	if err := os.WriteFile(temporary, data, 0o600); err != nil {
		return fmt.Errorf("writing the record: %w", err)
	}
	return os.Rename(temporary, filepath.Join(dir, recordName))
}

func readRecord(dir string) (record, error) {
	var r record
	data, err := os.ReadFile(filepath.Join(dir, recordName))
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("the record in %s: %w", dir, err)
	}
	if r.ID != filepath.Base(dir) {
		return r, fmt.Errorf("the record in %s is of %q", dir, r.ID)
	}
	return r, nil
}

// forked keeps what a fork made, from the moment it exists.
func (c *container) forked(kind string, pid int) error {
	id, err := proc.Identify(pid)
	if err != nil {
		return err
	}
	process, err := proc.Watch(id)
	if err != nil {
		return err
	}
	return c.change(func(r *record) {
		if kind == runtime.KindSandbox {
			c.sandbox, r.Sandbox = process, id
		} else {
			c.gofer, r.Gofer = process, id
		}
	})
}

// processes are those the container has, ended ones included.
func (c *container) processes() []*proc.Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []*proc.Process
	for _, p := range []*proc.Process{c.sandbox, c.gofer} {
		if p != nil {
			out = append(out, p)
		}
	}
	return out
}

// kill sends SIGKILL to the container's processes.
func (c *container) kill() error {
	var errs []error
	for _, p := range c.processes() {
		errs = append(errs, p.Kill())
	}
	return errors.Join(errs...)
}

// alive tells whether the sandbox process runs.
func (c *container) alive() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sandbox != nil && !c.sandbox.Ended()
}

// view is what callers see; ok is false while the container is only being made.
func (c *container) view() (View, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := View{
		ID:           c.id,
		Pid:          c.record.Sandbox.Pid,
		PidStartTime: c.record.Sandbox.StartTime,
		GoferPid:     c.record.Gofer.Pid,
		CreatedAt:    c.record.CreatedAt,
	}
	switch {
	case c.record.Phase == phaseCreating:
		return v, false
	case c.record.Exit != nil:
		e := c.record.Exit
		v.Status, v.ExitCode, v.Signal, v.Reason = StatusStopped, e.Code, e.Signal, e.Reason
	case c.sandbox == nil || c.sandbox.Ended():
		v.Status = StatusStopped
	case c.record.Phase == phaseRunning:
		v.Status = StatusRunning
	default:
		v.Status = StatusCreated
	}
	return v, true
}

func notFound(id string) error {
	return fault.New(fault.NotFound, "there is no container %s", id)
}
