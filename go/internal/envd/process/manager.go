package process

import (
	"crypto/rand"
	"encoding/hex"
	"slices"
	"sync"
	"time"

	"forkyard.dev/forkyard/internal/envd/activeclock"
	"forkyard.dev/forkyard/internal/envd/connect"
)

// retention is how long an ended process can still be connected to, for its end event.
const retention = 30 * time.Second

// Manager knows the processes started through it.
type Manager struct {
	reaper *Reaper
	clock  *activeclock.Clock // a pause of the sandbox is no part of a deadline

	mu      sync.Mutex
	running map[int]*Process
	ended   map[int]*Process // for the time of retention
	closed  string           // why nothing may be started now; empty: it may
}

// NewManager makes a manager; reaper must be the only one of the program.
func NewManager(reaper *Reaper) *Manager {
	return &Manager{reaper: reaper, clock: activeclock.New(), running: map[int]*Process{}, ended: map[int]*Process{}}
}

// Info is what the request said, for List: the environment of the request alone, not what came with it.
type Info struct {
	Cmd  string
	Args []string
	Envs map[string]string
	Cwd  *string
}

// Options say how a process is kept.
type Options struct {
	Info    Info
	Tag     *string
	Timeout time.Duration // 0: none; when it passes, the whole tree is killed
	Sink    Sink
	// Unlisted keeps the process out of List and Find.
	Unlisted bool
	// DrainAtExit makes Drained work.
	DrainAtExit bool
}

// Start starts a process. The errors are of package connect.
func (m *Manager) Start(spec Spec, options Options) (*Process, error) {
	m.mu.Lock()
	closed := m.closed
	m.mu.Unlock()
	if closed != "" {
		return nil, connect.Errorf(connect.CodeUnavailable, "no process can be started: %s", closed)
	}
	if spec.PTY != nil && !spec.PTY.valid() {
		return nil, connect.Errorf(connect.CodeInvalidArgument, "the terminal is too large")
	}
	e, err := open(spec)
	if err != nil {
		return nil, connect.Errorf(connect.CodeResourceExhausted, "the standard files of the process could not be opened: %v", err)
	}
	marker := newMarker()
	pid, exit, err := m.start(spec, e, marker)
	e.closeChild()
	if err != nil {
		e.closeOurs()
		return nil, err
	}
	p := &Process{
		PID: pid, Spec: spec, Info: options.Info, Tag: options.Tag, Started: time.Now(), manager: m, marker: marker, ends: e,
		sink: options.Sink, exited: make(chan struct{}), done: make(chan struct{}), drained: make(chan struct{}),
		writing: make(chan struct{}, 1),
	}
	p.writing <- struct{}{}
	if !options.Unlisted {
		m.mu.Lock()
		m.running[pid] = p
		delete(m.ended, pid)
		m.mu.Unlock()
	}
	if options.Timeout > 0 {
		p.mu.Lock()
		p.deadline = m.clock.AfterFunc(options.Timeout, p.expire)
		p.mu.Unlock()
	}
	p.run(exit, options.DrainAtExit)
	return p, nil
}

// expire ends a process whose deadline has passed.
func (p *Process) expire() {
	p.mu.Lock()
	p.timedOut = true
	p.mu.Unlock()
	p.KillTree()
}

// retire moves an ended process to those that can only be connected to.
func (m *Manager) retire(p *Process) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.running[p.PID] != p {
		return
	}
	delete(m.running, p.PID)
	m.ended[p.PID] = p
	m.clock.AfterFunc(retention, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.ended[p.PID] == p {
			delete(m.ended, p.PID)
		}
	})
}

// List returns the running processes by pid.
func (m *Manager) List() []*Process {
	m.mu.Lock()
	defer m.mu.Unlock()
	processes := make([]*Process, 0, len(m.running))
	for _, p := range m.running {
		processes = append(processes, p)
	}
	slices.SortFunc(processes, func(a, b *Process) int { return a.PID - b.PID })
	return processes
}

// Find returns the running process that match chooses, else, with ended, one that has ended lately; nil if
// there is none. Of several the one started last counts.
func (m *Manager) Find(match func(*Process) bool, ended bool) *Process {
	m.mu.Lock()
	defer m.mu.Unlock()
	if found := newest(m.running, match); found != nil || !ended {
		return found
	}
	return newest(m.ended, match)
}

func newest(processes map[int]*Process, match func(*Process) bool) *Process {
	var found *Process
	for _, p := range processes {
		if match(p) && (found == nil || p.Started.After(found.Started)) {
			found = p
		}
	}
	return found
}

// Refuse makes Start fail with this reason until it is called with an empty one.
func (m *Manager) Refuse(reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = reason
}

// newMarker makes the environment entry by which the descendants of one command are known.
func newMarker() string {
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails since Go 1.24
	return "FORKYARD_COMMAND=" + hex.EncodeToString(id[:])
}
