// Package memory is the out-of-memory killer of sandboxes whose kernel has none: gVisor's. There, a sandbox
// that goes over its memory is ended as a whole by the host, unless one process dies first.
package memory

import (
	"log/slog"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"forkyard.dev/forkyard/internal/envd/procfs"
)

const (
	slowest = 250 * time.Millisecond
	fastest = 5 * time.Millisecond
	// fillRate is twice as fast as memory has been seen to fill, in bytes a second: before a look is due,
	// at most half of what is free can be gone.
	fillRate = 4 << 30
	// reserve below which a process is killed: the larger of a share of the total and a fixed size.
	reservePercent = 3
	reserveBytes   = 16 << 20
	alertTime      = 2 * time.Second
	// deathWait bounds how long the memory of a killed process is waited for before the next one is killed.
	deathWait = 500 * time.Millisecond
)

// Killer watches the memory of the sandbox.
type Killer struct {
	alerts chan struct{}
}

// NewKiller makes a killer that does nothing until Run.
func NewKiller() *Killer { return &Killer{alerts: make(chan struct{}, 1)} }

// Alert makes it look now, and as often as it can for the next two seconds.
func (k *Killer) Alert() {
	select {
	case k.alerts <- struct{}{}:
	default:
	}
}

// Run watches until the program ends.
func (k *Killer) Run() {
	reader, err := procfs.NewMemoryReader()
	if err != nil {
		slog.Error("the out-of-memory killer cannot run", "cause", err.Error())
		return
	}
	var alerted time.Time
	timer := time.NewTimer(0)
	for {
		select {
		case <-timer.C:
		case <-k.alerts:
			alerted = time.Now().Add(alertTime)
		}
		pause := slowest
		if memory, err := reader.Read(); err == nil {
			headroom := memory.Available - reserve(memory.Total)
			if headroom < 0 {
				k.killLargest(reader)
			}
			pause = interval(headroom)
		}
		if time.Now().Before(alerted) {
			pause = fastest
		}
		timer.Reset(pause)
	}
}

func reserve(total int64) int64 { return max(total*reservePercent/100, reserveBytes) }

// interval is how long nothing can go wrong with this many bytes above the reserve.
func interval(headroom int64) time.Duration {
	return min(max(time.Duration(headroom*int64(time.Second)/fillRate), fastest), slowest)
}

// killLargest kills the process with the most memory, and waits until that is free or the process gone.
func (k *Killer) killLargest(reader *procfs.MemoryReader) {
	victim, found := largest(procfs.Processes(), os.Getpid())
	if !found {
		return
	}
	if err := syscall.Kill(victim.PID, syscall.SIGKILL); err != nil {
		return
	}
	slog.Warn("out of memory: killed the largest process", "pid", victim.PID, "name", victim.Comm, "rss_bytes", victim.RSSBytes)
	for limit := time.Now().Add(deathWait); time.Now().Before(limit); time.Sleep(fastest) {
		memory, err := reader.Read()
		if err == nil && memory.Available > reserve(memory.Total) {
			return
		}
		now, alive := procfs.Read(victim.PID)
		if !alive || now.Dead() || now.StartTime != victim.StartTime {
			return
		}
	}
}

func largest(processes []procfs.Process, own int) (procfs.Process, bool) {
	var victim procfs.Process
	for _, process := range processes {
		if process.PID != own && process.PID != 1 && !process.Dead() && process.RSSBytes > victim.RSSBytes {
			victim = process
		}
	}
	return victim, victim.PID != 0
}

// Needed says whether this kernel has no killer of its own.
func Needed() bool {
	buffer := make([]byte, 4096)
	n, err := unix.Klogctl(unix.SYSLOG_ACTION_READ_ALL, buffer)
	return err == nil && isGVisor(string(buffer[:n]))
}

// isGVisor knows gVisor by the first line of its kernel log.
func isGVisor(kernelLog string) bool { return strings.Contains(kernelLog, "Starting gVisor") }
