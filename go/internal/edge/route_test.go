package edge_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

const (
	idA = "iaaaaaaaaaaaaaaaaaaaa"
	idB = "ibbbbbbbbbbbbbbbbbbbb"
)

func TestRequestsGoWhereTheyBelong(t *testing.T) {
	r := newRig(t)
	a, b := newSandbox(t), newSandbox(t)
	portA := a.serve(0, says("sandbox a"))
	portB := b.serve(0, says("sandbox b"))
	r.push(running(idA, 1, a.address), running(idB, 1, b.address))
	hostA := fmt.Sprintf("%d-%s.%s", portA, idA, domain)

	for name, c := range map[string]struct {
		header http.Header
		body   string
	}{
		"no routing":         {http.Header{}, "api GET /x"},
		"E2B headers":        {to(idA, portA), "sandbox a"},
		"own headers":        {http.Header{"X-Forkyard-Sandbox-Id": {idB}, "X-Forkyard-Sandbox-Port": {fmt.Sprint(portB)}}, "sandbox b"},
		"AgentENV headers":   {http.Header{"X-Agentenv-Sandbox-Id": {idB}, "X-Agentenv-Target-Port": {fmt.Sprint(portB)}}, "sandbox b"},
		"old id with client": {to(idA+"-client1", portA), "sandbox a"},
		"host":               {http.Header{"Host": {hostA}}, "sandbox a"},
		"host with port":     {http.Header{"Host": {hostA + ":3000"}}, "sandbox a"},
		"host in capitals":   {http.Header{"Host": {strings.ToUpper(hostA)}}, "sandbox a"},
		"api host":           {http.Header{"Host": {"api." + domain}}, "api GET /x"},
	} {
		t.Run(name, func(t *testing.T) {
			r.get("/x", c.header).expect(t, 200, c.body)
		})
	}
	t.Run("shared host", func(t *testing.T) {
		h := to(idB, portB)
		h.Set("Host", "sandbox."+domain)
		r.get("/x", h).expect(t, 200, "sandbox b")
	})
	t.Run("headers do not count on a foreign host", func(t *testing.T) {
		h := to(idB, portB)
		h.Set("Host", "elsewhere.test")
		r.get("/x", h).expect(t, 200, "api GET /x")
	})
	t.Run("host and headers agree", func(t *testing.T) {
		h := to(idA, portA)
		h.Set("Host", hostA)
		r.get("/x", h).expect(t, 200, "sandbox a")
	})
	t.Run("host and headers conflict", func(t *testing.T) {
		h := to(idB, portB)
		h.Set("Host", hostA)
		if got := r.get("/x", h); got.code != 400 || !strings.Contains(got.body, `"code":400`) {
			t.Fatalf("got %d %s", got.code, got.body)
		}
	})
	t.Run("malformed port", func(t *testing.T) {
		for _, h := range []http.Header{
			{"E2b-Sandbox-Id": {idA}, "E2b-Sandbox-Port": {"http"}},
			{"E2b-Sandbox-Id": {idA}, "E2b-Sandbox-Port": {"70000"}},
			{"Host": {"x-" + idA + "." + domain}},
		} {
			if got := r.get("/x", h); got.code != 400 {
				t.Fatalf("%v: got %d %s", h, got.code, got.body)
			}
		}
	})
}

func TestOwnAnswersAreExact(t *testing.T) {
	r := newRig(t)
	a := newSandbox(t)
	closed := a.serve(0, says(""))
	r.push(running(idA, 1, a.address), route{"id": idB, "generation": 1, "state": "paused"})

	notFound := func(id string) string {
		return fmt.Sprintf(`{"sandboxId":%q,"message":"The sandbox was not found","code":502}`, id)
	}
	t.Run("unknown", func(t *testing.T) {
		got := r.get("/health", to("iunknownunknown", 49983))
		got.expect(t, 502, notFound("iunknownunknown"))
		if got.header.Get("Content-Type") != "application/json" {
			t.Fatal(got.header)
		}
	})
	t.Run("malformed id, no wake", func(t *testing.T) {
		before := r.api.wakes.Load()
		r.get("/health", to("NOT_AN_ID", 49983)).expect(t, 502, notFound("NOT_AN_ID"))
		if r.api.wakes.Load() != before {
			t.Fatal("the control plane was asked for a malformed id")
		}
	})
	t.Run("paused without auto-resume", func(t *testing.T) {
		before := r.api.wakes.Load()
		r.get("/health", to(idB, 49983)).expect(t, 502, notFound(idB))
		if r.api.wakes.Load() != before {
			t.Fatal("the control plane was asked")
		}
	})
	t.Run("port closed", func(t *testing.T) {
		b := newSandbox(t)
		r.set(running("iccccccccc", 1, b.address))
		r.get("/", to("iccccccccc", closed)).expect(t, 502,
			fmt.Sprintf(`{"sandboxId":"iccccccccc","message":"The sandbox is running but port is not open","port":%d,"code":502}`, closed))
	})
	t.Run("page for a browser", func(t *testing.T) {
		h := to("iunknown<b>", 80)
		h.Set("User-Agent", "Mozilla/5.0 (X11; Linux x86_64) Firefox/140.0")
		h.Set("Accept", "text/html,*/*")
		got := r.get("/", h)
		if got.code != 502 || !strings.HasPrefix(got.header.Get("Content-Type"), "text/html") ||
			!strings.Contains(got.body, "The sandbox was not found") || !strings.Contains(got.body, "iunknown&lt;b&gt;") {
			t.Fatalf("got %d %s", got.code, got.body)
		}
		h.Set("Accept", "application/json")
		if got := r.get("/", h); !strings.HasPrefix(got.body, "{") {
			t.Fatalf("a browser program that wants JSON got %s", got.body)
		}
	})
}

func TestTrafficToken(t *testing.T) {
	r := newRig(t)
	a := newSandbox(t)
	port := a.serve(0, func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.WriteString(w, "private"+req.Header.Get("E2b-Traffic-Access-Token"))
	})
	a.serve(49983, says("envd"))
	private := running(idA, 1, a.address).with("public", false)
	r.push(private.with("traffic_token", "secret"), running(idB, 1, a.address).with("public", false))

	for token, code := range map[string]int{"": 403, "wrong": 403, "secret2": 403, "secret": 200} {
		h := to(idA, port)
		if token != "" {
			h.Set("E2b-Traffic-Access-Token", token)
		}
		if got := r.get("/", h); got.code != code {
			t.Errorf("token %q: got %d, want %d", token, got.code, code)
		} else if code == 200 && got.body != "private" {
			t.Errorf("the token reached the sandbox: %q", got.body)
		}
	}
	r.get("/health", to(idA, 49983)).expect(t, 200, "envd")

	// A private sandbox without a token is closed, not open.
	h := to(idB, port)
	h.Set("E2b-Traffic-Access-Token", "")
	if got := r.get("/", h); got.code != 403 {
		t.Errorf("no token set: got %d", got.code)
	}
}

func TestInternalRoutesAreNotThere(t *testing.T) {
	r := newRig(t)
	a := newSandbox(t)
	reached := func(w http.ResponseWriter, req *http.Request) { _, _ = io.WriteString(w, "reached "+req.RequestURI) }
	a.serve(49983, reached)
	app := a.serve(0, reached)
	r.push(running(idA, 1, a.address))

	for _, path := range []string{
		"/init", "/INIT", "/init/", "//init", "/./init", "/x/../init", "/%69nit", "/%2569nit", "/x/%2e%2e/init", "/x/..%2finit",
		"/internal/forward", "/Internal/quiesce", "/%69nternal%2Fforward", `/\internal/x`, "/internal", "/freeze", "/unfreeze",
		"/fsfreeze", "/fsthaw", "/collapse", "/upgrade", "/%25252569nit",
	} {
		w := r.dial()
		w.request("POST "+path+" HTTP/1.1", "Host: localhost", "E2b-Sandbox-Id: "+idA, "E2b-Sandbox-Port: 49983", "Content-Length: 0")
		if res := w.response("POST"); res.StatusCode != 404 {
			t.Errorf("envd %s: got %d", path, res.StatusCode)
		}
	}
	for _, path := range []string{
		"/internal/wake", "/internal", "//internal/wake", "/x/../internal/wake", "/%69nternal/wake", "/INTERNAL/wake", "/%2569nternal/wake",
	} {
		w := r.dial()
		w.request("POST "+path+" HTTP/1.1", "Host: localhost", "X-Forkyard-Internal: edge", "Content-Length: 0")
		if res := w.response("POST"); res.StatusCode != 404 {
			t.Errorf("API %s: got %d", path, res.StatusCode)
		}
	}
	for _, target := range []string{"http:internal/wake", "*", "internal/wake"} {
		w := r.dial()
		w.request("POST "+target+" HTTP/1.1", "Host: localhost", "Content-Length: 0")
		if res := w.response("POST"); res.StatusCode != 400 {
			t.Errorf("target %s: got %d", target, res.StatusCode)
		}
	}
	if r.api.wakes.Load() != 0 {
		t.Error("a client made a wake call")
	}
	// What only looks like them is served, and an application may use the same names.
	r.get("/initial", to(idA, 49983)).expect(t, 200, "reached /initial")
	r.get("/files?path=/internal/x", to(idA, 49983)).expect(t, 200, "reached /files?path=/internal/x")
	r.get("/init", to(idA, app)).expect(t, 200, "reached /init")
	r.get("/internal/x", to(idA, app)).expect(t, 200, "reached /internal/x")
}

func TestHeadersAreCleaned(t *testing.T) {
	r := newRig(t)
	a := newSandbox(t)
	var seen http.Header
	var host string
	keep := func(w http.ResponseWriter, req *http.Request) { seen, host = req.Header.Clone(), req.Host }
	port := a.serve(0, keep)
	a.serve(49983, keep)
	r.api.onRequest(keep)
	r.push(running(idA, 1, a.address).with("mask_host", "localhost:${PORT}"))

	dirty := func(h http.Header) http.Header {
		h.Set("X-Forkyard-Internal", "edge")
		h.Set("X-Forkyard-Anything", "x")
		h.Set("X-Forwarded-For", "6.6.6.6")
		h.Set("Forwarded", "for=6.6.6.6")
		h.Set("Connection", "X-Hop")
		h.Set("X-Hop", "x")
		h.Set("Proxy-Authorization", "x")
		h.Set("E2b-Traffic-Access-Token", "t")
		h.Set("X-Api-Key", "e2b_0123456789012345678901234567890123456789")
		h.Set("X-Access-Token", "kept")
		h.Set("Cookie", "kept=1")
		return h
	}
	absent := func(names ...string) {
		t.Helper()
		for _, name := range names {
			if seen.Get(name) != "" {
				t.Errorf("%s: %q came through", name, seen.Get(name))
			}
		}
	}
	present := func(name, value string) {
		t.Helper()
		if seen.Get(name) != value {
			t.Errorf("%s is %q, want %q", name, seen.Get(name), value)
		}
	}
	r.get("/", dirty(to(idA, port)))
	absent("X-Forkyard-Internal", "X-Forkyard-Anything", "Forwarded", "X-Hop", "Proxy-Authorization", "E2b-Traffic-Access-Token",
		"E2b-Sandbox-Id", "E2b-Sandbox-Port", "X-Api-Key")
	present("X-Forwarded-For", "127.0.0.1")
	present("X-Forwarded-Proto", "http")
	present("X-Access-Token", "kept")
	present("Cookie", "kept=1")
	if want := fmt.Sprintf("localhost:%d", port); host != want {
		t.Errorf("host is %q, want %q", host, want)
	}

	// A key of another form is the application's own.
	h := to(idA, port)
	h.Set("X-Api-Key", "sk-mine")
	h.Set("Authorization", "Bearer e2b_0123456789012345678901234567890123456789")
	r.get("/", h)
	present("X-Api-Key", "sk-mine")
	absent("Authorization")

	r.get("/", dirty(to(idA, 49983)))
	if host != r.edge.Addr() {
		t.Errorf("host at envd is %q", host)
	}

	r.get("/", dirty(http.Header{}))
	absent("X-Forkyard-Internal", "X-Forkyard-Anything", "Forwarded", "X-Hop")
	present("X-Api-Key", "e2b_0123456789012345678901234567890123456789")
	present("X-Forwarded-For", "127.0.0.1")
	present("X-Forwarded-Host", r.edge.Addr())
}

func TestRequestTargetIsKept(t *testing.T) {
	r := newRig(t)
	a := newSandbox(t)
	port := a.serve(0, func(w http.ResponseWriter, req *http.Request) { _, _ = io.WriteString(w, req.RequestURI) })
	r.push(running(idA, 1, a.address))
	for _, target := range []string{
		"/", "/a//b", "//a", "/a%2Fb", "/a%2fb?x=%2f", "/a/../b", "/%C3%A9/\xc3\xa9", `/"quoted"/<x>`, "/a;b=c?d;e=f&g=%zz&h", "/?", "/a?b?c",
		"/a|b^c`{}", "/[x]", "/a%20b+c",
	} {
		w := r.dial()
		w.request("GET "+target+" HTTP/1.1", "Host: localhost", "E2b-Sandbox-Id: "+idA, fmt.Sprintf("E2b-Sandbox-Port: %d", port))
		res := w.response("GET")
		body, _ := io.ReadAll(res.Body)
		if string(body) != target {
			t.Errorf("%q arrived as %q (%d)", target, body, res.StatusCode)
		}
	}
}
