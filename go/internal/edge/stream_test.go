package edge_test

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"forkyard.dev/forkyard/internal/edge"
)

func TestUpgradePassesBothWays(t *testing.T) {
	r := newRig(t)
	a := newSandbox(t)
	port := a.raw(0, echoUpgrade)
	a.serve(49983, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) })
	refuses := a.serve(0, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no upgrade here", 426) })
	r.push(running(idA, 1, a.address), running(idB, 1, a.address).with("public", false).with("traffic_token", "secret"))

	w := r.upgrade(idA, port)
	big := make([]byte, 5<<20)
	_, _ = rand.Read(big)
	go func() {
		_, _ = w.Write(big)
		_ = w.CloseWrite() // half of the connection: the echo must still come whole
	}()
	got, err := io.ReadAll(w.r)
	if err != nil || !bytes.Equal(got, big) {
		t.Errorf("%d of %d bytes came back, %v", len(got), len(big), err)
	}

	h := to(idA, refuses)
	h.Set("Connection", "Upgrade")
	h.Set("Upgrade", "websocket")
	r.get("/", h).expect(t, 426, "no upgrade here\n")

	h = to(idB, port)
	h.Set("Connection", "Upgrade")
	h.Set("Upgrade", "websocket")
	if got := r.get("/", h); got.code != 403 {
		t.Errorf("upgrade without a token: %d", got.code)
	}
}

func TestEventsArriveOneByOne(t *testing.T) {
	r := newRig(t)
	a := newSandbox(t)
	next := make(chan struct{})
	for name, head := range map[string]http.Header{
		"events":       {"Content-Type": {"text/event-stream"}},
		"chunks":       {},
		"known length": {"Content-Length": {"600"}},
	} {
		t.Run(name, func(t *testing.T) {
			port := a.serve(0, func(w http.ResponseWriter, req *http.Request) {
				for name, values := range head {
					w.Header()[name] = values
				}
				_ = http.NewResponseController(w).Flush()
				for i := range 3 {
					<-next
					fmt.Fprintf(w, "%-199d\n", i)
					_ = http.NewResponseController(w).Flush()
				}
			})
			r.push(running(idA, 1, a.address))
			w := r.dial()
			w.request("GET / HTTP/1.1", "Host: localhost", "E2b-Sandbox-Id: "+idA, fmt.Sprintf("E2b-Sandbox-Port: %d", port))
			body := bufio.NewReader(w.response("GET").Body) // the head arrives while nothing of the body is there
			for i := range 3 {
				next <- struct{}{}
				line, err := body.ReadString('\n')
				if err != nil || strings.TrimSpace(line) != fmt.Sprint(i) {
					t.Fatalf("event %d: %q %v", i, line, err)
				}
			}
		})
	}
}

func TestRequestBodiesStream(t *testing.T) {
	r := newRig(t)
	a := newSandbox(t)
	port := a.serve(0, func(w http.ResponseWriter, req *http.Request) {
		// Answers line by line while the request is still coming in.
		_ = http.NewResponseController(w).EnableFullDuplex()
		w.WriteHeader(200)
		_ = http.NewResponseController(w).Flush()
		for in := bufio.NewReader(req.Body); ; {
			line, err := in.ReadString('\n')
			if err != nil {
				return
			}
			_, _ = io.WriteString(w, "got "+line)
			_ = http.NewResponseController(w).Flush()
		}
	})
	r.push(running(idA, 1, a.address))
	w := r.dial()
	w.request("POST / HTTP/1.1", "Host: localhost", "Transfer-Encoding: chunked", "E2b-Sandbox-Id: "+idA, fmt.Sprintf("E2b-Sandbox-Port: %d", port))
	body := bufio.NewReader(w.response("POST").Body)
	for i := range 3 {
		w.send(fmt.Sprintf("2\r\n%d\n\r\n", i))
		if line, err := body.ReadString('\n'); line != fmt.Sprintf("got %d\n", i) {
			t.Fatalf("%q %v", line, err)
		}
	}
	w.send("0\r\n\r\n")
	if rest, err := io.ReadAll(body); err != nil || len(rest) != 0 {
		t.Errorf("%q %v", rest, err)
	}
}

func TestUploadsOfEverySizeArriveWhole(t *testing.T) {
	r := newRig(t)
	a := newSandbox(t)
	port := a.serve(0, func(w http.ResponseWriter, req *http.Request) {
		sum := sha256.New()
		n, err := io.Copy(sum, req.Body)
		fmt.Fprintf(w, "%d %x %v", n, sum.Sum(nil), err)
	})
	r.push(running(idA, 1, a.address))
	for _, size := range []int{0, 1, 18*1024 - 1, 18 * 1024, 18*1024 + 1, 65535, 65536, 65537, 1 << 20, 64<<20 + 3} {
		data := make([]byte, size)
		_, _ = rand.Read(data)
		want := fmt.Sprintf("%d %x <nil>", size, sha256.Sum256(data))
		r.do("POST", "/", to(idA, port), bytes.NewReader(data)).expect(t, 200, want)
		r.do("POST", "/", to(idA, port), io.MultiReader(bytes.NewReader(data))).expect(t, 200, want) // chunked
	}
}

func TestDownloadsArriveWhole(t *testing.T) {
	r := newRig(t)
	a := newSandbox(t)
	data := make([]byte, 8<<20+12345)
	_, _ = rand.Read(data)
	// Bulk and trickle by turns, as the edge copies them in different ways.
	port := a.serve(0, func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/known" {
			w.Header().Set("Content-Length", fmt.Sprint(len(data)))
		}
		w.Header().Set("Trailer", "X-End")
		for rest, step := data, 0; len(rest) > 0; step++ {
			n := min([]int{1 << 20, 3, 700, 100_000, 1, 8 << 10, 64 << 10}[step%7], len(rest))
			_, _ = w.Write(rest[:n])
			_ = http.NewResponseController(w).Flush()
			rest = rest[n:]
		}
		w.Header().Set("X-End", "reached")
	})
	r.push(running(idA, 1, a.address))
	for _, path := range []string{"/known", "/chunks"} {
		req, err := http.NewRequest("GET", "http://"+r.edge.Addr()+path, nil)
		must(t, err)
		req.Header = to(idA, port)
		res, err := noRedirects.Do(req)
		must(t, err)
		got, err := io.ReadAll(res.Body)
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("%s: %d of %d bytes, equal %v, %v", path, len(got), len(data), bytes.Equal(got, data), err)
		}
		if path == "/chunks" && res.Trailer.Get("X-End") != "reached" {
			t.Errorf("trailer %v", res.Trailer)
		}
	}
}

func TestABrokenUploadIsSeenInTheSandbox(t *testing.T) {
	r := newRig(t)
	a := newSandbox(t)
	result := make(chan error, 1)
	port := a.serve(0, func(_ http.ResponseWriter, req *http.Request) {
		_, err := io.Copy(io.Discard, req.Body)
		result <- err
	})
	r.push(running(idA, 1, a.address))
	for _, framing := range []string{"Content-Length: 1000000", "Transfer-Encoding: chunked"} {
		w := r.dial()
		w.request("POST / HTTP/1.1", "Host: localhost", framing, "E2b-Sandbox-Id: "+idA, fmt.Sprintf("E2b-Sandbox-Port: %d", port))
		w.send("5\r\nhello\r\n")
		must(t, w.Close())
		if err := <-result; err == nil {
			t.Errorf("%s: the sandbox took half an upload for a whole one", framing)
		}
	}
}

func TestAnEarlyAnswerReachesAClientThatStillSends(t *testing.T) {
	r := newRig(t)
	a := newSandbox(t)
	port := a.raw(0, func(c *net.TCPConn, in *bufio.Reader) {
		if readHead(in) == nil {
			_, _ = io.WriteString(c, "HTTP/1.1 507 Insufficient Storage\r\nContent-Length: 4\r\nConnection: close\r\n\r\nfull")
			_, _ = io.CopyN(io.Discard, in, 100000)
		}
	})
	r.push(running(idA, 1, a.address))
	for name, c := range map[string]struct {
		header http.Header
		code   int
	}{"by the sandbox": {to(idA, port), 507}, "by the edge": {to("inotherenothere", 80), 502}} {
		t.Run(name, func(t *testing.T) {
			w := r.dial()
			const size = 32 << 20
			lines := []string{"Host: localhost", fmt.Sprintf("Content-Length: %d", size)}
			for header, values := range c.header {
				lines = append(lines, header+": "+values[0])
			}
			w.request("POST / HTTP/1.1", lines...)
			// Like many clients, it looks for the answer only after it has sent everything.
			if n, err := io.Copy(w, io.LimitReader(zeros{}, size)); err != nil {
				t.Fatalf("sending stopped after %d bytes: %v", n, err)
			}
			if res := w.response("POST"); res.StatusCode != c.code {
				t.Errorf("got %d", res.StatusCode)
			}
		})
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

func TestOldAndOddClients(t *testing.T) {
	r := newRig(t)
	a := newSandbox(t)
	port := a.serve(0, func(w http.ResponseWriter, req *http.Request) {
		switch req.URL.Path {
		case "/early":
			w.Header().Set("Link", "</x>; rel=preload")
			w.WriteHeader(103)
			w.Header().Del("Link")
		case "/chunks":
			_ = http.NewResponseController(w).Flush()
		case "/large":
			w.Header().Set("Content-Length", "3000000000")
			return
		case "/deny":
			w.WriteHeader(401)
			return
		}
		body, _ := io.ReadAll(req.Body)
		fmt.Fprintf(w, "%s %d bytes, %d of headers", req.Method, len(body), len(req.Header.Get("X-Long")))
	})
	r.push(running(idA, 1, a.address))
	routing := []string{"E2b-Sandbox-Id: " + idA, fmt.Sprintf("E2b-Sandbox-Port: %d", port)}
	ask := func(method, line string, headers ...string) (*wire, *http.Response) {
		w := r.dial()
		w.request(line, append(headers, routing...)...)
		return w, w.response(method)
	}
	body := func(res *http.Response) string {
		text, err := io.ReadAll(res.Body)
		must(t, err)
		return string(text)
	}

	t.Run("HTTP/1.0 without host", func(t *testing.T) {
		w, res := ask("GET", "GET /chunks HTTP/1.0")
		if got := body(res); got != "GET 0 bytes, 0 of headers" || res.TransferEncoding != nil {
			t.Errorf("%q %v", got, res.TransferEncoding)
		}
		if _, err := w.r.ReadByte(); err != io.EOF {
			t.Errorf("the connection stays: %v", err)
		}
	})
	t.Run("HTTP/1.0 gets no early hints", func(t *testing.T) {
		if _, res := ask("GET", "GET /early HTTP/1.0"); res.StatusCode != 200 {
			t.Errorf("got %d", res.StatusCode)
		}
	})
	t.Run("early hints", func(t *testing.T) {
		w, res := ask("GET", "GET /early HTTP/1.1", "Host: localhost")
		if res.StatusCode != 103 || res.Header.Get("Link") == "" {
			t.Errorf("got %d", res.StatusCode)
		}
		if res := w.response("GET"); res.StatusCode != 200 || res.Header.Get("Link") != "" {
			t.Errorf("got %d %v", res.StatusCode, res.Header)
		}
	})
	t.Run("HEAD", func(t *testing.T) {
		w, res := ask("HEAD", "HEAD /large HTTP/1.1", "Host: localhost")
		if res.ContentLength != 3000000000 {
			t.Errorf("length %d", res.ContentLength)
		}
		w.request("GET / HTTP/1.1", append([]string{"Host: localhost"}, routing...)...)
		if got := body(w.response("GET")); got != "GET 0 bytes, 0 of headers" {
			t.Errorf("after HEAD: %q", got)
		}
	})
	t.Run("100-continue", func(t *testing.T) {
		w, res := ask("POST", "POST / HTTP/1.1", "Host: localhost", "Content-Length: 5", "Expect: 100-continue")
		if res.StatusCode != 100 {
			t.Fatalf("got %d", res.StatusCode)
		}
		w.send("hello")
		if got := body(w.response("POST")); got != "POST 5 bytes, 0 of headers" {
			t.Errorf("%q", got)
		}
	})
	t.Run("100-continue refused", func(t *testing.T) {
		w, res := ask("POST", "POST /deny HTTP/1.1", "Host: localhost", "Content-Length: 5000000", "Expect: 100-continue")
		if res.StatusCode != 401 {
			t.Errorf("got %d", res.StatusCode)
		}
		_ = w
	})
	t.Run("headers of 100 KB", func(t *testing.T) {
		if _, res := ask("GET", "GET / HTTP/1.1", "Host: localhost", "X-Long: "+strings.Repeat("x", 100<<10)); body(res) != "GET 0 bytes, 102400 of headers" {
			t.Errorf("got %d", res.StatusCode)
		}
	})
	t.Run("headers too large", func(t *testing.T) {
		for _, size := range []int{150 << 10, 300 << 10} {
			if _, res := ask("GET", "GET / HTTP/1.1", "Host: localhost", "X-Long: "+strings.Repeat("x", size)); res.StatusCode != 431 {
				t.Errorf("%d bytes: got %d", size, res.StatusCode)
			}
		}
	})
	t.Run("absolute target", func(t *testing.T) {
		if _, res := ask("GET", "GET http://localhost/ HTTP/1.1", "Host: elsewhere.test"); body(res) != "GET 0 bytes, 0 of headers" {
			t.Errorf("got %d", res.StatusCode)
		}
	})
	t.Run("CONNECT", func(t *testing.T) {
		if _, res := ask("CONNECT", "CONNECT 127.0.0.1:22 HTTP/1.1", "Host: localhost"); res.StatusCode != 400 {
			t.Errorf("got %d", res.StatusCode)
		}
	})
	t.Run("pipelined", func(t *testing.T) {
		w := r.dial()
		for range 3 {
			w.request("GET / HTTP/1.1", append([]string{"Host: localhost"}, routing...)...)
		}
		for range 3 {
			if got := body(w.response("GET")); got != "GET 0 bytes, 0 of headers" {
				t.Errorf("%q", got)
			}
		}
	})
	t.Run("malformed body", func(t *testing.T) {
		w := r.dial()
		w.request("POST / HTTP/1.1", append([]string{"Host: localhost", "Transfer-Encoding: chunked"}, routing...)...)
		w.send("nonsense\r\n")
		if res := w.response("POST"); res.StatusCode != 400 {
			t.Errorf("got %d", res.StatusCode)
		}
	})
}

func TestNothingIsAddedToAnAnswer(t *testing.T) {
	r := newRig(t)
	a := newSandbox(t)
	port := a.raw(0, func(c *net.TCPConn, in *bufio.Reader) {
		if readHead(in) == nil {
			_, _ = io.WriteString(c, "HTTP/1.1 299 Odd\r\nX-Twice: 1\r\nX-Twice: 2\r\nKeep-Alive: x\r\nSet-Cookie: kept=1\r\nContent-Length: 15\r\n\r\n<html>hi</html>")
		}
	})
	r.push(running(idA, 1, a.address))
	got := r.get("/", to(idA, port))
	got.expect(t, 299, "<html>hi</html>")
	got.header.Del("Date")
	got.header.Del("Connection")
	want := http.Header{"X-Twice": {"1", "2"}, "Set-Cookie": {"kept=1"}, "Content-Length": {"15"}}
	if !reflect.DeepEqual(got.header, want) {
		t.Errorf("headers %v, want %v", got.header, want)
	}
}

func TestLongDownloads(t *testing.T) {
	if testing.Short() {
		t.Skip("3 GB")
	}
	r := newRig(t)
	a := newSandbox(t)
	const size = 3_000_000_000
	known := a.serve(0, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(size))
		sendZeros(w, size)
	})
	untilEnd := a.raw(0, func(c *net.TCPConn, in *bufio.Reader) { // HTTP/1.0: the body ends with the connection
		if readHead(in) == nil {
			_, _ = io.WriteString(c, "HTTP/1.0 200 OK\r\n\r\n")
			sendZeros(c, 300_000_000)
		}
	})
	r.push(running(idA, 1, a.address))
	for port, want := range map[int]int64{known: size, untilEnd: 300_000_000} {
		w := r.dial()
		must(t, w.SetDeadline(time.Now().Add(5*time.Minute)))
		w.request("GET / HTTP/1.1", "Host: localhost", "E2b-Sandbox-Id: "+idA, fmt.Sprintf("E2b-Sandbox-Port: %d", port))
		if n, err := io.Copy(io.Discard, w.response("GET").Body); err != nil || n != want {
			t.Errorf("%d of %d bytes, %v", n, want, err)
		}
	}
}

func sendZeros(w io.Writer, size int64) {
	buf := make([]byte, 1<<20)
	for size > 0 {
		n, err := w.Write(buf[:min(size, int64(len(buf)))])
		if err != nil {
			return
		}
		size -= int64(n)
	}
}

func TestAClientThatLeavesIsNoticedInTheSandbox(t *testing.T) {
	r := newRig(t)
	a := newSandbox(t)
	gone := make(chan struct{})
	port := a.serve(0, func(w http.ResponseWriter, req *http.Request) {
		streams(w, req)
		close(gone)
	})
	r.push(running(idA, 1, a.address))
	must(t, r.openStream(idA, port).Close())
	select {
	case <-gone:
	case <-time.After(patience):
		t.Fatal("the stream goes on")
	}
}

func TestStaleConnections(t *testing.T) {
	r := newRig(t)
	a := newSandbox(t)
	var requests atomic.Int64
	// Takes one request a connection, promises more, and hangs up when the next one comes: what a request meets that
	// is sent at the moment at which an application gives an idle connection up.
	port := a.raw(0, func(c *net.TCPConn, in *bufio.Reader) {
		if readHead(in) != nil {
			return
		}
		requests.Add(1)
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		if _, err := in.ReadByte(); err == nil {
			requests.Add(1)
		}
	})
	r.push(running(idA, 1, a.address))
	for range 5 {
		r.get("/", to(idA, port)).expect(t, 200, "ok")
	}
	requests.Store(0)
	got := r.do("POST", "/", to(idA, port), strings.NewReader("x"))
	if n := requests.Load(); n != 1 {
		t.Errorf("a POST was sent %d times (answer %d)", n, got.code)
	}
}

func TestLoopbackPortsAreReached(t *testing.T) {
	r := newRig(t)
	a := newSandbox(t)
	var asked atomic.Int64
	port := 8123
	a.serve(49983, func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		if req.Method != "POST" || req.URL.Path != "/internal/forward" || string(body) != `{"port": 8123}` {
			w.WriteHeader(409)
			return
		}
		if asked.Add(1) == 1 {
			a.serve(port, says("from loopback"))
		}
		w.WriteHeader(204)
	})
	r.push(running(idA, 1, a.address))
	r.get("/", to(idA, port)).expect(t, 200, "from loopback")
	r.get("/", to(idA, port)).expect(t, 200, "from loopback")
	if n := asked.Load(); n != 1 {
		t.Errorf("envd was asked %d times", n)
	}
	r.get("/", to(idA, 8124)).expect(t, 502,
		fmt.Sprintf(`{"sandboxId":%q,"message":"The sandbox is running but port is not open","port":8124,"code":502}`, idA))
}

func TestTooManyStreamsToOneSandbox(t *testing.T) {
	r := newRig(t, func(c *edge.Config) { c.MaxStreams = 3 })
	a := newSandbox(t)
	port := a.serve(0, streams)
	r.push(running(idA, 1, a.address), running(idB, 1, a.address))
	var open []*wire
	for range 3 {
		open = append(open, r.openStream(idA, port))
	}
	if got := r.get("/", to(idA, port)); got.code != 429 || got.header.Get("Retry-After") == "" {
		t.Errorf("got %d", got.code)
	}
	r.openStream(idB, port)
	must(t, open[0].Close())
	eventually(t, "there is room again", func() bool {
		_, text := r.call("GET", "/metrics", nil)
		return strings.Contains(text, "forkyard_edge_open_streams 3\n")
	})
	r.openStream(idA, port)
}
