"""What can go wrong between the control plane and a guest."""

from __future__ import annotations

from forkyard.base.errors import ForkyardError


class GuestError(ForkyardError):
    """The sandbox's daemon did not do what was asked."""

    code = "guest_error"


class GuestUnreachable(GuestError):
    """The sandbox's daemon did not answer in time."""

    code = "guest_unreachable"


class GuestRefused(GuestError):
    """The sandbox's daemon refused the call."""

    code = "guest_refused"
