package process

import (
	"os"
	"os/signal"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Reaper is the one place that waits for children, so that envd as PID 1 leaves no zombies of orphans and
// still gives every started process its own exit status.
type Reaper struct {
	// starting is held for reading from before a fork until its pid is in waiting, and for writing while a
	// pid is reaped: so a pid cannot be freed, used again and mistaken between the two.
	starting sync.RWMutex
	mu       sync.Mutex
	waiting  map[int]chan syscall.WaitStatus
}

// NewReaper starts to reap. There must be only one, and nothing else in the program may wait for children.
func NewReaper() *Reaper {
	reaper := &Reaper{waiting: map[int]chan syscall.WaitStatus{}}
	children := make(chan os.Signal, 1) // one pending signal is enough: each makes a full round
	signal.Notify(children, syscall.SIGCHLD)
	go func() {
		reaper.reapAll()
		for range children {
			reaper.reapAll()
		}
	}()
	return reaper
}

// Start forks and executes; the channel gets the exit status once.
func (r *Reaper) Start(path string, argv []string, attr *syscall.ProcAttr) (int, <-chan syscall.WaitStatus, error) {
	r.starting.RLock()
	defer r.starting.RUnlock()
	pid, err := syscall.ForkExec(path, argv, attr)
	if err != nil {
		return 0, nil, err
	}
	exit := make(chan syscall.WaitStatus, 1)
	r.mu.Lock()
	r.waiting[pid] = exit
	r.mu.Unlock()
	return pid, exit, nil
}

func (r *Reaper) reapAll() {
	for {
		pid := peekExited()
		if pid == 0 || !r.reap(pid) {
			return
		}
	}
}

// reap collects a child that has exited. A child whose exec failed is collected by the fork itself and is
// gone here, which is no error.
func (r *Reaper) reap(pid int) bool {
	r.starting.Lock()
	defer r.starting.Unlock()
	var status syscall.WaitStatus
	got, err := syscall.Wait4(pid, &status, syscall.WNOHANG|unix.WALL, nil)
	if err == syscall.ECHILD || err == syscall.EINTR {
		return true
	}
	if got != pid {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if exit, ours := r.waiting[pid]; ours {
		delete(r.waiting, pid)
		exit <- status
	}
	return true
}

// peekExited returns a child that has exited, and leaves it unreaped; 0 if there is none.
func peekExited() int {
	// siginfo_t as waitid fills it: three ints, padding, then the pid.
	var info struct {
		signo, errno, code, _ int32
		pid                   int32
		_                     [108]byte
	}
	for {
		_, _, errno := unix.Syscall6(unix.SYS_WAITID, unix.P_ALL, 0, uintptr(unsafe.Pointer(&info)),
			unix.WEXITED|unix.WNOHANG|unix.WNOWAIT|unix.WALL, 0, 0)
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			return 0
		}
		return int(info.pid)
	}
}
