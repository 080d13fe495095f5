package blackbox

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func randomBytes(size int) []byte {
	data := make([]byte, size)
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(data)
	return data
}

func gzipped(data []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, _ = w.Write(data)
	_ = w.Close()
	return out.Bytes()
}

func gunzipped(t *testing.T, data []byte) []byte {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return plain
}

// form makes a multipart body; names are "path=content".
func form(parts ...[2]string) (body []byte, contentType string) {
	var out bytes.Buffer
	w := multipart.NewWriter(&out)
	for _, part := range parts {
		h := textproto.MIMEHeader{}
		h.Set("Content-Disposition", `form-data; name="file"; filename="`+part[0]+`"`)
		h.Set("Content-Type", "application/octet-stream")
		p, _ := w.CreatePart(h)
		_, _ = p.Write([]byte(part[1]))
	}
	_ = w.Close()
	return out.Bytes(), w.FormDataContentType()
}

// unsized hides the size of a body, so that it is sent in chunks.
type unsized struct{ io.Reader }

func TestUploadsOfEverySizeAndKind(t *testing.T) {
	dir := shared.dir(t, call{})
	for _, size := range []int{0, 1, 18*1024 - 1, 18 * 1024, 18*1024 + 1, 65535, 65536, 65537, 256<<10 - 1, 256 << 10, 256<<10 + 1, 1 << 20, 9<<20 + 3} {
		data := randomBytes(size)
		for kind, send := range map[string]func(path string) reply{
			"octets":  func(path string) reply { return shared.put(t, filesURL(path), bytes.NewReader(data)) },
			"chunked": func(path string) reply { return shared.put(t, filesURL(path), unsized{bytes.NewReader(data)}) },
			"gzip": func(path string) reply {
				return shared.put(t, filesURL(path), bytes.NewReader(gzipped(data)), "Content-Encoding", "gzip")
			},
			"form": func(path string) reply {
				body, contentType := form([2]string{path, string(data)})
				return shared.plain(t, call{header: header("Content-Type", contentType)}, http.MethodPost, "/files?username=root", bytes.NewReader(body))
			},
		} {
			path := fmt.Sprintf("%s/%s-%d", dir, kind, size)
			for _, round := range []string{"new", "again"} {
				res := send(path)
				want := fmt.Sprintf(`[{"name":"%s","path":"%s","type":"file"}]`, filepath.Base(path), path)
				if res.status != 200 || string(res.body) != want {
					t.Fatalf("%s %s: %d %s", path, round, res.status, res.body)
				}
				if got := shared.get(t, filesURL(path)); !bytes.Equal(got.body, data) || got.header.Get("Content-Length") != strconv.Itoa(size) {
					t.Fatalf("%s %s: read back %d bytes, length %s", path, round, len(got.body), got.header.Get("Content-Length"))
				}
			}
			sum := sha256.Sum256(data)
			if out := shared.output(t, call{}, "sha256sum < "+path); !strings.HasPrefix(out, fmt.Sprintf("%x ", sum)) {
				t.Fatalf("%s: %s", path, out)
			}
		}
	}
}

func TestFormWithSeveralFiles(t *testing.T) {
	dir := shared.dir(t, call{})
	body, contentType := form([2]string{dir + "/a/one", "1"}, [2]string{dir + "/b/two", "22"})
	send := call{header: header("Content-Type", contentType, "X-Metadata-Source", "suite")}
	res := shared.plain(t, send, http.MethodPost, "/files?username=root", bytes.NewReader(body))
	var files []object
	if err := json.Unmarshal(res.body, &files); err != nil || len(files) != 2 || files[1]["path"] != dir+"/b/two" || fmt.Sprint(files[0]["metadata"]) != "map[source:suite]" {
		t.Fatalf("%d %s", res.status, res.body)
	}
	if out := shared.output(t, call{}, "cat "+dir+"/a/one "+dir+"/b/two"); out != "122" {
		t.Fatalf("%q", out)
	}
	twice, contentType := form([2]string{dir + "/x", "1"}, [2]string{dir + "/a/../x", "2"})
	res = shared.plain(t, call{header: header("Content-Type", contentType)}, http.MethodPost, "/files?username=root", bytes.NewReader(twice))
	if res.status != 400 {
		t.Fatalf("%d %s", res.status, res.body)
	}
	// With a path in the query it is the name, whatever the part says.
	one, contentType := form([2]string{"ignored", "3"})
	res = shared.plain(t, call{header: header("Content-Type", contentType)}, http.MethodPost, filesURL(dir+"/named"), bytes.NewReader(one))
	if res.status != 200 || !strings.Contains(string(res.body), dir+"/named") {
		t.Fatalf("%d %s", res.status, res.body)
	}
}

func TestOverwriteKeepsInodeAndLinks(t *testing.T) {
	dir := shared.dir(t, call{})
	shared.output(t, call{}, "cd "+dir+" && echo old > f && chmod 600 f && ln f hard && ln -s f soft && ln -s future dangling")
	for _, data := range []string{"short", strings.Repeat("long", 100000), "short again"} {
		if res := shared.put(t, filesURL(dir+"/soft"), strings.NewReader(data)); res.status != 200 {
			t.Fatalf("%d %s", res.status, res.body)
		}
		if got := shared.get(t, filesURL(dir+"/hard")); string(got.body) != data {
			t.Fatalf("%d bytes through the hard link", len(got.body))
		}
	}
	if res := shared.put(t, filesURL(dir+"/dangling"), strings.NewReader("made")); res.status != 200 {
		t.Fatalf("%d %s", res.status, res.body)
	}
	if out := shared.output(t, call{}, "cd "+dir+" && stat -c %a f && readlink soft dangling && cat future"); out != "600\nf\nfuture\nmade" {
		t.Fatalf("%q", out)
	}
}

// cut sends an upload that promises more than it brings.
func cut(t *testing.T, path, extra, body string) {
	t.Helper()
	conn := shared.dial(t)
	_, _ = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/octet-stream\r\n%s\r\n%s", filesURL(path), extra, body)
	if tcp, ok := conn.(interface{ CloseWrite() error }); ok {
		_ = tcp.CloseWrite()
	}
	_, _ = io.ReadAll(conn) // until envd is done with it
}

func TestACutUploadLeavesNothingOrTheOldFile(t *testing.T) {
	dir := shared.dir(t, call{})
	shared.put(t, filesURL(dir+"/old"), strings.NewReader("old content"))
	for _, size := range []int{10, 300 << 10, 3 << 20} {
		half := strings.Repeat("h", size)
		length := fmt.Sprintf("Content-Length: %d\r\n", 2*size)
		chunk := fmt.Sprintf("%x\r\n%s\r\n", size, half)
		for i, send := range []func(path string){
			func(path string) { cut(t, path, length, half) },
			func(path string) { cut(t, path, "Transfer-Encoding: chunked\r\n", chunk) },
			func(path string) {
				whole := gzipped(randomBytes(2 * size))
				cut(t, path, "Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n", fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(whole)/2, whole[:len(whole)/2]))
			},
		} {
			send(dir + "/new")
			send(dir + "/old")
			if out := shared.output(t, call{}, "ls -A "+dir+"; cat "+dir+"/old"); out != "old\nold content" {
				t.Fatalf("way %d, size %d: %.200q", i, size, out)
			}
		}
	}
}

func TestAFullDiskIs507AndKeepsTheOldFile(t *testing.T) {
	asRoot(t)
	dir := shared.dir(t, call{})
	if mounted := shared.run(t, call{}, "mount -t tmpfs -o size=4m none "+dir); mounted.end["exitCode"] != nil {
		t.Skip("nothing can be mounted here")
	}
	t.Cleanup(func() { shared.run(t, call{}, "umount "+dir) })
	shared.put(t, filesURL(dir+"/old"), strings.NewReader("old content"))
	big := randomBytes(16 << 20)
	for _, name := range []string{"new", "old", "sub/new"} {
		for _, body := range []io.Reader{bytes.NewReader(big), unsized{bytes.NewReader(big)}} {
			res := shared.put(t, filesURL(dir+"/"+name), body)
			if res.status != http.StatusInsufficientStorage || res.json(t)["code"] != 507.0 {
				t.Fatalf("%s: %d %s", name, res.status, res.body)
			}
		}
	}
	if out := shared.output(t, call{}, "cd "+dir+" && find . -type f && cat old"); out != "./old\nold content" {
		t.Fatalf("%q", out)
	}
	// The body fits once, but not twice as it must for a moment: what was written over the old end is taken back.
	if res := shared.put(t, filesURL(dir+"/old"), bytes.NewReader(big[:5<<19])); res.status != 507 {
		t.Fatalf("%d %s", res.status, res.body)
	}
	if got := shared.get(t, filesURL(dir+"/old")); string(got.body) != "old content" {
		t.Fatalf("the old file has %d bytes now", len(got.body))
	}
	// The body fits but not beside the old content: still the old one, whole.
	shared.put(t, filesURL(dir+"/filler"), bytes.NewReader(big[:3<<20]))
	if res := shared.put(t, filesURL(dir+"/old"), bytes.NewReader(big[:200<<10])); res.status != 200 {
		t.Fatalf("%d %s", res.status, res.body)
	}
	if res := shared.put(t, filesURL(dir+"/filler"), bytes.NewReader(big[:15<<18])); res.status != 507 {
		t.Fatalf("%d %s", res.status, res.body)
	}
	if got := shared.get(t, filesURL(dir+"/filler")); !bytes.Equal(got.body, big[:3<<20]) {
		t.Fatalf("the old content is damaged: %d bytes", len(got.body))
	}
}

func TestUploadsAtOnceToOnePath(t *testing.T) {
	dir := shared.dir(t, call{})
	done := make(chan string, 8)
	for i := range 8 {
		go func() {
			body := strings.Repeat(string(rune('a'+i)), 400000+i*50000)
			done <- strconv.Itoa(shared.put(t, filesURL(dir+"/f"), strings.NewReader(body)).status)
		}()
	}
	for range 8 {
		if status := <-done; status != "200" {
			t.Fatalf("status %s", status)
		}
	}
	got := string(shared.get(t, filesURL(dir+"/f")).body)
	if got == "" || got != strings.Repeat(got[:1], len(got)) || len(got) != 400000+int(got[0]-'a')*50000 {
		t.Fatalf("a mix of uploads, %d bytes", len(got))
	}
}

func TestUploadErrors(t *testing.T) {
	dir := shared.dir(t, call{})
	shared.output(t, call{}, "mkdir "+dir+"/d && mkfifo "+dir+"/p && touch "+dir+"/f")
	octets := header("Content-Type", "application/octet-stream")
	for name, test := range map[string]struct {
		url    string
		header http.Header
		body   string
		status int
	}{
		"a directory":         {filesURL(dir + "/d"), octets, "x", 400},
		"a pipe":              {filesURL(dir + "/p"), octets, "x", 400},
		"a device":            {filesURL("/dev/null"), octets, "x", 400},
		"below a file":        {filesURL(dir + "/f/x"), octets, "x", 400},
		"a name too long":     {filesURL(dir + "/" + strings.Repeat("n", 300)), octets, "x", 400},
		"no path":             {"/files?username=root", octets, "x", 400},
		"another's home":      {filesURL("~other/x"), octets, "x", 400},
		"a zero byte":         {filesURL(dir + "/a\x00b"), octets, "x", 400},
		"an unknown user":     {filesURL(dir+"/u", "username", "root123"), octets, "x", 401},
		"another type":        {filesURL(dir + "/u"), header("Content-Type", "text/plain"), "x", 400},
		"no type":             {filesURL(dir + "/u"), header(), "x", 400},
		"another encoding":    {filesURL(dir + "/u"), header("Content-Type", "application/octet-stream", "Content-Encoding", "br"), "x", 400},
		"no gzip in gzip":     {filesURL(dir + "/u"), header("Content-Type", "application/octet-stream", "Content-Encoding", "gzip"), "plain text", 400},
		"no boundary":         {filesURL(dir + "/u"), header("Content-Type", "multipart/form-data"), "x", 400},
		"no file in the form": {"/files", header("Content-Type", "multipart/form-data; boundary=b"), "--b\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\nx\r\n--b--\r\n", 400},
		"a bad query":         {"/files?path=%zz", octets, "x", 400},
		"metadata with bytes": {filesURL(dir + "/u"), header("Content-Type", "application/octet-stream", "X-Metadata-A", "caf\xe9"), "x", 400},
		"metadata too long":   {filesURL(dir + "/u"), header("Content-Type", "application/octet-stream", "X-Metadata-A", strings.Repeat("v", 4096)), "x", 400},
		"a key too long":      {filesURL(dir + "/u"), header("Content-Type", "application/octet-stream", "X-Metadata-"+strings.Repeat("k", 247), "v"), "x", 400},
	} {
		t.Run(name, func(t *testing.T) {
			res := shared.plain(t, call{header: test.header}, http.MethodPost, test.url, strings.NewReader(test.body))
			if res.status != test.status || res.json(t)["code"] != float64(test.status) || res.json(t)["message"] == "" {
				t.Fatalf("%d %s", res.status, res.body)
			}
		})
	}
	if out := shared.output(t, call{}, "ls -A "+dir); out != "d\nf\np\n" {
		t.Fatalf("left behind: %q", out)
	}
}

func TestMetadata(t *testing.T) {
	dir := shared.dir(t, call{})
	path := dir + "/f"
	stat := func() string {
		entry := shared.ok(t, call{}, fsService+"Stat", object{"path": path})["entry"].(object)
		return fmt.Sprint(entry["metadata"])
	}
	res := shared.put(t, filesURL(path), strings.NewReader("1"), "X-Metadata-Author", "me", "x-metadata-PURPOSE", "upload two")
	if res.status == 400 && strings.Contains(string(res.body), "cannot hold metadata") {
		t.Skip("this filesystem has no extended attributes for users")
	}
	if res.status != 200 || stat() != "map[author:me purpose:upload two]" || !strings.Contains(string(res.body), `"metadata":{"author":"me","purpose":"upload two"}`) {
		t.Fatalf("%d %s %s", res.status, res.body, stat())
	}
	shared.put(t, filesURL(path), strings.NewReader("2"), "X-Metadata-Author", "you")
	if stat() != "map[author:you]" {
		t.Fatalf("%s", stat())
	}
	shared.put(t, filesURL(path), strings.NewReader("3"))
	if stat() != "<nil>" {
		t.Fatalf("%s", stat())
	}
}

func TestDownloadEncodings(t *testing.T) {
	dir := shared.dir(t, call{})
	text := bytes.Repeat([]byte("a line of text that shrinks well\n"), 30000)
	noise := randomBytes(1 << 20)
	for name, data := range map[string][]byte{"text": text, "noise": noise, "empty": nil, "tiny": []byte("x")} {
		url := filesURL(dir + "/" + name)
		shared.put(t, url, bytes.NewReader(data))
		for accept, wantGzip := range map[string]bool{
			"": false, "gzip": true, "gzip, deflate": true, "gzip;q=0": false, "identity": false, "identity, gzip;q=0.5": false, "deflate, br": false, "*": false, "GZIP;q=0.3, br": true,
		} {
			res := shared.get(t, url, "Accept-Encoding", accept)
			isGzip := res.header.Get("Content-Encoding") == "gzip"
			body := res.body
			if isGzip {
				body = gunzipped(t, body)
			}
			if res.status != 200 || isGzip != wantGzip || !bytes.Equal(body, data) || res.header.Get("Vary") != "Accept-Encoding" {
				t.Fatalf("%s %q: %d gzip %v, %d bytes, %v", name, accept, res.status, isGzip, len(body), res.header)
			}
		}
	}
	if res := shared.get(t, filesURL(dir+"/text"), "Accept-Encoding", "gzip"); len(res.body) > len(text)/10 {
		t.Fatalf("text of %d bytes travels as %d", len(text), len(res.body))
	}
	if res := shared.get(t, filesURL(dir+"/text"), "Accept-Encoding", "identity;q=0, br"); res.status != 406 || res.json(t)["message"] != "no acceptable encoding found, supported: [identity, gzip]" {
		t.Fatalf("%d %s", res.status, res.body)
	}
}

func TestRangesAndConditions(t *testing.T) {
	dir := shared.dir(t, call{})
	url := filesURL(dir + "/f.txt")
	shared.put(t, url, strings.NewReader("0123456789"))
	res := shared.get(t, url, "Range", "bytes=2-4", "Accept-Encoding", "gzip")
	if res.status != 206 || string(res.body) != "234" || res.header.Get("Content-Range") != "bytes 2-4/10" || res.header.Get("Content-Encoding") != "" {
		t.Fatalf("%d %q %v", res.status, res.body, res.header)
	}
	if res := shared.get(t, url, "Range", "bytes=50-"); res.status != 416 {
		t.Fatalf("%d", res.status)
	}
	whole := shared.get(t, url)
	if disposition := whole.header.Get("Content-Disposition"); disposition != "inline; filename=f.txt" {
		t.Fatalf("%q", disposition)
	}
	if res := shared.get(t, url, "If-Modified-Since", time.Now().Add(time.Hour).UTC().Format(http.TimeFormat)); res.status != 304 {
		t.Fatalf("%d", res.status)
	}
	if res := shared.plain(t, call{}, http.MethodHead, url, nil); res.status != 200 || res.header.Get("Content-Length") != "10" {
		t.Fatalf("%d %v", res.status, res.header)
	}
}

func TestFilesThatSayTheyAreEmpty(t *testing.T) {
	for _, accept := range []string{"", "gzip"} {
		res := shared.get(t, filesURL("/proc/sys/kernel/random/boot_id"), "Accept-Encoding", accept)
		body := res.body
		if accept == "gzip" {
			body = gunzipped(t, body)
		}
		if res.status != 200 || len(strings.TrimSpace(string(body))) != 36 {
			t.Fatalf("%d %q", res.status, body)
		}
	}
}

func TestDownloadErrors(t *testing.T) {
	dir := shared.dir(t, call{})
	shared.output(t, call{}, "mkfifo "+dir+"/p")
	for path, want := range map[string]object{
		dir + "/none": {"code": 404.0, "message": "path '" + dir + "/none' does not exist"},
		dir:           {"code": 400.0, "message": "path '" + dir + "' is a directory"},
		dir + "/p":    {"code": 400.0, "message": "path '" + dir + "/p' is not a regular file"},
		"/dev/zero":   {"code": 400.0, "message": "path '/dev/zero' is not a regular file"},
	} {
		res := shared.get(t, filesURL(path))
		if fmt.Sprint(res.json(t)) != fmt.Sprint(want) || float64(res.status) != want["code"] {
			t.Fatalf("%s: %d %s", path, res.status, res.body)
		}
	}
	res := shared.get(t, filesURL("/etc/passwd", "username", "root123"))
	if res.status != 401 || res.json(t)["message"] != "error looking up user 'root123': user: unknown user root123" {
		t.Fatalf("%d %s", res.status, res.body)
	}
}

func TestCompose(t *testing.T) {
	dir := shared.dir(t, call{})
	shared.output(t, call{}, "cd "+dir+" && printf one > 1 && printf two > 2 && printf three > 3")
	compose := func(sources []string, destination string) reply {
		return shared.post(t, "/files/compose", object{"source_paths": sources, "destination": destination, "username": "root"})
	}
	if res := compose([]string{dir + "/1", dir + "/none"}, dir+"/x"); res.status != 404 {
		t.Fatalf("%d %s", res.status, res.body)
	}
	if res := compose(nil, dir+"/x"); res.status != 400 {
		t.Fatalf("%d %s", res.status, res.body)
	}
	res := compose([]string{dir + "/1", dir + "/2"}, dir+"/sub/all")
	if want := fmt.Sprintf(`{"name":"all","path":"%s/sub/all","type":"file"}`, dir); res.status != 200 || string(res.body) != want {
		t.Fatalf("%d %s", res.status, res.body)
	}
	// The destination may be one of the sources, and a source may come twice.
	if res := compose([]string{dir + "/3", dir + "/sub/all", dir + "/3"}, dir+"/3"); res.status != 200 {
		t.Fatalf("%d %s", res.status, res.body)
	}
	if out := shared.output(t, call{}, "cd "+dir+" && find . -type f && cat 3"); out != "./3\nthreeonetwothree" {
		t.Fatalf("%q", out)
	}
}

func signature(path, operation, user, token, expiration string) string {
	text := path + ":" + operation + ":" + user + ":" + token
	if expiration != "" {
		text += ":" + expiration
	}
	sum := sha256.Sum256([]byte(text))
	return "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
}

func TestSignedURLs(t *testing.T) {
	local(t)
	e := own(t)
	dir := e.dir(t, call{})
	const token = "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0"
	e.post(t, "/init", object{"accessToken": token, "defaultUser": "root"})
	path := dir + "/f"
	url := func(operation, user, expiration string, pairs ...string) string {
		return filesURL(path, append([]string{"username", user, "signature", signature(path, operation, user, token, expiration), "signature_expiration", expiration}, pairs...)...)
	}
	later, before := strconv.FormatInt(time.Now().Unix()+60, 10), strconv.FormatInt(time.Now().Unix()-60, 10)
	if res := e.put(t, url("write", "root", ""), strings.NewReader("hello")); res.status != 200 {
		t.Fatalf("%d %s", res.status, res.body)
	}
	for name, good := range map[string]string{"plain": url("read", "root", ""), "in time": url("read", "root", later), "no user": url("read", "", "")} {
		if res := e.get(t, good); res.status != 200 || string(res.body) != "hello" {
			t.Fatalf("%s: %d %s", name, res.status, res.body)
		}
	}
	for name, bad := range map[string][2]string{
		"expired":         {url("read", "root", before), "signature is already expired"},
		"for writing":     {url("write", "root", ""), "invalid signature"},
		"another path":    {url("read", "root", "", "path", path+"x"), "invalid signature"},
		"another user":    {url("read", "root", "", "username", "nobody"), "invalid signature"},
		"time moved":      {url("read", "root", before, "signature_expiration", later), "invalid signature"},
		"time taken off":  {url("read", "root", before, "signature_expiration", ""), "invalid signature"},
		"time no number":  {url("read", "root", "soon"), "invalid signature expiration"},
		"none":            {filesURL(path), "missing signature query parameter"},
		"another version": {filesURL(path, "signature", "v2_x"), "invalid signature"},
	} {
		res := e.get(t, bad[0])
		if res.status != 401 || fmt.Sprint(res.json(t)) != fmt.Sprint(object{"code": 401.0, "message": bad[1]}) {
			t.Fatalf("%s: %d %s", name, res.status, res.body)
		}
	}
	if res := e.get(t, filesURL(path), "X-Access-Token", token); res.status != 200 {
		t.Fatalf("%d", res.status)
	}
	if res := e.get(t, url("read", "root", ""), "X-Access-Token", "wrong"); res.status != 401 {
		t.Fatalf("a wrong token must count before the signature: %d", res.status)
	}
	if got := signature("hello.txt", "read", "user", token, ""); got != "v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E" {
		t.Fatalf("the test's own signature is wrong: %s", got)
	}
}

func TestLargeUploadsStayOutOfMemory(t *testing.T) {
	local(t)
	e := own(t)
	dir := e.dir(t, call{})
	const size = 300 << 20
	for range 2 { // new, then over it
		res := e.put(t, filesURL(dir+"/big"), unsized{io.LimitReader(rand.NewChaCha8([32]byte{2}), size)})
		if res.status != 200 {
			t.Fatalf("%d %s", res.status, res.body)
		}
		if rss := residentKB(t, e.cmd.Process.Pid); rss > 60<<10 {
			t.Fatalf("envd grew to %d kB", rss)
		}
	}
	var stat syscall.Stat_t
	if err := syscall.Stat(dir+"/big", &stat); err != nil || stat.Size != size {
		t.Fatalf("%v, %d bytes", err, stat.Size)
	}
	if left, _ := os.ReadDir(e.state + "/spool"); len(left) != 0 {
		t.Fatalf("left in the spool: %v", left)
	}
}

func TestSlowUploadIsNotCutOff(t *testing.T) {
	dir := shared.dir(t, call{})
	reader, writer := io.Pipe()
	go func() {
		for range 10 {
			_, _ = writer.Write(bytes.Repeat([]byte("s"), 1000))
			time.Sleep(50 * time.Millisecond)
		}
		_ = writer.Close()
	}()
	if res := shared.put(t, filesURL(dir+"/f"), reader); res.status != 200 {
		t.Fatalf("%d %s", res.status, res.body)
	}
	if got := shared.get(t, filesURL(dir+"/f")); len(got.body) != 10000 {
		t.Fatalf("%d bytes", len(got.body))
	}
}
