"""What can go wrong with keys and teams."""

from forkyard.base.errors import Conflict, LimitExceeded, NotAllowed, NotAuthenticated, NotFound


class InvalidApiKey(NotAuthenticated):
    """The API key is missing, unknown, expired or revoked."""

    code = "invalid_api_key"


class RoleNotAllowed(NotAllowed):
    """The role of this API key does not permit this."""

    code = "role_not_allowed"


class KeyNotFound(NotFound):
    """There is no such API key."""

    code = "api_key_not_found"


class LastAdminKey(Conflict):
    """This is the last valid admin key of the team; create another one first."""

    code = "last_admin_key"


class TooManyKeys(LimitExceeded):
    """The team has as many API keys as it may have; revoke some first."""

    code = "too_many_api_keys"


class TeamNotFound(NotFound):
    """There is no such team."""

    code = "team_not_found"


class TeamExists(Conflict):
    """There is a team of that name already."""

    code = "team_exists"
