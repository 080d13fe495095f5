package routing

import (
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"testing"
)

const id = "iaaaaaaaaaaaaaaaaaaaa"

func router(t testing.TB) *Router {
	r, err := New([]string{"box.test", "Sandbox.Example.COM:8443", "localhost"})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestDecide(t *testing.T) {
	r := router(t)
	headers := func(pairs ...string) http.Header {
		h := http.Header{}
		for i := 0; i < len(pairs); i += 2 {
			h.Add(pairs[i], pairs[i+1])
		}
		return h
	}
	sandbox := func(id string, port int) Decision { return Decision{Kind: Sandbox, Target: Target{id, port}} }
	routed := headers("E2b-Sandbox-Id", id, "E2b-Sandbox-Port", "80")
	for _, c := range []struct {
		host, target string
		header       http.Header
		want         Decision // Reason is not compared
	}{
		{"3000-" + id + ".box.test", "/", nil, sandbox(id, 3000)},
		{"3000-" + id + ".box.test:3000", "/", nil, sandbox(id, 3000)},
		{"3000-" + id + ".BOX.test.", "/", nil, sandbox(id, 3000)},
		{"3000-" + id + ".sandbox.example.com", "/", nil, sandbox(id, 3000)},
		{"3000-" + id + ".localhost", "/", nil, sandbox(id, 3000)},
		{"3000-" + id + "-client.box.test", "/", nil, sandbox(id, 3000)},
		{"3000-NO_ID.box.test", "/", nil, sandbox("no_id", 3000)},
		{"3000-.box.test", "/", nil, sandbox("", 3000)},
		{"0-" + id + ".box.test", "/", nil, Decision{Kind: Refused}},
		{"65536-" + id + ".box.test", "/", nil, Decision{Kind: Refused}},
		{"03-" + id + ".box.test", "/", nil, Decision{Kind: Refused}},
		{"+80-" + id + ".box.test", "/", nil, Decision{Kind: Refused}},
		{"app-" + id + ".box.test", "/", nil, Decision{Kind: Refused}},
		{"x.3000-" + id + ".box.test", "/", nil, Decision{}},
		{"3000-" + id + ".elsewhere.test", "/", nil, Decision{}},
		{"www.box.test", "/", nil, Decision{}},
		{"www.box.test", "/", routed, Decision{}},
		{"elsewhere.test", "/", routed, Decision{}},
		{"evilbox.test", "/", routed, Decision{}},
		{"", "/", routed, sandbox(id, 80)},
		{"localhost:3000", "/", routed, sandbox(id, 80)},
		{"127.0.0.1:3000", "/", routed, sandbox(id, 80)},
		{"[::1]:3000", "/", routed, sandbox(id, 80)},
		{"[::1]", "/", routed, sandbox(id, 80)},
		{"1.2.3", "/", routed, Decision{}},
		{"box.test", "/", routed, sandbox(id, 80)},
		{"api.box.test", "/", routed, sandbox(id, 80)},
		{"sandbox.box.test:443", "/", routed, sandbox(id, 80)},
		{"80-" + id + ".box.test", "/", routed, sandbox(id, 80)},
		{"81-" + id + ".box.test", "/", routed, Decision{Kind: Refused}},
		{"localhost", "/", headers("E2b-Sandbox-Id", id), Decision{Kind: Refused}},
		{"localhost", "/", headers("E2b-Sandbox-Port", "80"), Decision{Kind: Refused}},
		{"localhost", "/", headers("E2b-Sandbox-Id", id, "E2b-Sandbox-Port", ""), Decision{Kind: Refused}},
		{"localhost", "/", headers("E2b-Sandbox-Id", id, "E2b-Sandbox-Port", "80", "E2b-Sandbox-Port", "81"), Decision{Kind: Refused}},
		{"localhost", "/", headers("E2b-Sandbox-Id", id, "E2b-Sandbox-Port", "80", "E2b-Sandbox-Port", "80"), sandbox(id, 80)},
		{"localhost", "/", headers("E2b-Sandbox-Id", id, "E2b-Sandbox-Port", "80", "X-Forkyard-Sandbox-Id", id, "X-Forkyard-Sandbox-Port", "80"), sandbox(id, 80)},
		{"localhost", "/", headers("E2b-Sandbox-Id", id, "E2b-Sandbox-Port", "80", "X-Agentenv-Sandbox-Id", id, "X-Agentenv-Target-Port", "81"), Decision{Kind: Refused}},
		{"localhost", "/files?signature=v1_x", nil, Decision{Kind: SignedFile}},
		{"elsewhere.test", "/files?path=a&signature=v1_x", nil, Decision{Kind: SignedFile}},
		{"localhost", "/files?signature=v1_x", routed, sandbox(id, 80)},
		{"localhost", "/files?path=a", nil, Decision{}},
		{"localhost", "/files/x?signature=v1_x", nil, Decision{}},
	} {
		requestPath, query, _ := strings.Cut(c.target, "?")
		got := r.Decide(c.host, c.header, requestPath, query)
		if (got.Kind == Refused) != (got.Reason != "") {
			t.Errorf("%s: kind %v with reason %q", c.host, got.Kind, got.Reason)
		}
		got.Reason = ""
		if got != c.want {
			t.Errorf("%s %v: got %+v, want %+v", c.host, c.header, got, c.want)
		}
	}
}

func TestNewRefusesWhatIsNoDomain(t *testing.T) {
	for _, name := range []string{"", "*.box.test", "a b", "http://box.test", ".box.test", "::1"} {
		if _, err := New([]string{name}); err == nil {
			t.Errorf("%q was taken", name)
		}
	}
}

func TestWellFormedID(t *testing.T) {
	for text, want := range map[string]bool{
		id: true, "12345678": true, "1234567": false, strings.Repeat("a", 40): true, strings.Repeat("a", 41): false, "abcdefgH": false,
		"abcdefg-": false, "": false,
	} {
		if WellFormedID(text) != want {
			t.Errorf("%q: %v", text, !want)
		}
	}
}

func FuzzDecide(f *testing.F) {
	f.Add("3000-"+id+".box.test", id, "80", "", "", "/files", "signature=x")
	f.Add("localhost:3000", id+"-x", "80", id, "80", "/", "")
	f.Add("[::1]:x", "A", "065", id, "65536", "*", "%")
	f.Add("80-"+id+".box.test", id, "81", "", "", "/", "")
	r := router(f)
	f.Fuzz(func(t *testing.T, host, firstID, firstPort, secondID, secondPort, path, query string) {
		header := http.Header{}
		for name, value := range map[string]string{
			"E2b-Sandbox-Id": firstID, "E2b-Sandbox-Port": firstPort, "X-Forkyard-Sandbox-Id": secondID, "X-Forkyard-Sandbox-Port": secondPort,
		} {
			if value != "" {
				header.Set(name, value)
			}
		}
		got := r.Decide(host, header, path, query)
		bare := r.Decide(host, nil, path, query)
		switch got.Kind {
		case Sandbox:
			if got.Target.Port < 1 || got.Target.Port > 65535 || strings.Contains(got.Target.ID, "-") {
				t.Fatalf("target %+v", got.Target)
			}
			// Every place that names a target names this one.
			if bare.Kind == Sandbox && bare.Target != got.Target {
				t.Fatalf("the host names %+v, the request went to %+v", bare.Target, got.Target)
			}
			for _, pair := range [][2]string{{firstID, firstPort}, {secondID, secondPort}} {
				if pair == [2]string{} {
					continue
				}
				port, err := strconv.Atoi(pair[1])
				if name, _, _ := strings.Cut(pair[0], "-"); err != nil || name != got.Target.ID || port != got.Target.Port {
					t.Fatalf("the headers name %v, the request went to %+v", pair, got.Target)
				}
			}
		case Refused:
			if got.Reason == "" {
				t.Fatal("refused without a reason")
			}
		default:
			if got.Target != (Target{}) {
				t.Fatalf("kind %v with target %+v", got.Kind, got.Target)
			}
			if got != bare {
				t.Fatalf("headers that do not count changed %+v to %+v", bare, got)
			}
		}
		name := strings.ToLower(host)
		own := name == "" || strings.Contains(name, "box.test") || strings.Contains(name, "example.com") || strings.Contains(name, "localhost")
		if foreign := !own && !strings.ContainsAny(name, ":0123456789"); foreign && (got.Kind == Sandbox || got.Kind == Refused) {
			t.Fatalf("%q is a foreign host but got %+v", host, got)
		}
	})
}

func TestCovers(t *testing.T) {
	for text, want := range map[string]bool{
		"/init": true, "/init/": true, "/init/x": true, "init": true, "/Init": true, "//init": true, "/./init": true, "/a/../init": true,
		"/../init": true, `\init`: true, `/a\..\init`: true, "/%69nit": true, "/%2569nit": true, "/a/%2e%2e/init": true, "/a%2f..%2finit": true,
		"/internal": true, "/internal/a": true, "/ınternal": false, "/\u212a": false, "/ init": true, "/init%00": true, "/init\t": true,
		"/f\u017freeze": false, "/\u017fthaw": false, "/f\u017fthaw": true, // the long s folds to s
		"/": false, "": false, "/initial": false, "/a/init": false, "/files": false, "/process.Process/Start": false, "/init.txt": false,
		"/%zz": false, "/100%": false, "/a%2finit": false, "/health": false,
	} {
		if got := EnvdInternal.Covers(text); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
	if ControlPlaneInternal.Covers("/init") || !ControlPlaneInternal.Covers("/x/..//Internal") {
		t.Error("the control plane's names are wrong")
	}
}

func FuzzCovers(f *testing.F) {
	for _, seed := range []string{"/init", "/a/../init", "/%69nit", `\internal\x`, "/x/%2e%2e/%2569nit", "/../..//Freeze/", "/a%2finit", "/%%36%39nit"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		got := EnvdInternal.Covers(raw)
		// Whatever a server behind the edge makes of the path by decoding up to three times and cleaning, before or
		// after, must not be a protected name that the edge let through.
		current := raw
		for range 4 {
			for _, form := range []string{current, path.Clean("/" + current), strings.ReplaceAll(current, `\`, "/"), path.Clean("/" + strings.ReplaceAll(current, `\`, "/"))} {
				first, _, _ := strings.Cut(strings.TrimLeft(form, "/"), "/")
				for _, name := range EnvdInternal {
					if strings.ToLower(first) == name && !got {
						t.Fatalf("%q becomes %q and was let through", raw, form)
					}
				}
			}
			next, err := url.PathUnescape(current)
			if err != nil || next == current {
				break
			}
			current = next
		}
		if strings.Count(raw, "%") == 0 && !strings.ContainsAny(raw, `/\`) && len(raw) > 30 && got && strings.TrimSpace(raw) == raw {
			t.Fatalf("%q is covered", raw)
		}
	})
}

func BenchmarkDecide(b *testing.B) {
	r := router(b)
	header := http.Header{"E2b-Sandbox-Id": {id}, "E2b-Sandbox-Port": {"49983"}, "User-Agent": {"x"}}
	b.ReportAllocs()
	for b.Loop() {
		if r.Decide("localhost:3000", header, "/process.Process/Start", "").Kind != Sandbox {
			b.Fatal("lost")
		}
	}
}

func BenchmarkCovers(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if EnvdInternal.Covers("/process.Process/Start") {
			b.Fatal("covered")
		}
	}
}
