package events

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"
)

func TestSequence(t *testing.T) {
	l := NewLog(3, time.UnixMicro(1000))
	if l.Last() != 999 {
		t.Errorf("an empty log ends with %d", l.Last())
	}
	for i := range 5 {
		l.Add(Event{Type: Exit, ID: fmt.Sprint(i)})
	}
	kept, _ := l.After(0)
	if len(kept) != 3 || kept[0].ID != "2" || kept[2].Seq != 1004 {
		t.Errorf("kept %+v", kept)
	}
	if rest, _ := l.After(1003); len(rest) != 1 || rest[0].ID != "4" {
		t.Errorf("after 1003: %+v", rest)
	}
	if rest, _ := l.After(1004); len(rest) != 0 {
		t.Errorf("after the last: %+v", rest)
	}
	later := NewLog(3, time.UnixMicro(1000).Add(time.Second))
	later.Add(Event{ID: "next"})
	if next, _ := later.After(1004); len(next) != 1 {
		t.Error("a reader of an earlier log misses what the next one has")
	}
}

func TestFollow(t *testing.T) {
	l := NewLog(100, time.UnixMicro(0))
	l.Add(Event{ID: "first"})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	seen := make(chan string)
	finished := make(chan error, 1)
	go func() {
		finished <- l.Follow(ctx, -1, 20*time.Millisecond, func(e *Event) error {
			name := "idle"
			if e != nil {
				name = e.ID
			}
			seen <- name
			return nil
		})
	}()
	for _, want := range []string{"first", "idle"} {
		if got := <-seen; got != want {
			t.Fatalf("saw %s, want %s", got, want)
		}
	}
	go l.Add(Event{ID: "second"})
	for {
		if got := <-seen; got == "second" {
			break
		} else if got != "idle" {
			t.Fatalf("saw %s", got)
		}
	}
	cancel()
	for {
		select {
		case <-seen:
			continue
		case err := <-finished:
			if !errors.Is(err, context.Canceled) {
				t.Errorf("ended with %v", err)
			}
			return
		case <-time.After(5 * time.Second):
			t.Fatal("following does not end")
		}
	}
}
