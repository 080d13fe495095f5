// Command keeper is two programs in one file: `keeper keep` is the long-lived process that starts, reaps and watches
// gVisor sandboxes (specs/keeper.md); with any other arguments it is `runsc`. It has to be both, because a sandbox is
// started by executing /proc/self/exe with runsc's own arguments.
package main

import (
	"encoding/json"
	"math"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/cli/maincli"

	"forkyard.dev/forkyard/internal/keeper"
	gvisor "forkyard.dev/forkyard/internal/keeper/runtime"
)

func init() {
	// The first thread stands for the process in /proc/self: in the keeper, where some threads go into other
	// namespaces, it must not be one of those.
	if isKeep() {
		runtime.LockOSThread()
	}
}

func isKeep() bool { return len(os.Args) > 1 && os.Args[1] == "keep" }

func main() {
	// runsc has no commands of these names.
	switch {
	case isKeep():
		os.Exit(keeper.Keep(os.Args[2:]))
	case len(os.Args) == 2 && os.Args[1] == "version":
		_ = json.NewEncoder(os.Stdout).Encode(map[string]string{
			"keeper": keeper.Version, "runtime": gvisor.Version(),
		})
	default:
		// A sandbox needs the numbers from 256 on for its own output, and is given none of them. What the keeper had
		// open there for a moment may have come along all the same.
		_ = unix.CloseRange(256, math.MaxUint32, 0)
		maincli.Main()
	}
}
