package blackbox

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const fsService = "filesystem.Filesystem/"

func TestStat(t *testing.T) {
	dir := shared.dir(t, call{})
	shared.output(t, call{}, "cd "+dir+` && printf hello > f && chmod 640 f && mkdir d && chmod 1755 d && ln -s f l && ln -s nowhere broken && ln -s loop loop && mkfifo p`)
	entry := func(name string) object {
		return shared.ok(t, call{}, fsService+"Stat", object{"path": dir + "/" + name})["entry"].(object)
	}
	f := entry("f")
	modified, err := time.Parse(time.RFC3339Nano, f["modifiedTime"].(string))
	if err != nil || time.Since(modified).Abs() > time.Minute {
		t.Fatalf("modifiedTime %v %v", f["modifiedTime"], err)
	}
	delete(f, "modifiedTime")
	want := object{
		"name": "f", "type": "FILE_TYPE_FILE", "path": dir + "/f", "size": "5", "mode": 416.0, "permissions": "-rw-r-----", "owner": "root", "group": "root",
	}
	if fmt.Sprint(f) != fmt.Sprint(want) {
		t.Fatalf("%v", f)
	}
	if d := entry("d"); d["type"] != "FILE_TYPE_DIRECTORY" || d["mode"] != 493.0 || d["permissions"] != "dtrwxr-xr-x" {
		t.Fatalf("%v", d)
	}
	if l := entry("l"); l["type"] != "FILE_TYPE_FILE" || l["mode"] != 416.0 || l["symlinkTarget"] != dir+"/f" || l["permissions"] != "Lrwxrwxrwx" || l["size"] != "5" {
		t.Fatalf("%v", l)
	}
	for _, name := range []string{"broken", "loop", "p"} {
		if e := entry(name); e["type"] != nil {
			t.Fatalf("%v", e)
		}
	}
	shared.fails(t, call{}, fsService+"Stat", object{"path": dir + "/none"}, "not_found")
	shared.fails(t, call{}, fsService+"Stat", object{"path": dir + "/f/below"}, "invalid_argument")
	shared.fails(t, call{}, fsService+"Stat", object{"path": "~other/x"}, "invalid_argument")
	shared.fails(t, call{}, fsService+"Stat", object{"path": "a\x00b"}, "invalid_argument")
	if root := shared.ok(t, call{}, fsService+"Stat", object{"path": "/"})["entry"].(object); root["type"] != "FILE_TYPE_DIRECTORY" {
		t.Fatalf("%v", root)
	}
}

func TestPathsAreRelativeToHome(t *testing.T) {
	home := strings.TrimSpace(shared.output(t, call{}, "echo $HOME"))
	for _, path := range []string{"~", "", ".", home} {
		entry := shared.ok(t, call{}, fsService+"Stat", object{"path": path})["entry"].(object)
		if entry["path"] != home {
			t.Fatalf("%q: %v", path, entry["path"])
		}
	}
	if entry := shared.ok(t, call{}, fsService+"Stat", object{"path": "~/."})["entry"].(object); entry["path"] != home {
		t.Fatalf("%v", entry)
	}
}

func names(t *testing.T, listing object) []string {
	t.Helper()
	var all []string
	entries, _ := listing["entries"].([]any)
	for _, entry := range entries {
		all = append(all, entry.(object)["path"].(string))
	}
	return all
}

func TestListDir(t *testing.T) {
	dir := shared.dir(t, call{})
	shared.output(t, call{}, "cd "+dir+" && mkdir -p sub2/deep sub1/a/b && touch file sub1/a/b/f sub2/z && ln -s sub1 link && ln -s "+dir+" /"+dir[1:]+"/up")
	list := func(path string, depth any) string {
		all := names(t, shared.ok(t, call{}, fsService+"ListDir", object{"path": path, "depth": depth}))
		return strings.ReplaceAll(strings.Join(all, " "), dir+"/", "")
	}
	for depth, want := range map[any]string{
		0:   "file link sub1 sub2 up",
		1:   "file link sub1 sub2 up",
		"2": "file link sub1 sub1/a sub2 sub2/deep sub2/z up",
		9:   "file link sub1 sub1/a sub1/a/b sub1/a/b/f sub2 sub2/deep sub2/z up",
	} {
		if got := list(dir, depth); got != want {
			t.Fatalf("depth %v: %s", depth, got)
		}
	}
	if got := list(dir+"/link", 2); got != "link/a link/a/b" {
		t.Fatalf("%s", got)
	}
	if got := list(dir+"/sub2/deep", 1); got != "" {
		t.Fatalf("%s", got)
	}
	shared.fails(t, call{}, fsService+"ListDir", object{"path": dir + "/none"}, "not_found")
	shared.fails(t, call{}, fsService+"ListDir", object{"path": dir + "/file"}, "invalid_argument")
}

func TestListManyEntries(t *testing.T) {
	dir := shared.dir(t, call{})
	shared.output(t, call{}, "cd "+dir+" && seq 1 3000 | xargs touch")
	if all := names(t, shared.ok(t, call{}, fsService+"ListDir", object{"path": dir})); len(all) != 3000 {
		t.Fatalf("%d entries", len(all))
	}
}

func TestMakeMoveRemove(t *testing.T) {
	dir := shared.dir(t, call{})
	entry := shared.ok(t, call{}, fsService+"MakeDir", object{"path": dir + "/a/b/c"})["entry"].(object)
	if entry["path"] != dir+"/a/b/c" || entry["mode"] != 493.0 {
		t.Fatalf("%v", entry)
	}
	shared.fails(t, call{}, fsService+"MakeDir", object{"path": dir + "/a/b/c"}, "already_exists")
	shared.output(t, call{}, "echo 1 > "+dir+"/f; echo 2 > "+dir+"/g; mkdir "+dir+"/full; touch "+dir+"/full/x")
	shared.fails(t, call{}, fsService+"MakeDir", object{"path": dir + "/f"}, "invalid_argument")
	shared.fails(t, call{}, fsService+"MakeDir", object{"path": dir + "/f/below"}, "invalid_argument")
	moved := shared.ok(t, call{}, fsService+"Move", object{"source": dir + "/f", "destination": dir + "/new/dirs/f"})["entry"].(object)
	if moved["path"] != dir+"/new/dirs/f" {
		t.Fatalf("%v", moved)
	}
	shared.fails(t, call{}, fsService+"Move", object{"source": dir + "/f", "destination": dir + "/h"}, "not_found")
	shared.ok(t, call{}, fsService+"Move", object{"source": dir + "/g", "destination": dir + "/new/dirs/f"}) // replaces
	if out := shared.output(t, call{}, "cat "+dir+"/new/dirs/f"); out != "2\n" {
		t.Fatalf("%q", out)
	}
	shared.fails(t, call{}, fsService+"Move", object{"source": dir + "/a", "destination": dir + "/full"}, "already_exists")
	for range 2 { // the second time there is nothing to remove
		shared.ok(t, call{}, fsService+"Remove", object{"path": dir + "/a"})
	}
	shared.output(t, call{}, "ln -s "+dir+"/new "+dir+"/link")
	shared.ok(t, call{}, fsService+"Remove", object{"path": dir + "/link"})
	if out := shared.output(t, call{}, "ls "+dir); out != "full\nnew\n" {
		t.Fatalf("%q", out)
	}
	shared.fails(t, call{}, fsService+"Remove", object{"path": "/"}, "invalid_argument")
	shared.fails(t, call{}, fsService+"Remove", object{"path": "/../.."}, "invalid_argument")
}

func TestFilesAreTouchedWithTheRightsOfTheUser(t *testing.T) {
	asRoot(t)
	dir := shared.dir(t, call{})
	shared.output(t, call{}, "chmod 755 "+dir+"; mkdir -m 700 "+dir+"/private; echo s > "+dir+"/private/f; mkdir -m 777 "+dir+"/open; echo r > "+dir+"/open/roots; chmod 644 "+dir+"/open/roots")
	nobody := call{user: "nobody"}
	for method, req := range map[string]object{
		"Stat": {"path": dir + "/private/f"}, "ListDir": {"path": dir + "/private"}, "MakeDir": {"path": dir + "/new"},
		"Move": {"source": dir + "/private/f", "destination": dir + "/open/f"}, "Remove": {"path": dir + "/private/f"},
		"CreateWatcher": {"path": dir + "/private"},
	} {
		shared.fails(t, nobody, fsService+method, req, "permission_denied")
	}
	for _, path := range []string{dir + "/new", dir + "/private/f", dir + "/open/roots"} {
		res := shared.put(t, filesURL(path, "username", "nobody"), strings.NewReader("x"))
		if res.status != http.StatusForbidden || res.json(t)["code"] != 403.0 {
			t.Fatalf("%s: %d %s", path, res.status, res.body)
		}
	}
	if res := shared.get(t, filesURL(dir+"/private/f", "username", "nobody")); res.status != http.StatusForbidden {
		t.Fatalf("%d %s", res.status, res.body)
	}
	made := shared.ok(t, nobody, fsService+"MakeDir", object{"path": dir + "/open/deep/er"})["entry"].(object)
	if made["owner"] != "nobody" {
		t.Fatalf("%v", made)
	}
	if res := shared.put(t, filesURL(dir+"/open/up/load", "username", "nobody"), strings.NewReader("x")); res.status != 200 {
		t.Fatalf("%d %s", res.status, res.body)
	}
	out := shared.output(t, call{}, "cd "+dir+"/open && stat -c '%U %a' deep deep/er up up/load; cat ../private/f roots")
	if out != "nobody 755\nnobody 755\nnobody 755\nnobody 644\ns\nr\n" {
		t.Fatalf("%q", out)
	}
	// A directory directly below / is the exception; a file there is none.
	top := "/envd-test-top-" + filepath.Base(dir)
	t.Cleanup(func() { shared.rpc(t, call{}, fsService+"Remove", object{"path": top}) })
	if res := shared.put(t, filesURL(top+"/sub/f", "username", "nobody"), strings.NewReader("x")); res.status != 200 {
		t.Fatalf("%d %s", res.status, res.body)
	}
	if out := shared.output(t, call{}, "stat -c '%U %a' "+top+" "+top+"/sub/f"); out != "nobody 755\nnobody 644\n" {
		t.Fatalf("%q", out)
	}
	if res := shared.put(t, filesURL(top+"-file", "username", "nobody"), strings.NewReader("x")); res.status != 403 {
		t.Fatalf("%d %s", res.status, res.body)
	}
	// envd itself has its own rights again.
	shared.ok(t, call{}, fsService+"Stat", object{"path": dir + "/private/f"})
}
