package watch

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"
)

func TestStrikes(t *testing.T) {
	var answer atomic.Int64
	answer.Store(204)
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("followed a redirect")
	}))
	defer elsewhere.Close()
	asked := make(chan struct{}, 1000)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		if answer.Load() == 302 {
			http.Redirect(w, r, elsewhere.URL, http.StatusFound)
			return
		}
		w.WriteHeader(int(answer.Load()))
	}))
	defer server.Close()
	h := Health{URL: server.URL + "/health", Interval: 10 * time.Millisecond, Timeout: time.Second, Strikes: 3}
	changes := make(chan string, 10)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); h.Run(ctx, func(reason string) { changes <- reason }) }()
	for range 5 {
		<-asked
	}
	select {
	case reason := <-changes:
		t.Fatalf("a healthy sandbox was reported: %q", reason)
	default:
	}
	answer.Store(302)
	if reason := <-changes; reason != "answered status 302" {
		t.Errorf("reported %q", reason)
	}
	answer.Store(200)
	if reason := <-changes; reason != "" {
		t.Errorf("reported %q", reason)
	}
	cancel()
	<-done
}

func TestOneThatMayHaveBeenReportedIsReportedWell(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNoContent)
	}))
	defer server.Close()
	h := Health{URL: server.URL, Interval: 10 * time.Millisecond, Timeout: time.Second, Strikes: 2, Unsure: true}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	changes := make(chan string, 10)
	go h.Run(ctx, func(reason string) { changes <- reason })
	select {
	case reason := <-changes:
		if reason != "" {
			t.Errorf("reported %q", reason)
		}
	case <-ctx.Done():
		t.Fatal("nothing was reported")
	}
}

func TestTimeout(t *testing.T) {
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer server.Close()
	defer close(release)
	h := Health{URL: server.URL, Interval: time.Hour, Timeout: 20 * time.Millisecond, Strikes: 1}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	changes := make(chan string, 1)
	go h.Run(ctx, func(reason string) { changes <- reason })
	if reason := <-changes; reason != "no answer within 20ms" {
		t.Errorf("reported %q", reason)
	}
}

func TestValidate(t *testing.T) {
	good := Health{URL: "http://10.0.0.2:49983/health", Interval: time.Second, Timeout: time.Second, Strikes: 2}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for _, url := range []string{"", "ftp://x/", "https://x/", "http:///x", "/x"} {
		bad := good
		bad.URL = url
		if bad.Validate() == nil {
			t.Errorf("%q was accepted", url)
		}
	}
	bad := good
	bad.Strikes = 0
	if bad.Validate() == nil {
		t.Error("no strikes were accepted")
	}
}
