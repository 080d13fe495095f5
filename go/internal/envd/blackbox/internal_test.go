package blackbox

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestHealthEnvsMetrics(t *testing.T) {
	if res := shared.get(t, "/health"); res.status != 204 {
		t.Fatalf("%d", res.status)
	}
	if res := shared.get(t, "/envs"); res.status != 200 || string(res.body) != "{}" && program != "" {
		t.Fatalf("%d %s", res.status, res.body)
	}
	res := shared.get(t, "/metrics")
	sample := res.json(t)
	for _, name := range []string{"ts", "cpu_count", "cpu_used_pct", "mem_total", "mem_used", "mem_cache", "disk_used", "disk_total", "mem_total_mib", "mem_used_mib"} {
		if number, ok := sample[name].(float64); !ok || number < 0 {
			t.Fatalf("%s: %v", name, sample[name])
		}
	}
	if sample["mem_total"].(float64) < sample["mem_used"].(float64) || sample["disk_total"].(float64) == 0 {
		t.Fatalf("%s", res.body)
	}
}

func TestInitReplacesEverything(t *testing.T) {
	local(t)
	e := own(t)
	read := func(name string) string {
		data, err := os.ReadFile(e.root + name)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	if err := os.MkdirAll(e.root+"/etc", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(e.root+"/etc/hosts", []byte("10.0.0.1 other\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	first := object{
		"envVars": object{"A": "1"}, "accessToken": "one", "defaultUser": "root", "defaultWorkdir": "/tmp", "sandboxId": "iabc", "templateId": "tpl",
		"hostname": "box-1", "bootId": "11111111-2222-4333-8444-555555555555", "machineId": strings.Repeat("ab", 16),
		"timestamp": time.Now().Format(time.RFC3339Nano), "generation": 7, "lifecycleID": "ignored",
	}
	for range 2 { // it is idempotent
		if res := e.post(t, "/init", first); res.status != 204 || res.header.Get("X-Envd-Version") != "0.6.13" {
			t.Fatalf("%d %s", res.status, res.body)
		}
	}
	if got := read("/etc/hosts"); !strings.HasPrefix(got, "10.0.0.1 other\n") || strings.Count(got, "box-1") != 1 || !strings.Contains(got, "localhost") {
		t.Fatalf("%q", got)
	}
	for name, want := range map[string]string{
		"/etc/hostname": "box-1\n", "/etc/machine-id": strings.Repeat("ab", 16) + "\n", "/run/e2b/boot_id": "11111111-2222-4333-8444-555555555555\n",
		"/run/e2b/.E2B_SANDBOX": "true", "/run/e2b/.E2B_SANDBOX_ID": "iabc", "/run/e2b/.E2B_TEMPLATE_ID": "tpl",
	} {
		if got := read(name); got != want {
			t.Fatalf("%s: %q", name, got)
		}
	}
	with := call{token: "one"}
	if out := e.output(t, with, "echo $A $E2B_SANDBOX $E2B_SANDBOX_ID $E2B_TEMPLATE_ID; pwd"); out != "1 true iabc tpl\n/tmp\n" {
		t.Fatalf("%q", out)
	}
	if entry := e.ok(t, with, fsService+"MakeDir", object{"path": "envd-test-rel-" + t.Name()})["entry"].(object); !strings.HasPrefix(entry["path"].(string), "/tmp/envd-test-rel-") {
		t.Fatalf("%v", entry)
	} else {
		e.ok(t, with, fsService+"Remove", object{"path": entry["path"]})
	}
	if res := e.plain(t, with, http.MethodGet, "/envs", nil); string(res.body) != `{"A":"1"}` {
		t.Fatalf("%s", res.body)
	}
	if res := e.post(t, "/init", object{"generation": 6, "accessToken": "old"}); res.status != 409 {
		t.Fatalf("a lower generation: %d", res.status)
	}
	e.ok(t, with, "process.Process/List", object{})
	inode := func() uint64 { return inodeOf(t, e.root+"/run/e2b/boot_id") }
	before := inode()
	if res := e.post(t, "/init", object{"generation": 8, "accessToken": "two", "hostname": "box-2", "bootId": "21111111-2222-4333-8444-555555555555"}); res.status != 204 {
		t.Fatalf("%d %s", res.status, res.body)
	}
	if inode() != before || !strings.HasPrefix(read("/run/e2b/boot_id"), "2111") {
		t.Fatal("the boot id must be written in place")
	}
	if got := read("/etc/hosts"); strings.Contains(got, "box-1") || strings.Count(got, "box-2") != 1 {
		t.Fatalf("%q", got)
	}
	if status, _ := e.rpc(t, with, "process.Process/List", object{}); status != 401 {
		t.Fatalf("the old token still works: %d", status)
	}
	if res := e.plain(t, call{token: "two"}, http.MethodGet, "/envs", nil); string(res.body) != "{}" {
		t.Fatalf("variables that the new set lacks are kept: %s", res.body)
	}
	if res := e.post(t, "/init", object{}); res.status != 204 {
		t.Fatalf("%d", res.status)
	}
	e.ok(t, call{}, "process.Process/List", object{}) // no token: open
}

func TestInitRefusesNonsenseAndChangesNothing(t *testing.T) {
	local(t)
	e := own(t)
	e.post(t, "/init", object{"accessToken": "tok"})
	for _, bad := range []object{
		{"hostname": "a b"}, {"hostname": "-x"}, {"hostname": strings.Repeat("h", 65)}, {"hostname": "x\n127.0.0.1 y"}, {"bootId": "x"}, {"machineId": "zz"},
		{"timestamp": "yesterday"}, {"sandboxId": "../x"[0:2] + "\n"}, {"envVars": "x"}, {"generation": "x"},
	} {
		if res := e.post(t, "/init", bad); res.status != 400 {
			t.Fatalf("%v: %d %s", bad, res.status, res.body)
		}
	}
	if status, _ := e.rpc(t, call{}, "process.Process/List", object{}); status != 401 {
		t.Fatal("a refused init has changed the token")
	}
}

func TestTokenGuardsEverythingElse(t *testing.T) {
	local(t)
	e := own(t)
	e.post(t, "/init", object{"accessToken": "secret"})
	guarded := []string{"/process.Process/List", "/process.Process/Start", "/filesystem.Filesystem/Stat", "/files/compose", "/nothing"}
	for _, path := range guarded {
		for _, token := range []string{"", "secre", "secret2", "Secret"} {
			res := e.plain(t, call{token: token, header: header("Content-Type", "application/json")}, http.MethodPost, path, strings.NewReader("{}"))
			want := object{"code": 401.0, "message": "unauthorized access, please provide a valid access token or method signing if supported"}
			if res.status != 401 || fmt.Sprint(res.json(t)) != fmt.Sprint(want) {
				t.Fatalf("%s with %q: %d %s", path, token, res.status, res.body)
			}
		}
	}
	for _, path := range []string{"/envs", "/metrics"} {
		if res := e.get(t, path); res.status != 401 {
			t.Fatalf("%s: %d", path, res.status)
		}
	}
	if res := e.get(t, "/health"); res.status != 204 {
		t.Fatalf("%d", res.status)
	}
}

func TestInternalRoutesDoNotExistForOthers(t *testing.T) {
	local(t)
	e := own(t, "--allow-internal-from", "127.0.0.99")
	for _, route := range []string{
		"POST /init", "POST /internal/quiesce", "POST /internal/rehearse", "POST /internal/end-processes", "POST /internal/memory", "POST /internal/memory-kills", "POST /internal/forward",
		"GET /internal/processes", "POST /internal/calls/a", "GET /internal/calls/a", "DELETE /internal/calls/a", "POST /internal/calls/a/signal",
		"GET /init", "GET /internal/", "GET /internal/nothing", "POST /freeze",
	} {
		method, path, _ := strings.Cut(route, " ")
		res := e.plain(t, call{}, method, path, strings.NewReader("{}"))
		if res.status != 404 || string(res.body) != `{"code":404,"message":"not found"}` {
			t.Fatalf("%s: %d %s", route, res.status, res.body)
		}
	}
}

func TestARehearsalLeavesNothing(t *testing.T) {
	local(t)
	e := own(t)
	for range 2 {
		if res := e.post(t, "/internal/rehearse", object{}); res.status != 204 {
			t.Fatalf("%d %s", res.status, res.body)
		}
	}
	if left := running(t, e, "-l -c :"); left != 0 {
		t.Fatalf("%d left", left)
	}
	e.output(t, call{}, "true")
}

func TestEndProcessesAndQuiesce(t *testing.T) {
	local(t)
	e := own(t)
	const number = "4720.25"
	stubborn := e.start(t, call{}, object{"process": sh("trap '' TERM; echo ready; while :; do sleep " + number + "; done"), "stdin": false})
	stubborn.until(&stubborn.stdout, "ready")
	polite := e.start(t, call{}, object{"process": sh("trap 'echo bye; exit 9' TERM; echo ready; while :; do sleep 0.05; done"), "stdin": false})
	polite.until(&polite.stdout, "ready")
	e.run(t, call{}, "setsid sleep "+number+" </dev/null >/dev/null 2>&1 &")
	if res := e.post(t, "/internal/end-processes", object{"grace_ms": 500}); res.status != 204 {
		t.Fatalf("%d %s", res.status, res.body)
	}
	if polite.wait(); polite.end["exitCode"] != 9.0 || !strings.Contains(polite.stdout.String(), "bye") {
		t.Fatalf("%v %q", polite.end, polite.stdout.String())
	}
	if stubborn.wait(); stubborn.end["status"] != "signal: killed" {
		t.Fatalf("%v", stubborn.end)
	}
	if left := running(t, e, number); left != 0 {
		t.Fatalf("%d left", left)
	}
	if refused := e.run(t, call{}, "true"); refused.err["code"] != "unavailable" {
		t.Fatalf("a command in the middle of a pause: %v %v", refused.end, refused.err)
	}
	e.post(t, "/init", object{})
	e.output(t, call{}, "true")
	idle := e.dial(t)
	_, _ = io.WriteString(idle, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
	buffer := make([]byte, 4096)
	if _, err := idle.Read(buffer); err != nil {
		t.Fatal(err)
	}
	if res := e.post(t, "/internal/quiesce", object{}); res.status != 204 {
		t.Fatalf("%d", res.status)
	}
	if _, err := idle.Read(buffer); err != io.EOF {
		t.Fatalf("the idle connection is still open: %v", err)
	}
}

func TestHooksRunAfterARestore(t *testing.T) {
	local(t)
	asRoot(t)
	e := own(t)
	hooks := e.root + "/etc/forkyard/on-restore.d"
	if err := os.MkdirAll(hooks, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, script := range map[string]string{"10-first": "echo first >> ", "20-fails": "exit 3 # ", "30-last": "echo $E2B_SANDBOX_ID >> "} {
		if err := os.WriteFile(hooks+"/"+name, []byte("#!/bin/sh\n"+script+e.root+"/log\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(hooks+"/40-not-executable", []byte("#!/bin/sh\necho no >> "+e.root+"/log\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	want := ""
	for _, generation := range []int{1, 1, 2} {
		if generation != 1 || want == "" {
			want += fmt.Sprintf("first\nbox%d\n", generation)
		}
		e.post(t, "/init", object{"generation": generation, "sandboxId": fmt.Sprintf("box%d", generation)})
		eventually(t, "the hooks ran once a generation", func() bool {
			got, _ := os.ReadFile(e.root + "/log")
			return string(got) == want
		})
	}
}

func TestLoopbackPortsAreForwardedOnRequest(t *testing.T) {
	local(t)
	program, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = program.Close() }()
	go func() {
		for {
			conn, err := program.Accept()
			if err != nil {
				return
			}
			go func() {
				all, _ := io.ReadAll(conn)
				_, _ = conn.Write(append([]byte("got "), all...))
				_ = conn.Close()
			}()
		}
	}()
	port := program.Addr().(*net.TCPAddr).Port
	outside := fmt.Sprintf("127.0.0.2:%d", port)
	if conn, err := net.Dial("tcp", outside); err == nil {
		_ = conn.Close()
		t.Fatal("the port is open already")
	}
	for range 2 {
		if res := shared.post(t, "/internal/forward", object{"port": port}); res.status != 204 {
			t.Fatalf("%d %s", res.status, res.body)
		}
	}
	conn, err := net.Dial("tcp", outside)
	if err != nil {
		t.Fatal(err)
	}
	message := strings.Repeat("m", 1<<20)
	go func() {
		_, _ = io.WriteString(conn, message)
		_ = conn.(*net.TCPConn).CloseWrite()
	}()
	if all, err := io.ReadAll(conn); err != nil || string(all) != "got "+message {
		t.Fatalf("%v, %d bytes", err, len(all))
	}
	_ = program.Close()
	eventually(t, "the forward has closed after its program", func() bool {
		conn, err := net.Dial("tcp", outside)
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
	if res := shared.post(t, "/internal/forward", object{"port": port}); res.status != 404 {
		t.Fatalf("%d %s", res.status, res.body)
	}
	for _, bad := range []any{0, 65536, -1, "x", nil} {
		if res := shared.post(t, "/internal/forward", object{"port": bad}); res.status != 400 {
			t.Fatalf("%v: %d", bad, res.status)
		}
	}
}

// callOutput is the answer to a read of a call.
type callOutput struct {
	Call struct {
		State    string `json:"state"`
		PID      int    `json:"pid"`
		ExitCode *int   `json:"exit_code"`
		Signal   string `json:"signal"`
		TimedOut bool   `json:"timed_out"`
		EndedAt  string `json:"ended_at"`
	} `json:"call"`
	Stdout, Stderr struct {
		Offset, Next, Total int64
		Data                []byte
		Cut                 *struct{ From, To int64 }
	}
}

func (e *envd) readCall(t *testing.T, id string, stdout, stderr int64, wait int) callOutput {
	t.Helper()
	res := e.get(t, fmt.Sprintf("/internal/calls/%s?stdout=%d&stderr=%d&wait_ms=%d", id, stdout, stderr, wait))
	var out callOutput
	if err := json.Unmarshal(res.body, &out); err != nil || res.status != 200 {
		t.Fatalf("%d %s", res.status, res.body)
	}
	return out
}

// collect reads a call to its end as a client would that loses its connection after every answer.
func (e *envd) collect(t *testing.T, id string) (stdout, stderr []byte, last callOutput) {
	t.Helper()
	var atOut, atErr int64
	for limit := time.Now().Add(3 * patience); time.Now().Before(limit); {
		last = e.readCall(t, id, atOut, atErr, 2000)
		stdout, stderr = append(stdout, last.Stdout.Data...), append(stderr, last.Stderr.Data...)
		atOut, atErr = last.Stdout.Next, last.Stderr.Next
		if last.Call.State == "exited" && atOut == last.Stdout.Total && atErr == last.Stderr.Total {
			return stdout, stderr, last
		}
	}
	t.Fatal("the call did not end")
	return nil, nil, last
}

func TestACallIsRecordedWhole(t *testing.T) {
	const script = "head -c 10000000 /dev/zero | tr '\\0' 'z'; echo problem >&2; exit 41"
	if res := shared.post(t, "/internal/calls/whole-1", object{"cmd": "/bin/sh", "args": []string{"-c", script}, "user": "root"}); res.status != 200 {
		t.Fatalf("%d %s", res.status, res.body)
	}
	stdout, stderr, last := shared.collect(t, "whole-1")
	if sha256.Sum256(stdout) != sha256.Sum256(bytes.Repeat([]byte("z"), 10000000)) || string(stderr) != "problem\n" {
		t.Fatalf("%d bytes, %q", len(stdout), stderr)
	}
	if last.Call.ExitCode == nil || *last.Call.ExitCode != 41 || last.Call.EndedAt == "" || last.Stdout.Cut != nil {
		t.Fatalf("%+v", last.Call)
	}
	again := shared.readCall(t, "whole-1", 9999990, 3, 0)
	if string(again.Stdout.Data) != strings.Repeat("z", 10) || string(again.Stderr.Data) != "blem\n" {
		t.Fatalf("%q %q", again.Stdout.Data, again.Stderr.Data)
	}
	for range 2 {
		if res := shared.plain(t, call{}, http.MethodDelete, "/internal/calls/whole-1", nil); res.status != 204 {
			t.Fatalf("%d", res.status)
		}
	}
	if res := shared.get(t, "/internal/calls/whole-1"); res.status != 404 {
		t.Fatalf("%d", res.status)
	}
}

func TestACallStartsOnce(t *testing.T) {
	dir := shared.dir(t, call{})
	req := object{"cmd": "/bin/sh", "args": []string{"-c", "echo x >> " + dir + "/effects; sleep 30"}, "user": "root"}
	var group sync.WaitGroup
	pids := make(chan float64, 20)
	for range 20 {
		group.Add(1)
		go func() {
			defer group.Done()
			pids <- shared.post(t, "/internal/calls/once-1", req).json(t)["pid"].(float64)
		}()
	}
	group.Wait()
	first := <-pids
	for range 19 {
		if pid := <-pids; pid != first {
			t.Fatalf("two processes: %v and %v", first, pid)
		}
	}
	eventually(t, "it ran", func() bool { return shared.run(t, call{}, "test -s "+dir+"/effects").end["exitCode"] == nil })
	if out := shared.output(t, call{}, "cat "+dir+"/effects"); out != "x\n" {
		t.Fatalf("%q", out)
	}
	if res := shared.post(t, "/internal/calls/once-1/signal", object{"signal": "SIGKILL"}); res.status != 204 {
		t.Fatalf("%d %s", res.status, res.body)
	}
	_, _, last := shared.collect(t, "once-1")
	if last.Call.Signal != "SIGKILL" || last.Call.ExitCode != nil || last.Call.TimedOut {
		t.Fatalf("%+v", last.Call)
	}
	if state := shared.post(t, "/internal/calls/once-1", req).json(t); state["state"] != "exited" {
		t.Fatalf("a known id was started again: %v", state)
	}
	shared.plain(t, call{}, http.MethodDelete, "/internal/calls/once-1", nil)
}

func TestACallEndsWithItsLeader(t *testing.T) {
	const number = "4730.25"
	req := object{"cmd": "/bin/sh", "args": []string{"-c", "(sleep 3; echo late; sleep " + number + ") & echo early; exit 2"}, "user": "root"}
	begin := time.Now()
	shared.post(t, "/internal/calls/leader-1", req)
	stdout, _, last := shared.collect(t, "leader-1")
	if string(stdout) != "early\n" || *last.Call.ExitCode != 2 || time.Since(begin) > 20*time.Second {
		t.Fatalf("%q %+v after %v", stdout, last.Call, time.Since(begin))
	}
	eventually(t, "what a child writes later is recorded too", func() bool {
		return string(shared.readCall(t, "leader-1", 6, 0, 0).Stdout.Data) == "late\n"
	})
	shared.post(t, "/internal/calls/leader-1/signal", object{"signal": "SIGKILL"})
	eventually(t, "the child is gone", func() bool { return running(t, shared, number) == 0 })
	shared.plain(t, call{}, http.MethodDelete, "/internal/calls/leader-1", nil)
}

func TestACallHasADeadlineAndInput(t *testing.T) {
	const number = "4731.25"
	shared.post(t, "/internal/calls/late-1", object{"cmd": "/bin/sh", "args": []string{"-c", tree(number)}, "timeout_ms": 5000, "user": "root"})
	stdout, _, last := shared.collect(t, "late-1")
	if string(stdout) != "ready\n" || !last.Call.TimedOut || last.Call.Signal != "SIGKILL" {
		t.Fatalf("%q %+v", stdout, last.Call)
	}
	eventually(t, "the tree is gone", func() bool { return running(t, shared, number) == 0 })
	input := bytes.Repeat([]byte("line\n"), 100000)
	shared.post(t, "/internal/calls/input-1", object{"cmd": "wc", "args": []string{"-l"}, "stdin": base64.StdEncoding.EncodeToString(input), "user": "root"})
	if stdout, _, _ = shared.collect(t, "input-1"); strings.TrimSpace(string(stdout)) != "100000" {
		t.Fatalf("%q", stdout)
	}
	for _, id := range []string{"late-1", "input-1"} {
		shared.plain(t, call{}, http.MethodDelete, "/internal/calls/"+id, nil)
	}
}

func TestAcknowledgingARunningCallKillsIt(t *testing.T) {
	const number = "4732.25"
	shared.post(t, "/internal/calls/ack-1", object{"cmd": "sleep", "args": []string{number}, "user": "root"})
	shared.plain(t, call{}, http.MethodDelete, "/internal/calls/ack-1", nil)
	eventually(t, "it is gone", func() bool { return running(t, shared, number) == 0 })
}

func TestCallErrors(t *testing.T) {
	for name, test := range map[string]struct {
		id     string
		body   any
		status int
	}{
		"a bad id":          {"a.b", object{"cmd": "true"}, 400},
		"a long id":         {strings.Repeat("i", 129), object{"cmd": "true"}, 400},
		"no command":        {"bad-1", object{}, 400},
		"no such command":   {"bad-2", object{"cmd": "/no/such"}, 400},
		"no such user":      {"bad-3", object{"cmd": "true", "user": "root123"}, 401},
		"negative deadline": {"bad-4", object{"cmd": "true", "timeout_ms": -1}, 400},
		"bad input":         {"bad-5", object{"cmd": "true", "stdin": "%"}, 400},
	} {
		res := shared.post(t, "/internal/calls/"+test.id, test.body)
		if res.status != test.status || res.json(t)["code"] != float64(test.status) {
			t.Fatalf("%s: %d %s", name, res.status, res.body)
		}
		if res := shared.get(t, "/internal/calls/"+test.id); res.status != 404 {
			t.Fatalf("%s: a call that did not start is known: %d", name, res.status)
		}
	}
	if res := shared.post(t, "/internal/calls/none/signal", object{"signal": "SIGTERM"}); res.status != 404 {
		t.Fatalf("%d", res.status)
	}
	if res := shared.get(t, "/internal/calls/none?stdout=-1"); res.status != 400 {
		t.Fatalf("%d", res.status)
	}
}

func TestACallTooLongIsCutInTheMiddle(t *testing.T) {
	local(t)
	const size = 80 << 20
	// Each line of 16 bytes is its own number, so that a cut is seen at once.
	script := fmt.Sprintf("seq -f %%015.0f 0 %d; echo end >&2", size/16-1)
	shared.post(t, "/internal/calls/long-1", object{"cmd": "/bin/sh", "args": []string{"-c", script}, "user": "root"})
	shared.collectExit(t, "long-1")
	at, total := int64(0), int64(0)
	var got []int64
	for {
		out := shared.readCall(t, "long-1", at, 0, 0)
		total = out.Stdout.Total
		if out.Stdout.Cut == nil || out.Stdout.Cut.From != 32<<20 || out.Stdout.Cut.To != size-32<<20 {
			t.Fatalf("%+v", out.Stdout.Cut)
		}
		if len(out.Stdout.Data) == 0 {
			break
		}
		want := fmt.Sprintf("%015d\n", out.Stdout.Offset/16)
		if out.Stdout.Offset%16 != 0 || !bytes.HasPrefix(out.Stdout.Data, []byte(want)) {
			t.Fatalf("at %d: %q", out.Stdout.Offset, out.Stdout.Data[:16])
		}
		got = append(got, out.Stdout.Offset)
		at = out.Stdout.Next
	}
	if total != size || at != size || len(got) < 64 || string(shared.readCall(t, "long-1", at, 0, 0).Stderr.Data) != "end\n" {
		t.Fatalf("total %d, read up to %d", total, at)
	}
	shared.plain(t, call{}, http.MethodDelete, "/internal/calls/long-1", nil)
}

// collectExit waits for the exit without reading.
func (e *envd) collectExit(t *testing.T, id string) {
	t.Helper()
	eventually(t, "the call has exited", func() bool { return e.readCall(t, id, 1<<60, 1<<60, 1000).Call.State == "exited" })
}

func TestCallsAreOutOfReachOfTheUser(t *testing.T) {
	local(t)
	asRoot(t)
	shared.post(t, "/internal/calls/reach-1", object{"cmd": "echo", "args": []string{"secret"}, "user": "root"})
	shared.collectExit(t, "reach-1")
	if got := shared.run(t, call{user: "nobody"}, "cat "+shared.state+"/calls/reach-1.stdout"); got.end["exitCode"] == nil {
		t.Fatalf("%q", got.stdout.String())
	}
	shared.plain(t, call{}, http.MethodDelete, "/internal/calls/reach-1", nil)
	if left, _ := os.ReadDir(shared.state + "/calls"); len(left) != 0 {
		t.Fatalf("%v", left)
	}
}
