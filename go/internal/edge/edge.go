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

// ErrTaken means that another process owns the port or the control socket.
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
}

// Edge is one running proxy.
type Edge struct {
	cfg     Config
	log     *slog.Logger
	table   *table.Table
	certs   *certs.Store
	public  *http.Server
	control *http.Server
	port    net.Listener
	tlsPort net.Listener // nil: none of its own
	socket  *controlSocket
	addr    string

	stop     chan struct{}
	stopOnce sync.Once
}

// Start takes the port and the control socket and serves both. dropped tells how many log lines were lost.
// An error wraps ErrTaken when another process has the port or the socket.
func Start(cfg Config, logger *slog.Logger, dropped func() int64) (*Edge, error) {
	e := &Edge{cfg: cfg, log: logger, stop: make(chan struct{})}
	router, err := routing.New(cfg.Domains)
	if err != nil {
		return nil, err
	}
	if len(cfg.Certs) > 0 {
		if e.certs, err = certs.Load(cfg.Certs, logger, time.Now); err != nil {
			return nil, fmt.Errorf("certificate: %w", err)
		}
	}
	// The socket first: its lock says whether an edge of this instance lives, whatever port it has.
	if e.socket, err = listenControl(cfg.Control); err != nil {
		return nil, err
	}
	tcp, err := listenPublic(cfg.Listen)
	if err != nil {
		e.socket.Close()
		return nil, err
	}
	e.addr = tcp.Addr().String()
	set := &metrics.Set{}
	if cfg.TLSListen != "" {
		secure, err := listenPublic(cfg.TLSListen)
		if err != nil {
			_ = tcp.Close()
			e.socket.Close()
			return nil, err
		}
		e.tlsPort = listen.On(secure, cfg.MaxConnections, set)
	}

	e.table = table.New(set, cfg.MaxStreams)
	client := controlplane.New(cfg.API, cfg.Patience)
	handler := proxy.New(proxy.Config{
		Router: router, Table: e.table, ControlPlane: client, Metrics: set, Log: logger, Now: time.Now,
		Waker: wake.New(e.table, client, set, logger, time.Now),
	})
	e.port = listen.On(tcp, cfg.MaxConnections, set)
	e.public = publicServer(handler, logger, cfg.HeaderTimeout)
	e.control = &http.Server{
		Handler: control.New(control.Config{
			Table: e.table, Metrics: set, Log: logger, Version: cfg.Version, Listen: e.addr,
			StartedAt: time.Now(), DroppedLogs: dropped, Shutdown: e.Shutdown,
		}),
		ReadHeaderTimeout: defaultHeaderTimeout,
		MaxHeaderBytes:    controlHeaderBytes,
		ErrorLog:          log.New(io.Discard, "", 0),
	}
	e.serve()
	logger.Info("edge started", "version", cfg.Version, "pid", os.Getpid(), "listen", e.addr, "tls", e.certs != nil, "domains", cfg.Domains)
	return e, nil
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
		},
	}
}

func (e *Edge) serve() {
	go e.until("control socket", func() error { return e.control.Serve(e.socket) })
	if e.certs != nil {
		e.public.TLSConfig = e.certs.Config()
	}
	secure := e.tlsPort
	if e.certs == nil || secure != nil {
		go e.until("public port", func() error { return e.public.Serve(e.port) })
	} else {
		secure = e.port
	}
	if secure != nil {
		go e.until("TLS port", func() error { return e.public.ServeTLS(secure, "", "") })
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
func (e *Edge) Addr() string { return e.addr }

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

// Wait serves until Shutdown is called, then lets requests end for two seconds, ends the rest and returns.
func (e *Edge) Wait() {
	<-e.stop
	ctx, cancel := context.WithTimeout(context.Background(), shutdownGrace)
	defer cancel()
	if err := e.public.Shutdown(ctx); err != nil {
		e.log.Info("ending open streams")
	}
	e.table.Close()
	_ = e.public.Close()
	_ = e.control.Shutdown(ctx)
	_ = e.control.Close()
	e.socket.Close()
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
