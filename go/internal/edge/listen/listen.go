// Package listen accepts client connections, within a limit, and can cut one off at once.
package listen

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"syscall"

	"forkyard.dev/forkyard/internal/edge/metrics"
)

// Conn is a client's connection.
type Conn struct {
	*net.TCPConn
	metrics *metrics.Set
	once    sync.Once
}

// Close closes the connection.
func (c *Conn) Close() error {
	c.once.Do(func() { c.metrics.OpenConnections.Add(-1) })
	return c.TCPConn.Close()
}

// Reset closes the connection with a TCP RST, dropping what was not sent yet.
func (c *Conn) Reset() {
	_ = c.SetLinger(0)
	_ = c.Close()
}

// Listener accepts at most limit connections at once. More are reset, so that they cannot use up the file descriptors
// that requests of the others need.
type Listener struct {
	*net.TCPListener
	limit   int64
	metrics *metrics.Set
}

// On makes a listener of tcp. A limit of 0 takes what the process's file descriptors allow: two for each connection.
func On(tcp *net.TCPListener, limit int, set *metrics.Set) *Listener {
	if limit == 0 {
		limit = descriptorLimit()
	}
	return &Listener{TCPListener: tcp, limit: int64(limit), metrics: set}
}

// Accept returns the next connection, a *Conn.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		tcp, err := l.AcceptTCP()
		if err != nil {
			return nil, err
		}
		c := &Conn{TCPConn: tcp, metrics: l.metrics}
		if l.metrics.OpenConnections.Add(1) > l.limit {
			l.metrics.Refused.Add(1)
			c.Reset()
			continue
		}
		return c, nil
	}
}

func descriptorLimit() int {
	const reserve, least = 256, 64
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return least
	}
	most := min(limit.Cur, 1<<20)
	if most < reserve+2*least {
		return least
	}
	return int(most-reserve) / 2
}

type connKey struct{}

// WithConn is an http.Server's ConnContext: it lets FromContext find the connection.
func WithConn(ctx context.Context, c net.Conn) context.Context {
	if secure, ok := c.(*tls.Conn); ok {
		c = secure.NetConn()
	}
	if own, ok := c.(*Conn); ok {
		return context.WithValue(ctx, connKey{}, own)
	}
	return ctx
}

// FromContext returns the connection that a request came on, or nil.
func FromContext(ctx context.Context) *Conn {
	c, _ := ctx.Value(connKey{}).(*Conn)
	return c
}
