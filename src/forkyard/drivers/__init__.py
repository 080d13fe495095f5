"""Sandbox drivers; each sees of the core only `sandboxes.driver`."""
