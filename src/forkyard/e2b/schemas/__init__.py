"""JSON bodies of the E2B API, with the names it has on the wire."""
