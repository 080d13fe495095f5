package proxy

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"forkyard.dev/forkyard/internal/edge/listen"
	"forkyard.dev/forkyard/internal/edge/metrics"
	"forkyard.dev/forkyard/internal/edge/routing"
	"forkyard.dev/forkyard/internal/edge/table"
	"forkyard.dev/forkyard/internal/edge/upstream"
)

// maxInformational bounds the 1xx answers that a sandbox may send before its real one.
const maxInformational = 64

// exchange is one request and its answer: the http.ResponseWriter that the proxies write to, and what is known so far.
type exchange struct {
	writer  http.ResponseWriter
	request *http.Request
	body    *requestBody // nil when the request has none
	client  *listen.Conn // nil under a foreign server

	kind    metrics.Kind
	outcome metrics.Outcome
	begun   time.Time
	now     func() time.Time
	target  routing.Target
	signed  bool // the target was found by a signature: the answer comes from the API's own origin

	status        int
	answered      atomic.Bool // a status is known
	informational int
	hijacked      bool

	// writing is held while the writer is used: the reverse proxy's delayed flush comes from another goroutine than
	// what body writes.
	writing sync.Mutex
}

// Header, Write and WriteHeader make exchange an http.ResponseWriter.
func (x *exchange) Header() http.Header { return x.writer.Header() }

func (x *exchange) Write(p []byte) (int, error) {
	x.writing.Lock()
	defer x.writing.Unlock()
	return x.writer.Write(p)
}

var closeConnection = []string{"close"}

// WriteHeader passes the status on. It bounds 1xx answers, and keeps the server from guessing a content type that the
// sandbox did not send.
func (x *exchange) WriteHeader(code int) {
	if code < 200 && code != http.StatusSwitchingProtocols {
		x.inform(code)
		return
	}
	x.status = code
	x.answered.Store(true)
	h := x.writer.Header()
	if _, ok := h["Content-Type"]; !ok {
		h["Content-Type"] = nil
	}
	if x.body != nil && !x.body.ended.Load() && x.request.ProtoMajor == 1 {
		// What is left of the body must never be read as the next request.
		h["Connection"] = closeConnection
	}
	x.writer.WriteHeader(code)
}

func (x *exchange) inform(code int) {
	x.informational++
	switch {
	case x.informational == maxInformational+1:
		// Only ending the client's connection makes the transport stop reading them.
		x.Reset()
	case x.informational > maxInformational, !x.request.ProtoAtLeast(1, 1):
	case code == http.StatusContinue:
		// The server says this by itself when the transport, which waited for it, begins to read the body.
	default:
		x.writer.WriteHeader(code)
	}
}

// FlushError sends what is buffered.
func (x *exchange) FlushError() error {
	x.writing.Lock()
	defer x.writing.Unlock()
	return http.NewResponseController(x.writer).Flush()
}

// Hijack hands the client's connection over, for Upgrade.
func (x *exchange) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(x.writer).Hijack()
	x.hijacked = err == nil
	return conn, rw, err
}

// Reset cuts the client off: RST on HTTP/1, RST_STREAM on HTTP/2. It must not be called after the handler returned.
func (x *exchange) Reset() {
	if x.request.ProtoMajor >= 2 {
		// A write deadline in the past resets the stream at once.
		_ = http.NewResponseController(x.writer).SetWriteDeadline(time.Unix(1, 0))
		return
	}
	if x.client != nil {
		x.client.Reset()
	}
}

// youth is how long after its arrival a request counts as one that came in the middle of a pause. One that had waited
// for longer, a long poll, would wake its sandbox again and again.
const youth = time.Second

// MayRepeat reports whether the request can be sent to the sandbox's next generation although this one has got it: it
// only asks for something, it came just now, and no answer has come.
func (x *exchange) MayRepeat() bool {
	switch x.request.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return x.body == nil && !x.answered.Load() && x.request.Header.Get("Upgrade") == "" && x.now().Sub(x.begun) < youth
	}
	return false
}

// resetWhenClosed makes the coming close of a cut HTTP/1 connection an RST, which clients of envd streams take for the
// end of the sandbox. Without it they see an end of file that could be anything.
func (x *exchange) resetWhenClosed() {
	if x.request.ProtoMajor == 1 && x.client != nil {
		_ = x.client.SetLinger(0)
	}
}

// attempt is one try to have a sandbox answer: the context of the request sent to it.
type attempt struct {
	context.Context
	*exchange
	entry *table.Entry
	lease upstream.Lease
	again bool // the generation ended before anything was sent, or before an answer to what may be repeated
}

type attemptKey struct{}

// Value lets the backend find the lease of the request that it dials for, and the transport the attempt.
func (a *attempt) Value(key any) any {
	switch key.(type) {
	case upstream.LeaseKey:
		return &a.lease
	case attemptKey:
		return a
	}
	return a.Context.Value(key)
}

// requestBody watches a client's body being read. The transport reads it in a goroutine of its own.
type requestBody struct {
	io.ReadCloser
	begun  atomic.Bool
	ended  atomic.Bool // read to its end
	broken atomic.Bool // the client's side failed
}

func (b *requestBody) Read(p []byte) (int, error) {
	b.begun.Store(true)
	n, err := b.ReadCloser.Read(p)
	switch {
	case errors.Is(err, io.EOF):
		b.ended.Store(true)
	case err != nil:
		b.broken.Store(true)
	}
	return n, err
}

const (
	drainIdle  = 5 * time.Second
	drainLimit = 30 * time.Second
)

// drain reads what a client still sends after its answer, for a while. A client that is still sending when its
// connection is closed may never see the answer, such as "the disk is full" in the middle of an upload.
func (x *exchange) drain() {
	b := x.body
	if b == nil || b.ended.Load() || b.broken.Load() || x.hijacked || x.request.ProtoMajor != 1 {
		return
	}
	control := http.NewResponseController(x.writer)
	if !b.begun.Load() && x.request.Header.Get("Expect") != "" {
		// It waits for our word before it sends anything. The server looks for a body all the same.
		_ = control.SetReadDeadline(time.Now().Add(drainIdle))
		return
	}
	if control.Flush() != nil {
		return
	}
	buf := smallBuffers.Get()
	defer smallBuffers.Put(buf)
	for deadline := time.Now().Add(drainLimit); time.Now().Before(deadline); {
		if control.SetReadDeadline(time.Now().Add(drainIdle)) != nil {
			return
		}
		if _, err := b.Read(buf); err != nil {
			return
		}
	}
}
