package edge_test

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
)

const envdToken = "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0"

func held(id string, generation int) route {
	return route{"id": id, "generation": generation, "state": "held", "public": true}
}

func paused(id string, generation int) route {
	return route{"id": id, "generation": generation, "state": "paused", "public": true, "auto_resume": true}
}

func TestHeldRequestsWaitForTheWakeCall(t *testing.T) {
	r := newRig(t)
	a := newSandbox(t)
	port := a.serve(0, says("awake"))
	const clients = 20
	arrived := make(chan string, clients)
	release := make(chan struct{})
	r.api.onWake(func(id, reason string) (int, any) {
		arrived <- id + " " + reason
		<-release
		return 200, running(id, 2, a.address)
	})
	r.push(held(idA, 1))
	var all sync.WaitGroup
	for range clients {
		all.Go(func() { r.get("/", to(idA, port)).expect(t, 200, "awake") })
	}
	if got := <-arrived; got != idA+" held" {
		t.Errorf("wake call for %q", got)
	}
	close(release)
	all.Wait()
	if n := r.api.wakes.Load(); n != 1 {
		t.Errorf("%d wake calls for %d requests", n, clients)
	}
}

func TestAPushEndsTheWaitBeforeTheWakeCallDoes(t *testing.T) {
	r := newRig(t)
	a := newSandbox(t)
	port := a.serve(0, says("awake"))
	release, asked := make(chan struct{}), make(chan struct{})
	r.api.onWake(func(id, _ string) (int, any) {
		close(asked)
		<-release
		return 200, running(id, 2, "127.0.0.1") // old news by now
	})
	r.push(held(idA, 1))
	done := make(chan answer, 1)
	go func() { a, _ := r.try("GET", "/", to(idA, port), nil); done <- a }()
	<-asked
	r.set(running(idA, 2, a.address))
	(<-done).expect(t, 200, "awake")

	// A removal overtakes the call: its answer must not bring the sandbox back, whose address may be another's now.
	r.remove(idA, 2)
	close(release)
	eventually(t, "the late answer has arrived", func() bool {
		_, text := r.call("GET", "/metrics", nil)
		return strings.Contains(text, `forkyard_edge_wakes_total{outcome="running"} 1`)
	})
	r.api.onWake(func(string, string) (int, any) { return 404, route{"code": 404, "message": "gone"} })
	r.get("/", to(idA, port)).expect(t, 502, fmt.Sprintf(`{"sandboxId":%q,"message":"The sandbox was not found","code":502}`, idA))
}

func TestAutoResume(t *testing.T) {
	r := newRig(t)
	a := newSandbox(t)
	port := a.serve(0, says("app"))
	a.serve(49983, says("envd"))
	r.api.onWake(func(id, reason string) (int, any) {
		if reason != "request" {
			return 500, nil
		}
		return 200, running(id, 2, a.address).with("envd_token", envdToken).with("traffic_token", "secret").with("public", false)
	})
	asleep := func() {
		r.push()
		r.set(paused(idA, 1).with("envd_token", envdToken).with("traffic_token", "secret").with("public", false))
	}
	unauthorized := `{"code":401,"message":"unauthorized access, please provide a valid access token or method signing if supported"}`
	expired := `{"code":401,"message":"signature is already expired"}`
	for name, c := range map[string]struct {
		port  int
		path  string
		token string // traffic token or access token
		code  int
		body  string // "" is any
	}{
		"app without token":        {port, "/", "", 403, ""},
		"app with wrong token":     {port, "/", "no", 403, ""},
		"app with token":           {port, "/", "secret", 200, "app"},
		"envd without token":       {49983, "/metrics", "", 401, unauthorized},
		"envd with wrong token":    {49983, "/metrics", "no", 401, unauthorized},
		"envd with token":          {49983, "/metrics", envdToken, 200, "envd"},
		"health":                   {49983, "/health", "", 200, "envd"},
		"file with signature":      {49983, signed("a", "read", "user", envdToken, ""), "", 200, "envd"},
		"file with bad signature":  {49983, signed("a", "read", "user", "x", ""), "", 401, unauthorized},
		"file to write":            {49983, signed("a", "write", "user", envdToken, ""), "", 401, unauthorized},
		"file, signature expired":  {49983, signed("a", "read", "user", envdToken, "1000"), "", 401, expired},
		"file, signature not yet":  {49983, signed("a", "read", "user", envdToken, "99999999999"), "", 200, "envd"},
		"signature elsewhere":      {49983, strings.Replace(signed("a", "read", "user", envdToken, ""), "/files", "/metrics", 1), "", 401, unauthorized},
		"envd token is not enough": {port, "/", envdToken, 403, ""},
	} {
		t.Run(name, func(t *testing.T) {
			asleep()
			before := r.api.wakes.Load()
			h := to(idA, c.port)
			if c.token != "" {
				h.Set("E2b-Traffic-Access-Token", c.token)
				h.Set("X-Access-Token", c.token)
			}
			got := r.get(c.path, h)
			if got.code != c.code || c.body != "" && got.body != c.body {
				t.Errorf("got %d %s", got.code, got.body)
			}
			if woken := r.api.wakes.Load() - before; (c.code == 200) != (woken == 1) {
				t.Errorf("%d wake calls", woken)
			}
		})
	}
}

// signed makes the path of a signed file URL.
func signed(path, operation, user, token, expiration string) string {
	text := path + ":" + operation + ":" + user + ":" + token
	query := url.Values{"path": {path}, "username": {user}}
	if expiration != "" {
		text += ":" + expiration
		query.Set("signature_expiration", expiration)
	}
	sum := sha256.Sum256([]byte(text))
	query.Set("signature", "v1_"+base64.RawStdEncoding.EncodeToString(sum[:]))
	return "/files?" + query.Encode()
}

func TestSignedURLsFindTheirSandbox(t *testing.T) {
	r := newRig(t)
	a, b := newSandbox(t), newSandbox(t)
	a.serve(49983, func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		w.Header().Set("Set-Cookie", "session=stolen")
		fmt.Fprint(w, "a ", req.Method, req.URL.Query().Get("path"))
	})
	b.serve(49983, says("b"))
	r.push(running(idA, 1, a.address).with("envd_token", envdToken), running(idB, 1, b.address).with("envd_token", "other token"),
		running("icccccccc", 1, b.address), paused("idddddddd", 1).with("envd_token", "paused token"))
	r.api.onWake(func(id, _ string) (int, any) {
		return 200, running(id, 2, b.address).with("envd_token", "paused token")
	})

	got := r.get(signed("/x y", "read", "user", envdToken, ""), nil)
	got.expect(t, 200, "a GET/x y")
	if got.header.Get("Set-Cookie") != "" || got.header.Get("Content-Security-Policy") != "sandbox" {
		t.Errorf("a file can act at the API's origin: %v", got.header)
	}
	r.do("POST", signed("up", "write", "", envdToken, ""), nil, strings.NewReader("body")).expect(t, 200, "a POSTup")
	r.get(signed("x", "read", "", "other token", ""), nil).expect(t, 200, "b")
	r.get(signed("x", "read", "", "other token", "1000"), nil).expect(t, 200, "b") // envd says that it is expired
	r.get(signed("x", "read", "", "paused token", ""), nil).expect(t, 200, "b")
	r.get(signed("x", "read", "", "", ""), nil).expect(t, 401, `{"code":401,"message":"invalid signature"}`)
	r.get("/files?path=x", nil).expect(t, 200, "api GET /files?path=x")
	r.get("/files/?signature=v1_x", nil).expect(t, 200, "api GET /files/?signature=v1_x")

	limited := 0
	for range 60 {
		got := r.get("/files?path=x&signature=v1_x", nil)
		if got.code == 429 && got.header.Get("Retry-After") == "1" {
			limited++
		}
	}
	if limited < 20 {
		t.Errorf("of 60 tries %d were refused", limited)
	}
}

func TestAnUnknownSandboxIsAskedForOnceASecond(t *testing.T) {
	r := newRig(t)
	for range 5 {
		if got := r.get("/", to(idA, 80)); got.code != 502 {
			t.Fatalf("got %d", got.code)
		}
	}
	if n := r.api.wakes.Load(); n != 1 {
		t.Errorf("%d wake calls", n)
	}
	a := newSandbox(t)
	port := a.serve(0, says("here"))
	r.api.onWake(func(id, reason string) (int, any) {
		if reason != "unknown" {
			return 500, nil
		}
		return 200, running(id, 1, a.address)
	})
	r.get("/", to(idB, port)).expect(t, 200, "here") // what an edge does that has just been restarted
	r.get("/", to(idB, port)).expect(t, 200, "here")
	if n := r.api.wakes.Load(); n != 2 {
		t.Errorf("%d wake calls", n)
	}
}

func TestAFloodOfUnknownSandboxesIsLimited(t *testing.T) {
	r := newRig(t)
	limited := 0
	for i := range 300 {
		if got := r.get("/", to(fmt.Sprintf("inothere%d", i), 80)); got.code == 429 {
			limited++
		}
	}
	asked := int(r.api.wakes.Load())
	if limited == 0 || asked+limited != 300 {
		t.Errorf("%d of 300 refused, %d asked", limited, asked)
	}
	// What is known to be unknown costs nothing and is still told.
	for range 300 {
		if got := r.get("/", to("inothere0", 80)); got.code == 502 {
			return
		}
	}
	t.Error("a sandbox that is known to be gone is not called so")
}

func TestRefusalsOfAWakeArePassedOn(t *testing.T) {
	r := newRig(t)
	r.push(paused(idA, 1))
	for _, code := range []int{429, 503, 507} {
		body := fmt.Sprintf(`{"code":%d,"message":"no room"}`, code)
		r.api.onWake(func(string, string) (int, any) { return code, route{"code": code, "message": "no room"} })
		got := r.get("/", to(idA, 80))
		if got.code != code || strings.TrimSpace(got.body) != body {
			t.Errorf("got %d %s", got.code, got.body)
		}
		if code == 429 && got.header.Get("Retry-After") != "7" {
			t.Errorf("headers %v", got.header)
		}
	}
	r.api.onWake(func(string, string) (int, any) { return 404, route{"code": 404, "message": "gone"} })
	r.get("/", to(idA, 80)).expect(t, 502, fmt.Sprintf(`{"sandboxId":%q,"message":"The sandbox was not found","code":502}`, idA))
	r.api.onWake(func(string, string) (int, any) { return 500, "oops" })
	if got := r.get("/", to(idA, 80)); got.code != 503 || !strings.Contains(got.body, `"code":503`) {
		t.Errorf("got %d %s", got.code, got.body)
	}
	// An answer that cannot be used is not taken.
	for _, bad := range []any{running(idB, 1, "127.0.0.1"), held(idA, 2), running(idA, 2, "example.org"), "text"} {
		r.api.onWake(func(string, string) (int, any) { return 200, bad })
		if got := r.get("/", to(idA, 80)); got.code != 503 {
			t.Errorf("%v: got %d %s", bad, got.code, got.body)
		}
	}
}

func TestAWakeGoesOnWhenItsClientLeaves(t *testing.T) {
	r := newRig(t)
	a := newSandbox(t)
	port := a.serve(0, says("awake"))
	asked, release := make(chan struct{}), make(chan struct{})
	r.api.onWake(func(id, _ string) (int, any) {
		close(asked)
		<-release
		return 200, running(id, 2, a.address)
	})
	r.push(paused(idA, 1))
	w := r.dial()
	w.request("GET / HTTP/1.1", "Host: localhost", "E2b-Sandbox-Id: "+idA, "E2b-Sandbox-Port: 80")
	<-asked
	must(t, w.Close())
	close(release)
	eventually(t, "the sandbox is up", func() bool {
		_, info := r.call("GET", "/metrics", nil)
		return strings.Contains(info, `forkyard_edge_routes{state="running"} 1`)
	})
	r.get("/", to(idA, port)).expect(t, 200, "awake")
	if n := r.api.wakes.Load(); n != 1 {
		t.Errorf("%d wake calls", n)
	}
}

func TestAHeldRequestOutlivesTheControlPlane(t *testing.T) {
	r := newRig(t)
	a := newSandbox(t)
	port := a.serve(0, says("awake"))
	asked := make(chan struct{})
	r.api.onWake(func(string, string) (int, any) {
		close(asked)
		select {} // until it dies
	})
	r.push(held(idA, 1))
	done := make(chan answer, 1)
	go func() {
		a, err := r.try("POST", "/", to(idA, port), strings.NewReader("kept"))
		if err != nil {
			t.Error(err)
		}
		done <- a
	}()
	<-asked
	r.api.stop()
	r.api.onWake(func(string, string) (int, any) { return 503, route{"code": 503, "message": "not the answer"} })
	r.epoch = 2
	r.push(running(idA, 2, a.address)) // the next control plane has finished the transition
	r.api.start()
	(<-done).expect(t, 200, "awake")
}
