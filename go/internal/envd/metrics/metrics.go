// Package metrics measures the sandbox from inside, for GET /metrics.
package metrics

import (
	"math"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"forkyard.dev/forkyard/internal/envd/procfs"
)

// Sample is the answer of GET /metrics; sizes are bytes unless the name says otherwise.
type Sample struct {
	Timestamp  int64   `json:"ts"` // unix seconds
	CPUCount   int     `json:"cpu_count"`
	CPUUsedPct float64 `json:"cpu_used_pct"` // of all processors together
	MemTotal   int64   `json:"mem_total"`
	MemUsed    int64   `json:"mem_used"`
	MemCache   int64   `json:"mem_cache"`
	DiskUsed   int64   `json:"disk_used"`
	DiskTotal  int64   `json:"disk_total"`
	MemTotalM  int64   `json:"mem_total_mib"`
	MemUsedM   int64   `json:"mem_used_mib"`
}

const (
	ticksPerSecond = 100
	// firstWindow is over what the processor use of the first sample is measured.
	firstWindow = 100 * time.Millisecond
)

// Sampler takes samples; the processor use of each is the mean since the one before.
type Sampler struct {
	mu   sync.Mutex
	last usage
}

type usage struct {
	at    time.Time
	ticks uint64
}

// Sample measures now.
func (s *Sampler) Sample() Sample {
	sample := Sample{Timestamp: time.Now().Unix(), CPUCount: runtime.NumCPU(), CPUUsedPct: s.cpu()}
	if reader, err := procfs.NewMemoryReader(); err == nil {
		if memory, err := reader.Read(); err == nil {
			sample.MemTotal, sample.MemCache = memory.Total, memory.Cached
			sample.MemUsed = memory.Total - memory.Available
		}
		_ = reader.Close()
	}
	sample.MemTotalM, sample.MemUsedM = sample.MemTotal>>20, sample.MemUsed>>20
	var disk unix.Statfs_t
	if unix.Statfs("/", &disk) == nil {
		sample.DiskTotal = int64(disk.Blocks) * disk.Bsize
		sample.DiskUsed = int64(disk.Blocks-disk.Bfree) * disk.Bsize
	}
	return sample
}

func (s *Sampler) cpu() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last.at.IsZero() {
		s.last = readUsage()
		time.Sleep(firstWindow)
	}
	now := readUsage()
	elapsed := now.at.Sub(s.last.at).Seconds() * ticksPerSecond * float64(runtime.NumCPU())
	used := float64(0)
	if now.ticks > s.last.ticks && elapsed > 0 {
		used = min(float64(now.ticks-s.last.ticks)/elapsed*100, 100)
	}
	s.last = now
	return math.Round(used*100) / 100
}

// readUsage takes the kernel's total, or where it keeps none (gVisor) the sum over the processes.
func readUsage() usage {
	now := usage{at: time.Now(), ticks: procfs.ReadCPU().Busy}
	if now.ticks == 0 {
		for _, process := range procfs.Processes() {
			now.ticks += process.CPUTicks
		}
	}
	return now
}
