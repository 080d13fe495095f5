// Package metrics counts what the edge does and prints it in the Prometheus text format.
//
// Everything is a fixed array of atomics: labels come from closed lists, so no client or sandbox can grow it, and
// counting costs no allocation.
package metrics

import (
	"fmt"
	"io"
	"sync/atomic"
	"time"
)

// Kind is the part of the edge's work that a request belongs to.
type Kind int

// Kinds of requests.
const (
	API  Kind = iota // passed to the control plane
	Envd             // port 49983 of a sandbox
	App              // any other port of a sandbox
	numKinds
)

// Outcome is how a request ended.
type Outcome int

// Outcomes of requests. OK is any answer of the upstream, whatever its status, and that to a preflight.
const (
	OK          Outcome = iota
	BadRequest          // 400 and 431 by the edge
	Denied              // 401 and 403 by the edge
	Blocked             // 404 for an internal route
	NotFound            // 502, no such sandbox
	PortClosed          // 502, nothing listens
	Limited             // 429, and what a wake passed on
	NoAnswer            // 504, the sandbox cannot be reached
	BadUpstream         // 502, the upstream broke the protocol or the connection before an answer
	Away                // 503, the control plane does not answer
	Cut                 // the answer was cut in the middle, by either side
	Reset               // reset because the sandbox's generation ended
	ClientGone          // the client left before there was an answer
	numOutcomes
)

var (
	kindNames    = [numKinds]string{"api", "envd", "app"}
	outcomeNames = [numOutcomes]string{
		"ok", "bad_request", "denied", "blocked", "not_found", "port_closed", "limited", "no_answer", "bad_upstream",
		"away", "cut", "reset", "client_gone",
	}
)

// Wake outcomes, a closed list.
const (
	WakeRunning = iota
	WakeNotFound
	WakeRefused
	WakeAway
	numWakeOutcomes
)

var wakeNames = [numWakeOutcomes]string{"running", "not_found", "refused", "away"}

// Set is every metric of one edge.
type Set struct {
	requests        [numKinds][numOutcomes]atomic.Int64
	duration        [numKinds]Histogram
	wakes           [numWakeOutcomes]atomic.Int64
	wakeDuration    Histogram
	OpenConnections atomic.Int64 // client connections
	Refused         atomic.Int64 // client connections refused, over the limit
	OpenStreams     atomic.Int64 // requests in flight to sandboxes
	UpstreamConns   atomic.Int64 // connections to sandboxes
	Dials           atomic.Int64 // connections made to sandboxes
	Forwards        atomic.Int64 // times envd was asked to forward to a loopback port
	Resets          atomic.Int64 // streams reset because a generation ended
}

// Done counts one finished request.
func (s *Set) Done(kind Kind, outcome Outcome, took time.Duration) {
	s.requests[kind][outcome].Add(1)
	s.duration[kind].Observe(took)
}

// Requests returns how many requests of a kind ended in an outcome.
func (s *Set) Requests(kind Kind, outcome Outcome) int64 { return s.requests[kind][outcome].Load() }

// Woke counts one wake call; outcome is one of the Wake constants.
func (s *Set) Woke(outcome int, took time.Duration) {
	s.wakes[outcome].Add(1)
	s.wakeDuration.Observe(took)
}

// Gauge is a value read when the metrics are printed.
type Gauge struct {
	Name, Help, Labels string
	Value              float64
}

// Write prints every metric, and the given gauges after them. Gauges with one name must be neighbours.
func (s *Set) Write(w io.Writer, gauges []Gauge) {
	header(w, "forkyard_edge_requests_total", "counter", "Finished requests.")
	for kind := range s.requests {
		for outcome := range s.requests[kind] {
			fmt.Fprintf(w, "forkyard_edge_requests_total{kind=%q,outcome=%q} %d\n", kindNames[kind], outcomeNames[outcome], s.requests[kind][outcome].Load())
		}
	}
	header(w, "forkyard_edge_request_duration_seconds", "histogram", "Time from the request's headers to the end of the answer.")
	for kind := range s.duration {
		s.duration[kind].write(w, "forkyard_edge_request_duration_seconds", fmt.Sprintf("kind=%q", kindNames[kind]))
	}
	header(w, "forkyard_edge_wakes_total", "counter", "Wake calls to the control plane.")
	for outcome := range s.wakes {
		fmt.Fprintf(w, "forkyard_edge_wakes_total{outcome=%q} %d\n", wakeNames[outcome], s.wakes[outcome].Load())
	}
	header(w, "forkyard_edge_wake_duration_seconds", "histogram", "Time of a wake call.")
	s.wakeDuration.write(w, "forkyard_edge_wake_duration_seconds", "")
	for _, c := range []struct {
		name, kind, help string
		value            *atomic.Int64
	}{
		{"open_connections", "gauge", "Client connections.", &s.OpenConnections},
		{"refused_connections_total", "counter", "Client connections refused, over the limit.", &s.Refused},
		{"open_streams", "gauge", "Requests in flight to sandboxes.", &s.OpenStreams},
		{"upstream_connections", "gauge", "Connections to sandboxes.", &s.UpstreamConns},
		{"upstream_dials_total", "counter", "Connections made to sandboxes.", &s.Dials},
		{"upstream_forwards_total", "counter", "Times envd was asked for a loopback port.", &s.Forwards},
		{"resets_total", "counter", "Streams reset because their generation ended.", &s.Resets},
	} {
		header(w, "forkyard_edge_"+c.name, c.kind, c.help)
		fmt.Fprintf(w, "forkyard_edge_%s %d\n", c.name, c.value.Load())
	}
	last := ""
	for _, g := range gauges {
		if g.Name != last {
			header(w, g.Name, "gauge", g.Help)
			last = g.Name
		}
		labels := ""
		if g.Labels != "" {
			labels = "{" + g.Labels + "}"
		}
		fmt.Fprintf(w, "%s%s %g\n", g.Name, labels, g.Value)
	}
}

func header(w io.Writer, name, kind, help string) {
	fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

// bounds are the upper limits of the histogram buckets, in seconds.
var bounds = [...]float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60, 600}

// Histogram counts durations. The zero value is ready.
type Histogram struct {
	buckets [len(bounds) + 1]atomic.Int64
	nanos   atomic.Int64
}

// Observe counts one duration.
func (h *Histogram) Observe(d time.Duration) {
	seconds := d.Seconds()
	i := 0
	for i < len(bounds) && seconds > bounds[i] {
		i++
	}
	h.buckets[i].Add(1)
	h.nanos.Add(int64(d))
}

func (h *Histogram) write(w io.Writer, name, labels string) {
	comma, braced := "", ""
	if labels != "" {
		comma, braced = ",", "{"+labels+"}"
	}
	total := int64(0)
	for i := range h.buckets {
		total += h.buckets[i].Load()
		limit := "+Inf"
		if i < len(bounds) {
			limit = fmt.Sprintf("%g", bounds[i])
		}
		fmt.Fprintf(w, "%s_bucket{%s%sle=%q} %d\n", name, labels, comma, limit, total)
	}
	fmt.Fprintf(w, "%s_sum%s %g\n%s_count%s %d\n", name, braced, time.Duration(h.nanos.Load()).Seconds(), name, braced, total)
}
