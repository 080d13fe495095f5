package upstream

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

var (
	// ErrPortClosed means that nothing in the sandbox listens on the port, on loopback neither.
	ErrPortClosed = errors.New("nothing listens on the port")
	// ErrNoAnswer means that the sandbox's network does not answer.
	ErrNoAnswer = errors.New("the sandbox does not answer")
	// ErrExhausted means that this host has no file descriptor or local port left.
	ErrExhausted = errors.New("the host is out of connections")
)

// dial makes a connection to the sandbox. Errors wrap ErrGone, ErrPortClosed, ErrNoAnswer or ErrExhausted.
func (b *Backend) dial(ctx context.Context, _, hostport string) (net.Conn, error) {
	if lease, ok := ctx.Value(LeaseKey{}).(*Lease); ok {
		lease.dialing.Add(1)
		defer lease.dialing.Add(-1)
	}
	_, portText, err := net.SplitHostPort(hostport)
	if err != nil {
		return nil, err
	}
	port, err := strconv.Atoi(portText)
	if err != nil {
		return nil, err
	}
	c, err := b.connect(ctx, hostport)
	if errors.Is(err, syscall.ECONNREFUSED) && port != EnvdPort && b.forwarded(ctx, port) {
		c, err = b.connect(ctx, hostport)
	}
	if err != nil {
		return nil, b.explain(err)
	}
	return b.adopt(c)
}

func (b *Backend) connect(ctx context.Context, hostport string) (*net.TCPConn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	defer context.AfterFunc(b.life, cancel)()
	b.metrics.Dials.Add(1)
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, "tcp", hostport)
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

func (b *Backend) explain(err error) error {
	kind := ErrNoAnswer
	switch {
	case b.life.Err() != nil:
		kind = ErrGone
	case errors.Is(err, syscall.ECONNREFUSED):
		kind = ErrPortClosed
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE), errors.Is(err, syscall.EADDRNOTAVAIL), errors.Is(err, syscall.ENOBUFS):
		kind = ErrExhausted
	}
	return &dialError{kind: kind, cause: err}
}

type dialError struct{ kind, cause error }

func (e *dialError) Error() string   { return e.kind.Error() + ": " + e.cause.Error() }
func (e *dialError) Unwrap() []error { return []error{e.kind, e.cause} }

// conn is a connection to the sandbox that its backend can reset.
type conn struct {
	*net.TCPConn
	backend *Backend
	once    sync.Once
	closed  chan struct{}
}

func (b *Backend) adopt(tcp *net.TCPConn) (net.Conn, error) {
	c := &conn{TCPConn: tcp, backend: b, closed: make(chan struct{})}
	b.mu.Lock()
	if b.dead {
		b.mu.Unlock()
		_ = tcp.SetLinger(0)
		_ = tcp.Close()
		return nil, ErrGone
	}
	b.conns[c] = struct{}{}
	b.metrics.UpstreamConns.Add(1)
	b.mu.Unlock()
	return c, nil
}

// answerGrace is how long a failed write is kept back, see Write.
const answerGrace = 50 * time.Millisecond

// Write sends p. When a server answers in the middle of a request and hangs up, the rest of the request cannot be
// written while its answer waits to be read; the transport takes whichever it hears of first, so the bad news waits.
func (c *conn) Write(p []byte) (int, error) {
	n, err := c.TCPConn.Write(p)
	return n, c.keptBack(err)
}

// ReadFrom sends what r gives, like Write.
func (c *conn) ReadFrom(r io.Reader) (int64, error) {
	n, err := c.TCPConn.ReadFrom(r)
	return n, c.keptBack(err)
}

func (c *conn) keptBack(err error) error {
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
		select {
		case <-time.After(answerGrace):
		case <-c.closed:
		}
	}
	return err
}

// Close closes the connection and forgets it.
func (c *conn) Close() error {
	c.once.Do(c.forget)
	return c.TCPConn.Close()
}

func (c *conn) forget() {
	close(c.closed)
	c.backend.metrics.UpstreamConns.Add(-1)
	c.backend.mu.Lock()
	defer c.backend.mu.Unlock()
	delete(c.backend.conns, c)
}

func (c *conn) reset() {
	_ = c.TCPConn.SetLinger(0)
	_ = c.Close()
}

// forwardCall is one question to envd that several dials wait for.
type forwardCall struct {
	done chan struct{}
	ok   bool
}

// forwarded asks envd to make a port that is bound to loopback only reachable, and reports whether it is now.
// Concurrent questions for one port are one question.
func (b *Backend) forwarded(ctx context.Context, port int) bool {
	b.mu.Lock()
	call := b.forwards[port]
	if call == nil {
		call = &forwardCall{done: make(chan struct{})}
		b.forwards[port] = call
		go b.askForward(call, port)
	}
	b.mu.Unlock()
	select {
	case <-call.done:
		return call.ok
	case <-ctx.Done():
		return false
	}
}

func (b *Backend) askForward(call *forwardCall, port int) {
	defer func() {
		b.mu.Lock()
		delete(b.forwards, port)
		b.mu.Unlock()
		close(call.done)
	}()
	b.metrics.Forwards.Add(1)
	ctx, cancel := context.WithTimeout(b.life, forwardTimeout)
	defer cancel()
	body := `{"port": ` + strconv.Itoa(port) + `}`
	req := (&http.Request{
		Method: http.MethodPost,
		URL:    &url.URL{Scheme: "http", Host: b.HostPort(EnvdPort), Path: "/internal/forward"},
		// The empty key is not sent; it tells the transport that the call may be repeated on a stale connection.
		Header:        http.Header{"Content-Type": {"application/json"}, "Idempotency-Key": nil},
		Body:          io.NopCloser(strings.NewReader(body)),
		GetBody:       func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(body)), nil },
		ContentLength: int64(len(body)),
	}).WithContext(ctx)
	res, err := b.envd.RoundTrip(req)
	if err != nil {
		return
	}
	// A hostile envd may send a body for ever: a little of it is read for the connection's sake, the rest is cut.
	_, _ = io.CopyN(io.Discard, res.Body, 4<<10)
	_ = res.Body.Close()
	call.ok = res.StatusCode == http.StatusNoContent
}
