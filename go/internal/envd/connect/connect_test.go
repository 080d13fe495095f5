package connect

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestBytesReadEveryBase64(t *testing.T) {
	want := []byte{0xfb, 0xff, 0xfe, 0x00}
	for _, encoding := range []*base64.Encoding{base64.StdEncoding, base64.RawStdEncoding, base64.URLEncoding, base64.RawURLEncoding} {
		var got Bytes
		if err := json.Unmarshal([]byte(`"`+encoding.EncodeToString(want)+`"`), &got); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%v: %v %v", encoding, got, err)
		}
	}
	var got Bytes
	for _, bad := range []string{`"%"`, `1`, `"A"`, `"+-+-"`} {
		if json.Unmarshal([]byte(bad), &got) == nil {
			t.Fatalf("%s was taken", bad)
		}
	}
}

func TestNumbers(t *testing.T) {
	for text, want := range map[string]Uint32{"0": 0, "7": 7, `"7"`: 7, "4294967295": 4294967295, "1e3": 1000, "null": 0} {
		var got Uint32
		if err := json.Unmarshal([]byte(text), &got); err != nil || got != want {
			t.Fatalf("%s: %v %v", text, got, err)
		}
	}
	for _, bad := range []string{"-1", "4294967296", "1.5", `"x"`, "{}", "true"} {
		var got Uint32
		if json.Unmarshal([]byte(bad), &got) == nil {
			t.Fatalf("%s was taken", bad)
		}
	}
	if data, _ := json.Marshal(Int64(1 << 60)); string(data) != `"1152921504606846976"` {
		t.Fatalf("%s", data)
	}
}

func TestTimeoutHeader(t *testing.T) {
	for text, want := range map[string]time.Duration{"": 0, "0": 1, "1500": 1500 * time.Millisecond, "9999999999": 9999999999 * time.Millisecond} {
		got, err := Timeout(http.Header{"Connect-Timeout-Ms": {text}})
		if err != nil || got != want {
			t.Fatalf("%q: %v %v", text, got, err)
		}
	}
	for _, bad := range []string{"-1", "x", "1.5", "10000000000", "99999999999999999999"} {
		if _, err := Timeout(http.Header{"Connect-Timeout-Ms": {bad}}); err == nil {
			t.Fatalf("%q was taken", bad)
		}
	}
}

func TestEveryCodeHasItsStatus(t *testing.T) {
	for code, want := range map[Code]int{
		CodeCanceled: 499, CodeInvalidArgument: 400, CodeDeadlineExceeded: 504, CodeNotFound: 404, CodeAlreadyExists: 409, CodePermissionDenied: 403,
		CodeResourceExhausted: 429, CodeFailedPrecondition: 400, CodeUnimplemented: 501, CodeInternal: 500, CodeUnavailable: 503, CodeUnauthenticated: 401, CodeUnknown: 500, "other": 500,
	} {
		if got := code.HTTPStatus(); got != want {
			t.Fatalf("%s: %d", code, got)
		}
	}
	if AsError(context.DeadlineExceeded).Code != CodeDeadlineExceeded || AsError(context.Canceled).Code != CodeCanceled || AsError(errors.New("x")).Code != CodeInternal {
		t.Fatal("a context's error must keep its meaning")
	}
}

type echo struct {
	Text string `json:"text"`
}

func TestUnaryAnswersExactly(t *testing.T) {
	handler := Unary(func(_ context.Context, _ *http.Request, req *echo) (*echo, error) {
		if req.Text == "fail" {
			return nil, Errorf(CodeNotFound, "no <b>%s</b>", req.Text)
		}
		return req, nil
	})
	for body, want := range map[string]string{
		`{"text":"hi","unknown":[1]}`: `200 {"text":"hi"}`,
		`{"text":"fail"}`:             `404 {"code":"not_found","message":"no \u003cb\u003efail\u003c/b\u003e"}`,
	} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json; charset=utf-8")
		r.Header.Set("Content-Encoding", "identity")
		handler.ServeHTTP(w, r)
		got := w.Result()
		data, _ := io.ReadAll(got.Body)
		if text := strings.TrimSpace(got.Status[:3] + " " + string(data)); text != want || got.Header.Get("Content-Type") != "application/json" {
			t.Fatalf("%s: %s %v", body, text, got.Header)
		}
	}
}

func FuzzEnvelope(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x00\x02{}"))
	f.Add([]byte("\x02\x00\x00\x00\x02{}"))
	f.Add([]byte("\x00\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, data []byte) {
		body := bytes.NewReader(data)
		for {
			message, err := readEnvelope(body)
			if err != nil {
				return
			}
			if len(message) > len(data) {
				t.Fatal("more came out than went in")
			}
			var any echo
			_ = decode(message, &any)
		}
	})
}

func FuzzBytes(f *testing.F) {
	f.Add([]byte(`"AA=="`))
	f.Add([]byte(`"-_"`))
	f.Fuzz(func(_ *testing.T, data []byte) {
		var b Bytes
		_ = b.UnmarshalJSON(data)
		var u Uint32
		_ = u.UnmarshalJSON(data)
	})
}

type watchedListener struct {
	net.Listener
	reading *atomic.Int32
}

func (l watchedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return watchedConn{conn, l.reading}, err
}

// watchedConn counts the reads in progress.
type watchedConn struct {
	net.Conn
	reading *atomic.Int32
}

func (c watchedConn) Read(p []byte) (int, error) {
	c.reading.Add(1)
	defer c.reading.Add(-1)
	return c.Conn.Read(p)
}

// A client whose request ends after its answer: what it sends late is not the next request.
func TestARequestMayEndAfterItsAnswer(t *testing.T) {
	type message struct {
		Text string `json:"text"`
	}
	var reading atomic.Int32
	server := httptest.NewUnstartedServer(ServerStream(func(_ context.Context, _ *http.Request, in *message, out *Sender) error {
		for reading.Load() == 0 { // until somebody waits for the rest of the request
			runtime.Gosched()
		}
		return out.Send(in)
	}))
	server.Listener = watchedListener{server.Listener, &reading}
	idle := make(chan struct{}, 1)
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateIdle {
			idle <- struct{}{}
		}
	}
	server.Start()
	defer server.Close()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	answers := bufio.NewReader(conn)
	body := Envelope([]byte(`{"text":"x"}`))
	for round := range 3 {
		fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Type: %s\r\nTransfer-Encoding: chunked\r\n\r\n", streamType)
		fmt.Fprintf(conn, "%x\r\n%s\r\n", len(body), body)
		response, err := http.ReadResponse(answers, nil)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if response.StatusCode != http.StatusOK {
			t.Fatalf("round %d: status %d", round, response.StatusCode)
		}
		// The message and the end of the stream are both there before the request has ended.
		if _, err := readEnvelope(response.Body); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if _, err := readEnvelope(response.Body); !errors.Is(err, io.EOF) {
			t.Fatalf("round %d: %v", round, err)
		}
		select {
		case <-idle:
			t.Fatal("the next request is waited for before this one has ended")
		case <-time.After(20 * time.Millisecond):
		}
		fmt.Fprint(conn, "0\r\n\r\n")
		if _, err := io.Copy(io.Discard, response.Body); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		<-idle
	}
}

// Whatever becomes of a stream, its connection can be used again.
func TestAConnectionOutlivesItsStreams(t *testing.T) {
	refuse := func() error { return Errorf(CodeNotFound, "no") }
	mux := http.NewServeMux()
	mux.Handle("/server", ServerStream(func(context.Context, *http.Request, *echo, *Sender) error { return refuse() }))
	mux.Handle("/first", ClientStream(func(_ context.Context, _ *http.Request, in *Receiver[echo]) (*Empty, error) {
		if _, err := in.Next(); err != nil {
			return nil, err
		}
		return nil, refuse()
	}))
	mux.Handle("/none", ClientStream(func(context.Context, *http.Request, *Receiver[echo]) (*Empty, error) { return nil, refuse() }))
	var faults bytes.Buffer
	server := httptest.NewUnstartedServer(mux)
	server.Config.ErrorLog = log.New(&faults, "", 0)
	server.Start()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	answers := bufio.NewReader(conn)
	one := string(Envelope([]byte(`{"text":"x"}`)))
	for _, path := range []string{"/server", "/first", "/none"} {
		for name, body := range map[string]string{"nothing": "", "one": one, "two": one + one, "nonsense": "\x80\x00\x00\x00\x00", "cut": one[:7], "bad": "\x00\x00\x00\x00\x01{"} {
			for _, extra := range []string{"", "Connect-Timeout-Ms: x\r\n", "Connect-Content-Encoding: br\r\n"} {
				fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: %s\r\n%sContent-Length: %d\r\n\r\n%s", path, streamType, extra, len(body), body)
				response, err := http.ReadResponse(answers, nil)
				if err != nil {
					t.Fatalf("%s with %s and %q: %v", path, name, extra, err)
				}
				data, err := io.ReadAll(response.Body)
				if err != nil || response.StatusCode != 200 || !bytes.Contains(data, []byte(`{"error":{"code":`)) {
					t.Fatalf("%s with %s: %d %q %v", path, name, response.StatusCode, data, err)
				}
			}
		}
	}
	conn.Close()
	server.Close()
	if faults.Len() > 0 {
		t.Fatalf("%s", faults.String())
	}
}
