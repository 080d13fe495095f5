// Package itest runs real sandboxes with the built keeper. The tests need root, erofs-utils, iproute2 and
// build/bin/keeper (scripts/build-go.sh); without them they are skipped.
package itest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"forkyard.dev/forkyard/internal/keeper/containers"
	"forkyard.dev/forkyard/internal/keeper/events"
	"forkyard.dev/forkyard/internal/keeper/fault"
	"forkyard.dev/forkyard/internal/keeper/netconf"
)

const patience = 20 * time.Second // for what is expected to happen in well under a second

// built are the things all tests share: the keeper, the guest program and the image.
type built struct {
	keeper, image, guestDir string
}

var build = sync.OnceValues(func() (*built, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("needs root")
	}
	for _, tool := range []string{"mkfs.erofs", "ip", "go"} {
		if _, err := exec.LookPath(tool); err != nil {
			return nil, fmt.Errorf("needs %s", tool)
		}
	}
	keeper := os.Getenv("FORKYARD_KEEPER")
	if keeper == "" {
		keeper, _ = filepath.Abs("../../../../build/bin/keeper")
	}
	if _, err := os.Stat(keeper); err != nil {
		return nil, errors.New("needs build/bin/keeper: run scripts/build-go.sh")
	}
	dir, err := os.MkdirTemp("", "keeper-itest-")
	if err != nil {
		return nil, err
	}
	b := &built{keeper: keeper, image: filepath.Join(dir, "root.erofs"), guestDir: filepath.Join(dir, "guest")}
	compile := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", filepath.Join(b.guestDir, "guest"), "./guest")
	compile.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := compile.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("the guest: %w: %s", err, out)
	}
	tree := filepath.Join(dir, "tree")
	for _, name := range []string{"proc", "sys", "dev", "tmp", "etc", "usr/lib/forkyard", "run/forkyard/volumes"} {
		if err := os.MkdirAll(filepath.Join(tree, name), 0o755); err != nil {
			return nil, err
		}
	}
	// An empty /tmp would become a tmpfs in the sandbox's memory.
	if err := os.WriteFile(filepath.Join(tree, "tmp/.keep"), nil, 0o644); err != nil {
		return nil, err
	}
	if out, err := exec.Command("mkfs.erofs", "-Enoinline_data", b.image, tree).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("mkfs.erofs: %w: %s", err, out)
	}
	return b, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if b, err := build(); err == nil {
		os.RemoveAll(filepath.Dir(b.image))
	}
	os.Exit(code)
}

// world is one instance: a data directory, a keeper, and network namespaces for sandboxes.
type world struct {
	*testing.T
	*built
	dir      string // holds everything
	node     string // what sandboxes' paths begin with, as /run/forkyard/node
	instance string
	flags    []string
	client   *http.Client
	process  *exec.Cmd
	slots    int
	made     []string
	cgroup   string
}

var worlds atomic.Int64

const (
	inNode   = "/run/forkyard/node"
	guestBin = "/usr/lib/forkyard/guest"
)

func newWorld(t *testing.T, flags ...string) *world {
	t.Helper()
	return newWorldWith(t, func(*world) {}, flags...)
}

// newWorldWith calls prepare before the keeper starts.
func newWorldWith(t *testing.T, prepare func(*world), flags ...string) *world {
	t.Helper()
	b, err := build()
	if err != nil {
		t.Skip(err)
	}
	dir, err := os.MkdirTemp("", "keeper-world-")
	if err != nil {
		t.Fatal(err)
	}
	instance := fmt.Sprintf("kt%d-%d", os.Getpid(), worlds.Add(1))
	w := &world{
		T: t, built: b, dir: dir, node: filepath.Join(dir, "node"), instance: instance, flags: flags,
		cgroup: "/forkyard-" + instance,
	}
	for _, name := range []string{"images", "envd", "volumes", "snapshots", "logs"} {
		must(t, os.MkdirAll(filepath.Join(w.node, name), 0o755))
	}
	must(t, os.Link(b.image, filepath.Join(w.node, "images/root.erofs")))
	must(t, os.MkdirAll(filepath.Join(w.node, "envd/v1"), 0o755))
	must(t, os.Link(filepath.Join(b.guestDir, "guest"), filepath.Join(w.node, "envd/v1/guest")))
	w.client = &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(dir, "keeper.sock"))
		},
	}}
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	prepare(w)
	t.Cleanup(w.close)
	w.startKeeper()
	return w
}

func (w *world) startKeeper() {
	w.Helper()
	args := append([]string{
		"keep", "--socket", filepath.Join(w.dir, "keeper.sock"), "--root", filepath.Join(w.dir, "root"),
		"--instance", w.instance, "--bind", w.node + "=" + inNode, "--log", filepath.Join(w.dir, "keeper.log"),
	}, w.flags...)
	w.process = exec.Command(w.keeper, args...)
	var stderr bytes.Buffer
	w.process.Stderr = &stderr
	w.process.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	must(w, w.process.Start())
	w.eventually("the keeper answers", func() bool {
		var info map[string]any
		return w.try("GET", "/v1/info", nil, &info) == nil && int(info["pid"].(float64)) == w.process.Process.Pid
	})
}

// killKeeper ends the keeper as a crash would.
func (w *world) killKeeper() {
	must(w, w.process.Process.Kill())
	_ = w.process.Wait()
	w.client.CloseIdleConnections()
}

func (w *world) close() {
	for _, c := range w.list() {
		if err := w.try("DELETE", "/v1/containers/"+c.ID, nil, nil); err != nil {
			w.Errorf("cleaning up %s: %v", c.ID, err)
		}
	}
	w.killKeeper()
	for _, name := range w.made {
		_ = exec.Command("ip", "netns", "del", name).Run()
	}
	for _, controller := range []string{"memory", "cpu", "cpuacct", "pids", "."} {
		_ = os.Remove(filepath.Join("/sys/fs/cgroup", controller, w.cgroup))
	}
	if w.Failed() {
		log, _ := os.ReadFile(filepath.Join(w.dir, "keeper.log"))
		w.Logf("the keeper's log:\n%s", log)
	}
}

// slot makes a network namespace with a veth to it and returns its network.
func (w *world) slot() *netconf.Net {
	w.Helper()
	w.slots++
	n := int(worlds.Add(1))
	name := fmt.Sprintf("%s-n%d", w.instance, w.slots)
	host, third, fourth := fmt.Sprintf("fykt%d", n), n/64%256, n%64*4
	address := func(last int) string { return fmt.Sprintf("10.213.%d.%d", third, fourth+last) }
	w.made = append(w.made, name)
	for _, command := range []string{
		"netns add " + name,
		"link add " + host + " type veth peer name eth0 netns " + name,
		"addr add " + address(1) + "/30 dev " + host,
		"link set " + host + " up",
	} {
		if out, err := exec.Command("ip", strings.Fields(command)...).CombinedOutput(); err != nil {
			w.Fatalf("ip %s: %v: %s", command, err, out)
		}
	}
	return &netconf.Net{
		Netns: "/run/netns/" + name, Interface: "eth0", Address: address(2) + "/30", Gateway: address(1),
	}
}

// guest is the address of the server inside the sandbox of a network.
func guest(n *netconf.Net) string {
	return "http://" + strings.TrimSuffix(n.Address, "/30") + ":8080"
}

type specOption func(spec map[string]any)

// create makes a request for a container with the network.
func (w *world) request(id string, n *netconf.Net, options ...specOption) containers.CreateRequest {
	w.Helper()
	must(w, os.MkdirAll(filepath.Join(w.node, "volumes", id), 0o755))
	capabilities := []string{
		"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_SETUID", "CAP_SETGID", "CAP_KILL", "CAP_SYS_ADMIN",
		"CAP_SYS_CHROOT", "CAP_NET_BIND_SERVICE", "CAP_SETPCAP",
	}
	spec := map[string]any{
		"ociVersion": "1.1.0",
		"hostname":   id,
		"process": map[string]any{
			"args": []string{guestBin}, "cwd": "/", "env": []string{"PATH=/usr/bin"},
			"user":         map[string]any{"uid": 0, "gid": 0},
			"capabilities": map[string]any{"bounding": capabilities, "effective": capabilities, "permitted": capabilities},
		},
		"root": map[string]any{"path": "rootfs"},
		"mounts": []map[string]any{
			{"destination": "/proc", "type": "proc", "source": "proc"},
			{"destination": "/usr/lib/forkyard", "type": "bind", "source": inNode + "/envd/v1", "options": []string{"bind", "ro"}},
			{"destination": "/run/forkyard/volumes", "type": "bind", "source": inNode + "/volumes/" + id, "options": []string{"rbind", "rslave"}},
		},
		"annotations": map[string]string{
			"dev.gvisor.spec.rootfs.source":  inNode + "/images/root.erofs",
			"dev.gvisor.spec.rootfs.type":    "erofs",
			"dev.gvisor.spec.rootfs.overlay": "dir=" + inNode + "/disks",
			"dev.gvisor.spec.rootfs.options": "size=1g",
		},
		"linux": map[string]any{
			"cgroupsPath": w.cgroup + "/" + id,
			"namespaces":  []map[string]any{{"type": "network", "path": n.Netns}, {"type": "pid"}, {"type": "mount"}},
			"resources": map[string]any{
				"memory": map[string]any{"limit": 512 << 20}, "cpu": map[string]any{"shares": 512, "quota": 200000, "period": 100000},
				"pids": map[string]any{"limit": 2000},
			},
		},
	}
	for _, option := range options {
		option(spec)
	}
	data, err := json.Marshal(spec)
	must(w, err)
	request := containers.CreateRequest{Spec: data, Net: n, CgroupMemoryLimitBytes: 640 << 20}
	request.Stdio.Stderr = inNode + "/logs/" + id
	score := 500
	request.OOMScoreAdj = &score
	return request
}

func (w *world) create(id string, n *netconf.Net, options ...specOption) containers.View {
	w.Helper()
	var view containers.View
	w.call("PUT", "/v1/containers/"+id, w.request(id, n, options...), &view)
	return view
}

// run creates and starts a container, and waits until its server answers.
func (w *world) run(id string, n *netconf.Net, options ...specOption) containers.View {
	w.Helper()
	w.create(id, n, options...)
	var view containers.View
	w.call("POST", "/v1/containers/"+id+"/start", containers.StartRequest{Net: n}, &view)
	w.answers(n)
	return view
}

func (w *world) list() []containers.View {
	var views []containers.View
	if err := w.try("GET", "/v1/containers", nil, &views); err != nil {
		w.Errorf("listing containers: %v", err)
	}
	return views
}

// failure is an error answer.
type failure struct {
	status int
	fault  fault.Error
}

func (f *failure) Error() string {
	return fmt.Sprintf("%d %s: %s", f.status, f.fault.Code, f.fault.Message)
}

func (w *world) try(method, path string, body, into any) error {
	var reader io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return err
		}
		reader = bytes.NewReader(data)
	}
	request, err := http.NewRequest(method, "http://keeper"+path, reader)
	if err != nil {
		return err
	}
	response, err := w.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode >= 300 {
		f := &failure{status: response.StatusCode}
		if err := json.NewDecoder(response.Body).Decode(&f.fault); err != nil {
			return err
		}
		return f
	}
	if into == nil {
		_, err := io.Copy(io.Discard, response.Body)
		return err
	}
	return json.NewDecoder(response.Body).Decode(into)
}

func (w *world) call(method, path string, body, into any) {
	w.Helper()
	if err := w.try(method, path, body, into); err != nil {
		w.Fatalf("%s %s: %v", method, path, err)
	}
}

// refused expects an error answer with the status and code.
func (w *world) refused(err error, status int, code string) {
	w.Helper()
	var f *failure
	if !errors.As(err, &f) || f.status != status || f.fault.Code != code {
		w.Fatalf("wanted %d %s, got: %v", status, code, err)
	}
}

var guestClient = &http.Client{
	Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true},
}

// ask gets a page of the guest's server.
func (w *world) ask(n *netconf.Net, path string) string {
	w.Helper()
	text, err := tryAsk(n, path)
	if err != nil {
		w.Fatal(err)
	}
	return text
}

func tryAsk(n *netconf.Net, path string) (string, error) {
	response, err := guestClient.Get(guest(n) + path)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode >= 300 {
		err = fmt.Errorf("%s: %d %s", path, response.StatusCode, text)
	}
	return string(text), err
}

func (w *world) count(n *netconf.Net) int {
	w.Helper()
	count, err := strconv.Atoi(w.ask(n, "/count"))
	must(w, err)
	return count
}

// answers waits until the guest's server does.
func (w *world) answers(n *netconf.Net) {
	w.Helper()
	if err := waitAnswers(n); err != nil {
		w.Fatal(err)
	}
}

// waitAnswers tries again without any pause worth mentioning: benchmarks measure with it.
func waitAnswers(n *netconf.Net) error {
	deadline := time.Now().Add(patience)
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for {
		response, err := client.Get(guest(n) + "/health")
		if err == nil {
			response.Body.Close()
			return nil
		}
		if time.Now().After(deadline) {
			return err
		}
		time.Sleep(500 * time.Microsecond)
	}
}

func (w *world) eventually(what string, condition func() bool) {
	w.Helper()
	deadline := time.Now().Add(patience)
	for !condition() {
		if time.Now().After(deadline) {
			w.Fatalf("did not happen: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// follow gives the events after seq as they come.
func (w *world) follow(seq int64) <-chan events.Event {
	ctx, cancel := context.WithCancel(context.Background())
	w.Cleanup(cancel)
	request, err := http.NewRequestWithContext(ctx, "GET", fmt.Sprintf("http://keeper/v1/events?after=%d", seq), nil)
	must(w, err)
	response, err := w.client.Do(request)
	must(w, err)
	out := make(chan events.Event, 100)
	go func() {
		defer close(out)
		defer response.Body.Close()
		scanner := bufio.NewScanner(response.Body)
		for scanner.Scan() {
			var e events.Event
			if json.Unmarshal(scanner.Bytes(), &e) == nil && e.Type != "alive" {
				out <- e
			}
		}
	}()
	return out
}

// next waits for the next event of that type about that container.
func (w *world) next(from <-chan events.Event, kind, id string) events.Event {
	w.Helper()
	deadline := time.After(patience)
	for {
		select {
		case e, ok := <-from:
			if !ok {
				w.Fatal("the event stream ended")
			}
			if e.Type == kind && e.ID == id {
				return e
			}
		case <-deadline:
			w.Fatalf("no event %s of %s", kind, id)
		}
	}
}

// nothingLeft checks that a container has left neither processes nor a cgroup nor files.
func (w *world) nothingLeft(view containers.View) {
	w.Helper()
	for _, pid := range []int{view.Pid, view.GoferPid} {
		if pid > 0 && exists(pid) {
			w.Errorf("process %d of %s is still there", pid, view.ID)
		}
	}
	if _, err := os.Stat(filepath.Join("/sys/fs/cgroup/memory", w.cgroup, view.ID)); err == nil {
		w.Errorf("the cgroup of %s is still there", view.ID)
	}
	if _, err := os.Stat(filepath.Join(w.dir, "root", view.ID)); err == nil {
		w.Errorf("the directory of %s is still there", view.ID)
	}
}

// processesOf lists runsc's processes of a container of this instance, by their cgroup.
func (w *world) processesOf(id string) []string {
	var found []string
	files, _ := filepath.Glob("/proc/[0-9]*/cgroup")
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err == nil && strings.Contains(string(data), w.cgroup+"/"+id+"\n") {
			found = append(found, filepath.Base(filepath.Dir(file)))
		}
	}
	return found
}

// exists tells whether a process runs; one that has ended and is not reaped (by whatever init the host has) does not.
func exists(pid int) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	return err == nil && !strings.Contains(string(status), "State:\tZ")
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
