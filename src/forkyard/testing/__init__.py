"""Fakes, contract suites and helpers that only tests import."""
