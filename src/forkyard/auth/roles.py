"""Roles of API keys, and what each may do."""

from enum import StrEnum


class Scope(StrEnum):
    """One thing that a key may do, always within its own team."""

    SANDBOXES_READ = "sandboxes:read"
    """See sandboxes, snapshots, their logs and metrics."""
    SANDBOXES_WRITE = "sandboxes:write"
    """Create, use, change and end sandboxes and snapshots."""
    TEMPLATES_READ = "templates:read"
    TEMPLATES_WRITE = "templates:write"
    AGENTS_READ = "agents:read"
    """See agents, environments, sessions and their events; of secrets only the names."""
    AGENTS_WRITE = "agents:write"
    TEAM_READ = "team:read"
    """See the team's keys (never the keys themselves), limits and usage."""
    TEAM_WRITE = "team:write"
    """Create and revoke keys, change limits, read the audit log."""


class Role(StrEnum):
    """A key has one role, given when it is created."""

    ADMIN = "admin"
    MEMBER = "member"
    READ_ONLY = "read-only"
    SANDBOX_ONLY = "sandbox-only"
    """For programs that only run code: no agents, no changes to templates, no look at the team."""

    @property
    def scopes(self) -> frozenset[Scope]:
        """All that the role permits."""
        return _SCOPES[self]


_READ = frozenset({Scope.SANDBOXES_READ, Scope.TEMPLATES_READ, Scope.AGENTS_READ, Scope.TEAM_READ})

_SCOPES = {
    Role.ADMIN: frozenset(Scope),
    Role.MEMBER: frozenset(Scope) - {Scope.TEAM_WRITE},
    Role.READ_ONLY: _READ,
    Role.SANDBOX_ONLY: frozenset({Scope.SANDBOXES_READ, Scope.SANDBOXES_WRITE, Scope.TEMPLATES_READ}),
}
