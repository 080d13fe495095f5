package table

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"forkyard.dev/forkyard/internal/edge/metrics"
)

// TestTableAgainstAModel applies random changes to a table and to a plain map that follows the rules of specs/edge.md
// word by word, and compares them after each.
func TestTableAgainstAModel(t *testing.T) {
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 0))
		table := New(&metrics.Set{}, 0)
		touched := map[string]bool{}
		table.OnTouch(func(id string) { touched[id] = true })
		model, epoch := map[string]Route{}, int64(0)
		route := func() Route {
			return Route{
				ID: fmt.Sprintf("sandbox%d", random.IntN(5)), Generation: random.Int64N(6),
				State: []State{Running, Held, Paused}[random.IntN(3)], Address: fmt.Sprintf("127.0.0.%d", 1+random.IntN(2)),
			}
		}
		routes := func() []Route {
			var some []Route
			used := map[string]bool{}
			for range random.IntN(4) {
				if r := route(); !used[r.ID] {
					used[r.ID] = true
					some = append(some, r)
				}
			}
			return some
		}
		set := func(r Route) {
			if known, ok := model[r.ID]; !ok || r.Generation >= known.Generation {
				model[r.ID] = r
			}
		}
		for step := range 200 {
			backends := map[string]*Entry{}
			for _, e := range table.Entries() {
				backends[e.ID] = e
			}
			clear(touched)
			switch at := epoch + random.Int64N(3) - 1; random.IntN(4) {
			case 0:
				some := routes()
				err := table.Replace(at, some)
				if (err == nil) != (at >= epoch) {
					t.Fatalf("replace under %d, current %d: %v", at, epoch, err)
				}
				if err != nil {
					break
				}
				epoch = at
				named := map[string]bool{}
				for _, r := range some {
					named[r.ID] = true
					set(r)
				}
				for id := range model {
					if !named[id] {
						delete(model, id)
					}
				}
				if !touched[""] {
					t.Fatal("a whole table touches all")
				}
			case 1:
				r := route()
				table.Adopt(r, func() bool { return step%2 == 0 })
				if step%2 == 0 {
					set(r)
				}
			default:
				some, removal := routes(), Removal{ID: route().ID, Generation: random.Int64N(6)}
				err := table.Apply(at, some, []Removal{removal})
				if (err == nil) != (at == epoch && at != 0) {
					t.Fatalf("apply under %d, current %d: %v", at, epoch, err)
				}
				if err != nil {
					break
				}
				if known, ok := model[removal.ID]; ok && known.Generation <= removal.Generation {
					delete(model, removal.ID)
				}
				for _, r := range some {
					set(r)
					if !touched[r.ID] {
						t.Fatal("a route was set without a touch")
					}
				}
				if !touched[removal.ID] {
					t.Fatal("a route was removed without a touch")
				}
			}
			compare(t, table, model, backends)
		}
	}
}

func compare(t *testing.T, table *Table, model map[string]Route, before map[string]*Entry) {
	t.Helper()
	if n := len(table.Entries()); n != len(model) {
		t.Fatalf("%d routes, want %d", n, len(model))
	}
	for id, want := range model {
		e := table.Get(id)
		if e == nil || e.Route != want {
			t.Fatalf("%s is %+v, want %+v", id, e, want)
		}
		switch e.State {
		case Running:
			if e.Backend == nil || e.Backend.Dead() || e.Backend.Address() != e.Address {
				t.Fatalf("%s runs without a living backend at its address", id)
			}
		case Held, Paused:
			if e.Backend != nil {
				t.Fatalf("%s does not run and has a backend", id)
			}
		}
	}
	for id, old := range before {
		now := table.Get(id)
		if old.Backend == nil || now != nil && now.Backend == old.Backend {
			if old.Backend != nil && old.Backend.Dead() {
				t.Fatalf("%s: a backend in use is dead", id)
			}
			if now != nil && now.Backend != nil && now.Generation != old.Generation && old.Backend == now.Backend {
				t.Fatalf("%s: a backend outlived its generation", id)
			}
			continue
		}
		if !old.Backend.Dead() {
			t.Fatalf("%s: a replaced backend lives", id)
		}
	}
}
