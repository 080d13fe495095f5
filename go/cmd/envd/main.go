// Command envd is the daemon inside every sandbox: PID 1, and the sandbox's end of the E2B protocol.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"forkyard.dev/forkyard/internal/envd/guest"
	"forkyard.dev/forkyard/internal/envd/memory"
	"forkyard.dev/forkyard/internal/envd/platform"
	"forkyard.dev/forkyard/internal/envd/process"
	"forkyard.dev/forkyard/internal/envd/server"
)

// version is set by the build.
var version = "0.6.13"

const (
	// The daemon is idle most of the time and must stay small then: collect often, and do not spread over
	// the processors of the sandbox.
	gcPercent     = 40
	memoryTarget  = 64 << 20
	maxProcessors = 2
)

type options struct {
	port          int
	stateDir      string
	root          string
	oomKiller     string
	allowInternal []netip.Addr
	own           []netip.Addr
	debug         bool
}

func parse(args []string) (options, error) {
	var o options
	var allow, own string
	flags := flag.NewFlagSet("envd", flag.ContinueOnError)
	flags.IntVar(&o.port, "port", 49983, "port to listen on; 0 takes a free one")
	flags.StringVar(&o.stateDir, "state-dir", "/var/lib/forkyard", "directory for recorded output and uploads in progress, for root only")
	flags.StringVar(&o.root, "root", "/", "directory the system's files are below (for tests)")
	flags.StringVar(&o.oomKiller, "oom-killer", "auto", "kill the largest process when memory runs out: on, off, or auto (where the kernel does not)")
	flags.StringVar(&allow, "allow-internal-from", "", "addresses that may use the internal routes beside the default gateway (for tests)")
	flags.StringVar(&own, "own-address", "", "addresses to forward loopback ports to instead of the machine's (for tests)")
	flags.BoolVar(&o.debug, "debug", false, "log more")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	var err error
	if o.allowInternal, err = addresses(allow); err == nil {
		o.own, err = addresses(own)
	}
	if o.oomKiller != "on" && o.oomKiller != "off" && o.oomKiller != "auto" {
		err = errors.Join(err, errors.New("--oom-killer must be on, off or auto"))
	}
	return o, err
}

func addresses(list string) ([]netip.Addr, error) {
	var parsed []netip.Addr
	for text := range strings.SplitSeq(list, ",") {
		if text == "" {
			continue
		}
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return nil, err
		}
		parsed = append(parsed, addr)
	}
	return parsed, nil
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == "version" {
		fmt.Println(version)
		return
	}
	o, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "envd:", err)
		os.Exit(2)
	}
	if err := run(o); err != nil {
		slog.Error("envd ends", "cause", err.Error())
		os.Exit(1)
	}
}

func run(o options) error {
	level := slog.LevelInfo
	if o.debug {
		level = slog.LevelDebug
	}
	slog.SetDefault(slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: level})))
	runtime.MemProfileRate = 0
	debug.SetGCPercent(gcPercent)
	debug.SetMemoryLimit(memoryTarget)
	runtime.GOMAXPROCS(min(runtime.NumCPU(), maxProcessors))
	unix.Umask(0o022)
	isInit := os.Getpid() == 1
	if isInit {
		surviveSignals()
		guest.Boot()
	} else if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		slog.Warn("orphans will not be reaped", "cause", err.Error())
	}
	if err := prepareState(o.stateDir); err != nil {
		slog.Warn("the state directory is not usable", "cause", err.Error())
	}
	killer := startKiller(o.oomKiller, isInit)
	envd := server.New(server.Config{
		Version: version, StateDir: o.stateDir, Root: o.root, AllowInternalFrom: o.allowInternal, OwnAddresses: o.own, Killer: killer,
	}, process.NewReaper())
	listener, err := listen(o.port)
	if err != nil {
		return err
	}
	debug.FreeOSMemory() // what starting needed is not needed again
	slog.Info("envd listens", "version", version, "port", listener.Addr().(*net.TCPAddr).Port, "pid", os.Getpid())
	for {
		err := envd.Serve(listener)
		if !isInit || errors.Is(err, http.ErrServerClosed) {
			return err
		}
		// PID 1 must not end: the sandbox would end with it.
		slog.Error("serving failed, trying again", "cause", err.Error())
		time.Sleep(100 * time.Millisecond)
		if next, err := listen(o.port); err == nil {
			_ = listener.Close()
			listener = next
		}
	}
}

// listen takes all addresses, of both families where the sandbox has IPv6. It takes them for itself: with
// the address reuse that Go switches on, gVisor lets any program listen on one of the same addresses and have
// what is meant for us.
func listen(port int) (net.Listener, error) {
	alone := net.ListenConfig{Control: func(_, _ string, conn syscall.RawConn) error {
		var failure error
		err := conn.Control(func(fd uintptr) {
			failure = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 0)
		})
		return errors.Join(err, failure)
	}}
	listener, err := alone.Listen(context.Background(), "tcp", ":"+strconv.Itoa(port))
	if err != nil {
		var err4 error
		if listener, err4 = alone.Listen(context.Background(), "tcp4", ":"+strconv.Itoa(port)); err4 != nil {
			return nil, errors.Join(err, err4)
		}
	}
	return listener, nil
}

// surviveSignals takes the signals that would end or stop a program. They are caught and not ignored:
// an ignored signal stays ignored in every command that is started.
func surviveSignals() {
	caught := make(chan os.Signal, 8)
	signal.Notify(caught, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2,
		syscall.SIGALRM, syscall.SIGVTALRM, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU, syscall.SIGPIPE, syscall.SIGIO,
		syscall.SIGXCPU, syscall.SIGXFSZ, syscall.SIGPWR, syscall.SIGSTKFLT, syscall.SIGABRT, syscall.SIGTRAP, syscall.SIGSYS)
	go func() {
		for range caught {
		}
	}()
}

// prepareState makes the state directory, and removes what an envd before this one has left.
func prepareState(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil { // others need what lies above
		return err
	}
	for _, name := range []string{"calls", "spool"} {
		path := filepath.Join(dir, name)
		if err := os.RemoveAll(path); err != nil {
			return err
		}
		if err := os.MkdirAll(path, 0o700); err != nil {
			return err
		}
	}
	return os.Chmod(dir, 0o700)
}

func startKiller(mode string, isInit bool) *memory.Killer {
	if mode == "off" || mode == "auto" && !(isInit && platform.GVisor()) {
		return nil
	}
	killer := memory.NewKiller()
	go killer.Run()
	return killer
}
