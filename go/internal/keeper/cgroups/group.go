package cgroups

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// unifiedKey is the one entry of Group.dirs on version 2.
const unifiedKey = "unified"

// Limits of a group; zero means none.
type Limits struct {
	MemoryBytes int64
	CPUShares   uint64 // as version 1 counts them: 1024 is one normal share
	CPUQuotaUS  int64  // CPU time in each period
	CPUPeriodUS uint64 // 0 for 100,000
	Pids        int64
}

// Group is the control group of one sandbox.
type Group struct {
	hierarchy *Hierarchy
	dirs      map[string]string // directory by controller; on version 2 only unifiedKey
}

// Create makes the group and sets its limits. Limits that the host has no controller for are left out.
func (g *Group) Create(limits Limits) error {
	if g.hierarchy.version == 2 {
		g.enableControllers()
	}
	for _, dir := range g.dirs {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			g.removeDirs()
			return fmt.Errorf("making the cgroup: %w", err)
		}
	}
	if err := g.setLimits(limits); err != nil {
		g.removeDirs()
		return err
	}
	return nil
}

// enableControllers makes version 2 controllers available in the group. An ancestor that has processes of its own
// refuses; then the limit is missing, and the sandbox runs all the same.
func (g *Group) enableControllers() {
	root := g.hierarchy.v2
	relative, _ := filepath.Rel(root, g.dirs[unifiedKey])
	dir := root
	for _, element := range strings.Split(relative, "/") {
		for _, name := range wanted {
			_ = write(dir, "cgroup.subtree_control", "+"+name)
		}
		dir = filepath.Join(dir, element)
		_ = os.Mkdir(dir, 0o755)
	}
}

func (g *Group) setLimits(l Limits) error {
	type setting struct{ controller, file, value string }
	var settings []setting
	add := func(set bool, controller, file, value string) {
		if set {
			settings = append(settings, setting{controller, file, value})
		}
	}
	period := l.CPUPeriodUS
	if period == 0 {
		period = 100_000
	}
	if g.hierarchy.version == 2 {
		add(l.MemoryBytes > 0, unifiedKey, "memory.max", strconv.FormatInt(l.MemoryBytes, 10))
		add(l.MemoryBytes > 0, unifiedKey, "memory.swap.max", "0")
		add(l.CPUShares > 0, unifiedKey, "cpu.weight", strconv.FormatUint(weight(l.CPUShares), 10))
		add(l.CPUQuotaUS > 0, unifiedKey, "cpu.max", fmt.Sprintf("%d %d", l.CPUQuotaUS, period))
		add(l.Pids > 0, unifiedKey, "pids.max", strconv.FormatInt(l.Pids, 10))
	} else {
		add(l.MemoryBytes > 0, "memory", "memory.limit_in_bytes", strconv.FormatInt(l.MemoryBytes, 10))
		add(l.MemoryBytes > 0, "memory", "memory.memsw.limit_in_bytes", strconv.FormatInt(l.MemoryBytes, 10))
		add(l.CPUShares > 0, "cpu", "cpu.shares", strconv.FormatUint(l.CPUShares, 10))
		add(l.CPUQuotaUS > 0, "cpu", "cpu.cfs_period_us", strconv.FormatUint(period, 10))
		add(l.CPUQuotaUS > 0, "cpu", "cpu.cfs_quota_us", strconv.FormatInt(l.CPUQuotaUS, 10))
		add(l.Pids > 0, "pids", "pids.max", strconv.FormatInt(l.Pids, 10))
	}
	for _, s := range settings {
		dir, ok := g.dirs[s.controller]
		if !ok {
			continue
		}
		if err := write(dir, s.file, s.value); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("setting a cgroup limit: %w", err)
		}
	}
	return nil
}

// weight converts version 1 shares (2 to 262144) to a version 2 weight (1 to 10000), as every runtime does.
func weight(shares uint64) uint64 {
	shares = min(max(shares, 2), 262144)
	return 1 + (shares-2)*9999/262142
}

// Place arranges that the process cmd is about to start is born in the group. It must be called on the locked thread
// that forks, and what it returns called on the same thread afterwards.
func (g *Group) Place(cmd *exec.Cmd) (after func(), err error) {
	switch g.hierarchy.version {
	case 1:
		return g.enterThread()
	case 2:
		fd, err := unix.Open(g.dirs[unifiedKey], unix.O_PATH|unix.O_CLOEXEC|unix.O_DIRECTORY, 0)
		if err != nil {
			return nil, fmt.Errorf("opening the cgroup: %w", err)
		}
		if cmd.SysProcAttr == nil {
			cmd.SysProcAttr = &syscall.SysProcAttr{}
		}
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, fd
		return func() { unix.Close(fd) }, nil
	default:
		return func() {}, nil
	}
}

// enterThread moves the calling thread alone into the group: version 1 allows that, and a child starts in the groups
// of the thread that forked it. Moving oneself ("0") into "tasks" takes no host-wide lock; moving a process waits
// for an RCU grace period of about 10 ms.
func (g *Group) enterThread() (func(), error) {
	home, err := g.hierarchy.home()
	if err != nil {
		return nil, err
	}
	var entered []string
	leave := func() {
		for _, name := range entered {
			if dir, ok := home[name]; ok {
				_ = write(dir, "tasks", "0")
			}
		}
	}
	for name, dir := range g.dirs {
		if err := write(dir, "tasks", "0"); err != nil {
			leave()
			return nil, fmt.Errorf("entering the cgroup: %w", err)
		}
		entered = append(entered, name)
	}
	return leave, nil
}

// Procs lists the processes in the group.
func (g *Group) Procs() []int {
	seen := map[int]struct{}{}
	for _, dir := range g.dirs {
		data, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil {
			continue
		}
		for _, field := range strings.Fields(string(data)) {
			if pid, err := strconv.Atoi(field); err == nil && pid > 0 {
				seen[pid] = struct{}{}
			}
		}
	}
	return slices.Collect(maps.Keys(seen))
}

// Kill ends whatever is left in the group. Its processes are all of one sandbox, so a pid cannot have come to mean
// something else between reading and killing unless it did so within the group.
func (g *Group) Kill() {
	for _, pid := range g.Procs() {
		if pid != os.Getpid() {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}

// Remove ends what is left in the group and removes it; a group that is not there is no error. The kernel lets go of
// a group a moment after its last process ended, so it tries again until ctx ends.
func (g *Group) Remove(ctx context.Context) error {
	wait := time.Millisecond
	for {
		err := g.removeDirs()
		if err == nil {
			return nil
		}
		g.Kill()
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait):
			wait = min(2*wait, 50*time.Millisecond)
		}
	}
}

func (g *Group) removeDirs() error {
	var errs []error
	for _, dir := range g.dirs {
		if err := unix.Rmdir(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("removing %s: %w", dir, err))
		}
	}
	return errors.Join(errs...)
}
