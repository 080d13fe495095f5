// Command patch changes the few places of a vendored gVisor tree that a long-lived process needs otherwise.
//
//	patch VENDOR_DIR
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

var changes = []change{
	{
		file: "gvisor.dev/gvisor/runsc/specutils/namespace.go",
		old:  "\treturn deferFuncs, cmd.Start()\n}\n",
		new: `	if BeforeStart == nil {
		return deferFuncs, cmd.Start()
	}
	after, err := BeforeStart(cmd)
	if err != nil {
		return deferFuncs, err
	}
	err = cmd.Start()
	after(err)
	return deferFuncs, err
}

// BeforeStart, when set, is called on the locked thread that forks cmd, in the namespaces that cmd will have. It may
// change cmd; the function it returns is called on the same thread after the fork, with the fork's error.
var BeforeStart func(cmd *exec.Cmd) (after func(error), err error)
`,
	},
	{
		file: "gvisor.dev/gvisor/runsc/sandbox/network.go",
		old:  "\tlog.Debugf(\"Setting up network, config: %+v\", args)\n",
		new: `	defer func() {
		for _, f := range args.FilePayload.Files {
			_ = f.Close()
		}
	}()
	log.Debugf("Setting up network, config: %+v", args)
`,
	},
	{
		file: "gvisor.dev/gvisor/pkg/sentry/platform/systrap/metrics.go",
		old:  "\tfor {\n\t\ttime.Sleep(recordingPeriod)\n\n\t\tfastpath.curState(&fastpath)\n",
		new: `	period, seen := time.Duration(recordingPeriod), uint64(0)
	for {
		time.Sleep(period)

		if latencies.total()-seen < minNecessaryRecordings {
			period = min(2*period, longestRecordingPeriod)
		} else {
			period = recordingPeriod
		}
		fastpath.curState(&fastpath)
		seen = latencies.total() // it may have begun to count anew
`,
	},
	{
		file: "gvisor.dev/gvisor/pkg/sentry/platform/systrap/metrics.go",
		old:  "// controlFastPath is used to spawn",
		new: `// longestRecordingPeriod is how long an idle sandbox goes without a look.
const longestRecordingPeriod = 1024 * recordingPeriod

// total counts what is recorded.
func (r *latencyRecorder) total() uint64 {
	var n uint64
	for i := range r.stubBound {
		n += r.stubBound[i].Load() + r.sentryBound[i].Load()
	}
	return n
}

// controlFastPath is used to spawn`,
	},
	{
		file: "gvisor.dev/gvisor/pkg/sentry/platform/systrap/filters.go",
		old:  "seccomp.EqualTo(os.Getpid()),",
		new:  `seccomp.EqualTo(vars.GetUint64("self_pid")),`,
	},
	{
		file: "gvisor.dev/gvisor/pkg/sentry/platform/systrap/filters.go",
		old:  "import (\n\t\"os\"\n\n",
		new:  "import (\n",
	},
	{
		file: "gvisor.dev/gvisor/pkg/control/client/client.go",
		old:  "func ConnectTo(addr string) (*urpc.Client, error) {\n",
		new: `func ConnectTo(addr string) (*urpc.Client, error) {
	if Dial != nil {
		return Dial(addr)
	}
`,
	},
	{
		file: "gvisor.dev/gvisor/pkg/control/client/client.go",
		old:  "// ConnectTo attempts to connect",
		new: `// Dial, when set, makes the connections of ConnectTo.
var Dial func(addr string) (*urpc.Client, error)

// ConnectTo attempts to connect`,
	},
	{
		file: "gvisor.dev/gvisor/pkg/urpc/urpc.go",
		old:  "d := json.NewDecoder(io.MultiReader(bytes.NewBuffer(firstByte), s))",
		new:  "d := json.NewDecoder(io.LimitReader(io.MultiReader(bytes.NewBuffer(firstByte), s), maxMessage))",
	},
	{
		file: "gvisor.dev/gvisor/pkg/urpc/urpc.go",
		old:  "const maxFiles = 128\n",
		new: `const maxFiles = 128

// maxMessage bounds what one side reads of one message of the other.
const maxMessage = 16 << 20
`,
	},
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: patch VENDOR_DIR")
		os.Exit(2)
	}
	for _, c := range changes {
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
