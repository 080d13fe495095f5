package edge_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestNoRequestReachesAGenerationThatIsGone lets clients ask without pause while generations come and go. Once a change
// has been acknowledged, no request that begins afterwards may be answered by an older generation, or by another
// sandbox that has got its address.
func TestNoRequestReachesAGenerationThatIsGone(t *testing.T) {
	r := newRig(t)
	r.api.onWake(func(string, string) (int, any) { return 404, route{"code": 404, "message": "gone"} })
	// Two addresses for two sandboxes, which swap them again and again. Each server says who has it now.
	const port = 8000
	addresses := []*sandbox{newSandbox(t), newSandbox(t)}
	var owners [2]atomic.Pointer[string]
	for i, s := range addresses {
		s.serve(port, func(w http.ResponseWriter, req *http.Request) {
			name := *owners[i].Load()
			switch req.URL.Path {
			case "/stream":
				_, _ = io.WriteString(w, name)
				_ = http.NewResponseController(w).Flush()
				<-req.Context().Done()
			default:
				_, _ = io.WriteString(w, name)
			}
		})
	}
	ids := []string{idA, idB}
	var acknowledged [2]atomic.Int64
	name := func(id string, generation int64) *string {
		text := fmt.Sprintf("%s %d", id, generation)
		return &text
	}
	goroutines := runtime.NumGoroutine()
	stop := make(chan struct{})
	var clients sync.WaitGroup
	var answered, refused, cut atomic.Int64
	for c := range 8 {
		clients.Go(func() {
			client := &http.Client{Transport: &http.Transport{}}
			defer client.CloseIdleConnections()
			for {
				select {
				case <-stop:
					return
				default:
				}
				i := c % 2
				before := acknowledged[i].Load()
				req, _ := http.NewRequest([]string{"GET", "POST"}[c/2%2], "http://"+r.edge.Addr()+[]string{"/", "/stream"}[c/4], strings.NewReader("body"))
				req.Header = to(ids[i], port)
				res, err := client.Do(req)
				if err != nil {
					cut.Add(1)
					continue
				}
				body, err := io.ReadAll(res.Body)
				_ = res.Body.Close()
				if err != nil {
					cut.Add(1)
				}
				if res.StatusCode != 200 {
					refused.Add(1)
					continue
				}
				if len(body) == 0 {
					continue
				}
				id, text, _ := strings.Cut(string(body), " ")
				generation, _ := strconv.ParseInt(text, 10, 64)
				if id != ids[i] || generation < before {
					t.Errorf("asked for %s after generation %d was acknowledged, answered by %q", ids[i], before, body)
					return
				}
				answered.Add(1)
			}
		})
	}
	random := rand.New(rand.NewPCG(1, 2))
	generation := int64(0)
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end) && !t.Failed(); {
		generation++
		swap := random.IntN(2)
		switch random.IntN(3) {
		case 0:
			r.push()
		default:
			r.remove(idA, int(generation))
			r.remove(idB, int(generation))
		}
		for i := range ids { // the addresses are free now: that was acknowledged
			owners[i^swap].Store(name(ids[i], generation))
		}
		r.set(running(idA, int(generation), addresses[swap].address), running(idB, int(generation), addresses[1-swap].address))
		acknowledged[0].Store(generation)
		acknowledged[1].Store(generation)
		for n := answered.Load(); answered.Load() < n+int64(random.IntN(30)) && time.Now().Before(end) && !t.Failed(); {
			runtime.Gosched()
		}
	}
	close(stop)
	r.push()
	clients.Wait()
	t.Logf("%d generations, %d answers, %d refused, %d cut", generation, answered.Load(), refused.Load(), cut.Load())
	if answered.Load() == 0 || cut.Load() == 0 {
		t.Error("nothing happened")
	}
	eventually(t, "nothing is left", func() bool {
		_, text := r.call("GET", "/metrics", nil)
		return strings.Contains(text, "forkyard_edge_open_streams 0\n") && strings.Contains(text, "forkyard_edge_upstream_connections 0\n") &&
			runtime.NumGoroutine() < goroutines+20
	})
}
