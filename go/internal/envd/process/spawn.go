package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"forkyard.dev/forkyard/internal/envd/connect"
	"forkyard.dev/forkyard/internal/envd/users"
)

// Spec says what to run.
type Spec struct {
	Cmd  string
	Args []string
	Envs map[string]string // the whole environment
	Cwd  string            // absolute
	User users.User
	PTY  *Size // nil: pipes
	// Stdin gives the process a pipe to read from; without it, it reads /dev/null. A PTY has both in one.
	Stdin bool
}

// ends are the two sides of a process's standard files.
type ends struct {
	stdin          *os.File // ours; nil without a stdin pipe
	stdout, stderr *os.File // ours; nil with a PTY
	pty            *os.File // ours; nil without a PTY
	pipeInodes     map[uint64]bool
	child          [3]*os.File
}

func (e *ends) closeChild() {
	closed := map[*os.File]bool{}
	for _, file := range e.child {
		if file != nil && !closed[file] {
			closed[file] = true
			_ = file.Close()
		}
	}
}

func (e *ends) closeOurs() {
	for _, file := range []*os.File{e.stdin, e.stdout, e.stderr, e.pty} {
		if file != nil {
			_ = file.Close()
		}
	}
}

// open makes the pipes or the terminal. They belong to the process's user, who may then open them by
// /dev/stdout and the like.
func open(spec Spec) (*ends, error) {
	e := &ends{pipeInodes: map[uint64]bool{}}
	if err := e.fill(spec); err != nil {
		e.closeChild()
		e.closeOurs()
		return nil, err
	}
	return e, nil
}

func (e *ends) fill(spec Spec) (err error) {
	if spec.PTY != nil {
		var slave *os.File
		if e.pty, slave, err = openPTY(*spec.PTY, spec.User.UID); err != nil {
			return err
		}
		e.child = [3]*os.File{slave, slave, slave}
		return nil
	}
	if spec.Stdin {
		if e.child[0], e.stdin, err = e.pipe(spec.User, 1); err != nil {
			return err
		}
	} else if e.child[0], err = os.OpenFile("/dev/null", os.O_RDONLY, 0); err != nil {
		return err
	}
	if e.stdout, e.child[1], err = e.pipe(spec.User, 0); err != nil {
		return err
	}
	e.stderr, e.child[2], err = e.pipe(spec.User, 0)
	return err
}

// pipe returns (read end, write end); the one numbered ours is non-blocking, for the runtime's poller.
func (e *ends) pipe(user users.User, ours int) (*os.File, *os.File, error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, fmt.Errorf("making a pipe: %w", err)
	}
	_ = unix.SetNonblock(fds[ours], true)
	_ = unix.Fchown(fds[0], int(user.UID), int(user.GID)) // else it stays root's: only /dev/stdout suffers
	if ours == 0 {
		// Only the outputs name the process later: anything that holds one belongs to it.
		var stat unix.Stat_t
		if unix.Fstat(fds[0], &stat) == nil {
			e.pipeInodes[stat.Ino] = true
		}
	}
	return os.NewFile(uintptr(fds[0]), "pipe"), os.NewFile(uintptr(fds[1]), "pipe"), nil
}

// checkCwd says in the protocol's words that a working directory is missing.
func checkCwd(cwd string) error {
	info, err := os.Stat(cwd)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return connect.Errorf(connect.CodeInvalidArgument, "cwd '%s' does not exist", cwd)
	}
	if err != nil {
		return connect.Errorf(connect.CodeInvalidArgument, "cwd '%s' cannot be used: %v", cwd, err)
	}
	if !info.IsDir() {
		return connect.Errorf(connect.CodeInvalidArgument, "cwd '%s' is not a directory", cwd)
	}
	return nil
}

// findProgram resolves a command without a slash by the PATH of the command's own environment.
func findProgram(spec Spec) (string, error) {
	if spec.Cmd == "" {
		return "", connect.Errorf(connect.CodeInvalidArgument, "the command is empty")
	}
	if strings.Contains(spec.Cmd, "/") {
		return spec.Cmd, nil
	}
	for _, dir := range filepath.SplitList(spec.Envs["PATH"]) {
		if !filepath.IsAbs(dir) {
			dir = filepath.Join(spec.Cwd, dir)
		}
		candidate := filepath.Join(dir, spec.Cmd)
		if info, err := os.Stat(candidate); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return candidate, nil
		}
	}
	return "", connect.Errorf(connect.CodeInvalidArgument, "command '%s' was not found in PATH", spec.Cmd)
}

// environ flattens the environment, sorted so that it does not change from run to run.
func environ(spec Spec) ([]string, error) {
	env := make([]string, 0, len(spec.Envs)+1)
	for name, value := range spec.Envs {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(value, "\x00") {
			return nil, connect.Errorf(connect.CodeInvalidArgument, "environment variable %q is not valid", name)
		}
		env = append(env, name+"="+value)
	}
	slices.Sort(env)
	return env, nil
}

// start forks and executes the spec with the given standard files.
func (m *Manager) start(spec Spec, e *ends, marker string) (int, <-chan syscall.WaitStatus, error) {
	if err := checkCwd(spec.Cwd); err != nil {
		return 0, nil, err
	}
	program, err := findProgram(spec)
	if err != nil {
		return 0, nil, err
	}
	env, err := environ(spec)
	if err != nil {
		return 0, nil, err
	}
	argv := append([]string{spec.Cmd}, spec.Args...)
	for _, arg := range argv {
		if strings.Contains(arg, "\x00") {
			return 0, nil, connect.Errorf(connect.CodeInvalidArgument, "an argument holds a zero byte")
		}
	}
	attr := &syscall.ProcAttr{
		Dir: spec.Cwd, Env: append(env, marker),
		Files: []uintptr{e.child[0].Fd(), e.child[1].Fd(), e.child[2].Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true, Setctty: spec.PTY != nil, Ctty: 0},
	}
	if os.Geteuid() == 0 {
		attr.Sys.Credential = &syscall.Credential{Uid: spec.User.UID, Gid: spec.User.GID, Groups: spec.User.Groups}
	}
	pid, exit, err := m.reaper.Start(program, argv, attr)
	if err != nil {
		return 0, nil, startError(spec, err)
	}
	return pid, exit, nil
}

func startError(spec Spec, err error) error {
	switch {
	case errors.Is(err, syscall.ENOENT):
		return connect.Errorf(connect.CodeInvalidArgument,
			"command '%s' was not found in this sandbox: its image has no such file, or not the interpreter that the file names", spec.Cmd)
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return connect.Errorf(connect.CodePermissionDenied,
			"user '%s' may not run '%s' in '%s': %v", spec.User.Name, spec.Cmd, spec.Cwd, err)
	case errors.Is(err, syscall.E2BIG), errors.Is(err, syscall.ENAMETOOLONG): // gVisor says the latter
		return connect.Errorf(connect.CodeInvalidArgument, "the arguments and environment of '%s' are too long", spec.Cmd)
	case errors.Is(err, syscall.ENOEXEC):
		return connect.Errorf(connect.CodeInvalidArgument, "'%s' is not a program this system can run", spec.Cmd)
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOMEM):
		return connect.Errorf(connect.CodeResourceExhausted, "the sandbox cannot start another process: %v", err)
	default:
		return connect.Errorf(connect.CodeInternal, "starting '%s' failed: %v", spec.Cmd, err)
	}
}
