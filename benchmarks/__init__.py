"""Measures each row of the table of bars beside its floor, in one run. See README.md."""
