package guest

import (
	"log/slog"
	"time"

	"forkyard.dev/forkyard/internal/envd/process"
	"forkyard.dev/forkyard/internal/envd/users"
)

const rehearsalTimeout = 10 * time.Second

// rehearsed is an identity that nobody has.
var rehearsed = Identity{
	SandboxID: "rehearsal", TemplateID: "rehearsal", Hostname: "rehearsal",
	BootID: "00000000-0000-0000-0000-000000000000", MachineID: "00000000000000000000000000000000",
}

// RehearseIdentity puts one in place that the next replaces.
func (s System) RehearseIdentity() { s.Apply(rehearsed) }

// RehearseCommand starts a login shell that does nothing and waits for its end. The first process after a boot or a
// restore takes longer than later ones, because all that it touches must be brought into memory: done ahead of need,
// nobody waits for that.
func RehearseCommand(manager *process.Manager, user users.User, environment map[string]string) {
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
