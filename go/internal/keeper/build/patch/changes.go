package main

// startTasks is the end of Loader.run.
const startTasks = `	log.Infof("Process should have started...")
	l.watchdog.Start()
	if err := l.k.Start(); err != nil {
		return err
	}
	switch l.state {
	case created:
		l.state = started
	case restoringUnstarted:
		l.state = restoringStarted
	default:
		panic(fmt.Sprintf("state=%s in Loader.run() should be impossible", l.state))
	}
	return nil
}
`

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
		file: "gvisor.dev/gvisor/pkg/state/stats.go",
		old:  "// init initializes statistics.\n",
		new: `// timed turns the statistics on.
const timed = false

// init initializes statistics.
`,
	},
	{
		file: "gvisor.dev/gvisor/pkg/state/stats.go",
		old:  "func (s *Stats) init() {\n",
		new:  "func (s *Stats) init() {\n	if !timed {\n		return\n	}\n",
	},
	{
		file: "gvisor.dev/gvisor/pkg/state/stats.go",
		old:  "func (s *Stats) start(id typeID) {\n",
		new:  "func (s *Stats) start(id typeID) {\n	if !timed {\n		return\n	}\n",
	},
	{
		file: "gvisor.dev/gvisor/pkg/state/stats.go",
		old:  "func (s *Stats) done() {\n",
		new:  "func (s *Stats) done() {\n	if !timed {\n		return\n	}\n",
	},
	{
		file: "gvisor.dev/gvisor/pkg/state/stats.go",
		old:  "func (s *Stats) fini(resolve func(id typeID) string) {\n",
		new:  "func (s *Stats) fini(resolve func(id typeID) string) {\n	if !timed {\n		return\n	}\n",
	},
	{
		file: "gvisor.dev/gvisor/pkg/sentry/kernel/kernel.go",
		old:  "	log.Infof(\"Kernel save stats: %s\", stats.String())\n",
		new:  "	_ = stats\n",
	},
	{
		file: "gvisor.dev/gvisor/pkg/sentry/kernel/kernel.go",
		old:  "	log.Infof(\"Kernel load stats: %s\", stats.String())\n",
		new:  "	_ = stats\n",
	},
	{
		file: "gvisor.dev/gvisor/runsc/boot/restore.go",
		old:  "	go timer.Log()\n",
		new:  "	if log.IsLogging(log.Debug) {\n		go timer.Log()\n	}\n",
	},
	{
		file: "gvisor.dev/gvisor/runsc/boot/controller.go",
		old:  "	timer.Reached(\"cm.Restore RPC\")\n",
		new:  "	timer.Reached(\"cm.Restore RPC\")\n	deferCollection()\n",
	},
	{
		file: "gvisor.dev/gvisor/runsc/boot/controller.go",
		old:  "// Restore loads a container from a statefile.\n",
		new: `// deferCollection lets garbage be until the sandbox runs, unless it becomes much; then all of it goes back to the host.
func deferCollection() {
	percent, limit := gdebug.SetGCPercent(-1), gdebug.SetMemoryLimit(64<<20)
	gtime.AfterFunc(gtime.Second, func() {
		gdebug.SetMemoryLimit(limit)
		gdebug.SetGCPercent(percent)
		gdebug.FreeOSMemory()
	})
}

// Restore loads a container from a statefile.
`,
	},
	{
		file: "gvisor.dev/gvisor/runsc/boot/controller.go",
		old:  "	\"path\"\n	\"strconv\"\n",
		new:  "	\"path\"\n	gdebug \"runtime/debug\"\n	\"strconv\"\n",
	},
	{
		file: "gvisor.dev/gvisor/runsc/boot/loader.go",
		old:  "	gomaxprocs.SetBase(args.NumCPU)\n",
		new:  "	gomaxprocs.SetBase(args.NumCPU + 1)\n",
	},
	{
		file: "gvisor.dev/gvisor/pkg/sentry/state/stateio/pagesfile.go",
		old:  "pagesFileFDDefaultMaxParallel = 128",
		new:  "pagesFileFDDefaultMaxParallel = 4",
	},
	{
		file: "gvisor.dev/gvisor/pkg/sentry/hostmm/membarrier.go",
		old:  "	if req := uintptr(linux.MEMBARRIER_CMD_PRIVATE_EXPEDITED | linux.MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED); supported&req == req {\n",
		new: `	const req = linux.MEMBARRIER_CMD_PRIVATE_EXPEDITED | linux.MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED
	canRegister = supported&req == req
}

var canRegister = false

// Register makes ProcessMemoryBarrier cheap. It must return before any other function here is called, and before
// system calls are filtered.
func Register() {
	if canRegister {
`,
	},
	{
		file: "gvisor.dev/gvisor/runsc/boot/loader.go",
		old:  "	<-l.ctrl.manager.startChan\n",
		new: `	hostmm.Register()
	l.forwardSignals()
	close(l.prepared)
	<-l.ctrl.manager.startChan
`,
	},
	{
		file: "gvisor.dev/gvisor/runsc/boot/loader.go",
		old:  "	stopSignalForwarding func()\n",
		new: `	stopSignalForwarding func()

	// prepared is closed when what takes a while and needs no sandbox has been done.
	prepared chan struct{}

	// forwarding is set when signals can be forwarded.
	forwarding atomicbitops.Bool
`,
	},
	{
		file: "gvisor.dev/gvisor/runsc/boot/loader.go",
		old:  "	if l.PreSeccompCallback != nil {\n",
		new:  "	<-l.prepared\n	if l.PreSeccompCallback != nil {\n",
	},
	{
		file: "gvisor.dev/gvisor/runsc/boot/loader.go",
		old:  startTasks,
		new:  "}\n",
	},
	{
		file: "gvisor.dev/gvisor/runsc/boot/loader.go",
		old: `	// Handle signals by forwarding them to the root container process
	// (except for panic signal, which should cause a panic).
	l.stopSignalForwarding = `,
		new: "	l.forwarding.Store(true)\n" + startTasks + `
// forwardSignals handles signals by forwarding them to the root container process
// (except for panic signal, which should cause a panic). Those that come before
// that process runs end this one, as they do without a handler.
func (l *Loader) forwardSignals() {
	l.stopSignalForwarding = `,
	},
	{
		file: "gvisor.dev/gvisor/runsc/boot/loader.go",
		old:  "		// Panic signal should cause a panic.\n",
		new: `		if !l.forwarding.Load() {
			switch sig {
			case linux.SIGHUP, linux.SIGINT, linux.SIGQUIT, linux.SIGTERM:
				os.Exit(128 + int(sig))
			}
			return
		}

		// Panic signal should cause a panic.
`,
	},
	{
		file: "gvisor.dev/gvisor/runsc/boot/loader.go",
		old:  "	l := &Loader{\n",
		new:  "	l := &Loader{\n		prepared: make(chan struct{}),\n",
	},
	{
		file: "gvisor.dev/gvisor/runsc/boot/loader.go",
		old:  "	\"gvisor.dev/gvisor/pkg/bpf\"\n",
		new:  "	\"gvisor.dev/gvisor/pkg/atomicbitops\"\n	\"gvisor.dev/gvisor/pkg/bpf\"\n",
	},
	{
		file: "gvisor.dev/gvisor/runsc/boot/loader.go",
		old:  "	\"gvisor.dev/gvisor/pkg/sentry/inet\"\n",
		new:  "	\"gvisor.dev/gvisor/pkg/sentry/hostmm\"\n	\"gvisor.dev/gvisor/pkg/sentry/inet\"\n",
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
