package cgroups

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

const version1 = `21 1 0:20 / /sys rw - sysfs sysfs rw
25 21 0:24 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
26 25 0:25 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
27 25 0:26 /docker/x /sys/fs/cgroup/memory rw shared:3 - cgroup cgroup rw,memory
28 25 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
`

const version2 = `21 1 0:20 / /sys rw - sysfs sysfs rw
25 21 0:24 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate
`

func TestParseMounts(t *testing.T) {
	h, err := parseMounts(strings.NewReader(version1))
	if err != nil {
		t.Fatal(err)
	}
	if h.Version() != 1 || h.v1["cpuacct"].point != "/sys/fs/cgroup/cpu,cpuacct" || h.v1["memory"].root != "/docker/x" {
		t.Errorf("found %+v", h)
	}
	if !slices.Equal(h.Missing(), []string{"pids"}) {
		t.Errorf("missing %v", h.Missing())
	}
	if h, _ = parseMounts(strings.NewReader(version2)); h.Version() != 2 || h.v2 != "/sys/fs/cgroup" {
		t.Errorf("found %+v", h)
	}
	h, _ = parseMounts(strings.NewReader("21 1 0:20 / /sys rw - sysfs sysfs rw\n"))
	if h.Version() != 0 || len(h.Missing()) != 3 {
		t.Errorf("found %+v", h)
	}
	group, err := h.Group("/a/b")
	if err != nil {
		t.Fatal(err)
	}
	if err := group.Create(Limits{MemoryBytes: 1 << 30}); err != nil {
		t.Errorf("without control groups, creating one: %v", err)
	}
	if err := group.Remove(context.Background()); err != nil {
		t.Errorf("and removing it: %v", err)
	}
}

func TestGroupPaths(t *testing.T) {
	h, _ := parseMounts(strings.NewReader(version2))
	for _, path := range []string{"", "/", "a", "/a/../b", "/a//b", "/.."} {
		if _, err := h.Group(path); err == nil {
			t.Errorf("%q was accepted", path)
		}
	}
}

func TestWeight(t *testing.T) {
	for shares, want := range map[uint64]uint64{0: 1, 2: 1, 1024: 39, 262144: 10000, 1 << 40: 10000} {
		if got := weight(shares); got != want {
			t.Errorf("%d shares are weight %d, want %d", shares, got, want)
		}
	}
}

func TestMarks(t *testing.T) {
	marks := []int64{100, 200}
	for usage, want := range map[int64]int{0: 0, 99: 0, 100: 1, 199: 1, 200: 2, 1000: 2} {
		if got := reached(marks, usage); got != want {
			t.Errorf("at %d, %d marks are reached, want %d", usage, got, want)
		}
	}
	for distance, want := range map[int64]time.Duration{
		0: 10 * time.Millisecond, 1 << 20: 10 * time.Millisecond, 512 << 20: 250 * time.Millisecond, 1 << 40: 500 * time.Millisecond,
	} {
		if got := pollInterval([]int64{distance}, 0, 0); got != want {
			t.Errorf("%d bytes below a mark it looks every %v, want %v", distance, got, want)
		}
	}
}

// hierarchies are those of this host: the version 1 controllers, and the unified hierarchy, which may have none.
func hierarchies(t *testing.T) map[string]*Hierarchy {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	found := map[string]*Hierarchy{}
	if h, err := Detect(); err == nil && h.version > 0 {
		found[fmt.Sprintf("version %d", h.version)] = h
	}
	if out, err := exec.Command("findmnt", "-n", "-o", "TARGET", "-t", "cgroup2").Output(); err == nil {
		found["unified"] = &Hierarchy{version: 2, v2: strings.Fields(string(out))[0]}
	}
	if len(found) == 0 {
		t.Skip("the host has no control groups")
	}
	return found
}

// A process is born in its group, the one that forked it stays where it was, and the group can be removed.
func TestPlace(t *testing.T) {
	for name, h := range hierarchies(t) {
		t.Run(name, func(t *testing.T) {
			path := fmt.Sprintf("/forkyard-test-%d", os.Getpid())
			group, err := h.Group(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := group.Create(Limits{MemoryBytes: 64 << 20, CPUShares: 100, CPUQuotaUS: 50_000, Pids: 50}); err != nil {
				t.Fatal(err)
			}
			before, _ := os.ReadFile("/proc/self/cgroup")
			cmd := exec.Command("sleep", "60")
			runtime.LockOSThread()
			after, err := group.Place(cmd)
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			after()
			own, _ := os.ReadFile("/proc/thread-self/cgroup")
			runtime.UnlockOSThread()
			if string(own) != string(before) {
				t.Errorf("the forking thread is in\n%s, was in\n%s", own, before)
			}
			if procs := group.Procs(); !slices.Equal(procs, []int{cmd.Process.Pid}) {
				t.Errorf("in the group: %v, want %d", procs, cmd.Process.Pid)
			}
			if _, ok := h.v1["memory"]; ok {
				usage, err := group.MemoryUsage()
				if err != nil || usage < 0 || usage > 64<<20 {
					t.Errorf("usage %d, %v", usage, err)
				}
			}
			done := make(chan error, 1)
			go func() { done <- cmd.Wait() }()
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			if err := group.Remove(ctx); err != nil { // it kills what is left
				t.Fatal(err)
			}
			<-done
			for _, dir := range group.dirs {
				if _, err := os.Stat(dir); !os.IsNotExist(err) {
					t.Errorf("%s is still there", dir)
				}
			}
			if err := group.Remove(ctx); err != nil {
				t.Errorf("removing it again: %v", err)
			}
		})
	}
}

func TestLimits(t *testing.T) {
	h := hierarchies(t)["version 1"]
	if h == nil {
		t.Skip("needs cgroup version 1")
	}
	group, err := h.Group(fmt.Sprintf("/forkyard-test-%d/sub", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	if err := group.Create(Limits{MemoryBytes: 64 << 20, CPUQuotaUS: 50_000}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = group.Remove(context.Background())
		for _, dir := range group.dirs {
			_ = os.Remove(filepath.Dir(dir))
		}
	}()
	for file, want := range map[string]int64{
		filepath.Join(group.dirs["memory"], "memory.limit_in_bytes"): 64 << 20,
		filepath.Join(group.dirs["cpu"], "cpu.cfs_quota_us"):         50_000,
	} {
		if got, err := readInt(file); err != nil || got != want {
			t.Errorf("%s is %d, %v; want %d", file, got, err, want)
		}
	}
	if err := group.Create(Limits{MemoryBytes: 64 << 20}); err != nil {
		t.Errorf("creating it again: %v", err)
	}
}
