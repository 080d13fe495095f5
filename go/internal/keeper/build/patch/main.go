// Command patch changes the few places of a vendored gVisor tree that a long-lived process needs otherwise.
//
//	patch VENDOR_DIR [filters]
//
// With `filters` only what precompiled seccomp filters need, which leaves gVisor as it is published: what benchmarks
// compare with.
//
// Each change names the text it replaces, which must be there exactly once: another gVisor version either has it or
// the build stops. What the changes are for:
//
//   - specutils.BeforeStart: runsc moves its whole process into the sandbox's cgroup to fork there. The keeper
//     would drag every other sandbox's work with it, and two creates at once would undo each other's move. The hook
//     places one fork only, gives it its own stdio, and knows the pid at once.
//   - client.Dial: runsc waits for a sandbox's answer without end. The keeper's own dialler sets deadlines.
//   - urpc: an answer has no size limit, and the sandbox is hostile.
//   - network.go: runsc leaves its copy of the sandbox's packet socket open until it exits. In a process that does not
//     exit it stays in the fanout group of the interface and swallows its share of the next sandbox's packets.
//   - metrics.go: systrap looks every 0.4 ms whether spinning would pay, in an idle sandbox too, which takes 3 % of a core
//     each. With ever longer pauses while there is nothing to see (at most 0.4 s) that is next to nothing.
//   - pagesfile.go: memory is read and written by 128 threads, and Go's scheduler is widened by as many for the while, which
//     stops the world and costs more than the reading does.
//   - loader.go: forwarding signals needs 29 round trips between threads, 19 ms in which a restored sandbox does not run
//     yet. A created one can make them while it waits.
//   - membarrier.go: a registration waits for an RCU grace period, 8 ms, at the start of each of the six processes that make
//     a sandbox; only the last one needs it, and can ask for it while it waits.
//   - stats.go, kernel.go, restore.go: times of each of 9,000 objects and a table of them, for a log that is off.
//   - filters.go: a precompiled program would have the pid of whoever compiled it in one rule, so that no two builds
//     were alike. The variable for the sandbox's own pid is there already.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

type change struct {
	file string
	old  string
	new  string
}

func main() {
	if len(os.Args) != 2 && !(len(os.Args) == 3 && os.Args[2] == "filters") {
		fmt.Fprintln(os.Stderr, "usage: patch VENDOR_DIR [filters]")
		os.Exit(2)
	}
	for _, c := range changes {
		if len(os.Args) == 3 && filepath.Base(c.file) != "filters.go" {
			continue
		}
		if err := apply(filepath.Join(os.Args[1], c.file), c); err != nil {
			fmt.Fprintf(os.Stderr, "patch: %v\n", err)
			os.Exit(1)
		}
	}
}

func apply(path string, c change) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if n := strings.Count(string(text), c.old); n != 1 {
		return fmt.Errorf("%s has the text to replace %d times, not once: %q", c.file, n, c.old)
	}
	return os.WriteFile(path, []byte(strings.Replace(string(text), c.old, c.new, 1)), 0o644)
}
