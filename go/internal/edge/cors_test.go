package edge_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// preflight is what a browser asks before a page of another origin sends a request with a token.
func preflight(target http.Header) http.Header {
	asked := http.Header{
		"Origin":                         {"https://page.test"},
		"Access-Control-Request-Method":  {"POST"},
		"Access-Control-Request-Headers": {"content-type,e2b-traffic-access-token,x-access-token"},
	}
	for name, values := range target {
		asked[name] = values
	}
	return asked
}

func (a answer) expectAllowed(t *testing.T) {
	t.Helper()
	a.expect(t, 204, "")
	if got := a.header.Get("Access-Control-Allow-Origin"); got != "*" {
		t.Errorf("allowed origin %q", got)
	}
	if got := a.header.Get("Access-Control-Allow-Methods"); !strings.Contains(got, "POST") {
		t.Errorf("allowed methods %q", got)
	}
	if got := a.header.Get("Access-Control-Allow-Headers"); !strings.Contains(got, "e2b-traffic-access-token") {
		t.Errorf("allowed headers %q", got)
	}
	if a.header.Get("Access-Control-Max-Age") == "" {
		t.Error("it is not said how long this holds")
	}
}

func hostOf(id string, port int) string { return fmt.Sprintf("%d-%s.%s", port, id, domain) }

func TestPreflightsWithoutATokenReachAndWakeNoSandbox(t *testing.T) {
	r := newRig(t)
	a := newSandbox(t)
	reached := func(w http.ResponseWriter, _ *http.Request) { t.Error("it reached the sandbox"); w.WriteHeader(200) }
	port := a.serve(0, reached)
	a.serve(49983, reached)
	r.api.onWake(func(string, string) (int, any) { t.Error("it woke the sandbox"); return 404, nil })
	private := func(state route) route {
		return state.with("public", false).with("traffic_token", "secret").with("envd_token", envdToken)
	}
	states := map[string]route{
		"running":             private(running(idA, 1, a.address)),
		"held":                private(held(idA, 1)),
		"paused, auto-resume": private(paused(idA, 1)),
		"paused for good":     private(paused(idA, 1)).with("auto_resume", false),
	}
	for name, state := range states {
		t.Run(name, func(t *testing.T) {
			r.epoch++
			r.push(state)
			for what, header := range map[string]http.Header{
				"port by header": to(idA, port),
				"envd by header": to(idA, 49983),
				"port by host":   {"Host": {hostOf(idA, port)}},
				"envd by host":   {"Host": {hostOf(idA, 49983)}},
			} {
				t.Run(what, func(t *testing.T) {
					r.do("OPTIONS", "/files?path=a", preflight(header), nil).expectAllowed(t)
				})
			}
			r.do("OPTIONS", "/files?path=a&signature=v1_x", preflight(nil), nil).expectAllowed(t)
		})
	}
}

func TestThePreflightOfAPublicPortIsTheProgramsOwn(t *testing.T) {
	r := newRig(t)
	a := newSandbox(t)
	port := a.serve(0, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "https://only.test")
		_, _ = io.WriteString(w, r.Method)
	})
	r.push(running(idA, 1, a.address))
	got := r.do("OPTIONS", "/", preflight(to(idA, port)), nil)
	got.expect(t, 200, "OPTIONS")
	if origin := got.header.Get("Access-Control-Allow-Origin"); origin != "https://only.test" {
		t.Errorf("allowed origin %q", origin)
	}
}

func TestOptionsThatAreNoPreflightNeedTheToken(t *testing.T) {
	r := newRig(t)
	a := newSandbox(t)
	port := a.serve(0, says("app"))
	r.push(running(idA, 1, a.address).with("public", false).with("traffic_token", "secret"))
	if got := r.do("OPTIONS", "/", to(idA, port), nil); got.code != 403 {
		t.Errorf("without the headers of a preflight: %d", got.code)
	}
	token := to(idA, port)
	token.Set("E2b-Traffic-Access-Token", "secret")
	r.do("OPTIONS", "/", token, nil).expect(t, 200, "app")
}

func TestPreflightsOfInternalRoutesGetNothing(t *testing.T) {
	r := newRig(t)
	a := newSandbox(t)
	r.push(running(idA, 1, a.address))
	if got := r.do("OPTIONS", "/init", preflight(to(idA, 49983)), nil); got.code != 404 {
		t.Errorf("/init: %d", got.code)
	}
}

func TestPagesOfAnyOriginCanReadWhatTheEdgeSays(t *testing.T) {
	r := newRig(t)
	a := newSandbox(t)
	r.api.onWake(func(string, string) (int, any) { return 429, map[string]any{"code": 429, "message": "later"} })
	r.push(running(idA, 1, a.address), paused(idB, 1))
	answers := map[string]answer{
		"port closed":     r.get("/", to(idA, 1)),
		"unknown":         r.get("/", to("malformed-", 80)),
		"private":         r.get("/", to(idA, 70000)),
		"bad signature":   r.get("/files?path=a&signature=v1_x", nil),
		"refused by wake": r.get("/", to(idB, 80)),
		"internal":        r.get("/internal/wake", nil),
	}
	for what, got := range answers {
		if got.code < 400 {
			t.Errorf("%s: %d %s", what, got.code, got.body)
		}
		if origin := got.header.Get("Access-Control-Allow-Origin"); origin != "*" {
			t.Errorf("%s (%d): allowed origin %q", what, got.code, origin)
		}
	}
}
