package watch

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// lazy is a watcher that reads only when the test says so: every race with it is lost.
func lazy(t *testing.T) (*Watcher, string) {
	t.Helper()
	root := t.TempDir()
	w, err := open(root, true)
	must(t, err)
	t.Cleanup(w.Close)
	return w, root
}

func take(t *testing.T, w *Watcher) []string {
	t.Helper()
	events, err := w.Take()
	must(t, err)
	var texts []string
	for _, event := range events {
		texts = append(texts, strings.TrimPrefix(string(event.Type), "EVENT_TYPE_")+" "+event.Path)
	}
	return texts
}

func TestWhatWasMadeBeforeTheWatchIsAnnouncedOnce(t *testing.T) {
	w, root := lazy(t)
	must(t, os.MkdirAll(filepath.Join(root, "a/b/c"), 0o755))
	must(t, os.WriteFile(filepath.Join(root, "a/b/c/f"), []byte("x"), 0o644))
	must(t, os.WriteFile(filepath.Join(root, "a/empty"), nil, 0o644))
	want := []string{"CREATE a", "CREATE a/b", "CREATE a/b/c", "CREATE a/b/c/f", "WRITE a/b/c/f", "CREATE a/empty"}
	if got := take(t, w); !slices.Equal(got, want) {
		t.Fatalf("%v", got)
	}
	must(t, os.WriteFile(filepath.Join(root, "a/b/c/g"), []byte("x"), 0o644))
	if got := take(t, w); !slices.Equal(got, []string{"CREATE a/b/c/g", "WRITE a/b/c/g"}) {
		t.Fatalf("%v", got)
	}
}

func TestARenamedTreeIsWatchedUnderItsNewName(t *testing.T) {
	w, root := lazy(t)
	must(t, os.MkdirAll(filepath.Join(root, "a/b"), 0o755))
	take(t, w)
	must(t, os.Rename(filepath.Join(root, "a"), filepath.Join(root, "z")))
	must(t, os.WriteFile(filepath.Join(root, "z/b/f"), nil, 0o644))
	if got := take(t, w); !slices.Equal(got, []string{"RENAME a", "CREATE z", "CREATE z/b/f"}) {
		t.Fatalf("%v", got)
	}
	must(t, os.Rename(filepath.Join(root, "z"), filepath.Join(t.TempDir(), "gone")))
	if got := take(t, w); !slices.Equal(got, []string{"RENAME z"}) || len(w.tree.dirs) != 1 {
		t.Fatalf("%v, %d directories watched", got, len(w.tree.dirs))
	}
}

func TestADirectoryMadeAgainIsWatchedAgain(t *testing.T) {
	w, root := lazy(t)
	for range 3 {
		must(t, os.MkdirAll(filepath.Join(root, "d/e"), 0o755))
		must(t, os.RemoveAll(filepath.Join(root, "d")))
	}
	must(t, os.MkdirAll(filepath.Join(root, "d/e"), 0o755))
	take(t, w)
	must(t, os.WriteFile(filepath.Join(root, "d/e/f"), nil, 0o644))
	if got := take(t, w); !slices.Equal(got, []string{"CREATE d/e/f"}) {
		t.Fatalf("%v", got)
	}
	if len(w.tree.dirs) != 3 || len(w.tree.watches) != 3 {
		t.Fatalf("%v %v", w.tree.dirs, w.tree.watches)
	}
}

func TestLostEventsAreAnError(t *testing.T) {
	limit, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	must(t, err)
	var queued int
	_, _ = fmt.Sscan(string(limit), &queued)
	w, root := lazy(t)
	for i := range queued + 10 {
		must(t, os.WriteFile(filepath.Join(root, fmt.Sprint(i%2000)), nil, 0o644))
		if i%2000 == 1999 { // so that the kernel cannot put equal events together
			must(t, os.RemoveAll(filepath.Join(root, "0")))
		}
		must(t, os.Chmod(filepath.Join(root, fmt.Sprint(i%2000)), 0o600))
	}
	events, err := w.Take()
	if len(events) == 0 {
		t.Fatal("the events before the loss are lost too")
	}
	if err == nil {
		_, err = w.Take()
	}
	if err == nil || !strings.Contains(err.Error(), "events were lost") {
		t.Fatalf("%d events and %v", len(events), err)
	}
}
