package edge_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"forkyard.dev/forkyard/internal/edge"
)

const (
	domain   = "box.test"
	patience = 5 * time.Second // of every wait in these tests
)

// rig is an edge on loopback with a fake control plane on its API socket.
type rig struct {
	t       *testing.T
	edge    *edge.Edge
	api     *fakeControlPlane
	cfg     edge.Config
	control *http.Client
	epoch   int64
}

func newRig(t *testing.T, change ...func(*edge.Config)) *rig {
	t.Helper()
	// Socket paths must be short, which t.TempDir does not promise.
	dir, err := os.MkdirTemp("", "edge")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	r := &rig{t: t, epoch: 1}
	r.api = newFakeControlPlane(t, filepath.Join(dir, "api.sock"))
	r.cfg = edge.Config{
		Listen: "127.0.0.1:0", Control: filepath.Join(dir, "edge.sock"), API: filepath.Join(dir, "api.sock"),
		Domains: []string{domain}, Version: "test",
	}
	for _, c := range change {
		c(&r.cfg)
	}
	r.edge, err = edge.Start(r.cfg, slog.New(slog.NewJSONHandler(testLog{t}, nil)), func() int64 { return 0 })
	must(t, err)
	t.Cleanup(func() {
		r.edge.Shutdown()
		r.edge.Wait()
	})
	r.control = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", r.cfg.Control)
	}}}
	r.push()
	return r
}

// testLog drops log lines; -v shows them.
type testLog struct{ t *testing.T }

func (l testLog) Write(p []byte) (int, error) {
	if testing.Verbose() {
		fmt.Fprintf(os.Stderr, "%s: %s", l.t.Name(), p)
	}
	return len(p), nil
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// route is a Route of the control API.
type route map[string]any

func running(id string, generation int, address string) route {
	return route{"id": id, "generation": generation, "state": "running", "address": address, "public": true}
}

func (r route) with(key string, value any) route {
	copied := route{}
	for k, v := range r {
		copied[k] = v
	}
	copied[key] = value
	return copied
}

func (r *rig) call(method, path string, body any) (int, string) {
	r.t.Helper()
	text, err := json.Marshal(body)
	must(r.t, err)
	req, err := http.NewRequest(method, "http://edge"+path, bytes.NewReader(text))
	must(r.t, err)
	res, err := r.control.Do(req)
	must(r.t, err)
	defer func() { _ = res.Body.Close() }()
	answer, err := io.ReadAll(res.Body)
	must(r.t, err)
	return res.StatusCode, string(answer)
}

// push replaces the whole table.
func (r *rig) push(routes ...route) {
	r.t.Helper()
	if routes == nil {
		routes = []route{}
	}
	if code, text := r.call("PUT", "/v1/routes", map[string]any{"epoch": r.epoch, "routes": routes}); code != 204 {
		r.t.Fatalf("PUT /v1/routes: %d %s", code, text)
	}
}

func (r *rig) set(routes ...route) {
	r.t.Helper()
	if code, text := r.call("POST", "/v1/routes", map[string]any{"epoch": r.epoch, "set": routes}); code != 204 {
		r.t.Fatalf("POST /v1/routes: %d %s", code, text)
	}
}

func (r *rig) remove(id string, generation int) {
	r.t.Helper()
	body := map[string]any{"epoch": r.epoch, "remove": []map[string]any{{"id": id, "generation": generation}}}
	if code, text := r.call("POST", "/v1/routes", body); code != 204 {
		r.t.Fatalf("POST /v1/routes: %d %s", code, text)
	}
}

// to names a sandbox's port in the routing headers.
func to(id string, port int) http.Header {
	return http.Header{"E2b-Sandbox-Id": {id}, "E2b-Sandbox-Port": {strconv.Itoa(port)}}
}

// answer is a whole HTTP answer.
type answer struct {
	code   int
	header http.Header
	body   string
}

func (r *rig) do(method, path string, header http.Header, body io.Reader) answer {
	r.t.Helper()
	a, err := r.try(method, path, header, body)
	must(r.t, err)
	return a
}

// noRedirects sends requests as they are and keeps no connection.
var noRedirects = &http.Client{
	Transport:     &http.Transport{DisableKeepAlives: true, DisableCompression: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

func (r *rig) try(method, path string, header http.Header, body io.Reader) (answer, error) {
	req, err := http.NewRequest(method, "http://"+r.edge.Addr()+path, body)
	if err != nil {
		return answer{}, err
	}
	for name, values := range header {
		req.Header[name] = values
	}
	if host := header.Get("Host"); host != "" {
		req.Host = host
		req.Header.Del("Host")
	}
	res, err := noRedirects.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, res.Header, string(text)}, err
}

func (r *rig) get(path string, header http.Header) answer {
	r.t.Helper()
	return r.do("GET", path, header, nil)
}

func (a answer) expect(t *testing.T, code int, body string) {
	t.Helper()
	if a.code != code || a.body != body {
		t.Fatalf("got %d %q, want %d %q", a.code, a.body, code, body)
	}
}

// wire is a raw client connection to the edge.
type wire struct {
	t *testing.T
	*net.TCPConn
	r *bufio.Reader
}

func (r *rig) dial() *wire {
	r.t.Helper()
	c, err := net.Dial("tcp", r.edge.Addr())
	must(r.t, err)
	r.t.Cleanup(func() { _ = c.Close() })
	must(r.t, c.SetDeadline(time.Now().Add(2*patience)))
	return &wire{r.t, c.(*net.TCPConn), bufio.NewReader(c)}
}

func (w *wire) send(text string) {
	w.t.Helper()
	_, err := io.WriteString(w, text)
	must(w.t, err)
}

// request sends the head of a request; lines are without their ends.
func (w *wire) request(line string, headers ...string) {
	w.t.Helper()
	w.send(line + "\r\n" + strings.Join(append(headers, "", ""), "\r\n"))
}

func (w *wire) response(method string) *http.Response {
	w.t.Helper()
	res, err := http.ReadResponse(w.r, &http.Request{Method: method})
	must(w.t, err)
	return res
}

func (w *wire) line() string {
	w.t.Helper()
	text, err := w.r.ReadString('\n')
	if err != nil {
		w.t.Fatalf("after %q: %v", text, err)
	}
	return strings.TrimRight(text, "\r\n")
}

// expectReset reads until the connection ends and fails unless a RST ended it.
func (w *wire) expectReset() {
	w.t.Helper()
	_, err := io.Copy(io.Discard, w.r)
	if !errors.Is(err, syscall.ECONNRESET) {
		w.t.Fatalf("connection ended with %v, not with a reset", err)
	}
}

// fakeControlPlane answers on the API socket. It can go away and come back.
type fakeControlPlane struct {
	t      *testing.T
	socket string
	server *http.Server

	mu      sync.Mutex
	wake    func(id, reason string) (int, any)
	handler http.HandlerFunc
	wakes   atomic.Int64
}

func newFakeControlPlane(t *testing.T, socket string) *fakeControlPlane {
	f := &fakeControlPlane{t: t, socket: socket}
	f.onWake(func(string, string) (int, any) { return 404, route{"code": 404, "message": "unknown"} })
	f.onRequest(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Fake", "api")
		fmt.Fprintf(w, "api %s %s", r.Method, r.RequestURI)
	})
	f.start()
	t.Cleanup(f.stop)
	return f
}

func (f *fakeControlPlane) onWake(wake func(id, reason string) (int, any)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wake = wake
}

func (f *fakeControlPlane) onRequest(handler http.HandlerFunc) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.handler = handler
}

func (f *fakeControlPlane) start() {
	l, err := net.Listen("unix", f.socket)
	must(f.t, err)
	f.server = &http.Server{Handler: f}
	go func(s *http.Server) { _ = s.Serve(l) }(f.server)
}

func (f *fakeControlPlane) stop() { _ = f.server.Close() }

func (f *fakeControlPlane) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	wake, handler := f.wake, f.handler
	f.mu.Unlock()
	if r.URL.Path != "/internal/wake" {
		handler(w, r)
		return
	}
	var question struct{ ID, Reason string }
	if err := json.NewDecoder(r.Body).Decode(&question); err != nil || r.Header.Get("X-Forkyard-Internal") != "edge" {
		http.Error(w, "bad wake call", 400)
		return
	}
	f.wakes.Add(1)
	code, body := wake(question.ID, question.Reason)
	if code == 200 {
		body = map[string]any{"route": body}
	}
	w.Header().Set("Content-Type", "application/json")
	if code == 429 {
		w.Header().Set("Retry-After", "7")
	}
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body)
}

// sandbox is a fake one: a loopback address of its own, so that it can have any port.
type sandbox struct {
	t       *testing.T
	address string
}

var sandboxes atomic.Int64

func newSandbox(t *testing.T) *sandbox {
	n := sandboxes.Add(1)
	return &sandbox{t, fmt.Sprintf("127.77.%d.%d", n/250, 1+n%250)}
}

// serve runs an HTTP server on a port (0: any) and returns the port.
func (s *sandbox) serve(port int, handler http.HandlerFunc) int {
	s.t.Helper()
	l := s.listen(port)
	server := &http.Server{Handler: handler}
	go func() { _ = server.Serve(l) }()
	s.t.Cleanup(func() { _ = server.Close() })
	return l.Addr().(*net.TCPAddr).Port
}

// raw runs a server that handles connections as it likes, and returns the port. Connections end with the handler.
func (s *sandbox) raw(port int, handler func(c *net.TCPConn, r *bufio.Reader)) int {
	s.t.Helper()
	l := s.listen(port)
	s.t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				handler(c.(*net.TCPConn), bufio.NewReader(c))
			}()
		}
	}()
	return l.Addr().(*net.TCPAddr).Port
}

func (s *sandbox) listen(port int) net.Listener {
	s.t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(s.address, strconv.Itoa(port)))
	must(s.t, err)
	return l
}

// says is a handler that answers with text.
func says(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }
}

// streams is a handler that sends a line, then waits until its client is gone.
func streams(w http.ResponseWriter, r *http.Request) {
	_, _ = io.WriteString(w, "begun\n")
	_ = http.NewResponseController(w).Flush()
	<-r.Context().Done()
}

// readHead reads a request's head from a raw connection.
func readHead(r *bufio.Reader) error {
	for {
		line, err := r.ReadString('\n')
		if err != nil || line == "\r\n" {
			return err
		}
	}
}

// eventually polls until ok.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("never happened: %s", what)
}
