package server

import (
	"context"
	"net/http"
	"sync"

	"forkyard.dev/forkyard/internal/envd/files"
	"forkyard.dev/forkyard/internal/envd/guest"
	"forkyard.dev/forkyard/internal/envd/settings"
	"forkyard.dev/forkyard/internal/envd/users"
)

// initState remembers what POST /init has done so far.
type initState struct {
	mu         sync.Mutex
	generation int64
	done       bool
}

// initRequest is the body of POST /init; fields of E2B's that mean nothing here are ignored.
type initRequest struct {
	EnvVars        map[string]string `json:"envVars"`
	AccessToken    string            `json:"accessToken"`
	Timestamp      string            `json:"timestamp"`
	DefaultUser    string            `json:"defaultUser"`
	DefaultWorkdir string            `json:"defaultWorkdir"`
	SandboxID      string            `json:"sandboxId"`
	TemplateID     string            `json:"templateId"`
	Hostname       string            `json:"hostname"`
	BootID         string            `json:"bootId"`
	MachineID      string            `json:"machineId"`
	Generation     *int64            `json:"generation"`
}

const maxInitBody = 4 << 20

// initialize replaces everything this sandbox knows about itself.
func (s *Server) initialize(w http.ResponseWriter, r *http.Request) {
	req := &initRequest{}
	if r.ContentLength != 0 && !readJSON(w, r, maxInitBody, req) {
		return
	}
	identity := guest.Identity{
		SandboxID: req.SandboxID, TemplateID: req.TemplateID, Hostname: req.Hostname, BootID: req.BootID,
		MachineID: req.MachineID, Timestamp: req.Timestamp,
	}
	if err := identity.Validate(); err != nil {
		writeFailure(w, err)
		return
	}
	s.init.mu.Lock()
	defer s.init.mu.Unlock()
	if req.Generation != nil && s.init.done && *req.Generation < s.init.generation {
		files.WriteError(w, http.StatusConflict, "a later generation of this sandbox was initialised already")
		return
	}
	isNew := !s.init.done || req.Generation == nil || *req.Generation != s.init.generation
	s.settings.Replace(settings.Settings{
		AccessToken: req.AccessToken, EnvVars: req.EnvVars, DefaultUser: req.DefaultUser, DefaultWorkdir: req.DefaultWorkdir,
		SandboxID: req.SandboxID, TemplateID: req.TemplateID,
	})
	s.system.Apply(identity)
	s.manager.Refuse("")
	if isNew {
		s.forwarder.Reset()
		go s.system.RunHooks(context.Background(), s.manager, func(user users.User) map[string]string {
			return s.settings.Get().Environment(user, nil)
		})
	}
	s.init.done = true
	if req.Generation != nil {
		s.init.generation = *req.Generation
	}
	w.Header().Set("X-Envd-Version", s.config.Version)
	w.WriteHeader(http.StatusNoContent)
}
