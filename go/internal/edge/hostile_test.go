package edge_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"forkyard.dev/forkyard/internal/edge"
)

// TestHostileAnswers sends what no honest server sends. The edge must answer or end the request, stay small, and serve
// the next one.
func TestHostileAnswers(t *testing.T) {
	r := newRig(t)
	a := newSandbox(t)
	const head = "HTTP/1.1 200 OK\r\n"
	repeat := func(c net.Conn, text string) {
		for {
			if _, err := io.WriteString(c, text); err != nil {
				return
			}
		}
	}
	const bad = 502
	cases := []struct {
		name string
		code int // 0: the connection is cut, with or without a head before
		send func(c net.Conn)
	}{
		{"not HTTP", bad, func(c net.Conn) { _, _ = io.WriteString(c, "SSH-2.0-OpenSSH_9\r\n") }},
		{"nothing", bad, func(net.Conn) {}},
		{"half a head", bad, func(c net.Conn) { _, _ = io.WriteString(c, head+"X-Half: ") }},
		{"huge header", bad, func(c net.Conn) { _, _ = io.WriteString(c, head+"X-Big: "+strings.Repeat("x", 1<<20)+"\r\n\r\n") }},
		{"endless header", bad, func(c net.Conn) { _, _ = io.WriteString(c, head+"X-Big: "); repeat(c, strings.Repeat("x", 1<<16)) }},
		{"endless headers", bad, func(c net.Conn) { _, _ = io.WriteString(c, head); repeat(c, strings.Repeat("X-More: 1\r\n", 1000)) }},
		{"endless status line", bad, func(c net.Conn) { repeat(c, "HTTP/1.1 200 "+strings.Repeat("O", 1<<16)) }},
		{"status 099", bad, func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 099 No\r\nContent-Length: 0\r\n\r\n") }},
		{"status 1000", bad, func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 1000 No\r\nContent-Length: 0\r\n\r\n") }},
		{"negative length", bad, func(c net.Conn) { _, _ = io.WriteString(c, head+"Content-Length: -5\r\n\r\n") }},
		{"two lengths", bad, func(c net.Conn) {
			_, _ = io.WriteString(c, head+"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!")
		}},
		{"unasked 101", bad, func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
		}},
		{"unasked 101 with upgrade", bad, func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		}},
		{"flood of 1xx", 0, func(c net.Conn) { repeat(c, "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n") }},
		{"flood of 100", 0, func(c net.Conn) { repeat(c, "HTTP/1.1 100 Continue\r\n\r\n") }},
		{"bad chunk", 0, func(c net.Conn) {
			_, _ = io.WriteString(c, head+"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\n")
		}},
		{"endless chunk extension", 0, func(c net.Conn) {
			_, _ = io.WriteString(c, head+"Transfer-Encoding: chunked\r\n\r\n5;")
			repeat(c, strings.Repeat("x", 1<<16))
		}},
		{"endless trailer", 0, func(c net.Conn) {
			_, _ = io.WriteString(c, head+"Transfer-Encoding: chunked\r\n\r\n0\r\n")
			repeat(c, strings.Repeat("X-More: 1\r\n", 1000))
		}},
		{"less than promised", 0, func(c net.Conn) { _, _ = io.WriteString(c, head+"Content-Length: 500\r\n\r\nhello") }},
		{"100 that nobody waits for", 200, func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 100 Continue\r\n\r\n"+head+"Content-Length: 0\r\n\r\n")
		}},
		{"more than promised", 200, func(c net.Conn) {
			_, _ = io.WriteString(c, head+"Content-Length: 5\r\n\r\nhelloHTTP/1.1 200 OK\r\n\r\nx")
		}},
		{"strange header names", 200, func(c net.Conn) { _, _ = io.WriteString(c, head+"X:\x01\r\nContent-Length: 0\r\n\r\n") }},
	}
	var before runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			port := a.raw(0, func(conn *net.TCPConn, in *bufio.Reader) {
				if readHead(in) == nil {
					c.send(conn)
				}
			})
			r.set(running(idA, i+1, a.address))
			w := r.dial()
			w.request("GET / HTTP/1.1", "Host: localhost", "E2b-Sandbox-Id: "+idA, fmt.Sprintf("E2b-Sandbox-Port: %d", port))
			code, err := readAnswer(w)
			switch {
			case c.code == 0 && (err == nil || errors.Is(err, os.ErrDeadlineExceeded)):
				t.Errorf("the client was left with %d %v", code, err)
			case c.code != 0 && (err != nil || code != c.code):
				// A strange header is either refused or dropped.
				if c.name != "strange header names" || code != bad {
					t.Errorf("got %d %v, want %d", code, err, c.code)
				}
			}
		})
	}
	eventually(t, "nothing is left open", func() bool {
		_, text := r.call("GET", "/metrics", nil)
		return strings.Contains(text, "forkyard_edge_open_streams 0\n") && strings.Contains(text, "forkyard_edge_upstream_connections 0\n")
	})
	var after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 16<<20 {
		t.Errorf("the heap grew by %d bytes", grown)
	}
	port := a.serve(0, says("still well"))
	r.set(running(idA, 1000, a.address))
	r.get("/", to(idA, port)).expect(t, 200, "still well")
}

// readAnswer reads a whole answer past any 1xx.
func readAnswer(w *wire) (int, error) {
	for {
		res, err := http.ReadResponse(w.r, &http.Request{Method: "GET"})
		if err != nil {
			return 0, err
		}
		if res.StatusCode != 103 {
			_, err = io.Copy(io.Discard, res.Body)
			return res.StatusCode, err
		}
	}
}

func TestSlowAnswersAreWaitedFor(t *testing.T) {
	r := newRig(t)
	a := newSandbox(t)
	port := a.raw(0, func(c *net.TCPConn, in *bufio.Reader) {
		if readHead(in) != nil {
			return
		}
		for _, b := range []byte("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nslow") {
			if _, err := c.Write([]byte{b}); err != nil {
				return
			}
		}
	})
	r.push(running(idA, 1, a.address))
	r.get("/", to(idA, port)).expect(t, 200, "slow")
}

func TestSlowClientsAreCutOff(t *testing.T) {
	r := newRig(t, func(c *edge.Config) { c.HeaderTimeout = 100 * time.Millisecond })
	for _, sent := range []string{"", "GET / HT", "GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow"} {
		w := r.dial()
		w.send(sent)
		if _, err := io.Copy(io.Discard, w.r); err != nil && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%q: %v", sent, err)
		}
	}
	// A connection between two requests may be idle.
	w := r.dial()
	w.request("GET / HTTP/1.1", "Host: localhost")
	res := w.response("GET")
	_, _ = io.Copy(io.Discard, res.Body)
	must(t, w.SetReadDeadline(time.Now().Add(300*time.Millisecond)))
	if _, err := w.r.ReadByte(); err == nil || !err.(net.Error).Timeout() {
		t.Errorf("an idle connection was closed: %v", err)
	}
}

func TestConnectionsOverTheLimitAreReset(t *testing.T) {
	r := newRig(t, func(c *edge.Config) { c.MaxConnections = 2 })
	first, second := r.dial(), r.dial()
	for _, w := range []*wire{first, second} {
		w.request("GET / HTTP/1.1", "Host: localhost")
		w.response("GET")
	}
	third, err := net.Dial("tcp", r.edge.Addr())
	if err == nil {
		_, err = third.Read(make([]byte, 1))
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the third connection: %v", err)
	}
	must(t, first.Close())
	eventually(t, "there is room again", func() bool {
		_, err := r.try("GET", "/", nil, nil)
		return err == nil
	})
}

func TestSmuggledRequestsAreNotSeen(t *testing.T) {
	r := newRig(t)
	a := newSandbox(t)
	port := a.raw(0, func(c *net.TCPConn, in *bufio.Reader) { // answers at once, never reads the body
		if readHead(in) == nil {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
			_, _ = in.ReadByte()
		}
	})
	r.push(running(idA, 1, a.address))
	w := r.dial()
	w.request("POST / HTTP/1.1", "Host: localhost", "Content-Length: 1000", "E2b-Sandbox-Id: "+idA, fmt.Sprintf("E2b-Sandbox-Port: %d", port))
	res := w.response("POST")
	if res.StatusCode != 200 || !res.Close {
		t.Fatalf("got %d, close %v: the rest of the body could become a request", res.StatusCode, res.Close)
	}
	w.send("GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n" + strings.Repeat("x", 960))
	rest, _ := io.ReadAll(w.r)
	if strings.Contains(string(rest), "smuggled") {
		t.Errorf("a body became a request: %q", rest)
	}
	for _, lines := range [][]string{
		{"Content-Length: 5", "Content-Length: 6"},
		{"Content-Length: 5", "Transfer-Encoding: xchunked"},
		{"Content-Length: +5"},
		{"Host: other"},
	} {
		w := r.dial()
		w.request("POST / HTTP/1.1", append([]string{"Host: localhost"}, lines...)...)
		if res := w.response("POST"); res.StatusCode != 400 && res.StatusCode != 501 {
			t.Errorf("%v: got %d", lines, res.StatusCode)
		}
	}
}
