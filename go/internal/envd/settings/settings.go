// Package settings holds what the control plane told this sandbox about itself with POST /init.
package settings

import (
	"maps"
	"os"
	"sync/atomic"

	"forkyard.dev/forkyard/internal/envd/users"
)

// Settings is one immutable set; a new one replaces it whole.
type Settings struct {
	AccessToken    string            // empty: envd is open
	EnvVars        map[string]string // for new commands, over the built-in ones
	DefaultUser    string            // empty: "user" if the image has it, else root
	DefaultWorkdir string            // empty: the user's home
	SandboxID      string
	TemplateID     string
}

// Store is the present Settings; all methods may be called from any goroutine.
type Store struct{ current atomic.Pointer[Settings] }

// NewStore starts with an open envd.
func NewStore() *Store {
	store := &Store{}
	store.Replace(Settings{})
	return store
}

// Get returns the present settings; they must not be changed.
func (s *Store) Get() *Settings { return s.current.Load() }

// Replace puts a new set in place of the old one.
func (s *Store) Replace(next Settings) { s.current.Store(&next) }

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Environment is the environment of a new command: the built-in variables, then the sandbox's, then the
// request's; a later one wins.
func (s *Settings) Environment(user users.User, request map[string]string) map[string]string {
	env := map[string]string{
		"PATH": os.Getenv("PATH"), "HOME": user.Home, "USER": user.Name, "LOGNAME": user.Name,
		"E2B_SANDBOX": "true",
	}
	if env["PATH"] == "" {
		env["PATH"] = defaultPath
	}
	if s.SandboxID != "" {
		env["E2B_SANDBOX_ID"] = s.SandboxID
	}
	if s.TemplateID != "" {
		env["E2B_TEMPLATE_ID"] = s.TemplateID
	}
	maps.Copy(env, s.EnvVars)
	maps.Copy(env, request)
	return env
}
