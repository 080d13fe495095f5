package blackbox

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestStreamsAndExitCodeAreSeparate(t *testing.T) {
	cmd := shared.run(t, call{}, "printf out; printf err >&2; exit 7")
	if cmd.stdout.String() != "out" || cmd.stderr.String() != "err" {
		t.Fatalf("stdout %q stderr %q", cmd.stdout.String(), cmd.stderr.String())
	}
	want := object{"exitCode": 7.0, "exited": true, "status": "exit status 7", "error": "exit status 7"}
	if fmt.Sprint(cmd.end) != fmt.Sprint(want) {
		t.Fatalf("end %v", cmd.end)
	}
	cmd = shared.run(t, call{}, "true")
	if fmt.Sprint(cmd.end) != fmt.Sprint(object{"exited": true, "status": "exit status 0"}) {
		t.Fatalf("end %v", cmd.end)
	}
	cmd = shared.run(t, call{}, "kill -9 $$")
	if fmt.Sprint(cmd.end) != fmt.Sprint(object{"exitCode": -1.0, "status": "signal: killed", "error": "signal: killed"}) {
		t.Fatalf("end %v", cmd.end)
	}
}

func TestOutputIsByteExact(t *testing.T) {
	// A character of three bytes lies across every border that a reader of 4, 8 or 32 KiB makes.
	cmd := shared.run(t, call{}, `printf 'x'; i=0; while [ $i -lt 30000 ]; do printf '\342\202\254\300\377'; i=$((i+1)); done`)
	want := "x" + strings.Repeat("\xe2\x82\xac\xc0\xff", 30000)
	if cmd.stdout.String() != want {
		t.Fatalf("%d bytes, want %d, or other ones", cmd.stdout.Len(), len(want))
	}
}

func TestLargeOutputIsWhole(t *testing.T) {
	cmd := shared.run(t, call{}, "seq 1 2000000; echo FATAL >&2; exit 1")
	sum := sha256.New()
	for i := 1; i <= 2000000; i++ {
		sum.Write(strconv.AppendInt(nil, int64(i), 10))
		sum.Write([]byte{'\n'})
	}
	if got := sha256.Sum256(cmd.stdout.Bytes()); hex.EncodeToString(got[:]) != hex.EncodeToString(sum.Sum(nil)) {
		t.Fatalf("the output differs: %d bytes", cmd.stdout.Len())
	}
	if cmd.stderr.String() != "FATAL\n" {
		t.Fatalf("stderr %q", cmd.stderr.String())
	}
}

func TestDeadlineKeepsPartialOutput(t *testing.T) {
	begin := time.Now()
	cmd := shared.start(t, call{header: header("Connect-Timeout-Ms", "3000")}, object{"process": sh("printf partial; sleep 30"), "stdin": false})
	cmd.until(&cmd.stdout, "partial")
	if early := time.Since(begin); early > 2900*time.Millisecond {
		t.Fatalf("the output came after %v", early)
	}
	cmd.wait()
	if cmd.err["code"] != "deadline_exceeded" || cmd.end != nil {
		t.Fatalf("error %v end %v", cmd.err, cmd.end)
	}
	if took := time.Since(begin); took < 2990*time.Millisecond || took > 15*time.Second {
		t.Fatalf("ended after %v", took)
	}
}

// running counts the processes of the sandbox whose command line holds a text.
func running(t *testing.T, e *envd, text string) int {
	t.Helper()
	res := e.plain(t, call{}, http.MethodGet, "/internal/processes", nil)
	return strings.Count(string(res.body), text)
}

// tree is a script whose descendants flee in every way there is, all named by one number.
func tree(number string) string {
	return strings.ReplaceAll(`
		sleep N & (sleep N & sleep N) & setsid sleep N </dev/null >/dev/null 2>&1 &
		(setsid sh -c 'setsid sleep N & sleep N' </dev/null >/dev/null 2>&1 &) &
		env -i /bin/sleep N & (env -i /bin/setsid /bin/sh -c '/bin/sleep N & exec /bin/sleep N' &)
		(trap '' TERM HUP; sleep N; sleep N) & nohup sleep N >/dev/null 2>&1 &
		echo ready; wait`, "N", number)
}

func TestDeadlineEndsTheWholeTree(t *testing.T) {
	const number = "4711.25"
	cmd := shared.start(t, call{header: header("Connect-Timeout-Ms", "5000")}, object{"process": sh(tree(number)), "stdin": false})
	cmd.until(&cmd.stdout, "ready")
	eventually(t, "the tree has grown", func() bool { return running(t, shared, "sleep "+number) >= 9 })
	cmd.wait()
	if cmd.err["code"] != "deadline_exceeded" {
		t.Fatalf("%v %v", cmd.err, cmd.end)
	}
	eventually(t, "no descendant is left", func() bool { return running(t, shared, number) == 0 })
}

func TestKillEndsTheWholeTree(t *testing.T) {
	const number = "4712.25"
	cmd := shared.start(t, call{}, object{"process": sh(tree(number)), "stdin": false})
	cmd.until(&cmd.stdout, "ready")
	eventually(t, "the tree has grown", func() bool { return running(t, shared, "sleep "+number) >= 9 })
	shared.ok(t, call{}, "process.Process/SendSignal", object{"process": object{"pid": cmd.pid}, "signal": "SIGNAL_SIGKILL"})
	if left := running(t, shared, number); left != 0 {
		t.Fatalf("%d processes are left", left)
	}
	if got := shared.run(t, call{}, fmt.Sprintf("kill -0 %d", cmd.pid)); got.end["exitCode"] != 1.0 {
		t.Fatalf("the pid still exists: %v", got.end)
	}
	cmd.wait()
	if cmd.end["status"] != "signal: killed" {
		t.Fatalf("end %v %v", cmd.end, cmd.err)
	}
	shared.fails(t, call{}, "process.Process/SendSignal", object{"process": object{"pid": cmd.pid}, "signal": "SIGNAL_SIGKILL"}, "not_found")
}

func TestTermReachesTheTree(t *testing.T) {
	const number = "4713.25"
	cmd := shared.start(t, call{}, object{"process": sh("sleep " + number + "; echo after"), "stdin": false})
	eventually(t, "the child runs", func() bool { return running(t, shared, "sleep "+number) >= 2 })
	shared.ok(t, call{}, "process.Process/SendSignal", object{"process": object{"pid": cmd.pid}, "signal": "SIGNAL_SIGTERM"})
	cmd.wait()
	if cmd.end["status"] != "signal: terminated" {
		t.Fatalf("end %v", cmd.end)
	}
	eventually(t, "the child is gone", func() bool { return running(t, shared, number) == 0 })
}

func TestChildrenOfAnEndedCommandLiveOn(t *testing.T) {
	const number = "4714.25"
	shared.run(t, call{}, "setsid sleep "+number+" </dev/null >/dev/null 2>&1 &")
	eventually(t, "it runs", func() bool { return running(t, shared, "sleep "+number) == 1 })
	shared.run(t, call{}, "pkill -f 'sleep "+number+"' || kill $(grep -al 'sleep."+number+"' /proc/[0-9]*/cmdline | cut -d/ -f3 | head -1)")
	eventually(t, "it is gone", func() bool { return running(t, shared, "sleep "+number) == 0 })
}

func TestNoZombiesAndNoStolenExitCodes(t *testing.T) {
	var group sync.WaitGroup
	slots := make(chan struct{}, 16)
	for i := range 150 {
		group.Add(1)
		slots <- struct{}{}
		go func() {
			defer func() { <-slots; group.Done() }()
			code := i % 200
			cmd := shared.run(t, call{}, fmt.Sprintf("(sleep 0.01 &) ; sh -c 'sleep 0.02 &' ; exit %d", code))
			got, _ := cmd.end["exitCode"].(float64)
			if int(got) != code {
				t.Errorf("exit code %v, want %d (%v)", got, code, cmd.err)
			}
		}()
	}
	group.Wait()
	eventually(t, "all orphans are reaped", func() bool {
		out := shared.output(t, call{}, `for f in /proc/[0-9]*/stat; do read -r pid name state ppid rest < $f 2>/dev/null && [ "$ppid" = $PPID ] && [ "$state" = Z ] && echo $pid; done; true`)
		return strings.TrimSpace(out) == ""
	})
}

func TestTerminal(t *testing.T) {
	cmd := shared.start(t, call{}, object{
		"process": object{"cmd": "/bin/bash", "args": []string{"--norc", "-i"}, "envs": object{"TERM": "xterm", "PS1": "> "}},
		"pty":     object{"size": object{"cols": 117, "rows": 31}},
	})
	send := func(text string) {
		t.Helper()
		if status, res := shared.input(t, cmd.pid, "pty", text); status != 200 {
			t.Fatalf("%d %v", status, res)
		}
	}
	send("stty size; [ -t 0 ] && echo is-a-tty\n")
	cmd.until(&cmd.pty, "31 117\r\nis-a-tty")
	send("sh -c 'trap \"stty size\" WINCH; echo wait''ing; while :; do sleep .05; done'\n")
	cmd.until(&cmd.pty, "waiting")
	shared.ok(t, call{}, "process.Process/Update", object{"process": object{"pid": cmd.pid}, "pty": object{"size": object{"cols": 132, "rows": 40}}})
	cmd.until(&cmd.pty, "40 132")
	send("\x03")
	send("echo al''ive\n")
	cmd.until(&cmd.pty, "alive")
	if status, res := shared.input(t, cmd.pid, "stdin", "x"); status != 500 || res["code"] != "internal" {
		t.Fatalf("%d %v", status, res)
	}
	shared.fails(t, call{}, "process.Process/CloseStdin", object{"process": object{"pid": cmd.pid}}, "failed_precondition")
	send("exit 5\n")
	begin := time.Now()
	cmd.wait()
	if cmd.end["exitCode"] != 5.0 || time.Since(begin) > 10*time.Second {
		t.Fatalf("end %v after %v", cmd.end, time.Since(begin))
	}
	shared.fails(t, call{}, "process.Process/Update", object{"process": object{"pid": cmd.pid}, "pty": object{"size": object{"cols": 10, "rows": 10}}}, "not_found")
	if status, res := shared.input(t, cmd.pid, "pty", "x"); status != 404 {
		t.Fatalf("%d %v", status, res)
	}
}

func TestTerminalWithoutSizeHasOne(t *testing.T) {
	cmd := shared.start(t, call{}, object{"process": sh("stty size"), "pty": object{}}).wait()
	if cmd.pty.String() != "24 80\r\n" {
		t.Fatalf("%q", cmd.pty.String())
	}
}

func TestStdin(t *testing.T) {
	cmd := shared.start(t, call{}, object{"process": sh("cat; sleep 2")})
	if status, res := shared.input(t, cmd.pid, "stdin", "hello "); status != 200 {
		t.Fatalf("%d %v", status, res)
	}
	cmd.until(&cmd.stdout, "hello ")
	// A client stream: start, data, keepalive, and no envelope for its end.
	var body bytes.Buffer
	body.Write(envelope(object{"start": object{"process": object{"pid": cmd.pid}}}))
	body.Write(envelope(object{"data": object{"input": object{"stdin": base64.StdEncoding.EncodeToString([]byte("wor"))}}}))
	body.Write(envelope(object{"keepalive": object{}}))
	body.Write(envelope(object{"data": object{"input": object{"stdin": base64.RawURLEncoding.EncodeToString([]byte("ld"))}}}))
	res := shared.plain(t, call{header: header("Content-Type", "application/connect+json")}, http.MethodPost, "/process.Process/StreamInput", &body)
	if want := "\x00\x00\x00\x00\x02{}\x02\x00\x00\x00\x02{}"; string(res.body) != want {
		t.Fatalf("%q", res.body)
	}
	cmd.until(&cmd.stdout, "hello world")
	for range 2 {
		shared.ok(t, call{}, "process.Process/CloseStdin", object{"process": object{"pid": cmd.pid}})
	}
	if status, res := shared.input(t, cmd.pid, "stdin", "late"); status == 200 {
		t.Fatalf("input after the close: %v", res)
	}
	if cmd.wait(); cmd.end["exited"] != true {
		t.Fatalf("end %v", cmd.end)
	}
	silent := shared.start(t, call{}, object{"process": sh("cat; sleep 30"), "stdin": false})
	if status, res := shared.input(t, silent.pid, "stdin", "x"); status != 400 || res["code"] != "failed_precondition" {
		t.Fatalf("%d %v", status, res)
	}
	if status, res := shared.input(t, silent.pid, "pty", "x"); status != 500 || res["code"] != "internal" {
		t.Fatalf("%d %v", status, res)
	}
	shared.ok(t, call{}, "process.Process/SendSignal", object{"process": object{"pid": silent.pid}, "signal": "SIGNAL_SIGKILL"})
}

func TestLargeStdin(t *testing.T) {
	cmd := shared.start(t, call{}, object{"process": sh("sleep 0.2; wc -c")})
	const size = 6 << 20
	if status, res := shared.input(t, cmd.pid, "stdin", strings.Repeat("x", size)); status != 200 {
		t.Fatalf("%d %v", status, res)
	}
	shared.ok(t, call{}, "process.Process/CloseStdin", object{"process": object{"pid": cmd.pid}})
	if cmd.wait(); strings.TrimSpace(cmd.stdout.String()) != strconv.Itoa(size) {
		t.Fatalf("%q", cmd.stdout.String())
	}
}

func TestConnectToAProcess(t *testing.T) {
	tag := "tag-" + t.Name()
	cmd := shared.start(t, call{}, object{"process": sh("read x; echo $x; exit 3"), "tag": tag})
	byPID := follow(t, shared.stream(t, call{}, "process.Process/Connect", object{"process": object{"pid": cmd.pid}}))
	byTag := follow(t, shared.stream(t, call{}, "process.Process/Connect", object{"process": object{"tag": tag}}))
	if byPID.pid != cmd.pid || byTag.pid != cmd.pid {
		t.Fatalf("pids %d %d %d", cmd.pid, byPID.pid, byTag.pid)
	}
	listed := shared.ok(t, call{}, "process.Process/List", object{})
	if !strings.Contains(fmt.Sprint(listed), fmt.Sprintf("tag:%s", tag)) {
		t.Fatalf("%v", listed)
	}
	shared.input(t, cmd.pid, "stdin", "hey\n")
	for i, one := range []*command{cmd, byPID, byTag} {
		if one.wait(); one.stdout.String() != "hey\n" || one.end["exitCode"] != 3.0 {
			t.Fatalf("%d: %q %v", i, one.stdout.String(), one.end)
		}
	}
	late := follow(t, shared.stream(t, call{}, "process.Process/Connect", object{"process": object{"pid": cmd.pid}})).wait()
	if late.pid != cmd.pid || late.end["exitCode"] != 3.0 {
		t.Fatalf("late: %v", late.end)
	}
	if listed := shared.ok(t, call{}, "process.Process/List", object{}); strings.Contains(fmt.Sprint(listed), tag) {
		t.Fatalf("still listed: %v", listed)
	}
	for _, selector := range []object{{"pid": 999999}, {"tag": "nobody"}} {
		gone := follow(t, shared.stream(t, call{}, "process.Process/Connect", object{"process": selector}))
		if gone.err["code"] != "not_found" {
			t.Fatalf("%v", gone.err)
		}
	}
}

func TestClientThatLeavesDoesNotEndTheProcess(t *testing.T) {
	dir := shared.dir(t, call{})
	cmd := shared.start(t, call{}, object{"process": sh("head -c 30000000 /dev/zero; touch " + dir + "/done; sleep 30"), "stdin": false})
	cmd.close()
	eventually(t, "the process went on without a reader", func() bool {
		status, _ := shared.rpc(t, call{}, "filesystem.Filesystem/Stat", object{"path": dir + "/done"})
		return status == 200
	})
	shared.ok(t, call{}, "process.Process/SendSignal", object{"process": object{"pid": cmd.pid}, "signal": "SIGNAL_SIGKILL"})
}

func TestSlowReaderLosesNothingAndCostsNoMemory(t *testing.T) {
	local(t)
	e := own(t)
	const size = 120 << 20
	cmd := e.start(t, call{}, object{"process": sh(fmt.Sprintf("head -c %d /dev/zero", size)), "stdin": false})
	// A pipe that nobody empties blocks its writer in pipe_write.
	eventually(t, "the process is blocked", func() bool {
		wchan, _ := os.ReadFile(fmt.Sprintf("/proc/%d/wchan", childOf(cmd.pid)))
		return strings.Contains(string(wchan), "pipe_write")
	})
	if rss := residentKB(t, e.cmd.Process.Pid); rss > 60<<10 {
		t.Fatalf("envd grew to %d kB", rss)
	}
	if cmd.wait(); cmd.stdout.Len() != size {
		t.Fatalf("%d bytes of %d", cmd.stdout.Len(), size)
	}
}

// childOf is the only child of a process, or the process itself: some shells replace themselves.
func childOf(pid int) int {
	children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if child, err := strconv.Atoi(strings.TrimSpace(string(children))); err == nil {
		return child
	}
	return pid
}

func residentKB(t *testing.T, pid int) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, _ := strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")))
			return kb
		}
	}
	t.Fatal("no VmRSS")
	return 0
}

func TestIdleMemory(t *testing.T) {
	local(t)
	e := own(t)
	e.output(t, call{}, "echo hello")
	e.post(t, "/internal/quiesce", object{})
	if rss := residentKB(t, e.cmd.Process.Pid); rss > 12<<10 {
		t.Fatalf("%d kB resident when idle, want at most 12 MB", rss)
	}
}

func TestUsers(t *testing.T) {
	asRoot(t)
	if out := shared.output(t, call{user: "nobody"}, "id -un; id -u; echo $USER $LOGNAME $HOME; pwd"); !strings.HasPrefix(out, "nobody\n65534\nnobody nobody /nonexistent\n/\n") {
		t.Fatalf("%q", out)
	}
	if out := shared.output(t, call{user: "65534"}, "id -un"); out != "nobody\n" {
		t.Fatalf("%q", out)
	}
	if out := shared.output(t, call{user: "54321"}, "id -u; id -g; echo $HOME; pwd; mktemp -u >/dev/null && echo fine"); out != "54321\n0\n/\n/\nfine\n" {
		t.Fatalf("%q", out)
	}
	cmd := shared.run(t, call{user: "root123"}, "true")
	if cmd.err["code"] != "unauthenticated" || cmd.err["message"] != "invalid username: 'root123'" {
		t.Fatalf("%v", cmd.err)
	}
	shared.fails(t, call{user: "root123"}, "filesystem.Filesystem/Stat", object{"path": "/"}, "unauthenticated")
}

func TestEnvironmentIsCleanAndScoped(t *testing.T) {
	cmd := shared.start(t, call{}, object{"process": object{"cmd": "env", "envs": object{"FOO": "bar", "HOME": "/over"}}, "stdin": false}).wait()
	var names []string
	for line := range strings.Lines(cmd.stdout.String()) {
		name, _, _ := strings.Cut(line, "=")
		names = append(names, name)
	}
	slices.Sort(names)
	if got := strings.Join(names, " "); got != "E2B_SANDBOX FOO FORKYARD_COMMAND HOME LOGNAME PATH USER" {
		t.Fatalf("%s", got)
	}
	if !strings.Contains(cmd.stdout.String(), "HOME=/over\n") || !strings.Contains(cmd.stdout.String(), "FOO=bar\n") {
		t.Fatalf("%s", cmd.stdout.String())
	}
	if out := shared.output(t, call{}, `echo "<$FOO>"`); out != "<>\n" {
		t.Fatalf("%q", out)
	}
}

func TestStandardFilesCanBeOpenedByName(t *testing.T) {
	asRoot(t)
	cmd := shared.run(t, call{user: "nobody"}, "echo one > /dev/stdout; echo two > /dev/stderr")
	if cmd.stdout.String() != "one\n" || cmd.stderr.String() != "two\n" {
		t.Fatalf("%q %q", cmd.stdout.String(), cmd.stderr.String())
	}
}

func TestWhatCannotStart(t *testing.T) {
	for name, test := range map[string]struct {
		process object
		code    string
		text    string
	}{
		"no shell in the image": {object{"cmd": "/bin/no-such-shell", "args": []string{"-l", "-c", "true"}}, "invalid_argument", "'/bin/no-such-shell' was not found"},
		"not in PATH":           {object{"cmd": "no-such-command"}, "invalid_argument", "not found in PATH"},
		"no working directory":  {object{"cmd": "true", "cwd": "/no/such/dir"}, "invalid_argument", "cwd '/no/such/dir' does not exist"},
		"a file as directory":   {object{"cmd": "true", "cwd": "/etc/passwd"}, "invalid_argument", "not a directory"},
		"a directory to run":    {object{"cmd": "/tmp"}, "permission_denied", "may not run"},
		"an empty command":      {object{"cmd": ""}, "invalid_argument", "empty"},
		"a bad variable":        {object{"cmd": "true", "envs": object{"A=B": "c"}}, "invalid_argument", "environment"},
		"a zero byte":           {object{"cmd": "true", "args": []string{"a\x00b"}}, "invalid_argument", "zero byte"},
		"another's home":        {object{"cmd": "true", "cwd": "~other"}, "invalid_argument", "another user"},
		"too many arguments":    {object{"cmd": "true", "args": []string{strings.Repeat("x", 3<<20)}}, "invalid_argument", "too long"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := shared.start(t, call{}, object{"process": test.process, "stdin": false}).wait()
			if cmd.err["code"] != test.code || !strings.Contains(fmt.Sprint(cmd.err["message"]), test.text) {
				t.Fatalf("%v", cmd.err)
			}
		})
	}
}

func TestKeepaliveInSilence(t *testing.T) {
	cmd := shared.start(t, call{header: header("Keepalive-Ping-Interval", "1")}, object{"process": sh("sleep 2.6; echo done"), "stdin": false}).wait()
	if cmd.keepalives < 2 || cmd.stdout.String() != "done\n" {
		t.Fatalf("%d keepalives, %q", cmd.keepalives, cmd.stdout.String())
	}
}

func TestStreamWaitsForOutputOfBackgroundChildren(t *testing.T) {
	cmd := shared.run(t, call{}, "(sleep 0.3; echo late) & echo early; exit 4")
	if cmd.stdout.String() != "early\nlate\n" || cmd.end["exitCode"] != 4.0 {
		t.Fatalf("%q %v", cmd.stdout.String(), cmd.end)
	}
}

// A short command must take no longer than its own spawn and a few milliseconds: there is no fixed wait.
func TestShortCommandsAreFast(t *testing.T) {
	local(t)
	const rounds = 21
	var direct, served []time.Duration
	for range rounds {
		begin := time.Now()
		if err := exec.Command("/bin/sh", "-c", "echo hi").Run(); err != nil {
			t.Fatal(err)
		}
		direct = append(direct, time.Since(begin))
		begin = time.Now()
		shared.output(t, call{}, "echo hi")
		served = append(served, time.Since(begin))
	}
	// The fastest of each: a wait would be in all of them, what a busy machine adds is not.
	extra := slices.Min(served) - slices.Min(direct)
	t.Logf("the command alone takes %v, through envd %v", slices.Min(direct), slices.Min(served))
	if extra > 25*time.Millisecond {
		t.Fatalf("envd adds %v", extra)
	}
}

func TestRequestMayStayOpenWhileTheAnswerStreams(t *testing.T) {
	// A client that sends its body in chunks and ends it late still gets its events at once.
	reader, writer := io.Pipe()
	r, err := http.NewRequest(http.MethodPost, shared.url+"/process.Process/Start", reader)
	if err != nil {
		t.Fatal(err)
	}
	call{}.apply(r)
	r.Header.Set("Content-Type", "application/connect+json")
	go func() { _, _ = writer.Write(envelope(object{"process": sh("echo hi"), "stdin": false})) }()
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	s := &stream{t: t, body: res.Body, cancel: func() { _ = writer.Close() }}
	t.Cleanup(s.close)
	cmd := follow(t, s)
	cmd.until(&cmd.stdout, "hi\n")
	_ = writer.Close()
	if cmd.wait(); cmd.end["exited"] != true {
		t.Fatalf("%v", cmd.end)
	}
}
