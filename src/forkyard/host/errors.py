"""What can go wrong on the host, by the decision a caller can take."""

import errno
import os

from forkyard.base.errors import Conflict, ForkyardError, LimitExceeded, NotFound, StorageFull


class HostError(ForkyardError):
    """The host refused an operation."""

    code = "host_error"


class RequirementMissing(HostError):
    """The host lacks something that is needed; the message says what to install or change."""

    code = "host_requirement_missing"


class NetlinkError(HostError):
    """The kernel refused a network change."""

    code = "netlink_error"

    def __init__(self, operation: str, number: int, detail: str = "") -> None:
        """`number` is an errno (positive); `detail` is the kernel's own sentence, when it gives one."""
        name = errno.errorcode.get(number, str(number))
        super().__init__(f"{operation}: {detail or os.strerror(number)} ({name})")
        self.errno = number


class FirewallError(HostError):
    """The packet filter could not be changed."""

    code = "firewall_error"


class NoFreeSlot(LimitExceeded):
    """All network slots of the configured address range are in use."""

    code = "no_free_slot"


class SlotNotFound(NotFound):
    """There is no such network slot of this instance."""

    code = "slot_not_found"


class ProcessGone(NotFound):
    """The process has ended."""

    code = "process_gone"


class SpawnFailed(HostError):
    """A program could not be started."""

    code = "spawn_failed"


class DataDirectoryInUse(Conflict):
    """Another server uses this data directory."""

    code = "data_directory_in_use"


class DataDirectoryUnusable(HostError):
    """The data directory cannot be used."""

    code = "data_directory_unusable"


class NoSpace(StorageFull):
    """The host's disk is too full for this."""

    code = "no_space"
