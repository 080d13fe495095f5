package cgroups

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrNoMemoryController says that the host cannot tell the group's memory.
var ErrNoMemoryController = errors.New("the host has no memory cgroup controller here")

// MemoryUsage is the memory charged to the group, page cache included, in bytes.
func (g *Group) MemoryUsage() (int64, error) {
	switch {
	case g.dirs["memory"] != "":
		return readInt(filepath.Join(g.dirs["memory"], "memory.usage_in_bytes"))
	case g.dirs[unifiedKey] != "":
		n, err := readInt(filepath.Join(g.dirs[unifiedKey], "memory.current"))
		if errors.Is(err, os.ErrNotExist) {
			return 0, ErrNoMemoryController
		}
		return n, err
	}
	return 0, ErrNoMemoryController
}

// OOMKills counts the processes that the kernel has killed because the group was at its memory limit.
func (g *Group) OOMKills() int64 {
	path := filepath.Join(g.dirs["memory"], "memory.oom_control")
	if dir := g.dirs[unifiedKey]; dir != "" {
		path = filepath.Join(dir, "memory.events")
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, "oom_kill "); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			return n
		}
	}
	return 0
}

// FileCache is the page cache of files in the group's usage, in bytes: what the kernel takes back before it kills.
func (g *Group) FileCache() int64 {
	names := [...]string{"total_inactive_file ", "total_active_file "}
	dir := g.dirs["memory"]
	if dir == "" {
		dir, names = g.dirs[unifiedKey], [...]string{"inactive_file ", "active_file "}
	}
	data, err := os.ReadFile(filepath.Join(dir, "memory.stat"))
	if err != nil {
		return 0
	}
	var sum int64
	for line := range strings.Lines(string(data)) {
		for _, name := range names {
			if value, ok := strings.CutPrefix(line, name); ok {
				n, _ := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
				sum += n
			}
		}
	}
	return sum
}

// WatchMemory calls passed with the memory in use each time it goes from below one of the marks (bytes) to above it,
// until ctx ends. Falling below a mark arms it again. Page cache of files is not counted: a sandbox that has written
// much would else be above all marks for ever. It returns ctx's error, or what it could not do.
func (g *Group) WatchMemory(ctx context.Context, marks []int64, passed func(used int64)) error {
	if len(marks) == 0 {
		return nil
	}
	marks = slices.Sorted(slices.Values(marks))
	quiet, err := g.newThreshold(ctx, marks[0])
	if err != nil {
		return err
	}
	defer quiet.close()
	level := 0
	for ctx.Err() == nil {
		used, err := g.MemoryUsage()
		if err != nil {
			return err
		}
		pause := pollInterval(marks, level, used)
		if used >= marks[0] {
			used -= g.FileCache()
			pause = min(pollInterval(marks, reached(marks, used), used), busyInterval)
		}
		next := reached(marks, used)
		if next > level {
			passed(used)
		}
		level = next
		quiet.wait(ctx, pause)
	}
	return ctx.Err()
}

// reached is how many of the sorted marks the usage is at or above.
func reached(marks []int64, usage int64) int {
	n, _ := slices.BinarySearch(marks, usage+1)
	return n
}

// threshold waits until the usage may have reached a mark.
type threshold struct {
	crossed *os.File // eventfd of the kernel (cgroup version 1); nil: the usage has to be read now and then
	below   func() bool
}

// newThreshold asks the kernel to tell when the usage crosses the mark, in either direction.
func (g *Group) newThreshold(ctx context.Context, mark int64) (*threshold, error) {
	dir := g.dirs["memory"]
	if dir == "" {
		return &threshold{}, nil
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	t := &threshold{
		crossed: os.NewFile(uintptr(fd), "memory threshold"),
		below:   func() bool { usage, err := g.MemoryUsage(); return err == nil && usage < mark },
	}
	usage, err := os.Open(filepath.Join(dir, "memory.usage_in_bytes"))
	if err == nil {
		err = write(dir, "cgroup.event_control", fmt.Sprintf("%d %d %d", fd, usage.Fd(), mark))
		_ = usage.Close()
	}
	if err != nil {
		t.close()
		return nil, fmt.Errorf("setting a memory threshold: %w", err)
	}
	context.AfterFunc(ctx, func() { _ = t.crossed.SetReadDeadline(time.Unix(1, 0)) })
	return t, nil
}

// wait returns after pause, or, while the kernel can tell and the usage is below the mark, when it has crossed it.
func (t *threshold) wait(ctx context.Context, pause time.Duration) {
	if t.crossed != nil && t.below() {
		var counter [8]byte
		if _, err := t.crossed.Read(counter[:]); err == nil || ctx.Err() != nil {
			return
		}
	}
	select {
	case <-ctx.Done():
	case <-time.After(pause):
	}
}

func (t *threshold) close() {
	if t.crossed != nil {
		_ = t.crossed.Close()
	}
}

const (
	// fillRate is the fastest that a sandbox was seen to take memory, in bytes a second.
	fillRate = 2 << 30
	// busyInterval is the longest between two readings of a group above its first mark.
	busyInterval = 100 * time.Millisecond
)

// pollInterval is how soon the next mark could be reached, within 10 and 500 ms: no mark can be overshot by more than
// what is taken within the shortest interval.
func pollInterval(marks []int64, level int, now int64) time.Duration {
	const shortest, longest = 10 * time.Millisecond, 500 * time.Millisecond
	if level == len(marks) {
		return longest
	}
	soonest := time.Duration(float64(marks[level]-now) / fillRate * float64(time.Second))
	return min(max(soonest, shortest), longest)
}

func readInt(path string) (int64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
}
