// Package containers looks after the gVisor containers of one instance: it makes them, follows their processes, and
// ends them. Everything it needs to find them again after a restart lies in a directory for each.
package containers

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"forkyard.dev/forkyard/internal/keeper/cgroups"
	"forkyard.dev/forkyard/internal/keeper/fault"
	"forkyard.dev/forkyard/internal/keeper/netconf"
	"forkyard.dev/forkyard/internal/keeper/watch"
)

// Statuses of a container, as callers see them.
const (
	StatusCreated = "created"
	StatusRunning = "running"
	StatusStopped = "stopped"
)

// View is a container as callers see it.
type View struct {
	ID           string    `json:"id"`
	Status       string    `json:"status"`
	Pid          int       `json:"pid"`
	PidStartTime uint64    `json:"pid_start_time"`
	GoferPid     int       `json:"gofer_pid"`
	CreatedAt    time.Time `json:"created_at"`
	ExitCode     *int      `json:"exit_code,omitempty"`
	Signal       string    `json:"signal,omitempty"`
	Reason       string    `json:"reason,omitempty"` // why it stopped, when that is known
}

// CreateRequest is what a container is made from.
type CreateRequest struct {
	Spec  json.RawMessage `json:"spec"` // OCI runtime spec
	Stdio struct {
		Stdout string `json:"stdout"`
		Stderr string `json:"stderr"`
	} `json:"stdio"`
	CgroupMemoryLimitBytes int64        `json:"cgroup_memory_limit_bytes,omitempty"`
	OOMScoreAdj            *int         `json:"oom_score_adj,omitempty"`
	Net                    *netconf.Net `json:"net,omitempty"`
}

// StartRequest, RestoreRequest and CheckpointRequest are the bodies of those calls.
type StartRequest struct {
	Net *netconf.Net `json:"net,omitempty"`
}

type RestoreRequest struct {
	Dir        string       `json:"dir"`
	Net        *netconf.Net `json:"net,omitempty"`
	Background bool         `json:"background,omitempty"`
}

type CheckpointRequest struct {
	Dir          string `json:"dir"`
	LeaveRunning bool   `json:"leave_running"`
}

// CheckpointResult names what a checkpoint consists of.
type CheckpointResult struct {
	Files      []CheckpointFile `json:"files"`
	DurationMS int64            `json:"duration_ms"`
}

type CheckpointFile struct {
	Name string `json:"name"`
	Size int64  `json:"size"`
}

// DestroyResult tells what became of the container's process before it was destroyed.
type DestroyResult struct {
	Exited   bool   `json:"exited"` // it had ended already
	ExitCode *int   `json:"exit_code,omitempty"`
	Signal   string `json:"signal,omitempty"`
}

// Watch is what is looked at while a container runs; the zero value is nothing.
type Watch struct {
	HealthURL        string  `json:"health_url,omitempty"`
	IntervalMS       int     `json:"interval_ms,omitempty"`
	TimeoutMS        int     `json:"timeout_ms,omitempty"`
	Strikes          int     `json:"strikes,omitempty"`
	MemoryEventBytes []int64 `json:"memory_event_bytes,omitempty"`
	// MemoryAlertURL is told of each memory event too: the daemon inside has to act within a fraction of a second,
	// also while nobody reads events.
	MemoryAlertURL string `json:"memory_alert_url,omitempty"`
}

func (w *Watch) health() *watch.Health {
	if w.HealthURL == "" {
		return nil
	}
	return &watch.Health{
		URL:      w.HealthURL,
		Interval: time.Duration(w.IntervalMS) * time.Millisecond,
		Timeout:  time.Duration(w.TimeoutMS) * time.Millisecond,
		Strikes:  w.Strikes,
	}
}

const maxMemoryMarks = 16

func (w *Watch) validate() error {
	if h := w.health(); h != nil {
		if err := h.Validate(); err != nil {
			return fault.New(fault.Invalid, "%v", err)
		}
	}
	if w.MemoryAlertURL != "" {
		if err := watch.CheckURL(w.MemoryAlertURL); err != nil {
			return fault.New(fault.Invalid, "memory_alert_url: %v", err)
		}
	}
	if len(w.MemoryEventBytes) > maxMemoryMarks {
		return fault.New(fault.Invalid, "memory_event_bytes has more than %d marks", maxMemoryMarks)
	}
	for _, mark := range w.MemoryEventBytes {
		if mark <= 0 {
			return fault.New(fault.Invalid, "memory_event_bytes has a mark that is not positive")
		}
	}
	return nil
}

// A name is part of paths, of a Unix socket's among them.
var validID = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_-]{0,63}$`)

func checkID(id string) error {
	if !validID.MatchString(id) {
		return fault.New(fault.Invalid, "%q is not a container id: letters, digits, - and _, at most 64", id)
	}
	return nil
}

// parseSpec reads a spec and refuses what would turn on features by annotation that the keeper has turned off.
func parseSpec(data json.RawMessage) (*specs.Spec, error) {
	var spec specs.Spec
	if err := json.Unmarshal(data, &spec); err != nil {
		return nil, fault.New(fault.Invalid, "the spec is not an OCI runtime spec: %v", err)
	}
	if spec.Process == nil || len(spec.Process.Args) == 0 || spec.Root == nil || spec.Root.Path == "" {
		return nil, fault.New(fault.Invalid, "the spec needs process.args and root.path")
	}
	if spec.Process.Terminal {
		return nil, fault.New(fault.Invalid, "process.terminal is not supported: a container's stdio are files")
	}
	if spec.Hooks != nil {
		return nil, fault.New(fault.Invalid, "hooks are not supported")
	}
	for name := range spec.Annotations {
		if strings.HasPrefix(name, "dev.gvisor.flag.") || strings.HasPrefix(name, "dev.gvisor.bundle.") {
			return nil, fault.New(fault.Invalid, "annotation %s is not allowed: it changes the runtime's flags", name)
		}
	}
	return &spec, nil
}

// limitsOf takes a group's limits from a spec; memory, if not 0, is used instead of the spec's.
func limitsOf(spec *specs.Spec, memory int64) cgroups.Limits {
	limits := cgroups.Limits{MemoryBytes: specMemory(spec)}
	if memory > 0 {
		limits.MemoryBytes = memory
	}
	if spec.Linux == nil || spec.Linux.Resources == nil {
		return limits
	}
	if cpu := spec.Linux.Resources.CPU; cpu != nil {
		limits.CPUShares = value(cpu.Shares)
		limits.CPUQuotaUS = value(cpu.Quota)
		limits.CPUPeriodUS = value(cpu.Period)
	}
	if pids := spec.Linux.Resources.Pids; pids != nil {
		limits.Pids = pids.Limit
	}
	return limits
}

func specMemory(spec *specs.Spec) int64 {
	if spec.Linux == nil || spec.Linux.Resources == nil || spec.Linux.Resources.Memory == nil {
		return 0
	}
	return value(spec.Linux.Resources.Memory.Limit)
}

// specCPUs is the number of processors that the quota stands for, as runsc counts them: never fewer than two, because
// programs that see one leave out locks; never more than the host's. 0: no quota.
func specCPUs(spec *specs.Spec, host int) int {
	limits := limitsOf(spec, 0)
	if limits.CPUQuotaUS <= 0 {
		return 0
	}
	period := int64(limits.CPUPeriodUS)
	if period == 0 {
		period = 100_000
	}
	return min(max(int((limits.CPUQuotaUS+period-1)/period), 2), host)
}

func value[T any](p *T) T {
	var zero T
	if p == nil {
		return zero
	}
	return *p
}

func checkDir(name, path string) error {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path || path == "/" {
		return fault.New(fault.Invalid, "%s %q is not an absolute, clean path", name, path)
	}
	return nil
}
