// Package keeper is the long-lived process that starts, reaps and watches gVisor sandboxes (specs/keeper.md). It
// holds no policy: specs in, results out. Ending it ends no sandbox.
package keeper

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"forkyard.dev/forkyard/internal/keeper/api"
	"forkyard.dev/forkyard/internal/keeper/cgroups"
	"forkyard.dev/forkyard/internal/keeper/containers"
	"forkyard.dev/forkyard/internal/keeper/events"
	"forkyard.dev/forkyard/internal/keeper/mountns"
	"forkyard.dev/forkyard/internal/keeper/proc"
	"forkyard.dev/forkyard/internal/keeper/runtime"
)

// Version is set by the build: the hash of everything that went into it.
var Version = "unbuilt"

// Where the keeper's own mount namespace has things.
const (
	rootPoint   = "/run/forkyard/root" // --root: short, because the paths of sockets below it must be
	disksDir    = "/run/forkyard/node/disks"
	keptEvents  = 10_000
	endingGrace = 10 * time.Second
)

type options struct {
	socket, root, instance, bind, log, platform string
	debug, directfs                             bool
	callTimeout                                 time.Duration
}

func parse(args []string) (*options, error) {
	o := &options{}
	set := flag.NewFlagSet("keeper keep", flag.ContinueOnError)
	set.StringVar(&o.socket, "socket", "", "Unix socket to answer on")
	set.StringVar(&o.root, "root", "", "directory for what is kept about containers; may lie in the bound one, under either name")
	set.StringVar(&o.instance, "instance", "", "id of the instance that the containers belong to")
	set.StringVar(&o.bind, "bind", "", "FROM=TO: the directory of the node's data, and where the keeper and all sandboxes see it")
	set.StringVar(&o.log, "log", "", "file to log to, instead of standard error")
	set.StringVar(&o.platform, "platform", "systrap", "how gVisor runs code: systrap or kvm")
	set.BoolVar(&o.directfs, "directfs", true, "let sandboxes open files of bind mounts themselves")
	set.BoolVar(&o.debug, "debug", false, "log what sandboxes do, into their directories")
	set.DurationVar(&o.callTimeout, "call-timeout", 30*time.Second, "how long a call to a sandbox may take, beside its memory")
	if err := set.Parse(args); err != nil {
		return nil, err
	}
	if set.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", set.Arg(0))
	}
	if o.socket == "" || o.root == "" || o.instance == "" || o.bind == "" {
		return nil, errors.New("--socket, --root, --instance and --bind are needed")
	}
	for _, path := range []*string{&o.socket, &o.root} {
		absolute, err := filepath.Abs(*path)
		if err != nil {
			return nil, err
		}
		*path = absolute
	}
	return o, nil
}

// Keep is `keeper keep`; it returns the exit code.
func Keep(args []string) int {
	o, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "keeper: %v\n", err)
		return 2
	}
	if err := keep(o); err != nil {
		fmt.Fprintf(os.Stderr, "keeper: %v\n", err)
		return 1
	}
	return 0
}

func keep(o *options) error {
	if !mountns.Entered() {
		bind, err := mountns.ParseBind(o.bind)
		if err != nil {
			return fmt.Errorf("--bind: %w", err)
		}
		root := bind.Outside(o.root)
		if err := os.MkdirAll(root, 0o711); err != nil {
			return err
		}
		return mountns.Enter([]mountns.Bind{bind, {From: root, To: rootPoint}})
	}
	host, err := mountns.OpenHost()
	if err != nil {
		return err
	}
	logFile, err := redirectStdio(o.log)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewJSONHandler(logFile, nil)).With("instance", o.instance)
	lock, err := lockRoot(rootPoint)
	if err != nil {
		return err
	}
	defer lock.Close()
	return serve(o, host, logFile, log)
}

// lockRoot waits for a keeper that is just ending.
func lockRoot(root string) (*os.File, error) {
	deadline := time.Now().Add(endingGrace)
	for {
		lock, err := containers.LockRoot(root)
		if err == nil || time.Now().After(deadline) {
			return lock, err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// redirectStdio puts /dev/null on standard input and output, which children inherit, and the log on standard error.
// The file it returns is not one of those: they are stand-ins from here on.
func redirectStdio(path string) (*os.File, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	for fd := range 2 {
		if err := unix.Dup2(int(null.Fd()), fd); err != nil {
			return nil, err
		}
	}
	if path != "" {
		file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
		if err != nil {
			return nil, fmt.Errorf("--log: %w", err)
		}
		defer file.Close()
		if err := unix.Dup2(int(file.Fd()), 2); err != nil {
			return nil, err
		}
	}
	fd, err := unix.FcntlInt(2, unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "log"), nil
}

func serve(o *options, host *mountns.Host, logFile *os.File, log *slog.Logger) error {
	if err := proc.BecomeSubreaper(); err != nil {
		return fmt.Errorf("becoming a child subreaper: %w", err)
	}
	if err := runtime.Prepare(); err != nil {
		return err
	}
	runtime.SetLogTarget(nil)
	if o.debug {
		runtime.SetLogTarget(logFile)
	}
	hierarchy, err := cgroups.Detect()
	if err != nil {
		return fmt.Errorf("control groups: %w", err)
	}
	if missing := hierarchy.Missing(); len(missing) > 0 {
		log.Warn("the host lacks cgroup controllers; their limits are not set", "missing", missing)
	}
	if err := os.MkdirAll(disksDir, 0o700); err != nil {
		return err
	}
	ctx, cancel := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer cancel()
	started := time.Now()
	eventLog := events.NewLog(keptEvents, started)
	manager, err := containers.NewManager(ctx, containers.Options{
		Root: rootPoint,
		Runtime: runtime.Options{
			Platform: o.platform, DirectFS: o.directfs, DisksDir: disksDir, Debug: o.debug,
		},
		CallTimeout: o.callTimeout, Hierarchy: hierarchy, Host: host, Events: eventLog, Log: log,
	})
	if err != nil {
		return err
	}
	listener, err := api.Listen(o.socket)
	if err != nil {
		return err
	}
	log.Info("keeper is up", "pid", os.Getpid(), "version", Version, "runtime", runtime.Version())
	server := &api.Server{
		Manager: manager, Events: eventLog, Log: log, Shutdown: cancel,
		Info: api.Info{
			Version: Version, Runtime: runtime.Version(), Pid: os.Getpid(), Instance: o.instance,
			StartedAt: started.UTC(), CgroupVersion: hierarchy.Version(), CgroupMissing: hierarchy.Missing(),
		},
	}
	err = server.Serve(ctx, listener, endingGrace)
	log.Info("keeper ends; sandboxes go on")
	return err
}
