"""The packet filter around all slots of an instance."""

from forkyard.host.egress import ALWAYS_DENIED, EgressPolicy

__all__ = ["ALWAYS_DENIED", "EgressPolicy"]
