package cgroups

import (
	"context"
	"encoding/binary"
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

// WatchMemory calls passed with the usage each time it goes from below one of the marks (bytes) to above it, until
// ctx ends. Falling below a mark arms it again. It returns ctx's error, or what it could not do.
func (g *Group) WatchMemory(ctx context.Context, marks []int64, passed func(usage int64)) error {
	if len(marks) == 0 {
		return nil
	}
	marks = slices.Sorted(slices.Values(marks))
	if dir := g.dirs["memory"]; dir != "" {
		return watchThresholds(ctx, g, dir, marks, passed)
	}
	return pollMarks(ctx, g, marks, passed)
}

// reached is how many of the sorted marks the usage is at or above.
func reached(marks []int64, usage int64) int {
	n, _ := slices.BinarySearch(marks, usage+1)
	return n
}

// watchThresholds lets the kernel (version 1) tell through an eventfd when a mark is crossed, in either direction.
func watchThresholds(ctx context.Context, g *Group, dir string, marks []int64, passed func(int64)) error {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return err
	}
	crossed := os.NewFile(uintptr(fd), "memory thresholds")
	defer crossed.Close()
	usage, err := os.Open(filepath.Join(dir, "memory.usage_in_bytes"))
	if err != nil {
		return err
	}
	defer usage.Close()
	for _, mark := range marks {
		line := fmt.Sprintf("%d %d %d", fd, usage.Fd(), mark)
		if err := write(dir, "cgroup.event_control", line); err != nil {
			return fmt.Errorf("setting a memory threshold: %w", err)
		}
	}
	stop := context.AfterFunc(ctx, func() { crossed.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()

	level := 0
	for {
		now, err := g.MemoryUsage()
		if err != nil {
			return err
		}
		next := reached(marks, now)
		if next > level {
			passed(now)
		}
		level = next
		var counter [8]byte
		if _, err := crossed.Read(counter[:]); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return err
		}
		if binary.NativeEndian.Uint64(counter[:]) == 0 {
			return errors.New("the memory eventfd says nothing")
		}
	}
}

// fillRate is the fastest that a sandbox was seen to take memory, in bytes a second.
const fillRate = 2 << 30

// pollMarks reads the usage (version 2 has no thresholds), the more often the nearer the next mark is: no mark can be
// overshot by more than what is taken within the shortest interval.
func pollMarks(ctx context.Context, g *Group, marks []int64, passed func(int64)) error {
	level := 0
	for {
		now, err := g.MemoryUsage()
		if err != nil {
			return err
		}
		next := reached(marks, now)
		if next > level {
			passed(now)
		}
		level = next
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pollInterval(marks, level, now)):
		}
	}
}

// pollInterval is how soon the next mark could be reached, within 10 and 500 ms.
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
