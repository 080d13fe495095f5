// Package runtime drives gVisor's own packages in process: what `runsc create`, `start`, `restore`, `checkpoint` do.
package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/sentry/state/checkpointfiles"
	"gvisor.dev/gvisor/pkg/state/statefile"
	"gvisor.dev/gvisor/runsc/container"
	"gvisor.dev/gvisor/runsc/sandbox"
	"gvisor.dev/gvisor/runsc/specutils"
	"gvisor.dev/gvisor/runsc/version"

	"forkyard.dev/forkyard/internal/keeper/cgroups"
)

// Version is what a checkpoint records and a restore compares.
func Version() string { return version.Version() }

// innerID is what gVisor calls every container: each has a directory of its own, and the name is part of the path of
// a socket, which must be short.
const innerID = "s"

// Container is one container of gVisor; its methods must not be called concurrently, except Interrupt.
type Container struct {
	dir   string
	opts  Options
	inner *container.Container
	conns *connections
}

// CreateArgs are what Create needs beside the spec in the bundle.
type CreateArgs struct {
	Dir         string // the bundle (config.json is there) and everything of runsc
	NetnsPath   string // opened by the process that starts the sandbox; "" as in the spec
	Stdout      *os.File
	Stderr      *os.File
	Group       *cgroups.Group
	MemoryBytes int64 // what the sandbox takes for the machine's memory; 0 for the host's
	CPUs        int   // what the sandbox takes for the machine's processors; 0 for the host's
	OOMScoreAdj *int
	// Started is told each process as soon as it exists: kind is "sandbox" or "gofer".
	Started func(kind string, pid int)
}

// Create makes an empty sandbox: its processes run, nothing in it does. On an error nothing is left running.
func Create(ctx context.Context, o Options, args CreateArgs) (*Container, error) {
	if err := checkSocketPath(args.Dir); err != nil {
		return nil, err
	}
	conf, err := newConfig(o, args.Dir)
	if err != nil {
		return nil, err
	}
	spec, err := specutils.ReadSpec(args.Dir, conf)
	if err != nil {
		return nil, err
	}
	if args.NetnsPath != "" {
		setNetnsPath(spec, args.NetnsPath)
	}
	forget, err := expectFork(args.Dir, forkPlan(args))
	if err != nil {
		return nil, err
	}
	defer forget()
	c := &Container{dir: args.Dir, opts: o, conns: newConnections()}
	err = c.bounded(ctx, func() error {
		var err error
		c.inner, err = container.New(conf, container.Args{ID: innerID, Spec: spec, BundleDir: args.Dir})
		return err
	})
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Load finds a container that an earlier process created.
func Load(o Options, dir string) (*Container, error) {
	inner, err := container.Load(dir, container.FullID{SandboxID: innerID, ContainerID: innerID},
		container.LoadOpts{Exact: true, SkipCheck: true})
	if err != nil {
		return nil, err
	}
	return &Container{dir: dir, opts: o, inner: inner, conns: newConnections()}, nil
}

// checkSocketPath refuses a directory whose control socket would have too long a path: runsc would then put it in /tmp.
func checkSocketPath(dir string) error {
	const longest = 107 // of a Unix socket's path on Linux
	if n := len(filepath.Join(dir, "runsc-"+innerID+".sock")); n > longest {
		return fmt.Errorf("the path of the control socket in %s would have %d bytes, more than %d", dir, n, longest)
	}
	return nil
}

func setNetnsPath(spec *specs.Spec, path string) {
	if spec.Linux == nil {
		return
	}
	for i := range spec.Linux.Namespaces {
		if spec.Linux.Namespaces[i].Type == specs.NetworkNamespace {
			spec.Linux.Namespaces[i].Path = path
		}
	}
}

// Start runs the container's first process.
func (c *Container) Start(ctx context.Context) error {
	conf, err := newConfig(c.opts, c.dir)
	if err != nil {
		return err
	}
	return c.bounded(ctx, func() error { return c.inner.Start(conf) })
}

// Restore makes a created container go on from the checkpoint in dir. With background its programs run before all of
// their memory is read.
func (c *Container) Restore(ctx context.Context, dir string, background bool) error {
	conf, err := newConfig(c.opts, c.dir)
	if err != nil {
		return err
	}
	return c.bounded(ctx, func() error { return c.inner.Restore(conf, dir, false, background) })
}

// Checkpoint writes the container's state into dir, which must be empty. With leaveRunning the container goes on
// afterwards, whether that worked or not; without it the container ends.
func (c *Container) Checkpoint(ctx context.Context, dir string, leaveRunning bool) error {
	conf, err := newConfig(c.opts, c.dir)
	if err != nil {
		return err
	}
	opts := sandbox.CheckpointOpts{
		Compression:               statefile.CompressionLevelNone,
		Resume:                    leaveRunning,
		ExcludeCommittedZeroPages: true,
	}
	return c.bounded(ctx, func() error { return c.inner.Checkpoint(conf, dir, opts) })
}

// CheckpointFiles are the files that Checkpoint writes; the first is never empty.
func CheckpointFiles() []string {
	return []string{checkpointfiles.StateFileName, checkpointfiles.PagesMetadataFileName, checkpointfiles.PagesFileName}
}

// Forget removes what runsc keeps about the container. Its processes must have ended and been reaped before: runsc
// would wait for them, for minutes if somebody else has reaped them.
func (c *Container) Forget() error {
	if c.inner.Sandbox != nil {
		c.inner.Sandbox.Pid.Store(0)
	}
	c.inner.GoferPid.Store(0)
	return c.inner.Destroy()
}

// Interrupt makes a call that waits for the sandbox's answer fail now.
func (c *Container) Interrupt() { c.conns.closeAll() }

// SetLogTarget sends gVisor's own messages about this process to file, or nowhere.
func SetLogTarget(file *os.File) {
	if file == nil {
		log.SetTarget(discard{})
		return
	}
	log.SetTarget(log.GoogleEmitter{Writer: &log.Writer{Next: file}})
	log.SetLevel(log.Debug)
}

type discard struct{}

func (discard) Emit(int, log.Level, time.Time, string, ...any) {}

// FailureReason is the last thing a runtime process wrote about why it failed, "" if nothing. Its text is at most
// max bytes, and not to be trusted.
func FailureReason(dir string, max int64) string {
	for _, name := range []string{PanicLog, RuntimeLog} {
		if text := head(filepath.Join(dir, name), max); text != "" {
			return text
		}
	}
	return ""
}

func head(path string, max int64) string {
	file, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer file.Close()
	buffer := make([]byte, max)
	n, _ := file.Read(buffer)
	return strings.TrimSpace(string(buffer[:n]))
}

// IsNoSpace tells whether an error means a full disk. Errors of a sandbox come as text only.
func IsNoSpace(err error) bool {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return true
	}
	text := err.Error()
	return strings.Contains(text, unix.ENOSPC.Error()) || strings.Contains(text, unix.EDQUOT.Error())
}

// bounded runs work, which may wait for a sandbox, until ctx ends at the latest. The connections that work opened are
// cut then, so that it returns; if it does not within a moment (a sandbox process that hangs at its start has no
// connection yet), bounded leaves it behind, to end when the caller kills the sandbox.
func (c *Container) bounded(ctx context.Context, work func() error) error {
	done := make(chan error, 1)
	c.conns.open(c.dir)
	go func() {
		defer c.conns.release(c.dir)
		defer func() {
			if p := recover(); p != nil {
				done <- fmt.Errorf("gVisor's code panicked: %v", p)
			}
		}()
		done <- work()
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	c.Interrupt()
	select {
	case <-done:
	case <-time.After(2 * time.Second):
	}
	return context.Cause(ctx)
}
