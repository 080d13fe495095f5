package logs

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func lines(t *testing.T, path string) [][]byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Split(bytes.TrimSpace(text), []byte("\n"))
}

func TestLinesAreJSONAndSurviveRotation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	s, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	s.Logger().Info("one", "sandbox", "x")
	written := func(path string) bool {
		info, err := os.Stat(path)
		return err == nil && info.Size() > 0
	}
	for deadline := time.Now().Add(5 * time.Second); !written(path) && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
	}
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	s.Reopen()
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if _, err := os.Stat(path); err == nil {
			break
		}
	}
	s.Logger().Info("two", "long", strings.Repeat("é", 1<<20))
	s.Close()
	s.Logger().Info("after the end")
	for file, want := range map[string]string{path + ".1": "one", path: "two"} {
		got := lines(t, file)
		var line struct{ Msg, Long string }
		if err := json.Unmarshal(got[0], &line); err != nil || len(got) != 1 || line.Msg != want || len(line.Long) > 2*maxText {
			t.Errorf("%s holds %s", file, got)
		}
	}
}

func TestAFloodIsCutAndCounted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	s, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	const flood = 5000
	for range flood {
		s.Logger().Info("flood")
	}
	s.Close()
	n := int64(len(lines(t, path)))
	if n < maxPerSecond || n > 10*maxPerSecond || s.Dropped() != flood-n {
		t.Errorf("%d lines written, %d dropped", n, s.Dropped())
	}
}

func TestAStuckReaderBlocksNobody(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	s := newSink("", w)
	line := bytes.Repeat([]byte("x"), 64<<10) // a few of them fill the pipe
	for range 3 * queueLength {
		_, _ = s.Write(line)
		s.mu.Lock()
		s.written = 0 // the rate is not what this is about
		s.mu.Unlock()
	}
	if s.Dropped() == 0 {
		t.Error("nothing was dropped")
	}
}
