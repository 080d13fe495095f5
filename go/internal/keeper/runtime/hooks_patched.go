//go:build forkyard_runtime

package runtime

import (
	"gvisor.dev/gvisor/pkg/control/client"
	"gvisor.dev/gvisor/runsc/specutils"
)

// installHooks uses what internal/keeper/build/patch adds to gVisor.
func installHooks() error {
	specutils.BeforeStart = beforeStart
	client.Dial = dial
	return nil
}
