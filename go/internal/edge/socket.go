package edge

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
)

// maxSocketPath is the longest name that the kernel takes for a Unix socket.
const maxSocketPath = 107

// controlSocket is a Unix socket listener that only one living process can have: a lock file beside it is held for as
// long as the process lives, however it ends.
type controlSocket struct {
	*net.UnixListener
	lock *os.File
	once sync.Once
}

// listenControl takes the socket at path. A socket file that a dead edge left is replaced. Fails with ErrTaken.
func listenControl(path string) (*controlSocket, error) {
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("control socket: the path %s is longer than %d bytes", path, maxSocketPath)
	}
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = lock.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("control socket %s is %w by another edge", path, ErrTaken)
		}
		return nil, fmt.Errorf("control socket lock: %w", err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		_ = lock.Close()
		return nil, fmt.Errorf("control socket: %w", err)
	}
	// Nobody may connect between bind and chmod.
	old := syscall.Umask(0o177)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	syscall.Umask(old)
	if err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("control socket: %w", err)
	}
	return &controlSocket{UnixListener: l, lock: lock}, nil
}

// Close gives the socket and its lock up. The lock file stays: removing it could take a newer edge's lock away.
func (s *controlSocket) Close() error {
	err := net.ErrClosed
	s.once.Do(func() {
		err = s.UnixListener.Close() // removes the socket file while nobody else can have made one
		_ = s.lock.Close()
	})
	return err
}
