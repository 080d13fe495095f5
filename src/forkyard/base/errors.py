"""The root of all errors of Forkyard, and one class per decision a caller can take.

`code` is stable and machine readable: clients and scripts may depend on it. A domain package derives its own
errors from these (and gives them their own code); what they mean in HTTP or as an exit code is decided only
at the edges, from the class. The class docstring is the default message and is shown to users.
"""

import inspect
from typing import ClassVar


class ForkyardError(Exception):
    """Something went wrong inside Forkyard."""

    code: ClassVar[str] = "internal"

    def __init__(self, message: str | None = None) -> None:
        self.message = message or inspect.cleandoc(type(self).__doc__ or "").partition("\n")[0]
        super().__init__(self.message)


class InvalidInput(ForkyardError):
    """The request is not valid."""

    code = "invalid_input"

    def __init__(self, message: str | None = None, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field
        """Dotted name of the input that is wrong, when one is."""


class NotSupported(InvalidInput):
    """This is not implemented here, and was refused instead of ignored."""

    code = "not_supported"


class TooLarge(InvalidInput):
    """The input is larger than allowed."""

    code = "too_large"


class NotAuthenticated(ForkyardError):
    """The credentials are missing or not valid."""

    code = "not_authenticated"


class NotAllowed(ForkyardError):
    """The credentials do not permit this."""

    code = "not_allowed"


class NotFound(ForkyardError):
    """There is no such thing."""

    code = "not_found"


class Conflict(ForkyardError):
    """The present state does not allow this."""

    code = "conflict"


class LimitExceeded(ForkyardError):
    """A limit is reached."""

    code = "limit_exceeded"

    def __init__(self, message: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds after which it is worth trying again, when that is known."""


class StorageFull(ForkyardError):
    """There is not enough free disk space."""

    code = "storage_full"


class Unavailable(ForkyardError):
    """Something that is needed cannot be reached now; the same call may work later."""

    code = "unavailable"

    def __init__(self, message: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds after which it is worth trying again, when that is known."""


class DeadlineExceeded(Unavailable):
    """It took longer than allowed."""

    code = "deadline_exceeded"
