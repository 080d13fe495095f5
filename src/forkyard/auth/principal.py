"""Who makes a request."""

from dataclasses import dataclass

from forkyard.auth.errors import RoleNotAllowed
from forkyard.auth.roles import Role, Scope

OPERATOR = "operator"
"""The actor in the audit log for what is done on the server itself, not with a key."""


@dataclass(frozen=True, slots=True)
class Principal:
    """The team and key that a request was authenticated as. Everything it reaches is looked up in that team."""

    team_id: str
    key_id: str
    role: Role

    @classmethod
    def operator(cls, team_id: str) -> "Principal":
        """Whoever runs the server, acting in that team."""
        return cls(team_id, OPERATOR, Role.ADMIN)

    @property
    def scopes(self) -> frozenset[Scope]:
        """What the key may do."""
        return self.role.scopes

    def require(self, scope: Scope) -> None:
        """Raises RoleNotAllowed if the key may not do that."""
        if scope not in self.role.scopes:
            raise RoleNotAllowed(f"an API key with the role {self.role} does not permit {scope}")
