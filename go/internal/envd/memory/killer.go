// Package memory is the out-of-memory killer of sandboxes whose kernel has none: gVisor's. There, a sandbox
// that goes over its memory is ended as a whole by the host, unless one process dies first.
package memory

import (
	"log/slog"
	"os"
	"sync"
	"syscall"
	"time"

	"forkyard.dev/forkyard/internal/envd/procfs"
)

const (
	// resting is the interval while so much is free that the host tells (Alert) before it is gone: a look costs
	// 1 ms of CPU, and there may be hundreds of idle sandboxes. Not for ever, in case that the host did not.
	resting = 5 * time.Second
	// restingPercent of the memory must be free for that; the host tells at 70 % of it used, overhead included.
	restingPercent = 40

	slowest = 200 * time.Millisecond
	fastest = 5 * time.Millisecond
	// fillRate is twice as fast as memory has been seen to fill, in bytes a second: before a look is due,
	// at most half of what is free can be gone.
	fillRate = 4 << 30
	// reserve below which a process is killed: the larger of a share of the total and a fixed size.
	reservePercent = 3
	reserveBytes   = 16 << 20
	alertTime      = 2 * time.Second
	// A process with less than this share of the memory is killed only when the shortage has lasted: what
	// is short may be the memory of a large one that is just ending.
	smallShare    = 8
	smallPatience = 60 * time.Millisecond
	// deathWait bounds how long the memory of a killed process is waited for before the next one is killed.
	deathWait = 500 * time.Millisecond
)

// Killer watches the memory of the sandbox.
type Killer struct {
	alerts chan struct{}
	since  time.Time // start of the present shortage; zero: there is none

	lock    sync.Mutex
	kills   []Kill // since they were last taken
	dropped int    // those that were too many to keep
}

// maxKills bounds how many kills are kept for the host, which asks every few seconds when memory is short.
const maxKills = 64

// Kill is one process that was killed.
type Kill struct {
	At       time.Time `json:"at"`
	PID      int       `json:"pid"`
	Name     string    `json:"name"`
	RSSBytes int64     `json:"rss_bytes"`
}

// Take answers the kills since the last call, the first ones of them, and how many there were beyond those.
func (k *Killer) Take() (kills []Kill, dropped int) {
	k.lock.Lock()
	defer k.lock.Unlock()
	kills, dropped = k.kills, k.dropped
	k.kills, k.dropped = nil, 0
	return kills, dropped
}

func (k *Killer) note(victim procfs.Process) {
	k.lock.Lock()
	defer k.lock.Unlock()
	if len(k.kills) >= maxKills {
		k.dropped++
		return
	}
	k.kills = append(k.kills, Kill{time.Now().UTC(), victim.PID, victim.Comm, victim.RSSBytes})
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
		pause := k.glance(reader)
		if time.Now().Before(alerted) {
			pause = fastest
		}
		timer.Reset(pause)
	}
}

// glance looks at what is free and answers when to look again. The dear reading follows only where the cheap one does
// not already say that nothing is short: an idle sandbox must cost next to nothing.
func (k *Killer) glance(reader *procfs.MemoryReader) time.Duration {
	if free, total, err := procfs.FreeMemory(); err == nil && isPlenty(free, total) {
		k.since = time.Time{}
		return resting
	}
	memory, err := reader.Read()
	if err != nil {
		return slowest
	}
	headroom := memory.Available - reserve(memory.Total)
	k.look(reader, headroom < 0)
	return interval(headroom)
}

func isPlenty(free, total int64) bool { return free > total/100*restingPercent }

func reserve(total int64) int64 { return max(total*reservePercent/100, reserveBytes) }

// interval is how long nothing can go wrong with this many bytes above the reserve.
func interval(headroom int64) time.Duration {
	return min(max(time.Duration(headroom*int64(time.Second)/fillRate), fastest), slowest)
}

// look acts on what was read: in a shortage it kills the process with the most memory.
func (k *Killer) look(reader *procfs.MemoryReader, short bool) {
	if !short {
		k.since = time.Time{}
		return
	}
	if k.since.IsZero() {
		k.since = time.Now()
	}
	victim, found := largest(procfs.Processes(), os.Getpid())
	memory, err := reader.Read() // again: listing the processes has taken a while
	if !found || err != nil || memory.Available > reserve(memory.Total) {
		return
	}
	if victim.RSSBytes < memory.Total/smallShare && time.Since(k.since) < smallPatience {
		return
	}
	k.kill(victim, reader)
	k.since = time.Time{}
}

// kill kills a process, and waits until memory is free or the process gone.
func (k *Killer) kill(victim procfs.Process, reader *procfs.MemoryReader) {
	if err := syscall.Kill(victim.PID, syscall.SIGKILL); err != nil {
		return
	}
	k.note(victim)
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
