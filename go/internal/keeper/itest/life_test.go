package itest

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"forkyard.dev/forkyard/internal/keeper/containers"
	"forkyard.dev/forkyard/internal/keeper/events"
	"forkyard.dev/forkyard/internal/keeper/netconf"
)

func TestCreateStartDestroy(t *testing.T) {
	w := newWorld(t)
	n := w.slot()
	created := w.create("a", n)
	if created.Status != containers.StatusCreated || !exists(created.Pid) || !exists(created.GoferPid) {
		t.Fatalf("created as %+v", created)
	}
	var view containers.View
	w.call("POST", "/v1/containers/a/start", containers.StartRequest{Net: n}, &view)
	if view.Status != containers.StatusRunning || view.Pid != created.Pid {
		t.Fatalf("started as %+v", view)
	}
	w.answers(n)
	w.call("DELETE", "/v1/containers/a", nil, nil)
	w.nothingLeft(view)
	w.refused(w.try("DELETE", "/v1/containers/a", nil, nil), 404, "not_found")
}

func TestWrongRequests(t *testing.T) {
	w := newWorld(t)
	n := w.slot()
	w.create("a", n)
	w.refused(w.try("PUT", "/v1/containers/a", w.request("a", n), nil), 409, "already_exists")
	w.refused(w.try("PUT", "/v1/containers/b.c", w.request("x", n), nil), 400, "invalid")
	w.refused(w.try("PUT", "/v1/containers/b", w.request("b", n, func(spec map[string]any) {
		spec["annotations"].(map[string]string)["dev.gvisor.flag.host-uds"] = "all"
	}), nil), 400, "invalid")
	w.refused(w.try("GET", "/v1/containers/b", nil, nil), 404, "not_found")
	w.refused(w.try("POST", "/v1/containers/b/start", containers.StartRequest{}, nil), 404, "not_found")
	w.refused(w.try("POST", "/v1/containers/a/checkpoint",
		containers.CheckpointRequest{Dir: inNode + "/snapshots/s", LeaveRunning: true}, nil), 409, "conflict")
	w.refused(w.try("POST", "/v1/containers/a/restore",
		containers.RestoreRequest{Dir: inNode + "/snapshots/none", Net: n}, nil), 400, "invalid")
	w.call("POST", "/v1/containers/a/start", containers.StartRequest{Net: n}, nil)
	w.refused(w.try("POST", "/v1/containers/a/start", containers.StartRequest{Net: n}, nil), 409, "conflict")
	w.refused(w.try("POST", "/v1/containers/a/watch", containers.Watch{HealthURL: "file:///etc"}, nil), 400, "invalid")
	w.refused(w.try("POST", "/v1/containers/a/watch", json.RawMessage(`{"helth_url": 1}`), nil), 400, "invalid")
	w.refused(w.try("GET", "/v1/nothing", nil, nil), 404, "not_found")
	w.answers(n)
}

// A container that cannot be made leaves its name, files, cgroup and network free for the next.
func TestFailedCreateLeavesNothing(t *testing.T) {
	w := newWorld(t)
	n := w.slot()
	err := w.try("PUT", "/v1/containers/a", w.request("a", n, func(spec map[string]any) {
		spec["annotations"].(map[string]string)["dev.gvisor.spec.rootfs.source"] = inNode + "/images/none.erofs"
	}), nil)
	w.refused(err, 500, "internal")
	w.nothingLeft(containers.View{ID: "a"})
	if left := w.keeperChildren(); len(left) > 0 {
		t.Fatalf("children left: %v", left)
	}
	w.run("a", n)
}

func TestProcessesAreInTheirCgroup(t *testing.T) {
	w := newWorld(t)
	if _, err := os.Stat("/sys/fs/cgroup/memory/memory.limit_in_bytes"); err != nil {
		t.Skip("needs cgroup version 1")
	}
	n := w.slot()
	view := w.run("a", n)
	for _, pid := range []int{view.Pid, view.GoferPid} {
		groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		must(t, err)
		for _, controller := range []string{"memory", "cpu", "pids"} {
			if !strings.Contains(string(groups), ":"+controller+":"+w.cgroup+"/a\n") {
				t.Errorf("process %d is not in the %s cgroup:\n%s", pid, controller, groups)
			}
		}
		score, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid))
		must(t, err)
		if strings.TrimSpace(string(score)) != "500" {
			t.Errorf("oom_score_adj of %d is %s", pid, score)
		}
	}
	for file, want := range map[string]int{
		"memory/%s/memory.limit_in_bytes": 640 << 20, "cpu/%s/cpu.shares": 512, "cpu/%s/cpu.cfs_quota_us": 200000,
		"pids/%s/pids.max": 2000,
	} {
		data, err := os.ReadFile("/sys/fs/cgroup/" + fmt.Sprintf(file, w.cgroup+"/a"))
		must(t, err)
		if strings.TrimSpace(string(data)) != strconv.Itoa(want) {
			t.Errorf("%s is %s, want %d", file, data, want)
		}
	}
	w.threadsAreHome()
	meminfo := w.ask(n, "/read?path=/proc/meminfo")
	if !strings.Contains(meminfo, "MemTotal:         524288 kB") {
		t.Errorf("the sandbox sees another memory than its limit:\n%q", meminfo)
	}
}

// threadsAreHome checks that no thread of the keeper is in a namespace or cgroup of a sandbox.
func (w *world) threadsAreHome() {
	w.Helper()
	pid := w.process.Process.Pid
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	must(w, err)
	for _, name := range []string{"ns/net", "ns/mnt", "cgroup"} {
		read := func(path string) string {
			if name == "cgroup" {
				data, _ := os.ReadFile(path)
				return string(data)
			}
			link, _ := os.Readlink(path)
			return link
		}
		home := read(fmt.Sprintf("/proc/%d/%s", pid, name))
		strangers := 0
		for _, task := range tasks {
			if there := read(fmt.Sprintf("/proc/%d/task/%s/%s", pid, task.Name(), name)); there != "" && there != home {
				strangers++
			}
		}
		allowed := 0
		if name == "ns/mnt" {
			allowed = 1 // the one that opens files of the host
		}
		if strangers > allowed {
			w.Errorf("%d threads of the keeper have another %s", strangers, name)
		}
	}
}

func (w *world) keeperChildren() []string {
	out, _ := exec.Command("ps", "--no-headers", "-o", "pid,stat,args", "--ppid", strconv.Itoa(w.process.Process.Pid)).Output()
	return strings.Fields(string(out))
}

func TestExitIsReported(t *testing.T) {
	for name, c := range map[string]struct {
		end    func(w *world, n *netconf.Net, view containers.View)
		signal string
		code   int
		within time.Duration // a few ms on an idle machine; the tests also run on busy ones
	}{
		"killed": {end: func(_ *world, _ *netconf.Net, v containers.View) { must(t, syscall.Kill(v.Pid, syscall.SIGKILL)) }, signal: "SIGKILL", within: 2 * time.Second},
		"exits":  {end: func(_ *world, n *netconf.Net, _ containers.View) { _, _ = tryAsk(n, "/exit?code=7") }, code: 7, within: time.Second},
		"gofer":  {end: func(_ *world, _ *netconf.Net, v containers.View) { must(t, syscall.Kill(v.GoferPid, syscall.SIGKILL)) }, signal: "SIGKILL", within: 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			n := w.slot()
			view := w.run("a", n)
			follow := w.follow(0)
			c.end(w, n, view)
			before := time.Now()
			e := w.next(follow, events.Exit, "a")
			if took := time.Since(before); took > c.within {
				t.Errorf("the exit came after %v", took)
			}
			if e.Signal != c.signal || (c.signal == "") != (e.ExitCode != nil) || (e.ExitCode != nil && *e.ExitCode != c.code) {
				t.Errorf("exit reported as %+v", e)
			}
			var after containers.View
			w.call("GET", "/v1/containers/a", nil, &after)
			if after.Status != containers.StatusStopped || after.Signal != c.signal {
				t.Errorf("stopped as %+v", after)
			}
			var result containers.DestroyResult
			w.call("DELETE", "/v1/containers/a", nil, &result)
			if !result.Exited || result.Signal != c.signal {
				t.Errorf("destroyed as %+v", result)
			}
			w.nothingLeft(view)
		})
	}
}

func TestDestroyTwiceAtOnce(t *testing.T) {
	w := newWorld(t)
	view := w.run("a", w.slot())
	follow := w.follow(0)
	var wg sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		wg.Go(func() { errs[i] = w.try("DELETE", "/v1/containers/a", nil, nil) })
	}
	wg.Wait()
	destroyed := 0
	for _, err := range errs {
		if err == nil {
			destroyed++
		} else {
			w.refused(err, 404, "not_found") // came after the end
		}
	}
	if destroyed == 0 {
		t.Error("no call destroyed it")
	}
	w.nothingLeft(view)
	w.run("b", w.slot()) // its events come after those of a, of which there are none
	must(t, syscall.Kill(w.list()[0].Pid, syscall.SIGKILL))
	if e := <-follow; e.ID != "b" {
		t.Errorf("destroying was reported as an exit: %+v", e)
	}
}

func TestDestroyDuringCreate(t *testing.T) {
	w := newWorld(t)
	n := w.slot()
	for i := range 6 {
		done := make(chan error, 1)
		go func() { done <- w.try("PUT", "/v1/containers/a", w.request("a", n), nil) }()
		w.eventually("the container is being made", func() bool {
			_, err := os.Stat(filepath.Join(w.dir, "root/a/keeper.json"))
			return err == nil
		})
		time.Sleep(time.Duration(i) * 10 * time.Millisecond) // another place in the creation each time
		destroyErr := w.try("DELETE", "/v1/containers/a", nil, nil)
		createErr := <-done
		if destroyErr != nil {
			t.Fatalf("destroying: %v (creating: %v)", destroyErr, createErr)
		}
		w.nothingLeft(containers.View{ID: "a"})
		if left := w.keeperChildren(); len(left) > 0 {
			t.Fatalf("children left: %v", left)
		}
	}
}

func TestOutputIsBounded(t *testing.T) {
	w := newWorld(t)
	n := w.slot()
	w.run("a", n)
	path := filepath.Join(w.node, "logs/a")
	if text, err := os.ReadFile(path); err != nil || !strings.Contains(string(text), "guest is up") {
		t.Fatalf("the output is %q, %v", text, err)
	}
	w.ask(n, "/shout?mb=64")
	w.eventually("the output is cut down", func() bool {
		info, err := os.Stat(path)
		return err == nil && info.Size() <= 8<<20
	})
	w.ask(n, "/shout?mb=1")
	info, err := os.Stat(path)
	must(t, err)
	if info.Size() > 10<<20 {
		t.Errorf("after cutting, output goes on at the old end: %d bytes", info.Size())
	}
}

// What the host mounts into a volume slot after the start is seen inside at once.
func TestVolumeSlot(t *testing.T) {
	w := newWorldWith(t, func(w *world) {
		volumes := filepath.Join(w.node, "volumes")
		must(w, syscall.Mount(volumes, volumes, "", syscall.MS_BIND, ""))
		must(w, syscall.Mount("", volumes, "", syscall.MS_SHARED, ""))
		w.Cleanup(func() { _ = syscall.Unmount(volumes, syscall.MNT_DETACH) })
	})
	n := w.slot()
	w.run("a", n)
	source := filepath.Join(w.dir, "data")
	must(t, os.MkdirAll(source, 0o755))
	must(t, os.WriteFile(filepath.Join(source, "hello"), []byte("from the host"), 0o644))
	target := filepath.Join(w.node, "volumes/a/data")
	must(t, os.MkdirAll(target, 0o755))
	must(t, syscall.Mount(source, target, "", syscall.MS_BIND, ""))
	defer func() { _ = syscall.Unmount(target, syscall.MNT_DETACH) }()
	if text := w.ask(n, "/read?path=/run/forkyard/volumes/data/hello"); text != "from the host" {
		t.Errorf("the sandbox reads %q", text)
	}
	w.ask(n, "/write?path=/run/forkyard/volumes/data/back&mb=1")
	if info, err := os.Stat(filepath.Join(source, "back")); err != nil || info.Size() != 1<<20 {
		t.Errorf("what the sandbox wrote: %v, %v", info, err)
	}
}

// The build puts gVisor's seccomp programs in; without them every start compiles them again, which nothing else shows.
func TestSeccompIsPrecompiled(t *testing.T) {
	w := newWorld(t, "--debug")
	w.run("a", w.slot())
	log, err := os.ReadFile(filepath.Join(w.dir, "root/a/debug.boot.log"))
	must(t, err)
	if !strings.Contains(string(log), "Loaded precompiled seccomp instructions") {
		t.Error("the sandbox did not use a precompiled program")
	}
}
