package proxy

import "net/http"

// preflightAge is how long a browser may remember the answer, in seconds.
const preflightAge = "7200"

// isPreflight reports whether a browser asks whether a page of another origin may send a request. Such a question
// carries no token and no signature.
func isPreflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && r.Header.Get("Origin") != "" && r.Header.Get("Access-Control-Request-Method") != ""
}

// answerPreflight lets any page ask: what is behind needs a token or a signature that the page must have, and nothing
// that a browser adds by itself.
func (x *exchange) answerPreflight() {
	h := x.Header()
	h.Set("Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS")
	if asked := x.request.Header.Get("Access-Control-Request-Headers"); asked != "" {
		h.Set("Access-Control-Allow-Headers", asked)
	}
	h.Set("Access-Control-Max-Age", preflightAge)
	h.Set("Vary", "Access-Control-Request-Headers")
	allowAnyOrigin(h)
	x.WriteHeader(http.StatusNoContent)
}

// allowAnyOrigin lets pages of any origin read an answer of the edge's own.
func allowAnyOrigin(h http.Header) {
	h.Set("Access-Control-Allow-Origin", "*")
	h.Set("Access-Control-Expose-Headers", "*")
}
