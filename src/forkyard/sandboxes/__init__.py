"""The sandbox core: state machine, lifecycle, expiry, snapshots, fork, recovery. Read `state.py`, then `core.py`."""
