package blackbox

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// watcher polls events as the synchronous SDK does.
type watcher struct {
	t    *testing.T
	id   string
	seen []string
}

func (e *envd) watch(t *testing.T, dir string, recursive bool) *watcher {
	t.Helper()
	res := e.ok(t, call{}, fsService+"CreateWatcher", object{"path": dir, "recursive": recursive})
	id := res["watcherId"].(string)
	t.Cleanup(func() { e.rpc(t, call{}, fsService+"RemoveWatcher", object{"watcherId": id}) })
	return &watcher{t: t, id: id}
}

// poll returns what is new, as "TYPE name".
func (w *watcher) poll(e *envd) []string {
	w.t.Helper()
	res := e.ok(w.t, call{}, fsService+"GetWatcherEvents", object{"watcherId": w.id})
	var fresh []string
	events, _ := res["events"].([]any)
	for _, one := range events {
		event := one.(object)
		fresh = append(fresh, strings.TrimPrefix(event["type"].(string), "EVENT_TYPE_")+" "+event["name"].(string))
	}
	w.seen = append(w.seen, fresh...)
	return fresh
}

// announced says whether a path was created or renamed to.
func (w *watcher) announced(path string) bool { return slices.Contains(w.seen, "CREATE "+path) }

func TestANewFileIsThreeEvents(t *testing.T) {
	dir := shared.dir(t, call{})
	w := shared.watch(t, dir, false)
	for i, size := range []int{4, 5 << 20} {
		name := fmt.Sprintf("f%d", i)
		shared.put(t, filesURL(dir+"/"+name), strings.NewReader(strings.Repeat("x", size)))
		want := []string{"CREATE " + name, "CHMOD " + name, "WRITE " + name}
		if got := w.poll(shared); !slices.Equal(got, want) {
			t.Fatalf("size %d: %v", size, got)
		}
	}
	shared.put(t, filesURL(dir+"/f0"), strings.NewReader("other content"))
	if got := w.poll(shared); !slices.Equal(got, []string{"WRITE f0"}) {
		t.Fatalf("overwrite: %v", got)
	}
	shared.put(t, filesURL(dir+"/f0"), strings.NewReader(strings.Repeat("y", 3<<20)))
	for _, event := range w.poll(shared) {
		if event != "WRITE f0" {
			t.Fatalf("overwrite with much: %v", w.seen)
		}
	}
}

func TestRecursiveWatch(t *testing.T) {
	dir := shared.dir(t, call{})
	w := shared.watch(t, dir, true)
	shared.ok(t, call{}, fsService+"MakeDir", object{"path": dir + "/api/nested"})
	shared.put(t, filesURL(dir+"/api/nested/f"), strings.NewReader("x"))
	w.poll(shared)
	for _, want := range []string{"CREATE api", "CREATE api/nested", "CREATE api/nested/f", "WRITE api/nested/f"} {
		if !slices.Contains(w.seen, want) {
			t.Fatalf("%s is missing: %v", want, w.seen)
		}
	}
	shared.output(t, call{}, "cd "+dir+" && mkdir -p a/b/c && echo 1 > a/b/c/f && mv a z && echo 2 > z/b/c/g")
	w.poll(shared)
	shared.output(t, call{}, "echo 3 > "+dir+"/z/b/c/h")
	w.poll(shared)
	for _, want := range []string{"z", "z/b/c/g", "z/b/c/h"} {
		if !w.announced(want) {
			t.Fatalf("%s was not announced: %v", want, w.seen)
		}
	}
	shared.output(t, call{}, "cd "+dir+" && rm -r z && mkdir z && echo 4 > z/again && echo new > t.tmp && mv t.tmp t")
	w.poll(shared)
	for _, want := range []string{"REMOVE z", "CREATE z/again", "CREATE t", "RENAME t.tmp"} {
		if !slices.Contains(w.seen, want) {
			t.Fatalf("%s is missing: %v", want, w.seen)
		}
	}
}

func TestDirectoryThatLeavesTheTreeIsNotWatched(t *testing.T) {
	dir := shared.dir(t, call{})
	shared.output(t, call{}, "mkdir -p "+dir+"/in/d "+dir+"/out")
	w := shared.watch(t, dir+"/in", true)
	shared.output(t, call{}, "mv "+dir+"/in/d "+dir+"/out/d && mkdir "+dir+"/out/e && echo x > "+dir+"/out/e/f")
	w.poll(shared)
	shared.output(t, call{}, "echo 1 > "+dir+"/out/d/secret; mv "+dir+"/out/e "+dir+"/in/e")
	got := w.poll(shared)
	if strings.Contains(fmt.Sprint(w.seen), "secret") {
		t.Fatalf("%v", w.seen)
	}
	if !slices.Contains(got, "CREATE e") || !slices.Contains(got, "CREATE e/f") {
		t.Fatalf("what came in was not announced: %v", got)
	}
}

func TestBurstIsWholeOrAnError(t *testing.T) {
	dir := shared.dir(t, call{})
	w := shared.watch(t, dir, true)
	shared.output(t, call{}, "cd "+dir+" && i=0; while [ $i -lt 5000 ]; do : > n$i; i=$((i+1)); done")
	w.poll(shared)
	created := map[string]bool{}
	for _, event := range w.seen {
		if name, ok := strings.CutPrefix(event, "CREATE "); ok {
			created[name] = true
		}
	}
	if len(created) != 5000 {
		t.Fatalf("%d of 5000 creations, and no error", len(created))
	}
}

func TestWatchStream(t *testing.T) {
	dir := shared.dir(t, call{})
	s := shared.stream(t, call{header: header("Keepalive-Ping-Interval", "1")}, fsService+"WatchDir", object{"path": dir, "includeEntry": true})
	if first := s.next(); fmt.Sprint(first) != "map[start:map[]]" {
		t.Fatalf("%v", first)
	}
	if idle := s.next(); fmt.Sprint(idle) != "map[keepalive:map[]]" {
		t.Fatalf("%v", idle)
	}
	shared.put(t, filesURL(dir+"/f"), strings.NewReader("x"))
	var events []string
	for len(events) < 3 {
		event := s.next()["filesystem"].(object)
		entry, _ := event["entry"].(object)
		if entry["path"] != dir+"/f" {
			t.Fatalf("%v", event)
		}
		events = append(events, event["type"].(string))
	}
	if strings.Join(events, " ") != "EVENT_TYPE_CREATE EVENT_TYPE_CHMOD EVENT_TYPE_WRITE" {
		t.Fatalf("%v", events)
	}
	shared.output(t, call{}, "rm "+dir+"/f; rmdir "+dir)
	if gone := s.next()["filesystem"].(object); gone["type"] != "EVENT_TYPE_REMOVE" || gone["name"] != "f" || gone["entry"] != nil {
		t.Fatalf("%v", gone)
	}
	if self := s.next()["filesystem"].(object); self["type"] != "EVENT_TYPE_REMOVE" || self["name"] != "." {
		t.Fatalf("%v", self)
	}
	if s.next() != nil || s.err["code"] != "not_found" {
		t.Fatalf("the watch must end when its directory is gone: %v", s.err)
	}
}

func TestWatchStreamEndsAtItsDeadline(t *testing.T) {
	s := shared.stream(t, call{header: header("Connect-Timeout-Ms", "200")}, fsService+"WatchDir", object{"path": shared.dir(t, call{})})
	s.next()
	if s.next() != nil || s.err["code"] != "deadline_exceeded" {
		t.Fatalf("%v", s.err)
	}
}

func TestWatchErrors(t *testing.T) {
	dir := shared.dir(t, call{})
	shared.output(t, call{}, "touch "+dir+"/f; mkfifo "+dir+"/p")
	shared.fails(t, call{}, fsService+"CreateWatcher", object{"path": dir + "/none"}, "not_found")
	shared.fails(t, call{}, fsService+"CreateWatcher", object{"path": dir + "/f"}, "invalid_argument")
	shared.fails(t, call{}, fsService+"CreateWatcher", object{"path": dir + "/p"}, "invalid_argument")
	shared.fails(t, call{}, fsService+"GetWatcherEvents", object{"watcherId": "none"}, "not_found")
	shared.fails(t, call{}, fsService+"RemoveWatcher", object{"watcherId": "none"}, "not_found")
	s := shared.stream(t, call{}, fsService+"WatchDir", object{"path": dir + "/f"})
	if s.next() != nil || s.err["code"] != "invalid_argument" {
		t.Fatalf("%v", s.err)
	}
}
