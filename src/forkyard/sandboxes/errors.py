"""What can go wrong with a sandbox, by the decision a caller can take. HTTP statuses are chosen by the app."""

from __future__ import annotations

from forkyard.base.errors import Conflict, ForkyardError, InvalidInput, LimitExceeded, NotFound, StorageFull


class SandboxNotFound(NotFound):
    """The sandbox does not exist, or you have no access to it."""

    code = "sandbox_not_found"

    def __init__(self, sandbox_id: str) -> None:
        # The wording is E2B's; SDK users match on it.
        super().__init__(f"Sandbox \"{sandbox_id}\" doesn't exist or you don't have access to it")


class TemplateNotFound(NotFound):
    """The template does not exist, or you have no access to it."""

    code = "template_not_found"

    def __init__(self, reference: str) -> None:
        super().__init__(f"Template \"{reference}\" doesn't exist or you don't have access to it")


class SnapshotNotFound(NotFound):
    """The snapshot does not exist, or you have no access to it."""

    code = "snapshot_not_found"

    def __init__(self, reference: str) -> None:
        super().__init__(f"Snapshot or template \"{reference}\" doesn't exist or you don't have access to it")


class WrongState(Conflict):
    """The sandbox is not in a state that allows this."""

    code = "wrong_state"


class AlreadyPaused(WrongState):
    """The sandbox is already paused."""

    code = "already_paused"


class AlreadyRunning(WrongState):
    """The sandbox is already running."""

    code = "already_running"


class NotRunning(WrongState):
    """The sandbox is paused; connect to it first."""

    code = "not_running"


class NameTaken(Conflict):
    """The name is taken by something else."""

    code = "name_taken"


class IdempotencyMismatch(Conflict):
    """This idempotency key was used with another request."""

    code = "idempotency_request_mismatch"  # E2B's


class InvalidSandbox(InvalidInput):
    """The sandbox request is not valid."""

    code = "invalid_sandbox"


class SandboxLimit(LimitExceeded):
    """A sandbox limit is reached; try again later."""

    code = "sandbox_limit"


class DiskFull(StorageFull):
    """The host's disk is too full for this."""

    code = "disk_full"


class SnapshotDamaged(Conflict):
    """The snapshot cannot be restored; nothing was stopped or lost."""

    code = "snapshot_damaged"


class GuestUnresponsive(ForkyardError):
    """The sandbox's daemon does not answer; nothing was stopped."""

    # Not E2B's `sandbox_snapshot_guest_agent_unresponsive`: that one is about a resume, and lets SDKs advise a reboot.
    code = "guest_unresponsive"


class TransitionFailed(ForkyardError):
    """The operation failed; the sandbox is as it was before."""

    code = "transition_failed"
