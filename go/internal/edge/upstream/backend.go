// Package upstream owns the connections to one generation of one sandbox: the requests that use it, the connections
// kept alive to it, and the end of both.
package upstream

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"forkyard.dev/forkyard/internal/edge/metrics"
)

// EnvdPort is the port of envd in every sandbox.
const EnvdPort = 49983

const (
	// DefaultMaxStreams bounds the requests in flight to one sandbox, so that one cannot use up the edge.
	DefaultMaxStreams = 2000

	dialTimeout    = 5 * time.Second
	forwardTimeout = 3 * time.Second
	// revokeGrace is how long a request that was still dialing may take to leave a dead backend by itself.
	revokeGrace = 100 * time.Millisecond
	// drainLimit bounds how long Kill waits for revoked requests to be gone.
	drainLimit = 500 * time.Millisecond

	// Applications close idle connections after 2 s (gunicorn), 5 s (Node, uvicorn) or later. Letting go before they
	// do keeps a request that must not be sent twice off a connection that is about to be closed.
	appIdleTimeout  = 1500 * time.Millisecond
	envdIdleTimeout = 60 * time.Second
	maxIdlePerPort  = 128

	// maxHeaderBytes bounds the header block of a sandbox's answer.
	maxHeaderBytes = 256 << 10
)

var (
	// ErrGone means that this generation has ended: nothing of the request was sent, look for a newer one.
	ErrGone = errors.New("the sandbox's generation has ended")
	// ErrFull means that too many requests to this sandbox are in flight.
	ErrFull = errors.New("too many requests to this sandbox are in flight")
)

// Backend is one generation of a sandbox at one address. It is safe for concurrent use.
type Backend struct {
	address    string
	maxStreams int
	metrics    *metrics.Set
	life       context.Context // ends when the backend is killed
	end        context.CancelFunc
	envd, apps *http.Transport

	mu       sync.Mutex
	dead     bool
	leases   Lease // ring of the requests in flight, this one is the root
	inFlight int
	drained  chan struct{} // closed when dead and nothing is in flight
	conns    map[*conn]struct{}
	forwards map[int]*forwardCall
}

// New makes a backend for a sandbox at address, an IP literal. maxStreams of 0 means DefaultMaxStreams.
func New(address string, maxStreams int, set *metrics.Set) *Backend {
	if maxStreams == 0 {
		maxStreams = DefaultMaxStreams
	}
	life, end := context.WithCancel(context.Background())
	b := &Backend{
		address: address, maxStreams: maxStreams, metrics: set, life: life, end: end,
		drained:  make(chan struct{}),
		conns:    make(map[*conn]struct{}),
		forwards: make(map[int]*forwardCall),
	}
	b.leases.next, b.leases.prev = &b.leases, &b.leases
	b.envd = b.transport(envdIdleTimeout)
	b.apps = b.transport(appIdleTimeout)
	return b
}

func (b *Backend) transport(idle time.Duration) *http.Transport {
	return &http.Transport{
		DialContext:            b.dial,
		DisableCompression:     true,
		MaxIdleConnsPerHost:    maxIdlePerPort,
		IdleConnTimeout:        idle,
		ExpectContinueTimeout:  time.Second,
		MaxResponseHeaderBytes: maxHeaderBytes,
	}
}

// Address returns the sandbox's address.
func (b *Backend) Address() string { return b.address }

// HostPort returns the address and port as the transport wants them in a URL.
func (b *Backend) HostPort(port int) string {
	return net.JoinHostPort(b.address, strconv.Itoa(port))
}

// RoundTrip sends req, whose URL host is HostPort(port), over this backend's own connections.
func (b *Backend) RoundTrip(req *http.Request, port int) (*http.Response, error) {
	if port == EnvdPort {
		return b.envd.RoundTrip(req)
	}
	return b.apps.RoundTrip(req)
}

// CloseIdle closes the connections that carry nothing at the moment.
func (b *Backend) CloseIdle() {
	b.envd.CloseIdleConnections()
	b.apps.CloseIdleConnections()
}

// Dead reports whether the backend was killed.
func (b *Backend) Dead() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.dead
}

// Kill ends the backend: requests in flight are revoked (their clients reset), connections to the sandbox are reset,
// nothing new is taken. It returns when no request uses the backend any more, at most half a second later. Requests
// that had not got a connection yet are not reset: they get ErrGone; and those that may be sent once more see their
// connection break.
func (b *Backend) Kill() {
	b.mu.Lock()
	if b.dead {
		b.mu.Unlock()
		b.awaitDrained(drainLimit)
		return
	}
	b.dead = true
	b.end()
	if b.inFlight == 0 {
		close(b.drained)
	}
	b.revoke(func(l *Lease) bool { return l.dialing.Load() == 0 && !l.owner.MayRepeat() })
	conns := b.conns
	b.conns = nil
	b.mu.Unlock()

	for c := range conns {
		c.reset()
	}
	b.CloseIdle()

	if b.awaitDrained(revokeGrace) {
		return
	}
	b.mu.Lock()
	b.revoke(func(*Lease) bool { return true })
	b.mu.Unlock()
	b.awaitDrained(drainLimit)
}

// revoke resets the clients of the chosen requests; b.mu is held, so that none of them can end meanwhile.
func (b *Backend) revoke(chosen func(*Lease) bool) {
	for l := b.leases.next; l != &b.leases; l = l.next {
		if chosen(l) && l.revoked.CompareAndSwap(false, true) {
			b.metrics.Resets.Add(1)
			l.owner.Reset()
		}
	}
}

func (b *Backend) awaitDrained(limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-b.drained:
		return true
	case <-timer.C:
		return false
	}
}

// Owner is a request whose client can be cut off at once.
type Owner interface {
	// Reset cuts the client off: RST of its TCP connection, or RST_STREAM. It must not block.
	Reset()
	// MayRepeat reports whether the request can be sent once more, so that its client need not be cut off. It must not
	// block.
	MayRepeat() bool
}

// Lease is one request's use of a backend. The zero value is ready for Join.
type Lease struct {
	prev, next *Lease
	backend    *Backend
	owner      Owner
	dialing    atomic.Int32 // a connection is being made for it
	revoked    atomic.Bool
}

// LeaseKey is the context key under which a request's context holds its *Lease.
type LeaseKey struct{}

// Join puts the lease on the backend. It fails with ErrGone or ErrFull.
func (b *Backend) Join(l *Lease, owner Owner) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.dead {
		return ErrGone
	}
	if b.inFlight >= b.maxStreams {
		return ErrFull
	}
	l.backend, l.owner = b, owner
	l.prev, l.next = b.leases.prev, &b.leases
	l.prev.next, l.next.prev = l, l
	b.inFlight++
	b.metrics.OpenStreams.Add(1)
	return nil
}

// Leave takes the lease off its backend. Its owner is not called after that.
func (l *Lease) Leave() {
	b := l.backend
	b.mu.Lock()
	defer b.mu.Unlock()
	l.prev.next, l.next.prev = l.next, l.prev
	b.inFlight--
	b.metrics.OpenStreams.Add(-1)
	if b.dead && b.inFlight == 0 {
		close(b.drained)
	}
}

// Revoked reports whether the client was reset because the backend ended.
func (l *Lease) Revoked() bool { return l.revoked.Load() }
