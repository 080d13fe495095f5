package containers

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"

	"github.com/opencontainers/runtime-spec/specs-go"

	"forkyard.dev/forkyard/internal/keeper/fault"
	"forkyard.dev/forkyard/internal/keeper/runtime"
)

// Create makes a container whose sandbox runs and is empty. On an error there is nothing left of it.
func (m *Manager) Create(id string, request CreateRequest) (View, error) {
	if err := checkID(id); err != nil {
		return View{}, err
	}
	spec, err := parseSpec(request.Spec)
	if err != nil {
		return View{}, err
	}
	c, err := m.reserve(id)
	if err != nil {
		return View{}, err
	}
	if err := m.create(c, spec, request); err != nil {
		m.abandon(c)
		return View{}, asFault(err, "creating the container")
	}
	go m.supervise(c)
	c.release()
	view, _ := c.view()
	return view, nil
}

func (m *Manager) create(c *container, spec *specs.Spec, request CreateRequest) error {
	args := runtime.CreateArgs{
		Dir:         c.dir,
		MemoryBytes: specMemory(spec),
		CPUs:        specCPUs(spec, goruntime.NumCPU()),
		OOMScoreAdj: request.OOMScoreAdj,
		Started: func(kind string, pid int) {
			if err := c.forked(kind, pid); err != nil {
				m.Log.Error("a process of a container cannot be followed", "id", c.id, "pid", pid, "error", err)
			}
		},
	}
	if err := m.writeBundle(c, spec, request); err != nil {
		return err
	}
	netns, err := m.putNet(request.Net)
	if err != nil {
		return err
	}
	if netns != nil {
		defer netns.Close()
		args.NetnsPath = fmt.Sprintf("/proc/self/fd/%d", netns.Fd())
	}
	if args.Stdout, err = openStdio(request.Stdio.Stdout); err != nil {
		return err
	}
	defer args.Stdout.Close()
	if args.Stderr, err = openStdio(request.Stdio.Stderr); err != nil {
		return err
	}
	defer args.Stderr.Close()
	if err := m.makeGroup(c, spec, request.CgroupMemoryLimitBytes); err != nil {
		return err
	}
	args.Group = c.group
	return m.createSandbox(c, args)
}

// createSandbox forks what the arguments say, in bounded time.
func (m *Manager) createSandbox(c *container, args runtime.CreateArgs) error {
	ctx, cancel := context.WithTimeout(context.Background(), m.CallTimeout)
	defer cancel()
	// A sandbox that hangs at its start answers nobody: only its end makes the call return.
	stop := context.AfterFunc(ctx, func() { _ = c.kill() })
	defer stop()
	m.creating.RLock()
	defer m.creating.RUnlock()
	made, err := runtime.Create(ctx, m.Runtime, args)
	if err != nil {
		if reason := runtime.FailureReason(c.dir, 1000); reason != "" {
			return fmt.Errorf("%w (%s)", err, reason)
		}
		return err
	}
	c.mu.Lock()
	c.runtime = made
	followed := c.sandbox != nil
	c.mu.Unlock()
	if !followed {
		return fmt.Errorf("the sandbox process is not there")
	}
	return c.setPhase(phaseCreated)
}

func (m *Manager) writeBundle(c *container, spec *specs.Spec, request CreateRequest) error {
	cgroup := ""
	if spec.Linux != nil {
		cgroup = spec.Linux.CgroupsPath
	}
	err := c.change(func(r *record) {
		r.Cgroup = cgroup
		r.Stdio = regularPaths(request.Stdio.Stdout, request.Stdio.Stderr)
	})
	if err != nil {
		return err
	}
	if !filepath.IsAbs(spec.Root.Path) {
		if !filepath.IsLocal(spec.Root.Path) {
			return fault.New(fault.Invalid, "root.path %q leads out of the bundle", spec.Root.Path)
		}
		if err := os.MkdirAll(filepath.Join(c.dir, spec.Root.Path), 0o755); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(c.dir, "config.json"), request.Spec, 0o600)
}

// makeGroup puts the container into a control group if its spec names one.
func (m *Manager) makeGroup(c *container, spec *specs.Spec, memory int64) error {
	if c.record.Cgroup == "" {
		return nil
	}
	group, err := m.Hierarchy.Group(c.record.Cgroup)
	if err != nil {
		return fault.New(fault.Invalid, "linux.cgroupsPath: %v", err)
	}
	if err := group.Create(limitsOf(spec, memory)); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.group = group
	return nil
}
