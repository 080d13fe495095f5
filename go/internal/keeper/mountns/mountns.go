// Package mountns gives the keeper a mount namespace of its own, in which node data always has the same path: a
// checkpoint remembers paths, and they must mean the same on every node and for every data directory.
package mountns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// hostNSVariable carries the fd of the host's mount namespace over the exec in Enter.
const hostNSVariable = "FORKYARD_KEEPER_HOST_MNT_FD"

// Bind makes the directory From appear at To.
type Bind struct{ From, To string }

// ParseBind reads "FROM=TO", both absolute.
func ParseBind(text string) (Bind, error) {
	from, to, ok := strings.Cut(text, "=")
	if !ok || !filepath.IsAbs(from) || !filepath.IsAbs(to) {
		return Bind{}, fmt.Errorf("%q is not FROM=TO with two absolute paths", text)
	}
	return Bind{From: filepath.Clean(from), To: filepath.Clean(to)}, nil
}

// Outside is the host's name of a path that may be given as the keeper sees it.
func (b Bind) Outside(path string) string {
	if path == b.To || strings.HasPrefix(path, b.To+"/") {
		return b.From + strings.TrimPrefix(path, b.To)
	}
	return path
}

// Entered tells whether this process is past Enter.
func Entered() bool { return os.Getenv(hostNSVariable) != "" }

// Enter puts the whole process into a new mount namespace with the binds, by executing it again: a running Go program
// has threads that cannot be moved. It returns only with an error. After it, Host is the way to look outside.
func Enter(binds []Bind) error {
	runtime.LockOSThread() // never unlocked: on success there is another program, else the process ends
	host, err := unix.Open("/proc/self/ns/mnt", unix.O_RDONLY, 0)
	if err != nil {
		return fmt.Errorf("opening the mount namespace: %w", err)
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("a mount namespace: %w (the keeper needs CAP_SYS_ADMIN)", err)
	}
	// What the host mounts later under shared mounts (volumes) still comes in; nothing of ours goes out.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("making mounts slaves: %w", err)
	}
	for _, bind := range binds {
		if err := os.MkdirAll(bind.To, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(bind.From, bind.To, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("binding %s at %s: %w", bind.From, bind.To, err)
		}
	}
	env := append(os.Environ(), hostNSVariable+"="+strconv.Itoa(host))
	return fmt.Errorf("executing itself again: %w", unix.Exec("/proc/self/exe", os.Args, env))
}

// Host opens files as the host's mount namespace has them: network namespaces are mounted there after the keeper
// started, and where the host's mounts are private that never reaches the keeper's own namespace.
type Host struct {
	requests chan request
}

type request struct {
	path string
	done chan answer
}

type answer struct {
	file *os.File
	err  error
}

// OpenHost starts the one thread that lives in the host's mount namespace, using what Enter left.
func OpenHost() (*Host, error) {
	fd, err := strconv.Atoi(os.Getenv(hostNSVariable))
	if err != nil {
		return nil, errors.New("not in a mount namespace of its own")
	}
	unix.CloseOnExec(fd)
	os.Unsetenv(hostNSVariable)
	h := &Host{requests: make(chan request)}
	ready := make(chan error)
	go h.serve(fd, ready)
	return h, <-ready
}

// Open opens path for reading in the host's mount namespace.
func (h *Host) Open(path string) (*os.File, error) {
	r := request{path: path, done: make(chan answer, 1)}
	h.requests <- r
	a := <-r.done
	return a.file, a.err
}

func (h *Host) serve(fd int, ready chan<- error) {
	runtime.LockOSThread() // for ever: this thread must serve nothing else
	defer unix.Close(fd)
	// A thread can change its mount namespace only when it shares its root and working directory with no other.
	err := unix.Unshare(unix.CLONE_FS)
	if err == nil {
		err = unix.Setns(fd, unix.CLONE_NEWNS)
	}
	if err != nil {
		ready <- fmt.Errorf("the host's mount namespace: %w", err)
		return
	}
	ready <- nil
	for r := range h.requests {
		fd, err := unix.Open(r.path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			r.done <- answer{err: &os.PathError{Op: "open", Path: r.path, Err: err}}
			continue
		}
		r.done <- answer{file: os.NewFile(uintptr(fd), r.path)}
	}
}
