// Package control serves the calls that the control plane makes to the edge: specs/edge.md, "Control calls".
package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"runtime"
	"sort"
	"time"

	"forkyard.dev/forkyard/internal/edge/metrics"
	"forkyard.dev/forkyard/internal/edge/table"
)

// maxBody bounds a push; a route takes about 300 bytes.
const maxBody = 64 << 20

// Config is what the calls work on.
type Config struct {
	Table       *table.Table
	Metrics     *metrics.Set
	Log         *slog.Logger
	Version     string
	Listen      string // the address of the public port
	TLSListen   string // the address of the second port, for TLS; "" if there is none
	StartedAt   time.Time
	DroppedLogs func() int64
	Shutdown    func() // begins the shutdown, must return at once
}

type handler struct{ Config }

// New returns the handler for the control socket.
func New(cfg Config) http.Handler {
	h := &handler{cfg}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/info", h.info)
	mux.HandleFunc("PUT /v1/routes", h.replace)
	mux.HandleFunc("POST /v1/routes", h.apply)
	mux.HandleFunc("GET /metrics", h.metrics)
	mux.HandleFunc("POST /v1/shutdown", h.shutdown)
	return mux
}

// Info is the answer of GET /v1/info.
type Info struct {
	Version   string `json:"version"`
	PID       int    `json:"pid"`
	Epoch     int64  `json:"epoch"`
	Listen    string `json:"listen"`
	TLSListen string `json:"tls_listen,omitempty"`
	StartedAt string `json:"started_at"`
	Routes    int    `json:"routes"`
}

func (h *handler) info(w http.ResponseWriter, _ *http.Request) {
	answer(w, http.StatusOK, Info{
		Version: h.Version, PID: os.Getpid(), Epoch: h.Table.Epoch(), Listen: h.Listen, TLSListen: h.TLSListen,
		StartedAt: h.StartedAt.UTC().Format(time.RFC3339Nano), Routes: len(h.Table.Entries()),
	})
}

type replaceBody struct {
	Epoch  *int64   `json:"epoch"`
	Routes *[]route `json:"routes"`
}

type applyBody struct {
	Epoch  *int64    `json:"epoch"`
	Set    []route   `json:"set"`
	Remove []removal `json:"remove"`
}

// route and removal tell an absent generation from 0, which would make a removal do nothing.
type route struct {
	table.Route
	Generation *int64 `json:"generation"`
}

type removal struct {
	ID         string `json:"id"`
	Generation *int64 `json:"generation"`
}

func (h *handler) replace(w http.ResponseWriter, r *http.Request) {
	var body replaceBody
	if !read(w, r, &body) {
		return
	}
	if body.Routes == nil {
		fail(w, http.StatusBadRequest, "routes is missing")
		return
	}
	routes, err := checked(*body.Routes)
	if err == nil {
		err = checkEpoch(body.Epoch)
	}
	if err != nil {
		fail(w, http.StatusBadRequest, err.Error())
		return
	}
	h.finish(w, *body.Epoch, "replace", h.Table.Replace(*body.Epoch, routes))
}

func (h *handler) apply(w http.ResponseWriter, r *http.Request) {
	var body applyBody
	if !read(w, r, &body) {
		return
	}
	set, err := checked(body.Set)
	if err == nil {
		err = checkEpoch(body.Epoch)
	}
	remove := make([]table.Removal, 0, len(body.Remove))
	for _, rm := range body.Remove {
		if rm.Generation == nil && err == nil {
			err = fmt.Errorf("remove %.60q: generation is missing", rm.ID)
		}
		if err == nil {
			remove = append(remove, table.Removal{ID: rm.ID, Generation: *rm.Generation})
		}
	}
	if err != nil {
		fail(w, http.StatusBadRequest, err.Error())
		return
	}
	h.finish(w, *body.Epoch, "apply", h.Table.Apply(*body.Epoch, set, remove))
}

func (h *handler) finish(w http.ResponseWriter, epoch int64, call string, err error) {
	switch {
	case err == nil:
		if call == "replace" {
			h.Log.Info("route table replaced", "epoch", epoch, "routes", len(h.Table.Entries()))
		}
		w.WriteHeader(http.StatusNoContent)
	case errors.Is(err, table.ErrOldEpoch), errors.Is(err, table.ErrOtherEpoch):
		h.Log.Warn("routes refused", "call", call, "epoch", epoch, "current", h.Table.Epoch())
		fail(w, http.StatusConflict, fmt.Sprintf("%v (%d, not %d)", err, h.Table.Epoch(), epoch))
	default:
		fail(w, http.StatusInternalServerError, err.Error())
	}
}

func checked(routes []route) ([]table.Route, error) {
	good := make([]table.Route, 0, len(routes))
	for _, r := range routes {
		if r.Generation == nil {
			return nil, fmt.Errorf("route %.60q: generation is missing", r.ID)
		}
		r.Route.Generation = *r.Generation
		if err := r.Check(); err != nil {
			return nil, err
		}
		good = append(good, r.Route)
	}
	return good, nil
}

func checkEpoch(epoch *int64) error {
	if epoch == nil || *epoch < 1 {
		return errors.New("epoch must be a number from 1 up")
	}
	return nil
}

func (h *handler) shutdown(w http.ResponseWriter, _ *http.Request) {
	h.Log.Info("shutdown asked for")
	w.WriteHeader(http.StatusNoContent)
	h.Shutdown()
}

func (h *handler) metrics(w http.ResponseWriter, _ *http.Request) {
	states := map[table.State]int{table.Running: 0, table.Held: 0, table.Paused: 0}
	for _, e := range h.Table.Entries() {
		states[e.State]++
	}
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	gauges := []metrics.Gauge{
		{Name: "forkyard_edge_epoch", Help: "Epoch of the route table.", Value: float64(h.Table.Epoch())},
		{Name: "forkyard_edge_goroutines", Help: "Goroutines.", Value: float64(runtime.NumGoroutine())},
		{Name: "forkyard_edge_heap_bytes", Help: "Heap in use.", Value: float64(mem.HeapInuse)},
		{Name: "forkyard_edge_log_lines_dropped", Help: "Log lines that were not written.", Value: float64(h.DroppedLogs())},
		{Name: "forkyard_edge_start_time_seconds", Help: "Start time, unix.", Value: float64(h.StartedAt.UnixMilli()) / 1000},
		{Name: "forkyard_edge_info", Help: "Version.", Labels: fmt.Sprintf("version=%q", h.Version), Value: 1},
	}
	names := make([]string, 0, len(states))
	for state := range states {
		names = append(names, string(state))
	}
	sort.Strings(names)
	for _, name := range names {
		gauges = append(gauges, metrics.Gauge{
			Name: "forkyard_edge_routes", Help: "Routes by state.",
			Labels: fmt.Sprintf("state=%q", name), Value: float64(states[table.State(name)]),
		})
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	h.Metrics.Write(w, gauges)
}

func read(w http.ResponseWriter, r *http.Request, into any) bool {
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(into)
	if err != nil {
		fail(w, http.StatusBadRequest, "body: "+err.Error())
		return false
	}
	return true
}

func fail(w http.ResponseWriter, code int, message string) {
	answer(w, code, struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	}{code, message})
}

func answer(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body)
}
