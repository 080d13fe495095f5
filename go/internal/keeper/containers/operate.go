package containers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"forkyard.dev/forkyard/internal/keeper/fault"
	"forkyard.dev/forkyard/internal/keeper/netconf"
	"forkyard.dev/forkyard/internal/keeper/runtime"
)

// memoryRate is the slowest that a sandbox is expected to write or read its memory, in bytes a second. It lengthens
// what a checkpoint or a restore may take.
const memoryRate = 50 << 20

// Start runs the first process of a created container. On an error the container is destroyed: runsc cannot start it
// twice.
func (m *Manager) Start(ctx context.Context, id string, request StartRequest) (View, error) {
	return m.begin(ctx, id, request.Net, m.CallTimeout, "starting the container",
		func(ctx context.Context, c *runtime.Container) error { return c.Start(ctx) })
}

// Restore makes a created container go on from a checkpoint. On an error it is destroyed.
func (m *Manager) Restore(ctx context.Context, id string, request RestoreRequest) (View, error) {
	if err := checkDir("dir", request.Dir); err != nil {
		return View{}, err
	}
	var size int64
	for i, name := range runtime.CheckpointFiles() {
		info, err := os.Stat(filepath.Join(request.Dir, name))
		if err != nil {
			return View{}, fault.New(fault.Invalid, "dir has no complete checkpoint: %v", err)
		}
		if i == 0 && info.Size() == 0 {
			return View{}, fault.New(fault.Invalid, "dir has no complete checkpoint: %s is empty", name)
		}
		size += info.Size()
	}
	return m.begin(ctx, id, request.Net, m.timeoutFor(size), "restoring the container",
		func(ctx context.Context, c *runtime.Container) error {
			return c.Restore(ctx, request.Dir, request.Background)
		})
}

// begin is what Start and Restore have in common.
func (m *Manager) begin(
	ctx context.Context, id string, n *netconf.Net, timeout time.Duration, doing string,
	work func(context.Context, *runtime.Container) error,
) (View, error) {
	c, err := m.find(id)
	if err != nil {
		return View{}, err
	}
	if err := c.acquire(ctx); err != nil {
		return View{}, err
	}
	if view, _ := c.view(); view.Status != StatusCreated {
		c.release()
		return View{}, fault.New(fault.Conflict, "container %s is %s, not created", id, view.Status)
	}
	err = m.beginLocked(c, n, timeout, work)
	if err != nil {
		if reason := runtime.FailureReason(c.dir, 1000); reason != "" {
			err = fmt.Errorf("%w (%s)", err, reason)
		}
		m.abandon(c)
		return View{}, asFault(err, doing)
	}
	c.release()
	view, _ := c.view()
	return view, nil
}

func (m *Manager) beginLocked(
	c *container, n *netconf.Net, timeout time.Duration, work func(context.Context, *runtime.Container) error,
) error {
	if err := c.setPhase(phaseStarting); err != nil {
		return err
	}
	netns, err := m.putNet(n)
	if err != nil {
		return err
	}
	if netns != nil {
		netns.Close()
	}
	// Not the caller's context: a caller that hangs up does not undo what is half done.
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if err := work(ctx, c.runtime); err != nil {
		return err
	}
	return c.setPhase(phaseRunning)
}

// Checkpoint writes the state of a running container into a new or empty directory.
func (m *Manager) Checkpoint(ctx context.Context, id string, request CheckpointRequest) (CheckpointResult, error) {
	if err := checkDir("dir", request.Dir); err != nil {
		return CheckpointResult{}, err
	}
	c, err := m.find(id)
	if err != nil {
		return CheckpointResult{}, err
	}
	if err := c.acquire(ctx); err != nil {
		return CheckpointResult{}, err
	}
	defer c.release()
	if view, _ := c.view(); view.Status != StatusRunning {
		return CheckpointResult{}, fault.New(fault.Conflict, "container %s is %s, not running", id, view.Status)
	}
	if err := makeEmptyDir(request.Dir); err != nil {
		return CheckpointResult{}, err
	}
	result, err := m.checkpointLocked(c, request)
	if err != nil {
		if noSpaceLeft(request.Dir) && !runtime.IsNoSpace(err) {
			err = fmt.Errorf("%w: %w", unix.ENOSPC, err)
		}
		if removeErr := os.RemoveAll(request.Dir); removeErr != nil {
			m.Log.Error("removing an unfinished checkpoint", "id", id, "error", removeErr)
		}
		if !c.alive() {
			return CheckpointResult{}, fault.New(fault.Internal, "the sandbox ended during the checkpoint: %v", err)
		}
		return CheckpointResult{}, asFault(err, "checkpointing the container")
	}
	return result, nil
}

func (m *Manager) checkpointLocked(c *container, request CheckpointRequest) (CheckpointResult, error) {
	usage := int64(0)
	if c.group != nil {
		usage, _ = c.group.MemoryUsage()
	}
	ctx, cancel := context.WithTimeout(context.Background(), m.timeoutFor(usage))
	defer cancel()
	if !request.LeaveRunning {
		c.mu.Lock()
		c.endReason = "checkpointed"
		c.mu.Unlock()
	}
	started := time.Now()
	if err := c.runtime.Checkpoint(ctx, request.Dir, request.LeaveRunning); err != nil {
		return CheckpointResult{}, err
	}
	result := CheckpointResult{Files: []CheckpointFile{}, DurationMS: time.Since(started).Milliseconds()}
	for i, name := range runtime.CheckpointFiles() {
		info, err := os.Lstat(filepath.Join(request.Dir, name))
		if err != nil {
			return CheckpointResult{}, err
		}
		if i == 0 && info.Size() == 0 {
			return CheckpointResult{}, fmt.Errorf("the sandbox says it wrote a checkpoint, but %s is empty", name)
		}
		result.Files = append(result.Files, CheckpointFile{Name: name, Size: info.Size()})
	}
	return result, nil
}

func (m *Manager) timeoutFor(bytes int64) time.Duration {
	return m.CallTimeout + time.Duration(float64(bytes)/memoryRate*float64(time.Second))
}

func makeEmptyDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return asFault(err, "making the checkpoint's directory")
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return asFault(err, "reading the checkpoint's directory")
	}
	if len(entries) > 0 {
		return fault.New(fault.Invalid, "dir %s is not empty", dir)
	}
	return nil
}

// noSpaceLeft tells whether the file system that dir is on is as good as full. A sandbox's error does not always say
// that this was the reason.
func noSpaceLeft(dir string) bool {
	const asGoodAsFull = 1 << 20
	var stat unix.Statfs_t
	if err := unix.Statfs(dir, &stat); err != nil {
		return false
	}
	return stat.Bavail*uint64(stat.Bsize) < asGoodAsFull
}

// SetWatch replaces what is looked at while the container runs.
func (m *Manager) SetWatch(ctx context.Context, id string, w Watch) error {
	if err := w.validate(); err != nil {
		return err
	}
	c, err := m.find(id)
	if err != nil {
		return err
	}
	if err := c.acquire(ctx); err != nil {
		return err
	}
	defer c.release()
	if view, _ := c.view(); view.Status != StatusRunning {
		return fault.New(fault.Conflict, "container %s is %s, not running", id, view.Status)
	}
	if err := c.change(func(r *record) { r.Watch = w }); err != nil {
		return asFault(err, "keeping the watch")
	}
	return m.startWatch(c, w, false)
}

var errWatchStopped = errors.New("the watch was replaced or its container ended")
