package guest

import (
	"log/slog"
	"time"

	"forkyard.dev/forkyard/internal/envd/process"
	"forkyard.dev/forkyard/internal/envd/users"
)

const rehearsalTimeout = 10 * time.Second

// Rehearse starts a login shell that does nothing and waits for its end. The first process after a boot or a restore
// takes some milliseconds more than later ones, because all that it touches must be brought into memory: done ahead of
// need, nobody waits for that.
func Rehearse(manager *process.Manager, user users.User, environment map[string]string) {
	spec := process.Spec{
		Cmd: "/bin/bash", Args: []string{"-l", "-c", ":"}, Envs: environment, Cwd: user.Home, User: user,
	}
	p, err := manager.Start(spec, process.Options{
		Timeout: rehearsalTimeout, Sink: discard{}, Unlisted: true, DrainAtExit: true,
	})
	if err != nil {
		slog.Info("no rehearsal", "cause", err.Error()) // an image without bash, say
		return
	}
	<-p.Exited()
}
