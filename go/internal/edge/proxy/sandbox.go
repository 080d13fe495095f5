package proxy

import (
	"context"
	"crypto/subtle"
	"errors"
	"net/http"
	"time"

	"forkyard.dev/forkyard/internal/edge/metrics"
	"forkyard.dev/forkyard/internal/edge/routing"
	"forkyard.dev/forkyard/internal/edge/signing"
	"forkyard.dev/forkyard/internal/edge/table"
	"forkyard.dev/forkyard/internal/edge/upstream"
	"forkyard.dev/forkyard/internal/edge/wake"
)

func (x *exchange) isEnvd() bool { return x.target.Port == upstream.EnvdPort }

// serveSigned finds the sandbox whose token makes a signed file URL right, and serves it.
func (h *Handler) serveSigned(x *exchange) {
	x.kind = metrics.Envd
	if isPreflight(x.request) {
		x.answerPreflight()
		return
	}
	if !h.signatures.Allow(x.request.RemoteAddr) {
		x.answerLater(http.StatusTooManyRequests, metrics.Limited, "Too many signed requests from this address")
		return
	}
	claim, ok := signing.Parse(x.request.Method, x.request.URL.RawQuery)
	if ok {
		for _, entry := range h.Table.Entries() {
			if claim.SignedBy(entry.EnvdToken) {
				x.target = routing.Target{ID: entry.ID, Port: upstream.EnvdPort}
				x.signed = true
				h.serveSandbox(x)
				return
			}
		}
	}
	x.answer(http.StatusUnauthorized, metrics.Denied, "invalid signature")
}

// serveSandbox serves x.target, waking its sandbox if it must and may.
func (h *Handler) serveSandbox(x *exchange) {
	x.kind = metrics.App
	if x.isEnvd() {
		x.kind = metrics.Envd
		if routing.EnvdInternal.Covers(x.request.URL.Path) {
			x.answer(http.StatusNotFound, metrics.Blocked, "Not found")
			return
		}
		if isPreflight(x.request) {
			x.answerPreflight()
			return
		}
	}
	var wait waiting
	defer wait.end()
	for {
		entry := h.Table.Get(x.target.ID)
		reason := wake.Unknown
		switch {
		case entry == nil:
			if !routing.WellFormedID(x.target.ID) {
				x.answerNotFound(x.target.ID)
				return
			}
		case isPreflight(x.request) && !entry.Public:
			// Without a token it must neither wake nor reach the sandbox. Of a public port the program decides.
			x.answerPreflight()
			return
		case entry.State == table.Running:
			if !h.admitTraffic(x, entry) || !h.forward(x, entry) {
				return
			}
			continue // that generation has just ended
		case entry.State == table.Paused && !entry.AutoResume:
			x.answerNotFound(x.target.ID)
			return
		default:
			if !h.admitTraffic(x, entry) || !h.admitEnvd(x, entry) {
				return
			}
			reason = wake.Request
			if entry.State == table.Held {
				reason = wake.Held
			}
		}
		if !h.wait(x, &wait, reason) {
			return
		}
	}
}

// waiting is the time that a request may spend on waking its sandbox, begun when it is first needed.
type waiting struct {
	ctx    context.Context
	cancel context.CancelFunc
	turns  int
}

func (w *waiting) end() {
	if w.cancel != nil {
		w.cancel()
	}
}

// wait waits for the sandbox and reports whether to look at the table again; if not, x is answered.
func (h *Handler) wait(x *exchange, w *waiting, reason wake.Reason) bool {
	if w.ctx == nil {
		w.ctx, w.cancel = context.WithTimeout(x.request.Context(), wake.MaxWait)
	}
	w.turns++
	if w.turns > 2 { // the control plane and the table disagree: do not spin
		pause := time.NewTimer(min(time.Duration(w.turns)*5*time.Millisecond, 200*time.Millisecond))
		defer pause.Stop()
		select {
		case <-pause.C:
		case <-w.ctx.Done():
		}
	}
	outcome, said := h.Waker.Wait(w.ctx, x.target.ID, reason, func() bool { return h.unknown.Allow(x.request.RemoteAddr) })
	switch outcome {
	case wake.LookAgain:
		if w.ctx.Err() == nil {
			return true
		}
		h.waitedInVain(x)
	case wake.NotFound:
		x.answerNotFound(x.target.ID)
	case wake.Refused:
		x.passOn(said)
	case wake.Away:
		x.answerAway()
	case wake.Limited:
		x.answerLater(http.StatusTooManyRequests, metrics.Limited, "Too many requests for unknown sandboxes from this address")
	case wake.Busy:
		x.answerLater(http.StatusServiceUnavailable, metrics.Limited, "Too many sandboxes are being woken; try again")
	default:
		h.waitedInVain(x)
	}
	return false
}

func (h *Handler) waitedInVain(x *exchange) {
	if x.request.Context().Err() != nil {
		x.outcome = metrics.ClientGone
		panic(http.ErrAbortHandler)
	}
	x.answerLater(http.StatusServiceUnavailable, metrics.Limited, "The sandbox is not ready yet; try again")
}

// admitTraffic checks the traffic token for ports of private sandboxes; if it is wrong, x is answered.
func (h *Handler) admitTraffic(x *exchange, entry *table.Entry) bool {
	if x.isEnvd() || entry.Public || tokenRight(x.request.Header.Get(trafficTokenHeader), entry.TrafficToken) {
		return true
	}
	x.answerSandbox(http.StatusForbidden, metrics.Denied, x.target.ID, 0,
		"The sandbox is private: the header e2b-traffic-access-token is missing or wrong")
	return false
}

// admitEnvd does, before a wake, what envd would do: check its token or signature. If it is wrong, x is answered.
func (h *Handler) admitEnvd(x *exchange, entry *table.Entry) bool {
	r := x.request
	switch {
	case !x.isEnvd(), entry.EnvdToken == "":
		return true
	case r.Method == http.MethodGet && r.URL.Path == "/health":
		return true
	case tokenRight(r.Header.Get(envdTokenHeader), entry.EnvdToken):
		return true
	}
	message := textUnauthorized
	if r.URL.Path == "/files" {
		if claim, ok := signing.Parse(r.Method, r.URL.RawQuery); ok && claim.SignedBy(entry.EnvdToken) {
			if !claim.Expired(h.Now()) {
				return true
			}
			message = textExpired
		}
	}
	x.answer(http.StatusUnauthorized, metrics.Denied, message)
	return false
}

// tokenRight compares in constant time. Nothing is right when there is no token to compare with.
func tokenRight(given, right string) bool {
	return right != "" && subtle.ConstantTimeCompare([]byte(given), []byte(right)) == 1
}

// forward sends x to the running sandbox. It reports true when that generation ended before anything was sent, or
// before it answered what may be repeated, so that the request can go to the next one.
func (h *Handler) forward(x *exchange, entry *table.Entry) (again bool) {
	a := &attempt{Context: x.request.Context(), exchange: x, entry: entry}
	switch err := entry.Backend.Join(&a.lease, x); {
	case errors.Is(err, upstream.ErrGone):
		return true
	case err != nil:
		x.answerLater(http.StatusTooManyRequests, metrics.Limited, "Too many requests to this sandbox are in flight")
		return false
	}
	finished := false
	defer func() {
		if !finished {
			x.cutShort(a)
		}
		a.lease.Leave()
		if a.lease.Revoked() { // a hijacked connection ends without a panic
			x.outcome = metrics.Reset
		}
	}()
	h.sandboxes.ServeHTTP(a, x.outgoing(a))
	finished = true
	return a.again
}

// cutShort runs when an answer was broken off: the client must notice.
func (x *exchange) cutShort(a *attempt) {
	switch {
	case a.lease.Revoked():
	case a.entry.Backend.Dead():
		x.outcome = metrics.Reset
		x.Reset()
	case x.isEnvd():
		x.resetWhenClosed()
	}
}

// sandboxTransport sends a request over the connections of its attempt's backend.
type sandboxTransport struct{}

func (sandboxTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	a := r.Context().Value(attemptKey{}).(*attempt)
	return a.entry.Backend.RoundTrip(r, a.target.Port)
}

// errHostile is what a sandbox's answer gets that no honest server sends.
var errHostile = errors.New("the answer is not HTTP as a proxy can pass it on")

// originHeaders are what an answer could do to the whole origin that it came from.
var originHeaders = []string{
	"Set-Cookie", "Set-Cookie2", "Clear-Site-Data", "Strict-Transport-Security", "Public-Key-Pins", "Alt-Svc", "Service-Worker-Allowed",
}

func checkSandboxAnswer(res *http.Response) error {
	if res.StatusCode == http.StatusSwitchingProtocols {
		// Unasked, this would turn the client's connection, and every later request on it, over to the sandbox.
		if res.Request.Header.Get("Upgrade") == "" {
			return errHostile
		}
		return nil
	}
	if res.StatusCode < 200 || res.StatusCode > 999 {
		return errHostile
	}
	a := res.Request.Context().Value(attemptKey{}).(*attempt)
	a.carry(res)
	if a.signed {
		// A signed link can be opened in a browser, at the origin of the API and of the dashboard: nothing in the
		// file may act there.
		for _, name := range originHeaders {
			res.Header.Del(name)
		}
		res.Header.Set("Content-Security-Policy", "sandbox")
		res.Header.Set("X-Content-Type-Options", "nosniff")
	}
	return nil
}

// sandboxFailed answers for a sandbox that gave no usable answer.
func (h *Handler) sandboxFailed(w http.ResponseWriter, _ *http.Request, err error) {
	a := w.(*attempt)
	x := a.exchange
	switch {
	case x.hijacked, a.lease.Revoked():
		panic(http.ErrAbortHandler)
	case errors.Is(err, upstream.ErrGone), a.entry.Backend.Dead() && x.MayRepeat():
		a.again = true
	case a.entry.Backend.Dead():
		panic(http.ErrAbortHandler) // cutShort resets the client
	case x.clientFailed(err):
		x.abandon()
	case errors.Is(err, upstream.ErrPortClosed):
		x.answerPortClosed(x.target)
	case errors.Is(err, upstream.ErrNoAnswer):
		x.answerSandbox(http.StatusGatewayTimeout, metrics.NoAnswer, x.target.ID, x.target.Port, "The sandbox does not answer")
	case errors.Is(err, upstream.ErrExhausted):
		h.Log.Error("out of connections", "sandbox", x.target.ID, "error", err.Error())
		x.answerLater(http.StatusServiceUnavailable, metrics.Limited, "The server is out of connections; try again")
	default:
		h.Log.Warn("sandbox request failed", "sandbox", x.target.ID, "port", x.target.Port, "error", err.Error())
		x.answerSandbox(http.StatusBadGateway, metrics.BadUpstream, x.target.ID, x.target.Port,
			"The server in the sandbox closed the connection or did not speak HTTP")
	}
}
