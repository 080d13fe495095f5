// Package calls runs commands that do not depend on anyone's connection: a call is started once under an
// id of the caller's choice, its output and exit are recorded, and both are kept until acknowledged.
package calls

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"forkyard.dev/forkyard/internal/envd/access"
	"forkyard.dev/forkyard/internal/envd/connect"
	"forkyard.dev/forkyard/internal/envd/process"
	"forkyard.dev/forkyard/internal/envd/settings"
)

// maxCalls bounds the calls that nobody has acknowledged.
const maxCalls = 1024

// killWait is how long an acknowledgement waits for a call that still runs to be gone.
const killWait = 5 * time.Second

var validID = regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`)

// StartCall says what to run.
type StartCall struct {
	Cmd       string            `json:"cmd"`
	Args      []string          `json:"args"`
	Envs      map[string]string `json:"envs"`
	Cwd       *string           `json:"cwd"`
	User      string            `json:"user"`
	TimeoutMS int64             `json:"timeout_ms"` // 0: none
	Stdin     connect.Bytes     `json:"stdin"`      // without it, the command reads nothing
}

// Call is what is known of a call.
type Call struct {
	ID        string     `json:"call_id"`
	State     string     `json:"state"` // running, exited
	PID       int        `json:"pid"`
	StartedAt time.Time  `json:"started_at"`
	ExitCode  *int       `json:"exit_code,omitempty"`
	Signal    string     `json:"signal,omitempty"`
	TimedOut  bool       `json:"timed_out,omitempty"`
	EndedAt   *time.Time `json:"ended_at,omitempty"`
}

// CallOutput is a call with a piece of each output.
type CallOutput struct {
	Call   Call   `json:"call"`
	Stdout Output `json:"stdout"`
	Stderr Output `json:"stderr"`
}

// Registry knows all calls that were not acknowledged.
type Registry struct {
	Manager  *process.Manager
	Settings *settings.Store
	// Dir is a directory for root only.
	Dir string

	mu    sync.Mutex
	calls map[string]*call
}

// call is one call; it is its process's Sink.
type call struct {
	id      string
	started chan struct{} // closed when process or failure is set
	process *process.Process
	failure error
	endedAt time.Time // set before the process counts as exited

	stdout, stderr recording

	mu      sync.Mutex
	exited  bool
	changed chan struct{} // closed and replaced at every change
}

// Output implements process.Sink.
func (c *call) Output(stream process.Stream, data []byte) {
	if stream == process.Stderr {
		c.stderr.write(data)
	} else {
		c.stdout.write(data)
	}
	c.change(false)
}

// Finish implements process.Sink.
func (c *call) Finish() { c.change(false) }

func (c *call) change(exited bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if exited {
		c.exited, c.endedAt = true, time.Now()
	}
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *call) state() Call {
	c.mu.Lock()
	defer c.mu.Unlock()
	state := Call{ID: c.id, State: "running", PID: c.process.PID, StartedAt: c.process.Started.UTC()}
	if !c.exited {
		return state
	}
	state.State = "exited"
	ended := c.endedAt.UTC()
	state.EndedAt = &ended
	state.TimedOut = c.process.TimedOut()
	if status := c.process.Status(); status.Signaled() {
		state.Signal = unix.SignalName(status.Signal())
	} else {
		code := status.ExitStatus()
		state.ExitCode = &code
	}
	return state
}

// Start starts a call, or answers the state of the one that has this id already.
func (r *Registry) Start(id string, req *StartCall) (Call, error) {
	if !validID.MatchString(id) {
		return Call{}, connect.Errorf(connect.CodeInvalidArgument, "a call id must match %s", validID)
	}
	r.mu.Lock()
	if r.calls == nil {
		r.calls = map[string]*call{}
	}
	if known := r.calls[id]; known != nil {
		r.mu.Unlock()
		<-known.started
		if known.failure != nil {
			return Call{}, known.failure
		}
		return known.state(), nil
	}
	if len(r.calls) >= maxCalls {
		r.mu.Unlock()
		return Call{}, connect.Errorf(connect.CodeResourceExhausted, "%d calls wait to be acknowledged", maxCalls)
	}
	c := &call{
		id: id, started: make(chan struct{}), changed: make(chan struct{}),
		stdout: recording{path: filepath.Join(r.Dir, id+".stdout")},
		stderr: recording{path: filepath.Join(r.Dir, id+".stderr")},
	}
	r.calls[id] = c
	r.mu.Unlock()
	c.failure = r.run(c, req)
	if c.failure != nil {
		r.mu.Lock()
		delete(r.calls, id)
		r.mu.Unlock()
	}
	close(c.started)
	if c.failure != nil {
		return Call{}, c.failure
	}
	return c.state(), nil
}

func (r *Registry) run(c *call, req *StartCall) error {
	if req.TimeoutMS < 0 {
		return connect.Errorf(connect.CodeInvalidArgument, "timeout_ms is negative")
	}
	current := r.Settings.Get()
	user, err := access.UserNamed(req.User, current)
	if err != nil {
		return err
	}
	spec, err := process.ResolveSpec(current, user, req.Cmd, req.Args, req.Envs, req.Cwd)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(r.Dir, 0o700); err != nil {
		return connect.Errorf(connect.CodeInternal, "the directory for recorded output cannot be made: %v", err)
	}
	spec.Stdin = req.Stdin != nil
	c.process, err = r.Manager.Start(spec, process.Options{
		Timeout: time.Duration(req.TimeoutMS) * time.Millisecond, Sink: c, Unlisted: true, DrainAtExit: true,
	})
	if err != nil {
		return err
	}
	if spec.Stdin {
		go c.process.Feed(req.Stdin)
	}
	go func() {
		<-c.process.Drained()
		c.change(true)
	}()
	return nil
}

// find returns a call that was started.
func (r *Registry) find(id string) (*call, error) {
	r.mu.Lock()
	c := r.calls[id]
	r.mu.Unlock()
	if c != nil {
		<-c.started
		if c.failure == nil {
			return c, nil
		}
	}
	return nil, connect.Errorf(connect.CodeNotFound, "there is no call '%s'", id)
}

// Read returns the output from two offsets on. It waits until there is some, the call has exited, or ctx
// ends.
func (r *Registry) Read(ctx context.Context, id string, stdout, stderr int64) (CallOutput, error) {
	c, err := r.find(id)
	if err != nil {
		return CallOutput{}, err
	}
	for {
		c.mu.Lock()
		exited, changed := c.exited, c.changed
		c.mu.Unlock()
		if !exited && !c.stdout.has(stdout) && !c.stderr.has(stderr) {
			select {
			case <-changed:
				continue
			case <-ctx.Done():
			}
		}
		// The state first: with "exited" in it, the output that follows is complete up to the exit.
		state := c.state()
		return CallOutput{Call: state, Stdout: c.stdout.read(stdout, maxRead), Stderr: c.stderr.read(stderr, maxRead)}, nil
	}
}

// Acknowledge forgets a call; one that still runs is killed first. An unknown id is fine.
func (r *Registry) Acknowledge(id string) {
	c, err := r.find(id)
	if err != nil {
		return
	}
	if c.state().State == "running" {
		go c.process.KillTree()
		select {
		case <-c.process.Exited():
		case <-time.After(killWait):
		}
	}
	r.mu.Lock()
	if r.calls[id] == c {
		delete(r.calls, id)
	}
	r.mu.Unlock()
	c.stdout.discard()
	c.stderr.discard()
}

var signals = map[string]syscall.Signal{"SIGTERM": syscall.SIGTERM, "SIGKILL": syscall.SIGKILL, "SIGINT": syscall.SIGINT}

// Signal sends a signal to the process tree of a call.
func (r *Registry) Signal(id, name string) error {
	signal, known := signals[name]
	if !known {
		return connect.Errorf(connect.CodeInvalidArgument, "signal must be SIGTERM, SIGKILL or SIGINT")
	}
	c, err := r.find(id)
	if err != nil {
		return err
	}
	if signal == syscall.SIGKILL {
		c.process.KillTree()
	} else {
		c.process.SignalTree(signal)
	}
	return nil
}
