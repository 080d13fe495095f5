package proc

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

const patience = 10 * time.Second

func start(t *testing.T, script string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sh", "-c", script)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

func watchPid(t *testing.T, pid int) *Process {
	t.Helper()
	id, err := Identify(pid)
	if err != nil {
		t.Fatal(err)
	}
	p, err := Watch(id)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func ended(t *testing.T, p *Process) Exit {
	t.Helper()
	select {
	case <-p.Done():
		return p.Exit()
	case <-time.After(patience):
		t.Fatal("the process did not end")
		return Exit{}
	}
}

func TestExitsOfChildren(t *testing.T) {
	for script, want := range map[string]Exit{
		"exit 0":        {Known: true},
		"exit 7":        {Known: true, Code: 7},
		"kill -TERM $$": {Known: true, Signal: syscall.SIGTERM},
	} {
		cmd := start(t, script)
		if got := ended(t, watchPid(t, cmd.Process.Pid)); got != want {
			t.Errorf("%s ended as %+v", script, got)
		}
		if err := syscall.Kill(cmd.Process.Pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("%s was not reaped: %v", script, err)
		}
	}
}

func TestKill(t *testing.T) {
	p := watchPid(t, start(t, "sleep 60").Process.Pid)
	if p.Ended() {
		t.Fatal("it has ended already")
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if got := ended(t, p); got.Signal != syscall.SIGKILL {
		t.Errorf("ended as %+v", got)
	}
	if err := p.Kill(); err != nil {
		t.Errorf("killing it again: %v", err)
	}
}

// A process that is not our child is seen to end all the same.
func TestStranger(t *testing.T) {
	cmd := exec.Command("sh", "-c", "sleep 60 & echo $!; wait; exit 0")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	line := make([]byte, 16)
	n, _ := out.Read(line)
	pid := 0
	for _, digit := range strings.TrimSpace(string(line[:n])) {
		pid = pid*10 + int(digit-'0')
	}
	p := watchPid(t, pid)
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if got := ended(t, p); got.Known && got.Signal != syscall.SIGKILL {
		t.Errorf("ended as %+v", got)
	}
}

// A pid that means another process by now is not taken for the first one.
func TestAnotherProcessOfThatPid(t *testing.T) {
	id, err := Identify(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	id.StartTime--
	if _, err := Watch(id); !errors.Is(err, ErrGone) {
		t.Errorf("watching: %v", err)
	}
	if _, err := Watch(ID{Pid: 0}); !errors.Is(err, ErrGone) {
		t.Errorf("watching pid 0: %v", err)
	}
}

func TestReapStrangers(t *testing.T) {
	mine, other := start(t, "exit 1"), start(t, "exit 2")
	deadline := time.Now().Add(patience)
	for ReapStrangers(func(pid int) bool { return pid == mine.Process.Pid }) == 0 {
		if time.Now().After(deadline) {
			t.Fatal("nothing was reaped")
		}
		time.Sleep(time.Millisecond)
	}
	if err := syscall.Kill(other.Process.Pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the stranger was not reaped: %v", err)
	}
	var exit *exec.ExitError
	if err := mine.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("a process that somebody waits for was reaped: %v", err)
	}
}
