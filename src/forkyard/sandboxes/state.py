"""The one state of a sandbox and the one table of its transitions."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    CREATING = "creating"
    RUNNING = "running"
    PAUSING = "pausing"
    PAUSED = "paused"
    RESUMING = "resuming"
    SNAPSHOTTING = "snapshotting"
    KILLING = "killing"
    GONE = "gone"


TRANSITIONS: dict[State, frozenset[State]] = {
    State.CREATING: frozenset({State.RUNNING, State.KILLING, State.GONE}),
    State.RUNNING: frozenset({State.PAUSING, State.SNAPSHOTTING, State.KILLING, State.GONE}),
    State.PAUSING: frozenset({State.PAUSED, State.RUNNING, State.KILLING, State.GONE}),
    State.PAUSED: frozenset({State.RESUMING, State.KILLING}),
    State.RESUMING: frozenset({State.RUNNING, State.PAUSED, State.KILLING, State.GONE}),
    State.SNAPSHOTTING: frozenset({State.RUNNING, State.KILLING, State.GONE}),
    State.KILLING: frozenset({State.GONE}),
    State.GONE: frozenset(),
}
"""From each state, the states that may follow. `gone` straight from a state means that the machine died by itself."""

STEADY = frozenset({State.RUNNING, State.PAUSED, State.GONE})
"""States in which nothing is going on; every other one is a transition with an owner."""

MOVING = frozenset(State) - STEADY

VISIBLE = frozenset({State.RUNNING, State.PAUSING, State.PAUSED, State.RESUMING, State.SNAPSHOTTING})
"""States in which the API shows it: of one being created its client has no id yet, one being killed is gone for him."""


def public_state(state: State) -> State:
    """What the E2B API calls it. A transition shows the state it started from until it is committed."""
    if state in (State.PAUSED, State.RESUMING):
        return State.PAUSED
    return State.RUNNING


def may_follow(before: State, after: State) -> bool:
    return after in TRANSITIONS[before]
