package blackbox

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

type object = map[string]any

// call says how a request is made; the zero value is root's, without a token.
type call struct {
	user   string // default root
	token  string
	header http.Header
}

func (c call) apply(r *http.Request) {
	user := c.user
	if user == "" {
		user = "root"
	}
	r.SetBasicAuth(user, "")
	if c.token != "" {
		r.Header.Set("X-Access-Token", c.token)
	}
	for name, values := range c.header {
		r.Header[name] = values
	}
}

func header(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.Set(pairs[i], pairs[i+1])
	}
	return h
}

// reply is a whole answer.
type reply struct {
	status int
	header http.Header
	body   []byte
}

func (r reply) json(t *testing.T) object {
	t.Helper()
	var decoded object
	if err := json.Unmarshal(r.body, &decoded); err != nil {
		t.Fatalf("status %d, not JSON: %q", r.status, r.body)
	}
	return decoded
}

// plain makes a request without decoding anything.
func (e *envd) plain(t *testing.T, c call, method, path string, body io.Reader) reply {
	t.Helper()
	r, err := http.NewRequest(method, e.url+path, body)
	if err != nil {
		t.Fatal(err)
	}
	c.apply(r)
	client := http.Client{Transport: &http.Transport{DisableCompression: true, DisableKeepAlives: true}}
	res, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply{res.StatusCode, res.Header, data}
}

func (e *envd) post(t *testing.T, path string, body any) reply {
	t.Helper()
	data, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	return e.plain(t, call{header: header("Content-Type", "application/json")}, http.MethodPost, path, bytes.NewReader(data))
}

// rpc makes a unary call; it returns the HTTP status and the message or error.
func (e *envd) rpc(t *testing.T, c call, method string, req any) (int, object) {
	t.Helper()
	data, err := json.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	if c.header == nil {
		c.header = http.Header{}
	}
	c.header.Set("Content-Type", "application/json")
	c.header.Set("Connect-Protocol-Version", "1")
	res := e.plain(t, c, http.MethodPost, "/"+method, bytes.NewReader(data))
	return res.status, res.json(t)
}

// ok makes a unary call that must succeed.
func (e *envd) ok(t *testing.T, c call, method string, req any) object {
	t.Helper()
	status, res := e.rpc(t, c, method, req)
	if status != http.StatusOK {
		t.Fatalf("%s: %d %v", method, status, res)
	}
	return res
}

// fails makes a unary call that must fail with a code.
func (e *envd) fails(t *testing.T, c call, method string, req any, code string) {
	t.Helper()
	status, res := e.rpc(t, c, method, req)
	if status == http.StatusOK || res["code"] != code {
		t.Fatalf("%s: want %s, got %d %v", method, code, status, res)
	}
}

func envelope(message any) []byte {
	data, _ := json.Marshal(message)
	framed := make([]byte, 5, 5+len(data))
	binary.BigEndian.PutUint32(framed[1:], uint32(len(data)))
	return append(framed, data...)
}

// stream is an open server stream.
type stream struct {
	t      *testing.T
	body   io.ReadCloser
	cancel context.CancelFunc
	err    object // of the end of the stream; nil for a clean end
	ended  bool
}

func (e *envd) stream(t *testing.T, c call, method string, req any) *stream {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url+"/"+method, bytes.NewReader(envelope(req)))
	if err != nil {
		t.Fatal(err)
	}
	c.apply(r)
	r.Header.Set("Content-Type", "application/connect+json")
	client := http.Client{Transport: &http.Transport{DisableCompression: true, DisableKeepAlives: true}}
	res, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != http.StatusOK || res.Header.Get("Content-Type") != "application/connect+json" {
		t.Fatalf("%s: %d %s", method, res.StatusCode, res.Header.Get("Content-Type"))
	}
	s := &stream{t: t, body: res.Body, cancel: cancel}
	t.Cleanup(s.close)
	return s
}

func (s *stream) close() {
	s.cancel()
	_ = s.body.Close()
}

// next returns the next message, or nil at the end of the stream.
func (s *stream) next() object {
	s.t.Helper()
	var prefix [5]byte
	if _, err := io.ReadFull(s.body, prefix[:]); err != nil {
		s.t.Fatalf("the stream broke: %v", err)
	}
	data := make([]byte, binary.BigEndian.Uint32(prefix[1:]))
	if _, err := io.ReadFull(s.body, data); err != nil {
		s.t.Fatalf("the stream broke: %v", err)
	}
	var message object
	if err := json.Unmarshal(data, &message); err != nil {
		s.t.Fatalf("not JSON: %q", data)
	}
	if prefix[0] == 2 {
		s.ended = true
		s.err, _ = message["error"].(object)
		if n, err := s.body.Read(prefix[:]); n != 0 || !errors.Is(err, io.EOF) {
			s.t.Fatalf("after the end of the stream came %d bytes, %v", n, err)
		}
		return nil
	}
	if prefix[0] != 0 {
		s.t.Fatalf("flags %d", prefix[0])
	}
	return message
}

// command is a stream of process events.
type command struct {
	*stream
	pid            int
	stdout, stderr bytes.Buffer
	pty            bytes.Buffer
	end            object
	keepalives     int
}

func sh(script string) object {
	return object{"cmd": "/bin/sh", "args": []string{"-c", script}}
}

// start starts a process and reads its start event.
func (e *envd) start(t *testing.T, c call, req object) *command {
	t.Helper()
	return follow(t, e.stream(t, c, "process.Process/Start", req))
}

func follow(t *testing.T, s *stream) *command {
	t.Helper()
	cmd := &command{stream: s}
	first := s.next()
	if first == nil {
		return cmd
	}
	start := first["event"].(object)["start"].(object)
	cmd.pid = int(start["pid"].(float64))
	return cmd
}

// event reads one event; false at the end of the stream.
func (c *command) event() bool {
	c.t.Helper()
	message := c.next()
	if message == nil {
		return false
	}
	event := message["event"].(object)
	if data, ok := event["data"].(object); ok {
		for name, into := range map[string]*bytes.Buffer{"stdout": &c.stdout, "stderr": &c.stderr, "pty": &c.pty} {
			if text, ok := data[name].(string); ok {
				raw, err := base64.StdEncoding.DecodeString(text)
				if err != nil {
					c.t.Fatal(err)
				}
				into.Write(raw)
			}
		}
	}
	if end, ok := event["end"].(object); ok {
		c.end = end
	}
	if _, ok := event["keepalive"]; ok {
		c.keepalives++
	}
	return true
}

// wait reads to the end of the stream.
func (c *command) wait() *command {
	c.t.Helper()
	for !c.ended && c.event() {
	}
	return c
}

// until reads until the output holds a text.
func (c *command) until(into *bytes.Buffer, text string) {
	c.t.Helper()
	for !strings.Contains(into.String(), text) {
		if !c.event() {
			c.t.Fatalf("%q did not come: %q", text, into.String())
		}
	}
}

// run runs a script to its end.
func (e *envd) run(t *testing.T, c call, script string) *command {
	t.Helper()
	return e.start(t, c, object{"process": sh(script), "stdin": false}).wait()
}

// output runs a script that must succeed and returns its stdout.
func (e *envd) output(t *testing.T, c call, script string) string {
	t.Helper()
	cmd := e.run(t, c, script)
	if cmd.err != nil || cmd.end == nil || cmd.end["error"] != nil {
		t.Fatalf("%s: %v %v %s", script, cmd.end, cmd.err, cmd.stderr.String())
	}
	return cmd.stdout.String()
}

func (e *envd) input(t *testing.T, pid int, kind, text string) (int, object) {
	t.Helper()
	return e.rpc(t, call{}, "process.Process/SendInput", object{
		"process": object{"pid": pid}, "input": object{kind: base64.StdEncoding.EncodeToString([]byte(text))},
	})
}

// dir makes a directory for a test inside the sandbox, owned by its user.
func (e *envd) dir(t *testing.T, c call) string {
	t.Helper()
	dir := strings.TrimSpace(e.output(t, c, "mktemp -d /tmp/envd-test-XXXXXX"))
	t.Cleanup(func() { e.rpc(t, call{}, "filesystem.Filesystem/Remove", object{"path": dir}) })
	return dir
}

func filesURL(path string, more ...string) string {
	query := url.Values{"path": {path}, "username": {"root"}}
	for i := 0; i < len(more); i += 2 {
		query.Set(more[i], more[i+1])
	}
	return "/files?" + query.Encode()
}

// put uploads a file as octets.
func (e *envd) put(t *testing.T, url string, body io.Reader, pairs ...string) reply {
	t.Helper()
	h := header(append([]string{"Content-Type", "application/octet-stream"}, pairs...)...)
	return e.plain(t, call{header: h}, http.MethodPost, url, body)
}

func (e *envd) get(t *testing.T, url string, pairs ...string) reply {
	t.Helper()
	return e.plain(t, call{header: header(pairs...)}, http.MethodGet, url, nil)
}
