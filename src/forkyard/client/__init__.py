"""Typed HTTP client of a Forkyard server: its API, and the processes and files inside a sandbox."""
