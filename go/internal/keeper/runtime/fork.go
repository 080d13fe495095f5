package runtime

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"forkyard.dev/forkyard/internal/keeper/cgroups"
	"forkyard.dev/forkyard/internal/keeper/proc"
)

// Kinds of processes that a container has.
const (
	KindSandbox = "sandbox"
	KindGofer   = "gofer"
)

// plan is what the processes of one container get when they are forked.
type plan struct {
	stdout, stderr *os.File
	group          *cgroups.Group
	memoryBytes    int64
	cpus           int
	oomScoreAdj    *int
	started        func(kind string, pid int)
}

func forkPlan(args CreateArgs) *plan {
	return &plan{
		stdout: args.Stdout, stderr: args.Stderr, group: args.Group, memoryBytes: args.MemoryBytes,
		cpus: args.CPUs, oomScoreAdj: args.OOMScoreAdj, started: args.Started,
	}
}

// plans by bundle directory: it is how a command line of runsc's names its container.
var (
	plansMu sync.Mutex
	plans   = map[string]*plan{}
)

func expectFork(bundle string, p *plan) (forget func(), err error) {
	plansMu.Lock()
	defer plansMu.Unlock()
	if _, ok := plans[bundle]; ok {
		return nil, fmt.Errorf("a container is being created in %s already", bundle)
	}
	plans[bundle] = p
	return func() {
		plansMu.Lock()
		defer plansMu.Unlock()
		delete(plans, bundle)
	}, nil
}

// beforeStart is gVisor's hook: it is called on the locked thread that forks cmd, and what it returns afterwards.
func beforeStart(cmd *exec.Cmd) (func(error), error) {
	kind, bundle := parseCommand(cmd.Args)
	plansMu.Lock()
	p := plans[bundle]
	plansMu.Unlock()
	if p == nil || kind == "" {
		return nil, fmt.Errorf("nobody expected a process for %q", bundle)
	}
	if kind == KindSandbox {
		p.setResources(cmd)
		p.setStdio(cmd)
	} else {
		cmd.Env = []string{} // runsc would hand on the keeper's own
	}
	leave := func() {}
	if p.group != nil {
		var err error
		if leave, err = p.group.Place(cmd); err != nil {
			return nil, err
		}
	}
	keepOthersOut()
	return func(startErr error) {
		leave()
		if startErr != nil {
			return
		}
		if p.oomScoreAdj != nil {
			_ = proc.SetOOMScoreAdj(cmd.Process.Pid, *p.oomScoreAdj)
		}
		p.started(kind, cmd.Process.Pid)
	}, nil
}

// keepOthersOut marks what is open here to be closed in the process that is about to be forked. runsc does so once,
// which is enough for a program that starts one sandbox: it opens some files without that mark (the memory for its
// statistics), and here they would get into every sandbox that is started meanwhile. Kernels before 5.11 cannot.
func keepOthersOut() { _ = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) }

// parseCommand finds out what a command line of runsc's starts, and for which bundle.
func parseCommand(args []string) (kind, bundle string) {
	for i, arg := range args {
		switch {
		case arg == "boot":
			kind = KindSandbox
		case arg == "gofer":
			kind = KindGofer
		case arg == "--bundle" && i+1 < len(args):
			bundle = args[i+1]
		case strings.HasPrefix(arg, "--bundle="):
			bundle = strings.TrimPrefix(arg, "--bundle=")
		}
	}
	return kind, filepath.Clean(bundle)
}

// setResources gives the sandbox the sizes that runsc would read from a cgroup.
func (p *plan) setResources(cmd *exec.Cmd) {
	at := slices.Index(cmd.Args, "--total-memory")
	if at < 0 || at+1 >= len(cmd.Args) {
		return
	}
	if p.memoryBytes > 0 {
		host, err := strconv.ParseInt(cmd.Args[at+1], 10, 64)
		if err != nil || p.memoryBytes < host {
			cmd.Args[at+1] = strconv.FormatInt(p.memoryBytes, 10)
		}
	}
	if p.cpus > 0 {
		cmd.Args = slices.Insert(cmd.Args, at+2, "--cpu-num", strconv.Itoa(p.cpus))
	}
}

// Stand-ins for this process's stdio, which runsc hands to the sandbox (and changes the owner of). setStdio puts the
// container's own files in their place.
var standIns [3]*os.File

func (p *plan) setStdio(cmd *exec.Cmd) {
	own := [3]*os.File{nullFile, p.stdout, p.stderr}
	for i, file := range cmd.ExtraFiles {
		for fd, standIn := range standIns {
			if file == standIn && standIn != nil {
				cmd.ExtraFiles[i] = own[fd]
			}
		}
	}
}

var nullFile *os.File

// Prepare makes this process fit to create containers; once, at its start.
func Prepare() error {
	if err := installHooks(); err != nil {
		return err
	}
	var err error
	if nullFile, err = os.OpenFile(os.DevNull, os.O_RDWR, 0); err != nil {
		return err
	}
	for i := range standIns {
		read, write, err := os.Pipe()
		if err != nil {
			return err
		}
		_ = write.Close()
		standIns[i] = read
	}
	os.Stdin, os.Stdout, os.Stderr = standIns[0], standIns[1], standIns[2]
	return nil
}

var errUnpatched = errors.New("this program was built without the changes to gVisor that the keeper needs; " +
	"build it with scripts/build-go.sh")
