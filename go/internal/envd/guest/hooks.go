package guest

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"forkyard.dev/forkyard/internal/envd/process"
	"forkyard.dev/forkyard/internal/envd/users"
)

const (
	hooksDir    = "/etc/forkyard/on-restore.d"
	hookTimeout = 5 * time.Second
	maxHooks    = 64
)

// discard is a process.Sink for output that nobody wants.
type discard struct{}

func (discard) Output(process.Stream, []byte) {}
func (discard) Finish()                       {}

// RunHooks runs the executables of the hook directory as root, one after the other by name: the place for
// an image to seed random generators in user space anew after a restore.
func (s System) RunHooks(ctx context.Context, manager *process.Manager, environment func(users.User) map[string]string) {
	dir := s.path(hooksDir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	root, err := users.System.Lookup("root")
	if err != nil {
		return
	}
	for i, entry := range entries {
		info, err := entry.Info()
		if err != nil || !info.Mode().IsRegular() || info.Mode()&0o111 == 0 || i >= maxHooks || ctx.Err() != nil {
			continue
		}
		spec := process.Spec{Cmd: filepath.Join(dir, entry.Name()), Envs: environment(root), Cwd: "/", User: root}
		p, err := manager.Start(spec, process.Options{Timeout: hookTimeout, Sink: discard{}, Unlisted: true, DrainAtExit: true})
		if err != nil {
			slog.Warn("a restore hook could not be started", "hook", entry.Name(), "cause", err.Error())
			continue
		}
		<-p.Exited()
		if status := p.Status(); status.ExitStatus() != 0 {
			slog.Warn("a restore hook failed", "hook", entry.Name(), "exit_code", status.ExitStatus(), "timed_out", p.TimedOut())
		}
	}
}
