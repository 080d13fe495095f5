"""The core: state machine, lifecycle, expiry, snapshots, fork and recovery of sandboxes."""
