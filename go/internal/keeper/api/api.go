// Package api is the keeper's HTTP face (specs/keeper.md).
package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"forkyard.dev/forkyard/internal/keeper/containers"
	"forkyard.dev/forkyard/internal/keeper/events"
	"forkyard.dev/forkyard/internal/keeper/fault"
)

// Info is the answer of GET /v1/info.
type Info struct {
	Version           string    `json:"version"`
	Runtime           string    `json:"runtime"`
	Pid               int       `json:"pid"`
	Instance          string    `json:"instance"`
	StartedAt         time.Time `json:"started_at"`
	CgroupVersion     int       `json:"cgroup_version"`
	CgroupMissing     []string  `json:"cgroup_missing"`
	LastEventSequence int64     `json:"last_event_seq"`
}

// Server answers requests.
type Server struct {
	Manager  *containers.Manager
	Events   *events.Log
	Info     Info
	Log      *slog.Logger
	Shutdown func() // begins to end the process; called once the answer is on its way
}

const (
	maxBody       = 4 << 20         // a spec is a few kilobytes
	aliveInterval = 5 * time.Second // between lines of an event stream when nothing happens
	lineTimeout   = 10 * time.Second
)

// Handler routes requests.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/info", s.info)
	mux.HandleFunc("GET /v1/containers", s.list)
	mux.HandleFunc("GET /v1/containers/{id}", s.get)
	mux.HandleFunc("PUT /v1/containers/{id}", s.create)
	mux.HandleFunc("POST /v1/containers/{id}/start", s.start)
	mux.HandleFunc("POST /v1/containers/{id}/restore", s.restore)
	mux.HandleFunc("POST /v1/containers/{id}/checkpoint", s.checkpoint)
	mux.HandleFunc("POST /v1/containers/{id}/watch", s.watch)
	mux.HandleFunc("DELETE /v1/containers/{id}", s.destroy)
	mux.HandleFunc("GET /v1/events", s.events)
	mux.HandleFunc("POST /v1/shutdown", s.shutdown)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.fail(w, r, fault.New(fault.NotFound, "there is no route %s %s", r.Method, r.URL.Path))
	})
	return mux
}

func (s *Server) info(w http.ResponseWriter, r *http.Request) {
	info := s.Info
	info.LastEventSequence = s.Events.Last()
	s.answer(w, r, info, nil)
}

func (s *Server) list(w http.ResponseWriter, r *http.Request) {
	s.answer(w, r, s.Manager.List(), nil)
}

func (s *Server) get(w http.ResponseWriter, r *http.Request) {
	view, err := s.Manager.Get(r.PathValue("id"))
	s.answer(w, r, view, err)
}

func (s *Server) create(w http.ResponseWriter, r *http.Request) {
	var request containers.CreateRequest
	if err := decode(w, r, &request); err != nil {
		s.fail(w, r, err)
		return
	}
	view, err := s.Manager.Create(r.PathValue("id"), request)
	s.answer(w, r, view, err)
}

func (s *Server) start(w http.ResponseWriter, r *http.Request) {
	var request containers.StartRequest
	if err := decode(w, r, &request); err != nil {
		s.fail(w, r, err)
		return
	}
	view, err := s.Manager.Start(r.Context(), r.PathValue("id"), request)
	s.answer(w, r, view, err)
}

func (s *Server) restore(w http.ResponseWriter, r *http.Request) {
	var request containers.RestoreRequest
	if err := decode(w, r, &request); err != nil {
		s.fail(w, r, err)
		return
	}
	view, err := s.Manager.Restore(r.Context(), r.PathValue("id"), request)
	s.answer(w, r, view, err)
}

func (s *Server) checkpoint(w http.ResponseWriter, r *http.Request) {
	var request containers.CheckpointRequest
	if err := decode(w, r, &request); err != nil {
		s.fail(w, r, err)
		return
	}
	result, err := s.Manager.Checkpoint(r.Context(), r.PathValue("id"), request)
	s.answer(w, r, result, err)
}

func (s *Server) watch(w http.ResponseWriter, r *http.Request) {
	var request containers.Watch
	if err := decode(w, r, &request); err != nil {
		s.fail(w, r, err)
		return
	}
	if err := s.Manager.SetWatch(r.Context(), r.PathValue("id"), request); err != nil {
		s.fail(w, r, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) destroy(w http.ResponseWriter, r *http.Request) {
	result, err := s.Manager.Destroy(r.Context(), r.PathValue("id"))
	s.answer(w, r, result, err)
}

func (s *Server) shutdown(w http.ResponseWriter, _ *http.Request) {
	w.WriteHeader(http.StatusNoContent)
	s.Shutdown()
}

// events streams one JSON object a line.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	after := int64(0)
	if text := r.URL.Query().Get("after"); text != "" {
		var err error
		if after, err = strconv.ParseInt(text, 10, 64); err != nil {
			s.fail(w, r, fault.New(fault.Invalid, "after is not a number"))
			return
		}
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	control := http.NewResponseController(w)
	_ = control.Flush()
	encoder := json.NewEncoder(w)
	_ = s.Events.Follow(r.Context(), after, aliveInterval, func(e *events.Event) error {
		// A reader that does not read is let go: it comes back with the last number it saw.
		_ = control.SetWriteDeadline(time.Now().Add(lineTimeout))
		var err error
		if e == nil {
			_, err = io.WriteString(w, "{\"type\":\"alive\"}\n")
		} else {
			err = encoder.Encode(e)
		}
		if err != nil {
			return err
		}
		return control.Flush()
	})
}

func decode(w http.ResponseWriter, r *http.Request, into any) error {
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(into)
	if errors.Is(err, io.EOF) {
		return nil // no body: all defaults
	}
	if err != nil {
		return fault.New(fault.Invalid, "the body: %v", err)
	}
	if decoder.More() {
		return fault.New(fault.Invalid, "the body has more than one JSON value")
	}
	return nil
}

func (s *Server) answer(w http.ResponseWriter, r *http.Request, value any, err error) {
	if err != nil {
		s.fail(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value)
}

var statuses = map[string]int{
	fault.NotFound:      http.StatusNotFound,
	fault.AlreadyExists: http.StatusConflict,
	fault.Invalid:       http.StatusBadRequest,
	fault.Conflict:      http.StatusConflict,
	fault.NoSpace:       http.StatusInsufficientStorage,
	fault.Timeout:       http.StatusGatewayTimeout,
	fault.Internal:      http.StatusInternalServerError,
}

func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	f := fault.From(err)
	status, ok := statuses[f.Code]
	if !ok {
		status = http.StatusInternalServerError
	}
	if status >= 500 {
		s.Log.Warn("a request failed", "method", r.Method, "path", r.URL.Path, "code", f.Code, "error", f.Message)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(f)
}

// Recover turns a panic of a handler into an answer instead of a cut connection.
func (s *Server) Recover(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if p := recover(); p != nil && p != http.ErrAbortHandler {
				s.fail(w, r, fmt.Errorf("panic: %v", p))
			}
		}()
		next.ServeHTTP(w, r)
	})
}

// Serve answers on the listener until ctx ends, then lets requests in progress end, but not event streams.
func (s *Server) Serve(ctx context.Context, listener *Listener, grace time.Duration) error {
	streams, endStreams := context.WithCancel(context.Background())
	defer endStreams()
	server := &http.Server{
		Handler:           s.Recover(s.Handler()),
		ReadHeaderTimeout: 10 * time.Second,
		BaseContext:       baseContext(streams),
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	endStreams()
	bounded, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	if err := server.Shutdown(bounded); err != nil {
		return server.Close()
	}
	return nil
}
