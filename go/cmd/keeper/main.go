// Command keeper is two programs in one file: `keeper keep` is the long-lived process that starts, reaps and watches
// gVisor sandboxes (specs/keeper.md); with any other arguments it is `runsc`. It has to be both, because a sandbox is
// started by executing /proc/self/exe with runsc's own arguments.
package main

import (
	"encoding/json"
	"os"

	"gvisor.dev/gvisor/runsc/cli/maincli"

	"forkyard.dev/forkyard/internal/keeper"
	"forkyard.dev/forkyard/internal/keeper/runtime"
)

func main() {
	// Flags come first on runsc's command lines, so its commands cannot be taken for these.
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "keep":
			os.Exit(keeper.Keep(os.Args[2:]))
		case "version":
			_ = json.NewEncoder(os.Stdout).Encode(map[string]string{
				"keeper": keeper.Version, "runtime": runtime.Version(),
			})
			return
		}
	}
	maincli.Main()
}
