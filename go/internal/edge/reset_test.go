package edge_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"forkyard.dev/forkyard/internal/edge"
)

// openStream opens a stream to a sandbox and waits for its first line.
func (r *rig) openStream(id string, port int) *wire {
	r.t.Helper()
	w := r.dial()
	w.request("GET /stream HTTP/1.1", "Host: localhost", "E2b-Sandbox-Id: "+id, fmt.Sprintf("E2b-Sandbox-Port: %d", port))
	if res := w.response("GET"); res.StatusCode != 200 {
		r.t.Fatalf("stream: %d", res.StatusCode)
	}
	w.line() // chunk size
	if line := w.line(); line != "begun" {
		r.t.Fatalf("stream began with %q", line)
	}
	w.line() // end of the chunk
	return w
}

func TestStreamsAreResetWhenTheirGenerationEnds(t *testing.T) {
	r := newRig(t)
	for name, end := range map[string]func(){
		"removed":       func() { r.remove(idA, 3) },
		"replaced":      func() { r.set(running(idA, 4, "127.0.0.1")) },
		"paused":        func() { r.set(route{"id": idA, "generation": 3, "state": "paused"}) },
		"moved":         func() { r.set(running(idA, 3, "127.0.0.1")) },
		"held":          func() { r.set(route{"id": idA, "generation": 3, "state": "held"}) },
		"held as next":  func() { r.set(route{"id": idA, "generation": 4, "state": "held"}) },
		"not in table":  func() { r.push() },
		"later removal": func() { r.remove(idA, 9) },
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newSandbox(t), newSandbox(t)
			var gone atomic.Int64
			portA := a.serve(0, func(w http.ResponseWriter, req *http.Request) {
				streams(w, req)
				gone.Add(1)
			})
			portB := b.serve(0, streams)
			r.push(running(idA, 3, a.address), running(idB, 1, b.address))
			first, second := r.openStream(idA, portA), r.openStream(idA, portA)
			other := r.openStream(idB, portB)

			end()
			// The answer came after the fact: nothing may be left to wait for.
			for _, w := range []*wire{first, second} {
				must(t, w.SetReadDeadline(time.Now().Add(time.Second)))
				w.expectReset()
			}
			eventually(t, "the sandbox sees its connections end", func() bool { return gone.Load() == 2 })
			if name != "not in table" {
				must(t, other.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
				if _, err := other.r.ReadByte(); err == nil || !err.(net.Error).Timeout() {
					t.Errorf("the stream of another sandbox ended: %v", err)
				}
			}
			r.push()
		})
	}
}

func TestStreamsLiveOnWhenTheirGenerationDoes(t *testing.T) {
	r := newRig(t)
	a := newSandbox(t)
	more := make(chan string)
	port := a.serve(0, func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.WriteString(w, "begun\n")
		_ = http.NewResponseController(w).Flush()
		for text := range more {
			_, _ = io.WriteString(w, text)
			_ = http.NewResponseController(w).Flush()
		}
	})
	defer close(more)
	r.push(running(idA, 3, a.address))
	w := r.openStream(idA, port)
	alive := func(what string) {
		t.Helper()
		more <- what + "\n"
		w.line() // size
		if got := w.line(); got != what {
			t.Fatalf("after %s: got %q", what, got)
		}
		w.line() // end of the chunk
	}
	r.push(running(idA, 3, a.address))
	alive("same table")
	r.epoch = 2
	r.push(running(idA, 3, a.address).with("envd_token", "new"))
	alive("new epoch")
	r.set(running(idA, 3, a.address))
	alive("the same route")
	r.remove(idA, 2)
	alive("removal of an older generation")
	r.set(running(idA, 2, "127.0.0.1"))
	alive("route of an older generation")
	if code, _ := r.call("PUT", "/v1/routes", map[string]any{"epoch": 1, "routes": []route{}}); code != 409 {
		t.Errorf("table of an old epoch: %d", code)
	}
	for _, epoch := range []int{1, 3} {
		if code, _ := r.call("POST", "/v1/routes", map[string]any{"epoch": epoch, "remove": []route{{"id": idA, "generation": 3}}}); code != 409 {
			t.Errorf("change under epoch %d: %d", epoch, code)
		}
	}
	alive("refused changes")
}

func TestAnUpgradedConnectionIsReset(t *testing.T) {
	r := newRig(t)
	a := newSandbox(t)
	port := a.raw(0, echoUpgrade)
	r.push(running(idA, 1, a.address))
	w := r.upgrade(idA, port)
	w.send("ping\n")
	if got := w.line(); got != "ping" {
		t.Fatal(got)
	}
	r.remove(idA, 1)
	w.expectReset()
}

// echoUpgrade answers 101 to any upgrade and sends back what comes.
func echoUpgrade(c *net.TCPConn, in *bufio.Reader) {
	req, err := http.ReadRequest(in)
	if err != nil {
		return
	}
	fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\nSec-WebSocket-Protocol: %s\r\n\r\n",
		req.Header.Get("Upgrade"), req.Header.Get("Sec-WebSocket-Protocol"))
	_, _ = io.Copy(c, in)
	_ = c.CloseWrite()
}

func (r *rig) upgrade(id string, port int) *wire {
	r.t.Helper()
	w := r.dial()
	w.request("GET /ws HTTP/1.1", "Host: localhost", "Connection: keep-alive, Upgrade", "Upgrade: websocket", "Sec-WebSocket-Protocol: chat",
		"E2b-Sandbox-Id: "+id, fmt.Sprintf("E2b-Sandbox-Port: %d", port))
	res := w.response("GET")
	if res.StatusCode != 101 || res.Header.Get("Sec-WebSocket-Protocol") != "chat" || !strings.EqualFold(res.Header.Get("Upgrade"), "websocket") {
		r.t.Fatalf("upgrade: %d %v", res.StatusCode, res.Header)
	}
	return w
}

func TestARequestThatWasNotSentYetGoesToTheNextGeneration(t *testing.T) {
	echo := func(w http.ResponseWriter, req *http.Request) { _, _ = io.Copy(w, req.Body) }
	for _, c := range []struct {
		method, body string
		next         http.HandlerFunc
		want         string
	}{
		{"GET", "", says("the next generation"), "the next generation"},
		{"POST", "what was sent", echo, "what was sent"},
	} {
		t.Run(c.method, func(t *testing.T) {
			r := newRig(t)
			a, b := newSandbox(t), newSandbox(t)
			asked, release := make(chan struct{}), make(chan struct{})
			a.serve(49983, func(w http.ResponseWriter, req *http.Request) { // envd, slow to say whether it can forward
				close(asked)
				<-release
				w.WriteHeader(500)
			})
			port := b.serve(0, c.next)
			r.push(running(idA, 1, a.address))

			got := make(chan answer)
			go func() {
				a, err := r.try(c.method, "/", to(idA, port), strings.NewReader(c.body))
				if err != nil {
					t.Error(err)
				}
				got <- a
			}()
			<-asked
			r.set(running(idA, 2, b.address))
			(<-got).expect(t, 200, c.want)
			close(release)
		})
	}
}

func TestConnectionsNeverOutliveAGeneration(t *testing.T) {
	r := newRig(t)
	a := newSandbox(t)
	var connections atomic.Int64
	port := a.raw(0, func(c *net.TCPConn, in *bufio.Reader) {
		n := connections.Add(1)
		for readHead(in) == nil {
			body := fmt.Sprintf("connection %d", n)
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		}
	})
	r.push(running(idA, 1, a.address))
	for range 3 {
		r.get("/", to(idA, port)).expect(t, 200, "connection 1")
	}
	r.set(running(idA, 2, a.address))
	for range 3 {
		r.get("/", to(idA, port)).expect(t, 200, "connection 2")
	}
	// The same address under another id is another sandbox.
	r.set(running(idB, 2, a.address))
	r.get("/", to(idB, port)).expect(t, 200, "connection 3")
	// A route that was held and runs on starts afresh too.
	r.set(route{"id": idA, "generation": 2, "state": "held"})
	r.set(running(idA, 2, a.address))
	r.get("/", to(idA, port)).expect(t, 200, "connection 4")
}

func TestManyStreamsAreResetAtOnce(t *testing.T) {
	r := newRig(t)
	a := newSandbox(t)
	port := a.serve(0, streams)
	r.push(running(idA, 1, a.address))
	var open []*wire
	for range 200 {
		open = append(open, r.openStream(idA, port))
	}
	started := time.Now()
	r.remove(idA, 1)
	if took := time.Since(started); took > 2*time.Second {
		t.Errorf("removal took %v", took)
	}
	for _, w := range open {
		w.expectReset()
	}
	r.get("/", to(idA, port)).expect(t, 502, fmt.Sprintf(`{"sandboxId":%q,"message":"The sandbox was not found","code":502}`, idA))
}

func TestAClientThatDoesNotReadCannotHoldUpARemoval(t *testing.T) {
	r := newRig(t)
	a := newSandbox(t)
	port := a.serve(0, func(w http.ResponseWriter, req *http.Request) {
		buf := make([]byte, 1<<20)
		for req.Context().Err() == nil {
			if _, err := w.Write(buf); err != nil {
				return
			}
		}
	})
	r.push(running(idA, 1, a.address))
	w := r.dial()
	w.request("GET / HTTP/1.1", "Host: localhost", "E2b-Sandbox-Id: "+idA, fmt.Sprintf("E2b-Sandbox-Port: %d", port))
	w.response("GET")
	started := time.Now()
	r.remove(idA, 1)
	if took := time.Since(started); took > time.Second {
		t.Errorf("removal took %v", took)
	}
	w.expectReset()
}

func TestTheEndOfAnEnvdStreamIsAReset(t *testing.T) {
	r := newRig(t)
	a := newSandbox(t)
	var envd atomic.Pointer[net.TCPConn]
	dies := func(c *net.TCPConn, in *bufio.Reader) {
		if readHead(in) != nil {
			return
		}
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nbegun\n\r\n")
		envd.Store(c)
		_, _ = in.ReadByte()
	}
	a.raw(49983, dies)
	r.push(running(idA, 1, a.address))
	w := r.openStream(idA, 49983)
	must(t, envd.Load().Close()) // the machine dies before the control plane knows
	w.expectReset()
}

// silent takes every request and never answers.
func silent(seen chan<- string) http.HandlerFunc {
	return func(_ http.ResponseWriter, req *http.Request) {
		seen <- req.Method
		<-req.Context().Done()
	}
}

func TestAQuestionThatCameJustBeforeAPauseIsAskedAgain(t *testing.T) {
	for name, c := range map[string]struct {
		line  string
		age   time.Duration
		again bool
	}{
		"a question":                  {"GET / HTTP/1.1", 0, true},
		"what may have had an effect": {"POST / HTTP/1.1", 0, false},
		"a long poll":                 {"GET / HTTP/1.1", time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			var passed atomic.Int64
			r := newRig(t, func(cfg *edge.Config) {
				cfg.Now = func() time.Time { return time.Now().Add(time.Duration(passed.Load())) }
			})
			before, after := newSandbox(t), newSandbox(t)
			seen := make(chan string)
			port := before.serve(0, silent(seen))
			after.serve(port, says("after"))
			r.push(running(idA, 1, before.address))
			w := r.dial()
			w.request(c.line, "Host: localhost", "E2b-Sandbox-Id: "+idA, fmt.Sprintf("E2b-Sandbox-Port: %d", port))
			<-seen
			passed.Store(int64(c.age))
			r.set(running(idA, 2, after.address))
			if !c.again {
				w.expectReset()
				return
			}
			body, err := io.ReadAll(w.response("GET").Body)
			must(t, err)
			if string(body) != "after" {
				t.Errorf("got %q", body)
			}
		})
	}
}
