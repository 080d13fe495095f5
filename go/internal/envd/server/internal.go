package server

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"runtime/debug"
	"strconv"
	"time"

	"forkyard.dev/forkyard/internal/envd/access"
	"forkyard.dev/forkyard/internal/envd/calls"
	"forkyard.dev/forkyard/internal/envd/connect"
	"forkyard.dev/forkyard/internal/envd/files"
	"forkyard.dev/forkyard/internal/envd/guest"
	"forkyard.dev/forkyard/internal/envd/memory"
	"forkyard.dev/forkyard/internal/envd/process"
	"forkyard.dev/forkyard/internal/envd/procfs"
)

const (
	maxSmallBody   = 64 << 10
	maxCallBody    = 32 << 20
	maxWait        = 30 * time.Second
	maxGrace       = 60 * time.Second
	maxCommandLine = 4096
	maxProcesses   = 10000
)

// registerInternal adds the routes for the host. To anyone else they do not exist.
func (s *Server) registerInternal(mux *http.ServeMux) {
	handle := func(pattern string, handler http.HandlerFunc) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if !s.internal.Allows(r) {
				notFound(w)
				return
			}
			handler(w, r)
		})
	}
	handle("POST /init", s.initialize)
	handle("POST /internal/quiesce", s.quiesce)
	handle("POST /internal/rehearse", s.rehearse)
	handle("POST /internal/end-processes", s.endProcesses)
	handle("POST /internal/memory", s.memoryPressure)
	handle("POST /internal/memory-kills", s.takeMemoryKills)
	handle("POST /internal/forward", s.forward)
	handle("GET /internal/processes", s.processes)
	handle("POST /internal/calls/{id}", s.startCall)
	handle("GET /internal/calls/{id}", s.readCall)
	handle("DELETE /internal/calls/{id}", s.acknowledgeCall)
	handle("POST /internal/calls/{id}/signal", s.signalCall)
	mux.HandleFunc("/internal/", func(w http.ResponseWriter, _ *http.Request) { notFound(w) })
	mux.HandleFunc("/init", func(w http.ResponseWriter, _ *http.Request) { notFound(w) })
}

// quiesce prepares for a checkpoint: idle connections would be cut by it, and unused memory would be
// written.
func (s *Server) quiesce(w http.ResponseWriter, _ *http.Request) {
	s.http.SetKeepAlivesEnabled(false)
	s.http.SetKeepAlivesEnabled(true)
	debug.FreeOSMemory()
	w.Header().Set("Connection", "close")
	w.WriteHeader(http.StatusNoContent)
}

// rehearse makes the first command as fast as later ones.
func (s *Server) rehearse(w http.ResponseWriter, _ *http.Request) {
	current := s.settings.Get()
	if user, err := access.UserNamed("", current); err == nil {
		guest.Rehearse(s.manager, user, current.Environment(user, nil))
	}
	w.WriteHeader(http.StatusNoContent)
}

// endProcesses prepares for a pause that keeps the files only. Nothing can be started until /init.
func (s *Server) endProcesses(w http.ResponseWriter, r *http.Request) {
	var req struct {
		GraceMS int64 `json:"grace_ms"`
	}
	if !readJSON(w, r, maxSmallBody, &req) {
		return
	}
	s.manager.Refuse("the sandbox is being paused")
	grace := min(max(time.Duration(req.GraceMS)*time.Millisecond, 0), maxGrace)
	if !process.EndAll(grace) {
		s.manager.Refuse("")
		files.WriteError(w, http.StatusInternalServerError, "some processes could not be ended")
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) memoryPressure(w http.ResponseWriter, _ *http.Request) {
	if s.config.Killer != nil {
		s.config.Killer.Alert()
	}
	w.WriteHeader(http.StatusNoContent)
}

// takeMemoryKills tells what the out-of-memory killer has done, once.
func (s *Server) takeMemoryKills(w http.ResponseWriter, _ *http.Request) {
	answer := struct {
		Kills   []memory.Kill `json:"kills"`
		Dropped int           `json:"dropped"`
	}{Kills: []memory.Kill{}}
	if s.config.Killer != nil {
		kills, dropped := s.config.Killer.Take()
		answer.Kills, answer.Dropped = append(answer.Kills, kills...), dropped
	}
	writeJSON(w, http.StatusOK, answer)
}

// forward makes a port reachable that is bound to loopback only.
func (s *Server) forward(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Port int `json:"port"`
	}
	if !readJSON(w, r, maxSmallBody, &req) {
		return
	}
	if req.Port < 1 || req.Port > 65535 {
		files.WriteError(w, http.StatusBadRequest, "port must be 1 to 65535")
		return
	}
	if !s.forwarder.Open(uint16(req.Port)) {
		files.WriteError(w, http.StatusNotFound, "nothing listens on port "+strconv.Itoa(req.Port))
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

type processInfo struct {
	PID      int    `json:"pid"`
	PPID     int    `json:"ppid"`
	Cmd      string `json:"cmd"`
	RSSBytes int64  `json:"rss_bytes"`
}

func (s *Server) processes(w http.ResponseWriter, _ *http.Request) {
	all := procfs.Processes()
	list := make([]processInfo, 0, min(len(all), maxProcesses))
	for _, one := range all {
		if len(list) == maxProcesses {
			break
		}
		list = append(list, processInfo{one.PID, one.PPID, procfs.CommandLine(one, maxCommandLine), one.RSSBytes})
	}
	writeJSON(w, http.StatusOK, list)
}

func (s *Server) startCall(w http.ResponseWriter, r *http.Request) {
	req := &calls.StartCall{}
	if !readJSON(w, r, maxCallBody, req) {
		return
	}
	answer(w)(s.calls.Start(r.PathValue("id"), req))
}

func (s *Server) readCall(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	var numbers [3]int64
	for i, name := range []string{"stdout", "stderr", "wait_ms"} {
		text := query.Get(name)
		if text == "" {
			continue
		}
		number, err := strconv.ParseInt(text, 10, 64)
		if err != nil || number < 0 {
			files.WriteError(w, http.StatusBadRequest, name+" must be a number from 0 on")
			return
		}
		numbers[i] = number
	}
	ctx, cancel := context.WithTimeout(r.Context(), min(time.Duration(min(numbers[2], maxWait.Milliseconds()))*time.Millisecond, maxWait))
	defer cancel()
	answer(w)(s.calls.Read(ctx, r.PathValue("id"), numbers[0], numbers[1]))
}

func (s *Server) acknowledgeCall(w http.ResponseWriter, r *http.Request) {
	s.calls.Acknowledge(r.PathValue("id"))
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) signalCall(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Signal string `json:"signal"`
	}
	if !readJSON(w, r, maxSmallBody, &req) {
		return
	}
	if err := s.calls.Signal(r.PathValue("id"), req.Signal); err != nil {
		writeFailure(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// answer writes a result or its error.
func answer(w http.ResponseWriter) func(result any, err error) {
	return func(result any, err error) {
		if err != nil {
			writeFailure(w, err)
			return
		}
		writeJSON(w, http.StatusOK, result)
	}
}

// readJSON reads a body of bounded size; an empty one is {}. It answers what is wrong itself.
func readJSON(w http.ResponseWriter, r *http.Request, limit int64, into any) bool {
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	if err != nil {
		files.WriteError(w, http.StatusBadRequest, "the body cannot be read or is too large")
		return false
	}
	if len(data) == 0 {
		return true
	}
	if err := json.Unmarshal(data, into); err != nil {
		files.WriteError(w, http.StatusBadRequest, "the body is not valid: "+err.Error())
		return false
	}
	return true
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	data, err := json.Marshal(body)
	if err != nil {
		files.WriteError(w, http.StatusInternalServerError, "the answer cannot be encoded")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	w.WriteHeader(status)
	_, _ = w.Write(data)
}

func writeFailure(w http.ResponseWriter, err error) {
	coded := connect.AsError(err)
	files.WriteError(w, coded.Code.HTTPStatus(), coded.Message)
}
