package memory

import (
	"testing"
	"time"

	"forkyard.dev/forkyard/internal/envd/procfs"
)

func TestItLooksTheMoreOftenTheLessIsFree(t *testing.T) {
	for headroom, want := range map[int64]time.Duration{
		8 << 30: slowest, 1 << 30: slowest, 512 << 20: 125 * time.Millisecond, 128 << 20: 31250 * time.Microsecond, 4 << 20: fastest, 0: fastest, -1 << 30: fastest,
	} {
		if got := interval(headroom); got != want {
			t.Fatalf("%d bytes: %v", headroom, got)
		}
	}
}

func TestItRestsWhileTheHostWouldTellInTime(t *testing.T) {
	const total = 512 << 20
	for percentFree, want := range map[int64]bool{100: true, 50: true, 41: true, 39: false, 30: false, 0: false} {
		if got := isPlenty(total*percentFree/100, total); got != want {
			t.Errorf("%d %% free: %v", percentFree, got)
		}
	}
	if resting < slowest || 100-restingPercent > 70 {
		t.Error("the host tells at 70 % used: it may rest only below that")
	}
}

func TestReserve(t *testing.T) {
	for total, want := range map[int64]int64{128 << 20: 16 << 20, 512 << 20: 16 << 20, 8 << 30: 8 << 30 * 3 / 100} {
		if got := reserve(total); got != want {
			t.Fatalf("%d: %d", total, got)
		}
	}
}

func TestTheLargestIsChosenButNeverEnvd(t *testing.T) {
	processes := []procfs.Process{
		{PID: 1, RSSBytes: 900, State: 'S'}, {PID: 5, RSSBytes: 800, State: 'S'}, {PID: 6, RSSBytes: 700, State: 'Z'}, {PID: 7, RSSBytes: 10, State: 'R'}, {PID: 8, RSSBytes: 20, State: 'S'},
	}
	if victim, found := largest(processes, 5); !found || victim.PID != 8 {
		t.Fatalf("%+v", victim)
	}
	if _, found := largest(processes[:3], 5); found {
		t.Fatal("there was nobody to kill")
	}
}

func TestKillsAreToldOnceAndNoMoreThanAreKept(t *testing.T) {
	killer := NewKiller()
	for pid := range maxKills + 3 {
		killer.note(procfs.Process{PID: pid, Comm: "eater", RSSBytes: 5})
	}
	kills, dropped := killer.Take()
	if len(kills) != maxKills || dropped != 3 {
		t.Fatalf("%d kills, %d dropped", len(kills), dropped)
	}
	if first := kills[0]; first.PID != 0 || first.Name != "eater" || first.RSSBytes != 5 || time.Since(first.At) > time.Minute {
		t.Fatalf("%+v", first)
	}
	if kills, dropped := killer.Take(); len(kills) != 0 || dropped != 0 {
		t.Fatalf("told again: %v, %d", kills, dropped)
	}
}
