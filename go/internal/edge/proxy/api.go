package proxy

import (
	"context"
	"errors"
	"net/http"

	"forkyard.dev/forkyard/internal/edge/controlplane"
	"forkyard.dev/forkyard/internal/edge/metrics"
	"forkyard.dev/forkyard/internal/edge/routing"
)

// maxAPITarget is what the target of an API request may take. The control plane's parser counts in 16 bits, and says no
// to more without a reason.
const maxAPITarget = 32 << 10

func (h *Handler) serveAPI(x *exchange) {
	x.kind = metrics.API
	switch {
	case !knownMethod(x.request.Method):
		x.answer(http.StatusNotImplemented, metrics.BadRequest, "There is no such method")
		return
	case len(x.request.RequestURI) > maxAPITarget:
		x.answer(http.StatusRequestURITooLong, metrics.BadRequest, "The request's path and query are too long")
		return
	case routing.ControlPlaneInternal.Covers(x.request.URL.Path):
		x.answer(http.StatusNotFound, metrics.Blocked, "Not found")
		return
	}
	h.api.ServeHTTP(x, x.outgoing(x.request.Context()))
}

// knownMethod reports whether HTTP itself defines the method; the control plane's parser refuses what it does not know.
func knownMethod(method string) bool {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
		http.MethodOptions, http.MethodTrace:
		return true
	}
	return false
}

// outgoing is the request as the reverse proxies get it.
func (x *exchange) outgoing(ctx context.Context) *http.Request {
	r := x.request
	if ctx != r.Context() || x.body != nil {
		r = r.WithContext(ctx)
	}
	if x.body != nil {
		r.Body = x.body
	}
	return r
}

// apiFailed answers for a control plane that is away or went away.
func (h *Handler) apiFailed(w http.ResponseWriter, _ *http.Request, err error) {
	x := w.(*exchange)
	switch {
	case x.hijacked:
		panic(http.ErrAbortHandler)
	case x.clientFailed(err):
		x.abandon()
	case errors.Is(err, controlplane.ErrAway):
		x.answerAway()
	default:
		h.Log.Warn("control plane request failed", "method", x.request.Method, "path", x.request.URL.Path, "error", err.Error())
		if !repeatable(x.request) {
			x.Header().Set("Should-Retry", "false")
		}
		x.answerLater(http.StatusServiceUnavailable, metrics.Away, "The control plane went away during this request, which it may have carried out")
	}
}

// repeatable reports whether a client may send the request again without knowing what became of it.
func repeatable(r *http.Request) bool {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodPut, http.MethodDelete:
		return true
	}
	return r.Header.Get("Idempotency-Key") != ""
}

// clientFailed reports whether a round trip failed because of the client: it left, or its body is broken.
func (x *exchange) clientFailed(err error) bool {
	return x.request.Context().Err() != nil || errors.Is(err, context.Canceled) || x.body != nil && x.body.broken.Load()
}

// abandon ends the exchange with a client that failed.
func (x *exchange) abandon() {
	if x.request.Context().Err() == nil && x.body != nil && x.body.broken.Load() {
		x.answer(http.StatusBadRequest, metrics.BadRequest, "The request's body ended early or is malformed")
		return
	}
	x.outcome = metrics.ClientGone
	panic(http.ErrAbortHandler)
}
