package itest

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"forkyard.dev/forkyard/internal/keeper/containers"
	"forkyard.dev/forkyard/internal/keeper/netconf"
)

// TestMeasure prints what the keeper and the plain command line take for the same work, side by side:
//
//	FORKYARD_MEASURE=8 go test -count=1 -run Measure -v ./internal/keeper/itest
func TestMeasure(t *testing.T) {
	rounds := 0
	if fmt.Sscan(os.Getenv("FORKYARD_MEASURE"), &rounds); rounds < 1 {
		t.Skip("FORKYARD_MEASURE is not set to a number of rounds")
	}
	flags := []string{}
	if os.Getenv("FORKYARD_MEASURE_DIRECTFS") == "off" {
		flags = append(flags, "--directfs=false")
	}
	w := newWorld(t, flags...)
	table := map[string][]time.Duration{}
	var order []string
	add := func(name string, took time.Duration) {
		if _, ok := table[name]; !ok {
			order = append(order, name)
		}
		table[name] = append(table[name], took)
	}
	timed := func(name string, work func()) {
		started := time.Now()
		work()
		add(name, time.Since(started))
	}
	source := w.slot()
	w.run("source", source)
	n := w.slot()
	for i := range rounds {
		name := fmt.Sprintf("s%d", i)
		timed("keeper: checkpoint, leave running", func() { w.checkpoint("source", name) })
		timed("keeper: create, empty", func() { w.create("a", n) })
		timed("keeper: restore into created, first HTTP answer", func() {
			w.call("POST", "/v1/containers/a/restore", containers.RestoreRequest{Dir: inNode + "/snapshots/" + name, Net: n}, nil)
			must(t, waitAnswers(n))
		})
		timed("keeper: kill and destroy", func() { w.call("DELETE", "/v1/containers/a", nil, nil) })
	}
	w.measureMany(add, min(rounds, 4))
	w.measureCommandLine(timed, rounds, n)
	for _, name := range order {
		values := table[name]
		slices.Sort(values)
		t.Logf("%-62s median %7.1f ms  best %7.1f  worst %7.1f  (%d)", name, ms(values[len(values)/2]), ms(values[0]),
			ms(values[len(values)-1]), len(values))
	}
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// measureMany creates and restores 16 sandboxes, four at a time.
func (w *world) measureMany(add func(string, time.Duration), rounds int) {
	const count, parallel = 16, 4
	slots := make([]*netconf.Net, count)
	for i := range slots {
		slots[i] = w.slot()
	}
	for range rounds {
		started := time.Now()
		inParallel(count, parallel, func(i int) { w.create(fmt.Sprintf("m%d", i), slots[i]) })
		add("keeper: 16 creates, 4 at a time", time.Since(started))
		started = time.Now()
		inParallel(count, parallel, func(i int) {
			w.call("POST", fmt.Sprintf("/v1/containers/m%d/restore", i),
				containers.RestoreRequest{Dir: inNode + "/snapshots/s0", Net: slots[i]}, nil)
			must(w, waitAnswers(slots[i]))
		})
		add("keeper: 16 restores, 4 at a time, all answering", time.Since(started))
		started = time.Now()
		inParallel(count, parallel, func(i int) { w.call("DELETE", fmt.Sprintf("/v1/containers/m%d", i), nil, nil) })
		add("keeper: 16 destroys, 4 at a time", time.Since(started))
	}
}

func inParallel(count, parallel int, work func(i int)) {
	var wg sync.WaitGroup
	tokens := make(chan struct{}, parallel)
	for i := range count {
		tokens <- struct{}{}
		wg.Go(func() {
			defer func() { <-tokens }()
			work(i)
		})
	}
	wg.Wait()
}

// measureCommandLine does the same with runsc's own command line, in a mount namespace with the same bind.
func (w *world) measureCommandLine(timed func(string, func()), rounds int, n *netconf.Net) {
	must(w, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)) // to reap as the keeper does
	root := filepath.Join(w.dir, "cli")
	must(w, os.MkdirAll(root, 0o711))
	runsc := func(args ...string) {
		common := []string{"--root=" + root, "--network=sandbox", "--overlay2=root:dir=" + inNode + "/disks",
			"--allow-suid", "--host-settings=ignore"}
		script := `mount --make-rslave / && mkdir -p ` + inNode + ` && mount --rbind ` + w.node + " " + inNode + ` && exec "$@"`
		// The namespace costs a millisecond; it is not taken off.
		cmd := exec.Command("unshare", append(append([]string{"-m", "sh", "-c", script, "sh", w.keeper}, common...), args...)...)
		null, _ := os.OpenFile(os.DevNull, os.O_RDWR, 0)
		defer null.Close()
		stderr, err := os.OpenFile(filepath.Join(w.dir, "cli.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		must(w, err)
		defer stderr.Close()
		cmd.Stdin, cmd.Stdout, cmd.Stderr = null, null, stderr
		if err := cmd.Run(); err != nil {
			log, _ := os.ReadFile(filepath.Join(w.dir, "cli.log"))
			w.Fatalf("runsc %v: %v: %s", args, err, log)
		}
	}
	bundle := filepath.Join(w.dir, "bundle")
	must(w, os.MkdirAll(filepath.Join(bundle, "rootfs"), 0o755))
	create := func(id string) {
		must(w, os.WriteFile(filepath.Join(bundle, "config.json"), w.request(id, n).Spec, 0o600))
		runsc("create", "--bundle", bundle, id)
	}
	putNet := func() {
		_ = exec.Command("ip", "-n", filepath.Base(n.Netns), "addr", "add", n.Address, "dev", "eth0").Run()
		for _, dev := range []string{"lo", "eth0"} {
			must(w, exec.Command("ip", "-n", filepath.Base(n.Netns), "link", "set", dev, "up").Run())
		}
		must(w, exec.Command("ip", "-n", filepath.Base(n.Netns), "route", "replace", "default", "via", n.Gateway).Run())
	}
	remove := func(id string) {
		files, _ := filepath.Glob(filepath.Join(root, id+"_*.state"))
		data, err := os.ReadFile(files[0])
		must(w, err)
		var state struct {
			GoferPid int
			Sandbox  struct{ Pid int }
		}
		must(w, json.Unmarshal(data, &state))
		for _, pid := range []int{state.Sandbox.Pid, state.GoferPid} {
			must(w, syscall.Kill(pid, syscall.SIGKILL))
			_, err := syscall.Wait4(pid, nil, 0, nil)
			must(w, err)
		}
		runsc("delete", "--force", id)
	}
	putNet()
	create("x")
	runsc("start", "x")
	must(w, waitAnswers(n))
	for i := range rounds {
		timed("runsc: checkpoint, leave running", func() {
			runsc("checkpoint", "--leave-running", "--compression=none", "--exclude-committed-zero-pages",
				"--image-path="+fmt.Sprintf("%s/snapshots/x%d", inNode, i), "x")
		})
	}
	remove("x")
	for i := range rounds {
		putNet()
		timed("runsc: create, empty", func() { create("y") })
		timed("runsc: restore into created, first HTTP answer", func() {
			runsc("restore", "--detach", "--bundle", bundle, "--image-path="+fmt.Sprintf("%s/snapshots/x%d", inNode, i), "y")
			must(w, waitAnswers(n))
		})
		timed("runsc: kill, reap and delete", func() { remove("y") })
	}
}
