// Package routing decides, from a request's line and headers alone, where the request goes.
//
// It is pure: no clock, no table, no sockets. Whether the named sandbox exists is not its concern.
package routing

import (
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
)

// Kind says which side of the edge serves a request.
type Kind int

const (
	// ControlPlane requests go to the control plane's socket.
	ControlPlane Kind = iota
	// Sandbox requests name a sandbox and a port.
	Sandbox
	// SignedFile requests name no sandbox: the signature in the query tells which one.
	SignedFile
	// Refused requests get a 400 with Decision.Reason.
	Refused
)

// Target is a port of a sandbox. ID may be malformed (see WellFormedID): no sandbox has such an id.
type Target struct {
	ID   string
	Port int
}

// Decision is the answer to "where does this request go". Target is set for Sandbox, Reason for Refused.
type Decision struct {
	Kind   Kind
	Target Target
	Reason string
}

// Router holds the domains that this edge serves.
type Router struct {
	domains map[string]struct{}
}

// New makes a Router for the given domain names (lower case or not, a port is cut off).
// A name that cannot be part of a host is an error.
func New(domains []string) (*Router, error) {
	r := &Router{domains: make(map[string]struct{}, len(domains))}
	for _, name := range domains {
		host := hostname(name)
		if host == "" || strings.ContainsAny(name, "/*@ \t[]") || strings.Contains(host, ":") || strings.HasPrefix(host, ".") {
			return nil, fmt.Errorf("%q is not a domain name", name)
		}
		r.domains[host] = struct{}{}
	}
	return r, nil
}

// headerPair names the two headers of one family that together name a target.
type headerPair struct{ id, port string }

var routingHeaders = [...]headerPair{
	{"E2b-Sandbox-Id", "E2b-Sandbox-Port"},
	{"X-Forkyard-Sandbox-Id", "X-Forkyard-Sandbox-Port"},
	{"X-Agentenv-Sandbox-Id", "X-Agentenv-Target-Port"},
}

// StripHeaders removes every routing header from h.
func StripHeaders(h http.Header) {
	for _, pair := range routingHeaders {
		delete(h, pair.id)
		delete(h, pair.port)
	}
}

// Decide applies the rules of specs/edge.md in their order. path is the decoded path of the request.
func (r *Router) Decide(host string, header http.Header, path, rawQuery string) Decision {
	byHost, place, reason := r.fromHost(host)
	if reason != "" {
		return Decision{Kind: Refused, Reason: reason}
	}
	if place != foreignHost {
		byHeader, found, reason := fromHeaders(header)
		switch {
		case reason != "":
			return Decision{Kind: Refused, Reason: reason}
		case found && place == sandboxHost && byHeader != byHost:
			return Decision{Kind: Refused, Reason: "the host name and the routing headers name different targets"}
		case found:
			return Decision{Kind: Sandbox, Target: byHeader}
		case place == sandboxHost:
			return Decision{Kind: Sandbox, Target: byHost}
		}
	}
	if path == "/files" && strings.Contains(rawQuery, "signature=") {
		return Decision{Kind: SignedFile}
	}
	return Decision{Kind: ControlPlane}
}

// hostPlace says what a Host header means to this edge.
type hostPlace int

const (
	foreignHost hostPlace = iota // routing headers do not count here
	apiHost
	sandboxHost
)

func (r *Router) fromHost(hostport string) (Target, hostPlace, string) {
	// HTTP/1.0 clients may send no Host at all; no browser can be made to do so.
	if hostport == "" {
		return Target{}, apiHost, ""
	}
	host := hostname(hostport)
	if host == "localhost" || isAddress(host) {
		return Target{}, apiHost, ""
	}
	if _, ok := r.domains[host]; ok {
		return Target{}, apiHost, ""
	}
	label, domain, ok := strings.Cut(host, ".")
	if !ok {
		return Target{}, foreignHost, ""
	}
	if _, ok := r.domains[domain]; !ok {
		return Target{}, foreignHost, ""
	}
	if label == "api" || label == "sandbox" {
		return Target{}, apiHost, ""
	}
	portText, id, ok := strings.Cut(label, "-")
	if !ok {
		return Target{}, foreignHost, ""
	}
	port, ok := parsePort(portText)
	if !ok {
		return Target{}, sandboxHost, "the host name does not start with a port"
	}
	return Target{ID: bareID(id), Port: port}, sandboxHost, ""
}

// fromHeaders reads every family of routing headers. All that are present must agree.
func fromHeaders(h http.Header) (target Target, found bool, reason string) {
	for _, pair := range routingHeaders {
		ids, ports := h[pair.id], h[pair.port]
		if len(ids) == 0 && len(ports) == 0 {
			continue
		}
		if len(ids) == 0 || len(ports) == 0 {
			return Target{}, false, "the headers " + pair.id + " and " + pair.port + " go together"
		}
		if !allSame(ids) || !allSame(ports) {
			return Target{}, false, "the header " + pair.id + " or " + pair.port + " is there twice"
		}
		port, ok := parsePort(ports[0])
		if !ok {
			return Target{}, false, pair.port + " is not a port"
		}
		named := Target{ID: bareID(ids[0]), Port: port}
		if found && named != target {
			return Target{}, false, "the routing headers name different targets"
		}
		target, found = named, true
	}
	return target, found, ""
}

func allSame(values []string) bool {
	for _, value := range values[1:] {
		if value != values[0] {
			return false
		}
	}
	return true
}

// bareID drops the client part of old ids of the form <id>-<client>.
func bareID(id string) string {
	id, _, _ = strings.Cut(id, "-")
	return id
}

// WellFormedID reports whether id matches ^[a-z0-9]{8,40}$.
func WellFormedID(id string) bool {
	if len(id) < 8 || len(id) > 40 {
		return false
	}
	for i := 0; i < len(id); i++ {
		c := id[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}

// parsePort takes plain decimal numbers from 1 to 65535, nothing else.
func parsePort(text string) (int, bool) {
	if len(text) == 0 || len(text) > 5 || text[0] == '0' {
		return 0, false
	}
	for i := 0; i < len(text); i++ {
		if text[i] < '0' || text[i] > '9' {
			return 0, false
		}
	}
	port, err := strconv.Atoi(text)
	return port, err == nil && port <= 65535
}

// hostname gives the lower-case name of a Host header without port, brackets and trailing dot.
func hostname(hostport string) string {
	host := hostport
	if strings.HasPrefix(host, "[") {
		if end := strings.IndexByte(host, ']'); end > 0 {
			return host[1:end]
		}
		return host
	}
	if colon := strings.LastIndexByte(host, ':'); colon >= 0 && strings.IndexByte(host, ':') == colon {
		host = host[:colon]
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

func isAddress(host string) bool {
	if !strings.Contains(host, ":") && (host == "" || host[0] < '0' || host[0] > '9') {
		return false
	}
	_, err := netip.ParseAddr(host)
	return err == nil
}
