// Package proc names processes so that a name never comes to mean another process, sees them end, and reaps them.
package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrGone says that the process does not exist any more (or its pid means another one now).
var ErrGone = errors.New("the process is gone")

// ID is a process for ever: a pid is used again, a pid with its start time is not.
type ID struct {
	Pid       int    `json:"pid"`
	StartTime uint64 `json:"start_time"` // field 22 of /proc/PID/stat: clock ticks since boot
}

// Exit says how a process ended.
type Exit struct {
	Known  bool           // false: it ended, but nobody could tell how
	Code   int            // exit code, when Signal is 0
	Signal syscall.Signal // the signal that ended it, or 0
}

// Process is a process that is being watched. It may be a child of this one or not.
type Process struct {
	ID   ID
	file *os.File // pidfd, in Go's poller: waiting costs no thread
	done chan struct{}
	exit Exit

	closeOnce sync.Once
}

// StartTime reads field 22 of /proc/PID/stat.
func StartTime(pid int) (uint64, error) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			return 0, ErrGone
		}
		return 0, err
	}
	// The name, field 2, is in parentheses and may hold anything, parentheses and spaces too.
	end := bytes.LastIndexByte(data, ')')
	if end < 0 {
		return 0, fmt.Errorf("/proc/%d/stat has no name in it", pid)
	}
	fields := strings.Fields(string(data[end+1:]))
	const startTime = 22 - 3 // the fields after the name begin with number 3
	if len(fields) <= startTime {
		return 0, fmt.Errorf("/proc/%d/stat is too short", pid)
	}
	return strconv.ParseUint(fields[startTime], 10, 64)
}

// Identify gives the lasting name of a pid that is known to be alive, for instance a child not yet reaped.
func Identify(pid int) (ID, error) {
	start, err := StartTime(pid)
	return ID{Pid: pid, StartTime: start}, err
}

// Watch follows a process until it ends, and reaps it if it is a child. ErrGone if it has gone and been reaped.
func Watch(id ID) (*Process, error) {
	if id.Pid <= 0 {
		return nil, ErrGone
	}
	fd, err := unix.PidfdOpen(id.Pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		if errors.Is(err, unix.ESRCH) {
			return nil, ErrGone
		}
		return nil, fmt.Errorf("pidfd of %d: %w", id.Pid, err)
	}
	// Only now the pid is held: what it names can be compared.
	if start, err := StartTime(id.Pid); err != nil || start != id.StartTime {
		unix.Close(fd)
		return nil, ErrGone
	}
	p := &Process{ID: id, file: os.NewFile(uintptr(fd), "pidfd"), done: make(chan struct{})}
	go p.wait()
	return p, nil
}

// Done is closed when the process has ended (and is reaped, if it was a child).
func (p *Process) Done() <-chan struct{} { return p.done }

// Ended tells whether the process has ended.
func (p *Process) Ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Exit says how it ended; only after Done.
func (p *Process) Exit() Exit { return p.exit }

// Kill sends SIGKILL. A process that has ended already is no error.
func (p *Process) Kill() error {
	conn, err := p.file.SyscallConn()
	if err != nil {
		return nil // closed: it has ended
	}
	var killErr error
	err = conn.Control(func(fd uintptr) {
		killErr = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0)
	})
	if err != nil || errors.Is(killErr, unix.ESRCH) {
		return nil
	}
	return killErr
}

func (p *Process) wait() {
	defer p.closeOnce.Do(func() { p.file.Close() })
	defer close(p.done)
	conn, err := p.file.SyscallConn()
	if err != nil {
		return
	}
	err = conn.Read(func(fd uintptr) bool {
		ended, exit := tryReap(int(fd))
		p.exit = exit
		return ended
	})
	if err != nil {
		p.exit = Exit{}
	}
}

// tryReap reports whether the process of a pidfd has ended, reaping it if it is ours.
func tryReap(fd int) (bool, Exit) {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PIDFD, fd, &info, unix.WEXITED|unix.WNOHANG, nil)
	switch {
	case err == nil && info.Signo == 0:
		return false, Exit{}
	case err == nil:
		return true, exitOf(&info)
	case errors.Is(err, unix.ECHILD):
		if !readable(fd) {
			return false, Exit{}
		}
		return true, exitOfStranger(fd)
	case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
		return readable(fd), Exit{}
	default:
		return true, Exit{}
	}
}

// readable tells whether the process of a pidfd has ended.
func readable(fd int) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0
}

// exitOfStranger asks the kernel how a process ended that was not our child. Kernels before 6.15 cannot tell, and
// newer ones only after its parent has reaped it, which takes a moment.
func exitOfStranger(fd int) Exit {
	for range 10 {
		if exit, ok := pidfdExit(fd); ok {
			return exit
		}
		time.Sleep(2 * time.Millisecond)
	}
	return Exit{}
}
