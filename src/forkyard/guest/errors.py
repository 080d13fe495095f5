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


class CallNotFound(GuestRefused):
    """The sandbox's daemon knows no such call: it was acknowledged, or never started there."""

    code = "call_not_found"


class AnswerInvalid(GuestError):
    """The sandbox's daemon answers in a form that it never should; trying again is of no use."""

    code = "guest_answer_invalid"
