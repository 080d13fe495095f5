// Package server puts envd's services together behind one HTTP server.
package server

import (
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"time"

	"forkyard.dev/forkyard/internal/envd/access"
	"forkyard.dev/forkyard/internal/envd/calls"
	"forkyard.dev/forkyard/internal/envd/files"
	"forkyard.dev/forkyard/internal/envd/filesystem"
	"forkyard.dev/forkyard/internal/envd/forward"
	"forkyard.dev/forkyard/internal/envd/guest"
	"forkyard.dev/forkyard/internal/envd/memory"
	"forkyard.dev/forkyard/internal/envd/metrics"
	"forkyard.dev/forkyard/internal/envd/process"
	"forkyard.dev/forkyard/internal/envd/settings"
	"forkyard.dev/forkyard/internal/envd/watch"
)

const (
	// idleTimeout lets clients keep their connections through long pauses between calls.
	idleTimeout    = 640 * time.Second
	headerTimeout  = 60 * time.Second
	maxHeaderBytes = 128 << 10
)

// Config is what envd is started with.
type Config struct {
	Version string
	// StateDir is a directory of envd's own, for root only.
	StateDir string
	// Root is where the system's files are; "/" but in tests.
	Root string
	// AllowInternalFrom are peers that may use the internal routes beside the default gateway.
	AllowInternalFrom []netip.Addr
	// OwnAddresses replaces the addresses that loopback ports are forwarded to; nil: those of the machine.
	OwnAddresses []netip.Addr
	// Killer is alerted by the host; nil where the kernel kills by itself.
	Killer *memory.Killer
}

// Server is the whole of envd's HTTP side.
type Server struct {
	config    Config
	settings  *settings.Store
	manager   *process.Manager
	watchers  *watch.Registry
	calls     *calls.Registry
	forwarder *forward.Forwarder
	sampler   *metrics.Sampler
	system    guest.System
	internal  access.Internal
	http      *http.Server
	init      initState
}

// New builds the server. The reaper must be the only one of the program.
func New(config Config, reaper *process.Reaper) *Server {
	s := &Server{
		config: config, settings: settings.NewStore(), manager: process.NewManager(reaper), watchers: watch.NewRegistry(),
		sampler: &metrics.Sampler{}, system: guest.System{Root: config.Root},
		internal: access.Internal{Extra: config.AllowInternalFrom}, forwarder: &forward.Forwarder{Own: forward.OwnAddresses},
	}
	if config.OwnAddresses != nil {
		s.forwarder.Own = func() []netip.Addr { return config.OwnAddresses }
	}
	s.calls = &calls.Registry{Manager: s.manager, Settings: s.settings, Dir: filepath.Join(config.StateDir, "calls")}
	s.http = &http.Server{
		Handler: s.handler(), IdleTimeout: idleTimeout, ReadHeaderTimeout: headerTimeout, MaxHeaderBytes: maxHeaderBytes,
		ErrorLog: slog.NewLogLogger(slog.Default().Handler(), slog.LevelWarn),
	}
	return s
}

// Serve answers requests until the listener is closed.
func (s *Server) Serve(listener net.Listener) error { return s.http.Serve(listener) }

func (s *Server) handler() http.Handler {
	open := http.NewServeMux()
	open.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(http.StatusNoContent)
	})
	s.registerInternal(open)
	fileRoutes := &files.Handler{Settings: s.settings, Watchers: s.watchers, SpoolDir: filepath.Join(s.config.StateDir, "spool")}
	fileRoutes.Register(open) // with checks of their own, for signed URLs

	guarded := http.NewServeMux()
	(&process.Service{Manager: s.manager, Settings: s.settings}).Register(guarded)
	(&filesystem.Service{Settings: s.settings, Watchers: s.watchers}).Register(guarded)
	guarded.HandleFunc("GET /envs", s.envs)
	guarded.HandleFunc("GET /metrics", s.metrics)
	guarded.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { notFound(w) })

	open.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if !access.HasToken(r, s.settings.Get()) {
			files.WriteError(w, http.StatusUnauthorized, access.UnauthorizedMessage)
			return
		}
		guarded.ServeHTTP(w, r)
	})
	return withCORS(open)
}

func notFound(w http.ResponseWriter) { files.WriteError(w, http.StatusNotFound, "not found") }

// withCORS lets pages of any origin call, as the SDK in a browser does.
func withCORS(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Origin") == "" {
			next.ServeHTTP(w, r)
			return
		}
		header := w.Header()
		header.Set("Access-Control-Allow-Origin", "*")
		header.Set("Access-Control-Expose-Headers", "*")
		if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
			next.ServeHTTP(w, r)
			return
		}
		header.Set("Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS")
		if asked := r.Header.Get("Access-Control-Request-Headers"); asked != "" {
			header.Set("Access-Control-Allow-Headers", asked)
		}
		header.Set("Access-Control-Max-Age", "7200")
		w.WriteHeader(http.StatusNoContent)
	})
}

func (s *Server) envs(w http.ResponseWriter, _ *http.Request) {
	vars := s.settings.Get().EnvVars
	if vars == nil {
		vars = map[string]string{}
	}
	writeJSON(w, http.StatusOK, vars)
}

func (s *Server) metrics(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, s.sampler.Sample())
}
