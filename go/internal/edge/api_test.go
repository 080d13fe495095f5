package edge_test

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"forkyard.dev/forkyard/internal/edge"
)

func TestTheAPIWaitsForTheControlPlane(t *testing.T) {
	r := newRig(t)
	r.api.onRequest(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		// On a connection that is kept, a request could be on its way already when the control plane goes; that one is not repeated.
		w.Header().Set("Connection", "close")
		fmt.Fprintf(w, "%s %s", req.Method, body)
	})
	r.get("/", nil).expect(t, 200, "GET ")
	r.api.stop()
	got := make(chan answer, 2)
	for _, method := range []string{"GET", "POST"} {
		go func() {
			a, err := r.try(method, "/", nil, strings.NewReader("body"))
			if err != nil {
				t.Error(err)
			}
			got <- a
		}()
	}
	// Sandboxes are served meanwhile.
	a := newSandbox(t)
	port := a.serve(0, says("served"))
	r.push(running(idA, 1, a.address))
	for range 20 {
		r.get("/", to(idA, port)).expect(t, 200, "served")
	}
	select {
	case a := <-got:
		t.Fatalf("did not wait: %d %s", a.code, a.body)
	default:
	}
	r.api.start()
	for range 2 {
		if a := <-got; a.code != 200 || !strings.HasSuffix(a.body, " body") {
			t.Errorf("got %d %q", a.code, a.body)
		}
	}
}

func TestTheAPISaysWhenItWaitedInVain(t *testing.T) {
	r := newRig(t, func(c *edge.Config) { c.Patience = 100 * time.Millisecond })
	r.api.stop()
	for _, header := range []http.Header{nil, to(idA, 80)} { // without the control plane an unknown sandbox is not "not found"
		got := r.do("POST", "/sandboxes", header, strings.NewReader("{}"))
		var body struct {
			Code      int
			Message   string
			ErrorCode string `json:"error_code"`
		}
		if err := json.Unmarshal([]byte(got.body), &body); err != nil || got.code != 503 || body.Code != 503 || body.Message == "" ||
			body.ErrorCode != "server_stopped" {
			t.Errorf("got %d %s", got.code, got.body)
		}
		if got.header.Get("Retry-After") != "1" || got.header.Get("Should-Retry") != "" {
			t.Errorf("headers %v", got.header)
		}
	}
}

func TestAControlPlaneThatDiesInARequest(t *testing.T) {
	r := newRig(t)
	var calls atomic.Int64
	r.api.onRequest(func(w http.ResponseWriter, req *http.Request) {
		if calls.Add(1) <= 2 {
			panic(http.ErrAbortHandler)
		}
		_, _ = io.WriteString(w, "answered")
	})
	r.get("/", nil).expect(t, 200, "answered")
	calls.Store(0)
	got := r.do("POST", "/", nil, strings.NewReader("x"))
	if got.code != 503 || got.header.Get("Retry-After") != "1" || got.header.Get("Should-Retry") != "false" || calls.Load() != 1 {
		t.Errorf("POST: got %d %v after %d calls", got.code, got.header, calls.Load())
	}
	calls.Store(0)
	if got := r.do("POST", "/", http.Header{"Idempotency-Key": {"k"}}, strings.NewReader("x")); got.header.Get("Should-Retry") != "" {
		t.Error("a request with an idempotency key may be sent again")
	}
}

func TestRequestsThatTheControlPlanesParserWouldRefuse(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct {
		method, path string
		code         int
	}{
		{"FOO", "/sandboxes", 501},
		{"get", "/sandboxes", 501},
		{"GET", "/sandboxes?x=" + strings.Repeat("x", 70<<10), 414},
		{"GET", "/" + strings.Repeat("x", 70<<10), 414},
	} {
		got := r.do(c.method, c.path, nil, nil)
		var body struct {
			Code    int
			Message string
		}
		if err := json.Unmarshal([]byte(got.body), &body); err != nil || got.code != c.code || body.Code != c.code || body.Message == "" {
			t.Errorf("%s %.20s: got %d %s", c.method, c.path, got.code, got.body)
		}
	}
	r.do("PATCH", "/sandboxes", nil, nil).expect(t, 200, "api PATCH /sandboxes")
	// What a sandbox understands is its own affair.
	a := newSandbox(t)
	port := a.serve(0, func(w http.ResponseWriter, req *http.Request) {
		fmt.Fprintf(w, "%s %d", req.Method, len(req.RequestURI))
	})
	r.push(running(idA, 1, a.address))
	r.do("FOO", "/"+strings.Repeat("x", 70<<10), to(idA, port), nil).expect(t, 200, fmt.Sprintf("FOO %d", 1+(70<<10)))
}

func TestTheAPIStreams(t *testing.T) {
	r := newRig(t)
	next := make(chan struct{})
	r.api.onRequest(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 2 {
			fmt.Fprintf(w, "data: %d\n", i)
			_ = http.NewResponseController(w).Flush()
			<-next
		}
	})
	res, err := http.Get("http://" + r.edge.Addr() + "/events")
	must(t, err)
	buf := make([]byte, 8)
	for i := range 2 {
		if _, err := io.ReadFull(res.Body, buf); err != nil || string(buf) != fmt.Sprintf("data: %d\n", i) {
			t.Fatalf("%q %v", buf, err)
		}
		next <- struct{}{}
	}
}

func TestControlCalls(t *testing.T) {
	r := newRig(t)
	a := newSandbox(t)
	port := a.serve(0, says("x"))
	r.push(running(idA, 1, a.address), paused(idB, 1))
	r.get("/", to(idA, port))
	r.get("/", nil)

	code, text := r.call("GET", "/v1/info", nil)
	var info struct {
		Version, Listen, StartedAt string
		PID, Epoch, Routes         int
	}
	if err := json.Unmarshal([]byte(strings.Replace(text, "started_at", "StartedAt", 1)), &info); err != nil || code != 200 {
		t.Fatal(code, text)
	}
	if _, err := time.Parse(time.RFC3339Nano, info.StartedAt); err != nil || info.Version != "test" || info.Listen != r.edge.Addr() ||
		info.PID != os.Getpid() || info.Epoch != 1 || info.Routes != 2 {
		t.Errorf("info %s", text)
	}

	code, text = r.call("GET", "/metrics", nil)
	for _, want := range []string{
		`forkyard_edge_requests_total{kind="app",outcome="ok"} 1`, `forkyard_edge_requests_total{kind="api",outcome="ok"} 1`,
		`forkyard_edge_request_duration_seconds_count{kind="app"} 1`, `forkyard_edge_routes{state="running"} 1`,
		`forkyard_edge_routes{state="paused"} 1`, "forkyard_edge_epoch 1", "# TYPE forkyard_edge_request_duration_seconds histogram",
	} {
		if code != 200 || !strings.Contains(text, want) {
			t.Errorf("metrics lack %s", want)
		}
	}

	for name, c := range map[string]struct {
		method string
		body   any
	}{
		"text":                       {"PUT", "text"},
		"no routes":                  {"PUT", route{"epoch": 2}},
		"no epoch":                   {"PUT", route{"routes": []route{}}},
		"epoch 0":                    {"PUT", route{"epoch": 0, "routes": []route{}}},
		"malformed id":               {"PUT", route{"epoch": 2, "routes": []route{running("A/B", 1, "127.0.0.1")}}},
		"address is a name":          {"PUT", route{"epoch": 2, "routes": []route{running(idA, 1, "example.org")}}},
		"no address":                 {"PUT", route{"epoch": 2, "routes": []route{running(idA, 1, "")}}},
		"unknown state":              {"PUT", route{"epoch": 2, "routes": []route{running(idA, 1, "127.0.0.1").with("state", "x")}}},
		"no generation":              {"POST", route{"epoch": 1, "set": []route{{"id": idA, "state": "paused"}}}},
		"removal without generation": {"POST", route{"epoch": 1, "remove": []route{{"id": idA}}}},
	} {
		if code, text := r.call(c.method, "/v1/routes", c.body); code != 400 || !strings.Contains(text, `"code":400`) {
			t.Errorf("%s: got %d %s", name, code, text)
		}
	}
	r.get("/", to(idA, port)).expect(t, 200, "x") // nothing of that changed anything
}

func TestShutdownLetsRequestsEnd(t *testing.T) {
	r := newRig(t)
	a := newSandbox(t)
	asked, finish := make(chan struct{}), make(chan struct{})
	port := a.serve(0, func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/stream" {
			streams(w, req)
			return
		}
		close(asked)
		<-finish
		_, _ = io.WriteString(w, "whole")
	})
	r.push(running(idA, 1, a.address))
	stream := r.openStream(idA, port)
	got := make(chan answer, 1)
	go func() {
		a, err := r.try("GET", "/", to(idA, port), nil)
		if err != nil {
			t.Error(err)
		}
		got <- a
	}()
	<-asked
	if code, _ := r.call("POST", "/v1/shutdown", nil); code != 204 {
		t.Fatalf("shutdown: %d", code)
	}
	ended := make(chan struct{})
	go func() { r.edge.Wait(); close(ended) }()
	eventually(t, "the port is closed", func() bool {
		_, err := http.Get("http://" + r.edge.Addr())
		return err != nil
	})
	// The next edge starts while this one still serves what it has.
	next, err := edge.Start(r.cfg, slog.New(slog.DiscardHandler), func() int64 { return 0 })
	must(t, err)
	close(finish)
	(<-got).expect(t, 200, "whole")
	stream.expectReset()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatal("the edge does not end")
	}
	if code, _ := r.call("GET", "/v1/info", nil); code != 200 {
		t.Errorf("the end of the first edge took the socket of the next: %d", code)
	}
	next.Shutdown()
	next.Wait()
	if _, err := os.Stat(r.cfg.Control); !os.IsNotExist(err) {
		t.Errorf("the control socket is still there: %v", err)
	}
}

func TestOnlyOneEdgeOwnsASocketAndAPort(t *testing.T) {
	r := newRig(t)
	quiet := slog.New(slog.DiscardHandler)
	same := r.cfg
	if _, err := edge.Start(same, quiet, nil); err == nil || !strings.Contains(err.Error(), same.Control) {
		t.Errorf("a second edge on the socket: %v", err)
	}
	port := r.cfg
	port.Control += "2"
	port.Listen = r.edge.Addr()
	if _, err := edge.Start(port, quiet, nil); err == nil || !strings.Contains(err.Error(), port.Listen) {
		t.Errorf("a second edge on the port: %v", err)
	}
	// The first is untouched, and what a dead one leaves behind is no obstacle.
	r.get("/", nil).expect(t, 200, "api GET /")
	port.Listen = "127.0.0.1:0"
	must(t, os.WriteFile(port.Control, nil, 0o600))
	e, err := edge.Start(port, quiet, func() int64 { return 0 })
	must(t, err)
	e.Shutdown()
	e.Wait()
}
