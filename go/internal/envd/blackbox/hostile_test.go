package blackbox

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
)

func inodeOf(t *testing.T, path string) uint64 {
	t.Helper()
	var stat syscall.Stat_t
	if err := syscall.Stat(path, &stat); err != nil {
		t.Fatal(err)
	}
	return stat.Ino
}

// raw sends bytes as they are and returns the status of the answer, 0 for none.
func (e *envd) raw(t *testing.T, request string) int {
	t.Helper()
	conn := e.dial(t)
	go func() {
		_, _ = io.WriteString(conn, request)
		if tcp, ok := conn.(interface{ CloseWrite() error }); ok {
			_ = tcp.CloseWrite()
		}
	}()
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0
	}
	_, _ = io.Copy(io.Discard, res.Body)
	return res.StatusCode
}

func post(path, contentType, extra, body string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: %s\r\n%sContent-Length: %d\r\n\r\n%s", path, contentType, extra, len(body), body)
}

func TestHostileRequestsDoNotHarm(t *testing.T) {
	const start, list = "/process.Process/Start", "/process.Process/List"
	const streamed, unary = "application/connect+json", "application/json"
	huge := strings.Repeat("h", 300<<10)
	deep := strings.Repeat("[", 200000)
	for name, test := range map[string]struct {
		request  string
		statuses []int
	}{
		"nothing":                      {"\r\n\r\n", []int{400, 0}},
		"no HTTP":                      {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", []int{400, 0}},
		"headers too large":            {"GET /health HTTP/1.1\r\nHost: x\r\nA: " + huge + "\r\n\r\n", []int{431, 0}},
		"a path too large":             {"GET /" + huge + " HTTP/1.1\r\nHost: x\r\n\r\n", []int{431, 414, 0}},
		"two lengths":                  {"POST " + list + " HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}", []int{400}},
		"length and chunks":            {"POST " + list + " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", []int{200, 400}},
		"a negative length":            {"POST " + list + " HTTP/1.1\r\nHost: x\r\nContent-Length: -2\r\n\r\n{}", []int{400}},
		"a chunk of nonsense":          {"POST " + list + " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", []int{400}},
		"a chunk of 16 EiB":            {"POST " + list + " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nx", []int{400}},
		"another method":               {"GET " + list + " HTTP/1.1\r\nHost: x\r\n\r\n", []int{405}},
		"another type":                 {post(list, "application/proto", "", "x"), []int{415}},
		"no type":                      {post(start, "", "", "x"), []int{415}},
		"another version":              {post(list, unary, "Connect-Protocol-Version: 2\r\n", "{}"), []int{400}},
		"another encoding":             {post(list, unary, "Content-Encoding: zstd\r\n", "{}"), []int{501}},
		"an empty body":                {post(list, unary, "", ""), []int{400}},
		"no JSON":                      {post(list, unary, "", "{"), []int{400}},
		"JSON that goes deep":          {post(list, unary, "", deep), []int{400}},
		"JSON of another kind":         {post(list, unary, "", "[1]"), []int{400}},
		"a length that is a lie":       {"POST " + list + " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99999999999\r\n\r\n{}", []int{429}},
		"an envelope cut":              {post(start, streamed, "", "\x00\x00"), []int{200}},
		"an envelope of 4 GiB":         {post(start, streamed, "", "\x00\xff\xff\xff\xff{}"), []int{200}},
		"an envelope that promises":    {post(start, streamed, "", "\x00\x03\xff\xff\xff{}"), []int{200}},
		"flags nobody knows":           {post(start, streamed, "", "\x80\x00\x00\x00\x02{}"), []int{200}},
		"a compressed envelope":        {post(start, streamed, "", "\x01\x00\x00\x00\x02{}"), []int{200}},
		"only an end":                  {post(start, streamed, "", "\x02\x00\x00\x00\x02{}"), []int{200}},
		"no process":                   {post(start, streamed, "", string(envelope(object{}))), []int{200}},
		"a null process":               {post(start, streamed, "", string(envelope(object{"process": nil}))), []int{200}},
		"a deadline of nonsense":       {post(start, streamed, "Connect-Timeout-Ms: soon\r\n", string(envelope(object{"process": sh("true")}))), []int{200}},
		"a deadline of 11 digits":      {post(start, streamed, "Connect-Timeout-Ms: 10000000000\r\n", string(envelope(object{"process": sh("true")}))), []int{200}},
		"a terminal of 2^32 columns":   {post(start, streamed, "", string(envelope(object{"process": sh("true"), "pty": object{"size": object{"cols": 1 << 32, "rows": 1}}}))), []int{200}},
		"a terminal of 2^31 columns":   {post(start, streamed, "", string(envelope(object{"process": sh("true"), "pty": object{"size": object{"cols": 1 << 31, "rows": 1}}}))), []int{200}},
		"input without a process":      {post("/process.Process/StreamInput", streamed, "", string(envelope(object{"data": object{}}))), []int{200}},
		"a selector without anything":  {post("/process.Process/SendSignal", unary, "", `{"process":{},"signal":"SIGNAL_SIGKILL"}`), []int{400}},
		"a signal nobody knows":        {post("/process.Process/SendSignal", unary, "", `{"process":{"pid":1},"signal":"SIGNAL_SIGSEGV"}`), []int{400}},
		"a pid of another process":     {post("/process.Process/SendSignal", unary, "", `{"process":{"pid":1},"signal":"SIGNAL_SIGKILL"}`), []int{404}},
		"a pid below zero":             {post("/process.Process/SendSignal", unary, "", `{"process":{"pid":-1},"signal":"SIGNAL_SIGKILL"}`), []int{400}},
		"a path with dots":             {"GET /files/../internal/processes HTTP/1.1\r\nHost: x\r\n\r\n", []int{301, 307, 404}},
		"a credential of nonsense":     {post("/filesystem.Filesystem/Stat", unary, "Authorization: Basic %%%\r\n", `{"path":"/"}`), []int{200}},
		"a user with a colon and dots": {post("/filesystem.Filesystem/Stat", unary, "Authorization: Basic Li4vcm9vdDo=\r\n", `{"path":"/"}`), []int{401}},
	} {
		t.Run(name, func(t *testing.T) {
			got := shared.raw(t, test.request)
			for _, status := range test.statuses {
				if got == status {
					return
				}
			}
			t.Fatalf("status %d, want one of %v", got, test.statuses)
		})
	}
	if out := shared.output(t, call{}, "echo still here"); out != "still here\n" {
		t.Fatalf("%q", out)
	}
}

func TestPreflightOfABrowser(t *testing.T) {
	res := shared.plain(t, call{header: header("Origin", "https://page.example", "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "x-access-token,content-type")},
		http.MethodOptions, "/process.Process/List", nil)
	if res.status != 204 || res.header.Get("Access-Control-Allow-Origin") != "*" || res.header.Get("Access-Control-Allow-Headers") != "x-access-token,content-type" {
		t.Fatalf("%d %v", res.status, res.header)
	}
}

// Many clients that promise large messages must not be able to fill the memory.
func TestManyLargeMessagesAtOnce(t *testing.T) {
	local(t)
	e := own(t)
	const size = 40 << 20
	body := append([]byte(`{"process":{"pid":999999},"input":{"stdin":"`), bytes.Repeat([]byte("A"), size)...)
	body = append(body, []byte(`"}}`)...)
	var group sync.WaitGroup
	for range 8 {
		group.Add(1)
		go func() {
			defer group.Done()
			res := e.plain(t, call{header: header("Content-Type", "application/json")}, http.MethodPost, "/process.Process/SendInput", bytes.NewReader(body))
			if res.status != 404 {
				t.Errorf("%d %.100s", res.status, res.body)
			}
		}()
	}
	group.Wait()
	over := e.plain(t, call{header: header("Content-Type", "application/json")}, http.MethodPost, "/process.Process/SendInput", unsized{io.MultiReader(bytes.NewReader(body), bytes.NewReader(body))})
	if over.status != 429 {
		t.Fatalf("%d", over.status)
	}
	e.post(t, "/internal/quiesce", object{})
	if rss := residentKB(t, e.cmd.Process.Pid); rss > 40<<10 {
		t.Fatalf("%d kB stay resident", rss)
	}
}

func TestSignalsDoNotEndPID1(t *testing.T) {
	if program != "" {
		t.Skip("needs envd as PID 1")
	}
	shared.run(t, call{}, "for s in TERM INT HUP QUIT USR1 USR2 PIPE ALRM TSTP ABRT; do kill -$s 1; done; sleep 0.2")
	if out := shared.output(t, call{}, "echo alive"); out != "alive\n" {
		t.Fatalf("%q", out)
	}
}

func TestNamesThatAreNoText(t *testing.T) {
	dir := shared.dir(t, call{})
	shared.output(t, call{}, "cd "+dir+` && touch "$(printf 'bad\377name')" "new
line" '"quoted"' '<tag>' && ls | wc -l`)
	listing := shared.ok(t, call{}, fsService+"ListDir", object{"path": dir})
	if len(listing["entries"].([]any)) != 4 {
		t.Fatalf("%v", listing)
	}
}

func TestEndlessOutputIsBounded(t *testing.T) {
	local(t)
	e := own(t)
	cmd := e.start(t, call{header: header("Connect-Timeout-Ms", "1500")}, object{"process": sh("cat /dev/zero"), "stdin": false})
	for range 50 {
		cmd.event()
		cmd.stdout.Reset()
	}
	if rss := residentKB(t, e.cmd.Process.Pid); rss > 60<<10 {
		t.Fatalf("%d kB", rss)
	}
	for !cmd.ended {
		cmd.event()
		cmd.stdout.Reset()
	}
	if cmd.err["code"] != "deadline_exceeded" {
		t.Fatalf("%v", cmd.err)
	}
}

func TestStateDirectoryIsPrivate(t *testing.T) {
	local(t)
	info, err := os.Stat(shared.state)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Fatalf("%v %v", err, info.Mode())
	}
}
