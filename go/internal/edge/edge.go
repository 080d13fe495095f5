// Package edge puts the parts of the data-plane proxy together and gives them a life: start, serve, shut down.
package edge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"
	"time"

	"forkyard.dev/forkyard/internal/edge/certs"
	"forkyard.dev/forkyard/internal/edge/control"
	"forkyard.dev/forkyard/internal/edge/controlplane"
	"forkyard.dev/forkyard/internal/edge/listen"
	"forkyard.dev/forkyard/internal/edge/metrics"
	"forkyard.dev/forkyard/internal/edge/proxy"
	"forkyard.dev/forkyard/internal/edge/routing"
	"forkyard.dev/forkyard/internal/edge/table"
	"forkyard.dev/forkyard/internal/edge/wake"
)

const (
	// defaultHeaderTimeout bounds how long a client may take to send a request's headers, the TLS handshake included.
	defaultHeaderTimeout = 20 * time.Second
	// idleTimeout is above the 300 s for which E2B clients keep idle connections.
	idleTimeout = 310 * time.Second
	// shutdownGrace is what open streams get before they are ended.
	shutdownGrace = 2 * time.Second

	http2Streams       = 1000
	http2StreamBuffer  = 512 << 10
	http2ConnBuffer    = 4<<20 - 1 // the most the library takes; one stuck upload must not stop the others
	serverHeaderBytes  = 2 * proxy.MaxHeaderBytes
	controlHeaderBytes = 16 << 10
)

// ErrTaken means that another process owns a port or the control socket.
var ErrTaken = errors.New("already in use")

// Config says where an edge listens and whom it serves.
type Config struct {
	Listen string // address of the public port
	// TLSListen is the address of a second port for TLS; the first one is then plain. Empty: with certificates the
	// first one is for TLS.
	TLSListen string
	Control   string // path of the socket that the control plane calls
	API       string // path of the control plane's socket
	Domains   []string
	Certs     []certs.Pair // none: plain HTTP
	Version   string

	MaxConnections int           // client connections; 0: by file descriptors
	MaxStreams     int           // requests in flight to one sandbox; 0: the default
	Patience       time.Duration // how long a request waits for the control plane; 0: the default
	HeaderTimeout  time.Duration // how long a client may take to send its headers; 0: the default

	Now func() time.Time // the clock of requests; nil: the real one
}

// Edge is one running proxy.
type Edge struct {
	log     *slog.Logger
	table   *table.Table
	certs   *certs.Store
	ports   []publicPort // the one of Config.Listen, then the one of Config.TLSListen
	control *http.Server
	socket  *controlSocket

	stop     chan struct{}
	stopOnce sync.Once
}

// publicPort is a listener and its server. Plain and TLS ports have servers of their own, because the library sets
// HTTP/2 up once for each server, and differently.
type publicPort struct {
	listener net.Listener
	secure   bool
	server   *http.Server
}

// Start takes the ports and the control socket and serves them. dropped tells how many log lines were lost.
// An error wraps ErrTaken when another process has a port or the socket.
func Start(cfg Config, logger *slog.Logger, dropped func() int64) (*Edge, error) {
	e := &Edge{log: logger, stop: make(chan struct{})}
	router, err := routing.New(cfg.Domains)
	if err != nil {
		return nil, err
	}
	if len(cfg.Certs) > 0 {
		if e.certs, err = certs.Load(cfg.Certs, logger, time.Now); err != nil {
			return nil, fmt.Errorf("certificate: %w", err)
		}
	}
	set := &metrics.Set{}
	if err := e.listen(cfg, set); err != nil {
		return nil, err
	}
	e.table = table.New(set, cfg.MaxStreams)
	now := cfg.Now
	if now == nil {
		now = time.Now
	}
	client := controlplane.New(cfg.API, cfg.Patience)
	e.serve(cfg, proxy.New(proxy.Config{
		Router: router, Table: e.table, ControlPlane: client, Metrics: set, Log: logger, Now: now,
		Waker: wake.New(e.table, client, set, logger, time.Now),
	}), control.New(control.Config{
		Table: e.table, Metrics: set, Log: logger, Version: cfg.Version, Listen: e.Addr(), TLSListen: e.TLSAddr(),
		StartedAt: time.Now(), DroppedLogs: dropped, Shutdown: e.Shutdown,
	}))
	logger.Info("edge started", "version", cfg.Version, "pid", os.Getpid(), "listen", e.Addr(), "tls", e.certs != nil,
		"tls_listen", e.TLSAddr(), "domains", cfg.Domains)
	return e, nil
}

// listen takes the control socket and the ports, or none of them.
func (e *Edge) listen(cfg Config, set *metrics.Set) (err error) {
	// The socket first: its lock says whether an edge of this instance lives, whatever port it has.
	if e.socket, err = listenControl(cfg.Control); err != nil {
		return err
	}
	addresses := []string{cfg.Listen}
	if cfg.TLSListen != "" {
		addresses = append(addresses, cfg.TLSListen)
	}
	for i, address := range addresses {
		tcp, err := listenPublic(address)
		if err != nil {
			for _, p := range e.ports {
				_ = p.listener.Close()
			}
			_ = e.socket.Close()
			return err
		}
		secure := e.certs != nil && i == len(addresses)-1
		e.ports = append(e.ports, publicPort{listener: listen.On(tcp, cfg.MaxConnections, set), secure: secure})
	}
	return nil
}

func (e *Edge) serve(cfg Config, public, controlCalls http.Handler) {
	e.control = &http.Server{
		Handler:           controlCalls,
		ReadHeaderTimeout: defaultHeaderTimeout,
		MaxHeaderBytes:    controlHeaderBytes,
		ErrorLog:          log.New(io.Discard, "", 0),
	}
	go e.until("control socket", func() error { return e.control.Serve(e.socket) })
	for i := range e.ports {
		p := &e.ports[i]
		p.server = publicServer(public, e.log, cfg.HeaderTimeout)
		serve := func() error { return p.server.Serve(p.listener) }
		if p.secure {
			p.server.TLSConfig = e.certs.Config()
			serve = func() error { return p.server.ServeTLS(p.listener, "", "") }
		}
		go e.until("public port", serve)
	}
}

func publicServer(handler http.Handler, logger *slog.Logger, headerTimeout time.Duration) *http.Server {
	if headerTimeout == 0 {
		headerTimeout = defaultHeaderTimeout
	}
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    serverHeaderBytes,
		ConnContext:       listen.WithConn,
		ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelWarn),
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          http2Streams,
			MaxReceiveBufferPerStream:     http2StreamBuffer,
			MaxReceiveBufferPerConnection: http2ConnBuffer,
			SendPingTimeout:               time.Minute,
			WriteByteTimeout:              time.Minute,
		},
	}
}

// until runs a server; when it ends by itself the whole edge ends, so that its supervisor starts another.
func (e *Edge) until(what string, serve func() error) {
	if err := serve(); !errors.Is(err, http.ErrServerClosed) {
		e.log.Error(what+" failed", "error", err.Error())
	}
	e.Shutdown()
}

// Addr is the address of the public port.
func (e *Edge) Addr() string { return e.ports[0].listener.Addr().String() }

// TLSAddr is the address of the port of its own for TLS, "" if there is none.
func (e *Edge) TLSAddr() string {
	if len(e.ports) < 2 {
		return ""
	}
	return e.ports[1].listener.Addr().String()
}

// Reload reads the certificates again.
func (e *Edge) Reload() {
	if e.certs == nil {
		return
	}
	if err := e.certs.Reload(); err != nil {
		e.log.Error("certificates cannot be used; the old ones stay", "error", err.Error())
		return
	}
	e.log.Info("certificates reloaded")
}

// Shutdown begins the end; Wait returns when it is done.
func (e *Edge) Shutdown() { e.stopOnce.Do(func() { close(e.stop) }) }

// Wait serves until Shutdown is called, then lets requests end for two seconds, ends the rest and returns. The ports and
// the control socket are given up at once, so that the next edge can start meanwhile.
func (e *Edge) Wait() {
	<-e.stop
	ctx, cancel := context.WithTimeout(context.Background(), shutdownGrace)
	defer cancel()
	servers := []*http.Server{e.control}
	for _, p := range e.ports {
		servers = append(servers, p.server)
	}
	var all sync.WaitGroup
	for _, server := range servers {
		all.Go(func() { _ = server.Shutdown(ctx) })
	}
	all.Wait()
	e.table.Close()
	for _, server := range servers {
		_ = server.Close()
	}
	e.log.Info("edge stopped")
}

func listenPublic(address string) (*net.TCPListener, error) {
	l, err := net.Listen("tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("address %s is %w by another process", address, ErrTaken)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", address, err)
	}
	return l.(*net.TCPListener), nil
}
