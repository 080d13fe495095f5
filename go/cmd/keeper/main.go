// Command keeper is two programs in one file: `keeper keep` is the long-lived process that starts, reaps and
// watches gVisor sandboxes (specs/keeper.md); with any other arguments it is `runsc`. It has to be both, because
// a sandbox is started by executing /proc/self/exe with runsc's own arguments.
package main

import "gvisor.dev/gvisor/runsc/cli/maincli"

func main() {
	maincli.Main()
}
