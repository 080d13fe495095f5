"""Forkyard: computers for AI agents that can be paused, resumed and forked."""

__version__ = "0.1.0"
