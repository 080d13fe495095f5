package runtime

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/unet"
	"gvisor.dev/gvisor/pkg/urpc"
)

// connectTimeout bounds how long a sandbox that accepts no connections (its queue is full) can keep a thread, in seconds.
const connectTimeout = 5

// connections are those to one sandbox's control socket.
type connections struct {
	mu      sync.Mutex
	closed  bool
	sockets []*unet.Socket
}

var (
	connsMu sync.Mutex
	conns   = map[string]*connections{} // by the directory of the control socket
)

var errInterrupted = errors.New("the call was given up")

func newConnections() *connections { return &connections{} }

// open begins a call on the container in dir.
func (c *connections) open(dir string) {
	c.mu.Lock()
	c.closed = false
	c.mu.Unlock()
	connsMu.Lock()
	defer connsMu.Unlock()
	conns[dir] = c
}

// release ends it.
func (c *connections) release(dir string) {
	connsMu.Lock()
	if conns[dir] == c {
		delete(conns, dir)
	}
	connsMu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sockets = nil
}

// closeAll fails everything that waits on the connections, and all new ones until the next open.
func (c *connections) closeAll() {
	c.mu.Lock()
	sockets := c.sockets
	c.sockets, c.closed = nil, true
	c.mu.Unlock()
	for _, socket := range sockets {
		_ = socket.Close()
	}
}

func (c *connections) add(socket *unet.Socket) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return errInterrupted
	}
	c.sockets = append(c.sockets, socket)
	return nil
}

// dial is gVisor's hook for connections to control sockets.
func dial(addr string) (*urpc.Client, error) {
	connsMu.Lock()
	c := conns[filepath.Dir(addr)]
	connsMu.Unlock()
	if c == nil {
		return nil, fmt.Errorf("no call on %s is going on", addr)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	timeout := unix.Timeval{Sec: connectTimeout}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &timeout); err != nil {
		unix.Close(fd)
		return nil, err
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: addr}); err != nil {
		unix.Close(fd)
		return nil, err
	}
	socket, err := unet.NewSocket(fd)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	if err := c.add(socket); err != nil {
		_ = socket.Close()
		return nil, err
	}
	return urpc.NewClient(socket), nil
}
