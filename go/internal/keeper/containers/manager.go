package containers

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sort"
	"sync"
	"time"

	"forkyard.dev/forkyard/internal/keeper/cgroups"
	"forkyard.dev/forkyard/internal/keeper/events"
	"forkyard.dev/forkyard/internal/keeper/fault"
	"forkyard.dev/forkyard/internal/keeper/mountns"
	"forkyard.dev/forkyard/internal/keeper/netconf"
	"forkyard.dev/forkyard/internal/keeper/proc"
	"forkyard.dev/forkyard/internal/keeper/runtime"
)

// Options of a Manager.
type Options struct {
	Root        string // a directory for each container
	Runtime     runtime.Options
	CallTimeout time.Duration // what a call to a sandbox may take, beside the time for its memory
	Hierarchy   *cgroups.Hierarchy
	Host        *mountns.Host
	Events      *events.Log
	Log         *slog.Logger
}

// Manager has all containers of one instance.
type Manager struct {
	Options

	mu         sync.Mutex
	containers map[string]*container

	// creating is held for reading while processes are being forked whose pids nobody knows yet.
	creating sync.RWMutex
}

// NewManager finds the containers under the root again and looks after them until ctx ends. Ending it ends none.
func NewManager(ctx context.Context, o Options) (*Manager, error) {
	m := &Manager{Options: o, containers: map[string]*container{}}
	if err := m.adoptAll(ctx); err != nil {
		return nil, err
	}
	go m.every(ctx, reapInterval, m.reapStrangers)
	go m.every(ctx, stdioInterval, m.trimStdio)
	return m, nil
}

const reapInterval = 30 * time.Second

func (m *Manager) every(ctx context.Context, interval time.Duration, work func()) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			work()
		}
	}
}

// reapStrangers reaps orphans that came to the keeper as their subreaper.
func (m *Manager) reapStrangers() {
	if !m.creating.TryLock() {
		return // next time
	}
	defer m.creating.Unlock()
	known := map[int]bool{}
	for _, c := range m.all() {
		for _, p := range c.processes() {
			known[p.ID.Pid] = true
		}
	}
	if n := proc.ReapStrangers(func(pid int) bool { return known[pid] }); n > 0 {
		m.Log.Info("reaped orphans", "count", n)
	}
}

func (m *Manager) all() []*container {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]*container, 0, len(m.containers))
	for _, c := range m.containers {
		out = append(out, c)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].id < out[j].id })
	return out
}

// List has every container that is made, dead ones that are not destroyed included.
func (m *Manager) List() []View {
	views := []View{}
	for _, c := range m.all() {
		if v, ok := c.view(); ok {
			views = append(views, v)
		}
	}
	return views
}

// Get has one.
func (m *Manager) Get(id string) (View, error) {
	c, err := m.find(id)
	if err != nil {
		return View{}, err
	}
	v, ok := c.view()
	if !ok {
		return View{}, notFound(id)
	}
	return v, nil
}

func (m *Manager) find(id string) (*container, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c, ok := m.containers[id]
	if !ok {
		return nil, notFound(id)
	}
	return c, nil
}

// reserve makes the container's name taken and its directory.
func (m *Manager) reserve(id string) (*container, error) {
	c := newContainer(id, filepath.Join(m.Root, id))
	<-c.turn // it is being made
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.containers[id]; ok {
		return nil, fault.New(fault.AlreadyExists, "there is a container %s already", id)
	}
	if err := os.Mkdir(c.dir, 0o711); err != nil {
		if errors.Is(err, os.ErrExist) {
			return nil, fault.New(fault.AlreadyExists, "%s has files of another container", c.dir)
		}
		return nil, asFault(err, "making the container's directory")
	}
	m.containers[id] = c
	return c, nil
}

func (m *Manager) forget(c *container) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.containers, c.id)
}

// putNet opens the network namespace and puts address and route on. The file has to be closed.
func (m *Manager) putNet(n *netconf.Net) (*os.File, error) {
	if n == nil {
		return nil, nil
	}
	if err := n.Validate(); err != nil {
		return nil, fault.New(fault.Invalid, "%v", err)
	}
	file, err := m.Host.Open(n.Netns)
	if err != nil {
		return nil, fault.New(fault.Invalid, "the network namespace: %v", err)
	}
	if err := netconf.Put(file, *n); err != nil {
		file.Close()
		return nil, fault.New(fault.Internal, "setting up the network: %v", err)
	}
	return file, nil
}

// asFault gives an error its code, from what it says.
func asFault(err error, doing string) error {
	var f *fault.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &f):
		return err
	case errors.Is(err, context.DeadlineExceeded):
		return fault.New(fault.Timeout, "%s: the sandbox did not answer in time", doing)
	case runtime.IsNoSpace(err):
		return fault.New(fault.NoSpace, "%s: %v", doing, err)
	default:
		return fault.New(fault.Internal, "%s: %v", doing, err)
	}
}
