// Package table keeps the routes that the control plane pushes: which sandbox is where, under which epoch.
package table

import (
	"errors"
	"fmt"
	"net/netip"

	"forkyard.dev/forkyard/internal/edge/routing"
	"forkyard.dev/forkyard/internal/edge/upstream"
)

// State is what the control plane says about a sandbox.
type State string

// States of a route.
const (
	Running State = "running" // proxied to its address
	Held    State = "held"    // a transition is in progress; requests wait
	Paused  State = "paused"  // not there, unless it wakes on a request
)

// Route is one sandbox as the control plane describes it. Generation grows whenever the sandbox comes up anew.
type Route struct {
	ID           string `json:"id"`
	Generation   int64  `json:"generation"`
	State        State  `json:"state"`
	Address      string `json:"address"`
	EnvdToken    string `json:"envd_token"`
	TrafficToken string `json:"traffic_token"`
	Public       bool   `json:"public"`
	AutoResume   bool   `json:"auto_resume"`
	MaskHost     string `json:"mask_host"`
}

// Removal takes a route away, if it is of this generation or older.
type Removal struct {
	ID         string `json:"id"`
	Generation int64  `json:"generation"`
}

// Check returns what is wrong with the route, or nil.
func (r *Route) Check() error {
	if !routing.WellFormedID(r.ID) {
		return fmt.Errorf("route: id %.60q does not match ^[a-z0-9]{8,40}$", r.ID)
	}
	if r.Generation < 0 {
		return fmt.Errorf("route %s: generation %d is negative", r.ID, r.Generation)
	}
	switch r.State {
	case Running:
		if _, err := netip.ParseAddr(r.Address); err != nil {
			return fmt.Errorf("route %s: %.60q is not an IP address", r.ID, r.Address)
		}
	case Held, Paused:
	default:
		return fmt.Errorf("route %s: unknown state %.60q", r.ID, r.State)
	}
	return nil
}

// Entry is a route in the table. It never changes: an update puts another entry in its place.
type Entry struct {
	Route
	// Backend is set while the route is running.
	Backend *upstream.Backend
}

// Errors of the table.
var (
	// ErrOldEpoch refuses a whole table of an epoch lower than the current one.
	ErrOldEpoch = errors.New("the epoch is lower than the current one")
	// ErrOtherEpoch refuses a change under any epoch but the current one.
	ErrOtherEpoch = errors.New("the epoch is not the current one")
)
