package proxy

import (
	"net"
	"net/http"
	"net/http/httputil"
	"strings"

	"forkyard.dev/forkyard/internal/edge/routing"
)

const (
	ownPrefix          = "X-Forkyard-"
	trafficTokenHeader = "E2b-Traffic-Access-Token"
	envdTokenHeader    = "X-Access-Token"
)

// stripOwn removes every header of ours: towards the control plane they would be trusted.
func stripOwn(h http.Header) {
	for name := range h {
		if len(name) >= len(ownPrefix) && strings.EqualFold(name[:len(ownPrefix)], ownPrefix) {
			delete(h, name)
		}
	}
}

// stripKeys removes API keys of this platform: code in a sandbox must not see what rules over all sandboxes.
func stripKeys(h http.Header) {
	if values, ok := h["X-Api-Key"]; ok && anyKey(values, "") {
		delete(h, "X-Api-Key")
	}
	if values, ok := h["Authorization"]; ok && anyKey(values, "Bearer ") {
		delete(h, "Authorization")
	}
}

func anyKey(values []string, scheme string) bool {
	for _, value := range values {
		if len(value) >= len(scheme) && strings.EqualFold(value[:len(scheme)], scheme) && isKey(strings.TrimSpace(value[len(scheme):])) {
			return true
		}
	}
	return false
}

// isKey reports whether text has the form of an API key: e2b_ and 40 hexadecimal digits.
func isKey(text string) bool {
	digits, ok := strings.CutPrefix(text, "e2b_")
	if !ok || len(digits) != 40 {
		return false
	}
	return strings.Trim(digits, "0123456789abcdef") == ""
}

// setForwarded tells the upstream who the client is. What the client said about that was removed before.
func setForwarded(h http.Header, in *http.Request) {
	client, _, err := net.SplitHostPort(in.RemoteAddr)
	if err != nil {
		client = in.RemoteAddr
	}
	proto := "http"
	if in.TLS != nil {
		proto = "https"
	}
	values := [...]string{client, proto, in.Host}
	h["X-Forwarded-For"] = values[0:1:1]
	h["X-Forwarded-Proto"] = values[1:2:2]
	h["X-Forwarded-Host"] = values[2:3:3]
}

// keepTarget makes the outgoing request line the incoming one, byte by byte.
func keepTarget(pr *httputil.ProxyRequest) {
	out := pr.Out.URL
	out.RawQuery = pr.In.URL.RawQuery // the reverse proxy re-encodes what it cannot parse
	raw := rawPath(pr.In.RequestURI)
	if raw == "" || raw == out.EscapedPath() || strings.HasPrefix(raw, "//") {
		return
	}
	out.Opaque = raw
}

// rawPath is the path of a request target, still encoded; "" when there is none to keep.
func rawPath(target string) string {
	if !strings.HasPrefix(target, "/") {
		return "" // an absolute URL, from a client that takes us for its proxy
	}
	path, _, _ := strings.Cut(target, "?")
	return path
}

func rewriteForSandbox(pr *httputil.ProxyRequest) {
	a := pr.In.Context().(*attempt)
	keepTarget(pr)
	pr.Out.URL.Scheme = "http"
	pr.Out.URL.Host = a.entry.Backend.HostPort(a.target.Port)
	h := pr.Out.Header
	routing.StripHeaders(h)
	stripOwn(h)
	stripKeys(h)
	delete(h, trafficTokenHeader)
	setForwarded(h, pr.In)
	if a.entry.MaskHost != "" && !a.isEnvd() {
		pr.Out.Host = strings.ReplaceAll(a.entry.MaskHost, "${PORT}", pr.Out.URL.Port())
	}
}

func rewriteForAPI(pr *httputil.ProxyRequest) {
	keepTarget(pr)
	pr.Out.URL.Scheme = "http"
	pr.Out.URL.Host = "control-plane"
	pr.Out.Trailer = nil
	stripOwn(pr.Out.Header)
	setForwarded(pr.Out.Header, pr.In)
}
