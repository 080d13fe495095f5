// Package blackbox tests envd over HTTP only: the built program, run as an ordinary process.
//
// With ENVD_TEST_URL=http://host:port it tests the envd that runs there instead, for instance as PID 1 in a
// gVisor sandbox whose gateway this machine is; what needs an envd of its own is skipped then.
package blackbox

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	// The cache of test results must know what is tested.
	_ "forkyard.dev/forkyard/internal/envd/server"
)

// patience bounds every wait of these tests; nothing takes nearly so long.
const patience = 60 * time.Second

var (
	program string // path of the built envd; empty with ENVD_TEST_URL
	shared  *envd  // used by all tests that do not change what envd knows
)

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	if url := os.Getenv("ENVD_TEST_URL"); url != "" {
		shared = &envd{url: url}
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "envd-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	program = filepath.Join(dir, "envd")
	build := exec.Command("go", "build", "-o", program, "forkyard.dev/forkyard/cmd/envd")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "building envd failed:", err)
		return 1
	}
	shared, err = launch(filepath.Join(dir, "shared"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer shared.stop()
	return m.Run()
}

// envd is a running daemon.
type envd struct {
	url   string
	root  string // stands for "/" of the system
	state string
	cmd   *exec.Cmd
}

func launch(dir string, args ...string) (*envd, error) {
	e := &envd{root: filepath.Join(dir, "root"), state: filepath.Join(dir, "state")}
	if err := os.MkdirAll(e.root, 0o755); err != nil {
		return nil, err
	}
	args = append([]string{
		"--port", "0", "--state-dir", e.state, "--root", e.root, "--allow-internal-from", "127.0.0.1", "--own-address", "127.0.0.2", "--debug",
	}, args...)
	e.cmd = exec.Command(program, args...)
	stderr, err := e.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := e.cmd.Start(); err != nil {
		return nil, err
	}
	port := make(chan int, 1)
	go func() {
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			var line struct {
				Msg  string `json:"msg"`
				Port int    `json:"port"`
			}
			if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "envd listens" {
				port <- line.Port
			}
			if testing.Verbose() {
				fmt.Fprintln(os.Stderr, "envd:", lines.Text())
			}
		}
	}()
	select {
	case p := <-port:
		e.url = fmt.Sprintf("http://127.0.0.1:%d", p)
		return e, nil
	case <-time.After(patience):
		e.stop()
		return nil, fmt.Errorf("envd did not start")
	}
}

// stop kills the daemon after everything it has started.
func (e *envd) stop() {
	_, _ = http.Post(e.url+"/internal/end-processes", "application/json", nil)
	_ = e.cmd.Process.Kill()
	_ = e.cmd.Wait()
}

// own starts a daemon for one test.
func own(t *testing.T, args ...string) *envd {
	t.Helper()
	if program == "" {
		t.Skip("needs an envd of its own")
	}
	e, err := launch(t.TempDir(), args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.stop)
	return e
}

// local skips tests that look at envd from the machine it runs on.
func local(t *testing.T) {
	t.Helper()
	if program == "" {
		t.Skip("needs envd on this machine")
	}
}

// asRoot skips tests of what only root can do.
func asRoot(t *testing.T) {
	t.Helper()
	if program != "" && os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for limit := time.Now().Add(patience); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("did not happen: %s", what)
		}
	}
}

func (e *envd) address() string {
	return e.url[len("http://"):]
}

func (e *envd) dial(t *testing.T) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", e.address())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	return conn
}

// What decides the result of these tests beyond the packages they import is read here once more, where the
// cache of test results sees it.
func TestTheCacheOfResultsSeesEverything(t *testing.T) {
	_ = os.Getenv("ENVD_TEST_URL")
	if _, err := os.ReadFile("../../../cmd/envd/main.go"); err != nil {
		t.Fatal(err)
	}
}
