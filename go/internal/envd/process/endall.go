package process

import (
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"forkyard.dev/forkyard/internal/envd/procfs"
)

// endPatience bounds how long EndAll waits for killed processes to be gone.
const endPatience = 5 * time.Second

// EndAll ends every process of the sandbox but envd: SIGTERM, then after the grace time SIGKILL, and writes
// the disks. It returns whether all are gone. Where envd is not PID 1 it ends its own descendants only.
func EndAll(grace time.Duration) bool {
	signalAll(syscall.SIGTERM)
	// A stopped process takes no SIGTERM until it goes on.
	signalAll(syscall.SIGCONT)
	gone := waitAll(grace)
	for limit := time.Now().Add(endPatience); !gone && time.Now().Before(limit); {
		signalAll(syscall.SIGKILL)
		gone = waitAll(20 * time.Millisecond)
	}
	unix.Sync()
	return gone
}

func waitAll(limit time.Duration) bool {
	for until := time.Now().Add(limit); ; time.Sleep(2 * time.Millisecond) {
		if len(others()) == 0 {
			return true
		}
		if time.Now().After(until) {
			return false
		}
	}
}

func signalAll(signal syscall.Signal) {
	for _, pid := range others() {
		_ = syscall.Kill(pid, signal)
	}
}

// others are the living processes that EndAll is about.
func others() []int {
	own := os.Getpid()
	all := procfs.Processes()
	children := map[int][]procfs.Process{}
	for _, process := range all {
		children[process.PPID] = append(children[process.PPID], process)
	}
	var pids []int
	if own == 1 {
		for _, process := range all {
			// The kernel's own threads on Linux descend from 2.
			if process.PID != 1 && process.PID != 2 && process.PPID != 2 && !process.Dead() {
				pids = append(pids, process.PID)
			}
		}
		return pids
	}
	for queue := []int{own}; len(queue) > 0; queue = queue[1:] {
		for _, child := range children[queue[0]] {
			queue = append(queue, child.PID)
			if !child.Dead() {
				pids = append(pids, child.PID)
			}
		}
	}
	return pids
}
