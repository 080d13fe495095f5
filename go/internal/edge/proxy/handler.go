// Package proxy serves the public port: it sends each request to a sandbox or to the control plane, and answers for
// those that are not there.
package proxy

import (
	"log"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"time"

	"forkyard.dev/forkyard/internal/edge/controlplane"
	"forkyard.dev/forkyard/internal/edge/listen"
	"forkyard.dev/forkyard/internal/edge/metrics"
	"forkyard.dev/forkyard/internal/edge/ratelimit"
	"forkyard.dev/forkyard/internal/edge/routing"
	"forkyard.dev/forkyard/internal/edge/table"
	"forkyard.dev/forkyard/internal/edge/wake"
)

const (
	// MaxHeaderBytes is what a request's headers may take. The server's own limit must be above it, so that the
	// answer to a little too much is ours.
	MaxHeaderBytes = 128 << 10

	signaturesPerSecond = 20  // tries of a client address
	unknownPerSecond    = 100 // unknown sandboxes that a client address makes us ask for

	// flushAfter bounds how long a part of a body of known length is held back. Bodies of unknown length, and with
	// them every stream, are flushed at once.
	flushAfter = 2 * time.Millisecond
)

// Config is what a Handler works with.
type Config struct {
	Router       *routing.Router
	Table        *table.Table
	Waker        *wake.Waker
	ControlPlane *controlplane.Client
	Metrics      *metrics.Set
	Log          *slog.Logger
	Now          func() time.Time
}

// Handler is the http.Handler of the public port. Its server must use listen.WithConn as ConnContext.
type Handler struct {
	Config
	sandboxes  *httputil.ReverseProxy
	api        *httputil.ReverseProxy
	signatures *ratelimit.Limiter
	unknown    *ratelimit.Limiter
}

// New makes a handler.
func New(cfg Config) *Handler {
	h := &Handler{
		Config:     cfg,
		signatures: ratelimit.New(signaturesPerSecond, cfg.Now),
		unknown:    ratelimit.New(unknownPerSecond, cfg.Now),
	}
	quiet := log.New(discard{}, "", 0)
	h.sandboxes = &httputil.ReverseProxy{
		Rewrite:        rewriteForSandbox,
		Transport:      sandboxTransport{},
		ModifyResponse: checkSandboxAnswer,
		ErrorHandler:   h.sandboxFailed,
		FlushInterval:  flushAfter,
		BufferPool:     &smallBuffers,
		ErrorLog:       quiet,
	}
	h.api = &httputil.ReverseProxy{
		Rewrite:       rewriteForAPI,
		Transport:     cfg.ControlPlane,
		ErrorHandler:  h.apiFailed,
		FlushInterval: flushAfter,
		BufferPool:    &smallBuffers,
		ErrorLog:      quiet,
	}
	return h
}

// ServeHTTP serves one request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := &exchange{writer: w, request: r, begun: h.Now(), now: h.Now}
	finished := false
	defer func() {
		if !finished && x.outcome == metrics.OK {
			x.outcome = metrics.Cut
		}
		h.Metrics.Done(x.kind, x.outcome, h.Now().Sub(x.begun))
	}()
	if r.ProtoMajor == 1 {
		x.client = listen.FromContext(r.Context())
	}
	if r.ContentLength != 0 && r.Body != nil {
		x.body = &requestBody{ReadCloser: r.Body}
		if r.ProtoMajor == 1 {
			// Without this the server reads the rest of the body before it sends the answer's headers.
			_ = http.NewResponseController(w).EnableFullDuplex()
		}
	}
	h.route(x)
	x.drain()
	finished = true
}

func (h *Handler) route(x *exchange) {
	r := x.request
	switch {
	case headerBytes(r) > MaxHeaderBytes:
		x.answer(http.StatusRequestHeaderFieldsTooLarge, metrics.BadRequest, "The request's headers are too large")
		return
	case r.URL.Path == "" || r.URL.Path[0] != '/' || r.URL.Opaque != "" || r.Method == http.MethodConnect:
		x.answer(http.StatusBadRequest, metrics.BadRequest, "The request target is not a path")
		return
	}
	decision := h.Router.Decide(r.Host, r.Header, r.URL.Path, r.URL.RawQuery)
	switch decision.Kind {
	case routing.Refused:
		x.answer(http.StatusBadRequest, metrics.BadRequest, decision.Reason)
	case routing.Sandbox:
		x.target = decision.Target
		h.serveSandbox(x)
	case routing.SignedFile:
		h.serveSigned(x)
	default:
		h.serveAPI(x)
	}
}

// headerBytes is about what the request's line and headers take on the wire.
func headerBytes(r *http.Request) int {
	total := len(r.RequestURI) + len(r.Host)
	for name, values := range r.Header {
		for _, value := range values {
			total += len(name) + len(value) + 4
		}
	}
	return total
}

// discard drops what the reverse proxies log about broken connections: it is counted instead.
type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
