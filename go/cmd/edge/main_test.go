package main

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMain lets the test binary be the edge.
func TestMain(m *testing.M) {
	if os.Getenv("BE_EDGE") != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func edgeCommand(args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), "BE_EDGE=1")
	return cmd
}

func shortDir(t *testing.T) string {
	dir, err := os.MkdirTemp("", "edge")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// start runs an edge and waits until its control socket answers.
func start(t *testing.T, cmd *exec.Cmd, control string) {
	t.Helper()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if c, err := net.Dial("unix", control); err == nil {
			_ = c.Close()
			return
		}
	}
	t.Fatal("the edge does not start")
}

func exitCode(err error) int {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	return 0
}

func TestExitCodesAndMessages(t *testing.T) {
	dir := shortDir(t)
	control, api := filepath.Join(dir, "edge.sock"), filepath.Join(dir, "api.sock")
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	first := edgeCommand("--listen", "127.0.0.1:0", "--control", control, "--api", api)
	start(t, first, control)

	for name, c := range map[string]struct {
		args []string
		code int
		says string
	}{
		"socket taken":   {[]string{"--listen", "127.0.0.1:0", "--control", control, "--api", api}, 2, control + " is already in use"},
		"port taken":     {[]string{"--listen", taken.Addr().String(), "--control", control + "2", "--api", api}, 2, taken.Addr().String() + " is already in use"},
		"no sockets":     {[]string{"--listen", "127.0.0.1:0"}, 64, "--control and --api"},
		"half a pair":    {[]string{"--control", control + "2", "--api", api, "--tls-cert", "x"}, 64, "--tls-key"},
		"no certificate": {[]string{"--control", control + "2", "--api", api, "--tls-cert", "/nowhere", "--tls-key", "/nowhere"}, 1, "/nowhere"},
		"bad domain":     {[]string{"--control", control + "2", "--api", api, "--domain", "*.x"}, 1, "not a domain"},
		"unknown word":   {[]string{"--control", control + "2", "--api", api, "word"}, 64, "word"},
		"no directory":   {[]string{"--control", dir + "/a/b", "--api", api}, 1, dir + "/a/b"},
		"long path":      {[]string{"--control", dir + "/" + strings.Repeat("x", 120), "--api", api}, 1, "longer than"},
	} {
		t.Run(name, func(t *testing.T) {
			var errOut bytes.Buffer
			cmd := edgeCommand(c.args...)
			cmd.Stderr = &errOut
			code := exitCode(cmd.Run())
			text := strings.TrimSpace(errOut.String())
			if code != c.code || !strings.Contains(text, c.says) || strings.Contains(text, "\n") {
				t.Errorf("exit code %d, %q", code, text)
			}
		})
	}
	out, err := edgeCommand("version").Output()
	if err != nil || strings.TrimSpace(string(out)) != version {
		t.Errorf("version: %q %v", out, err)
	}

	if err := first.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := first.Wait(); err != nil {
		t.Errorf("SIGTERM: %v", err)
	}
}

// TestItOutlivesWhoeverReadsItsLog kills nothing but the reading end of standard error.
func TestItOutlivesWhoeverReadsItsLog(t *testing.T) {
	dir := shortDir(t)
	control := filepath.Join(dir, "edge.sock")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	listen, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listen.Addr().String()
	_ = listen.Close()
	cmd := edgeCommand("--listen", address, "--control", control, "--api", filepath.Join(dir, "api.sock"))
	cmd.Stderr, cmd.Stdout = w, w
	start(t, cmd, control)
	_ = r.Close()
	_ = w.Close()
	client := &http.Client{Transport: &http.Transport{Dial: func(string, string) (net.Conn, error) { return net.Dial("unix", control) }}}
	for range 20 { // each writes a line
		res, err := client.Post("http://edge/v1/routes", "", strings.NewReader(`{"epoch": 9}`))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		if res.StatusCode != 409 {
			t.Fatalf("got %d", res.StatusCode)
		}
	}
	if err := cmd.Process.Signal(syscall.Signal(0)); err != nil {
		t.Fatalf("it died: %v", err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()

	// Killed hard, its socket file stays; the next one starts on it at once.
	next := edgeCommand("--listen", address, "--control", control, "--api", filepath.Join(dir, "api.sock"))
	start(t, next, control)
}
