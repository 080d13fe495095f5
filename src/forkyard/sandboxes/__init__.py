"""The sandbox core: state machine, lifecycle, expiry, snapshots, fork and recovery. Start reading at `state.py`, then `core.py`."""
