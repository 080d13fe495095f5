package runtime

import (
	"fmt"
	"path/filepath"
	"strconv"

	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/flag"
)

// The hash of this file is part of the runtime's version: a snapshot is restored by the runtime that made it, and
// what is set here shapes what is in it.

// Options are the choices that an operator has.
type Options struct {
	Platform string // "systrap", or "kvm" where /dev/kvm can run ordinary kernels
	DirectFS bool   // the sandbox opens files itself instead of asking its gofer for each
	DisksDir string // directory of the files that hold what sandboxes write to their root
	Debug    bool   // log what the sentry does, into the container's directory
}

// Flags are runsc's global flags, as `runsc` itself takes them, for a container whose files are in dir.
func Flags(o Options, dir string) []string {
	flags := []string{
		"--root=" + dir,
		"--rootless=false",
		"--network=sandbox",
		"--platform=" + o.Platform,
		"--directfs=" + strconv.FormatBool(o.DirectFS),
		// Files written by the sandbox are on the host's disk, not in its memory. Needs at least one bind mount.
		"--overlay2=root:dir=" + o.DisksDir,
		"--file-access=exclusive",
		"--host-uds=none",
		"--allow-suid=true", // sudo
		"--net-disconnect-ok=true",
		"--ignore-cgroups=true", // the keeper places processes itself
		"--host-settings=ignore",
		"--log=" + filepath.Join(dir, RuntimeLog),
		"--panic-log=" + filepath.Join(dir, PanicLog),
	}
	if o.Debug {
		flags = append(flags, "--debug", "--debug-log="+filepath.Join(dir, "debug.%COMMAND%.log"))
	}
	return flags
}

// newConfig parses the flags the way runsc does.
func newConfig(o Options, dir string) (*config.Config, error) {
	set := flag.NewFlagSet("keeper", flag.ContinueOnError)
	config.RegisterFlags(set)
	if err := set.Parse(Flags(o, dir)); err != nil {
		return nil, fmt.Errorf("runsc's flags: %w", err)
	}
	return config.NewFromFlags(set)
}

// Names of the files that a runtime process writes into the directory of its container.
const (
	RuntimeLog = "runtime.log" // why it could not start
	PanicLog   = "panic.log"   // why it fell over
)
