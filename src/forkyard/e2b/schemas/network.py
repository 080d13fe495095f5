"""Network settings of a sandbox. What is not implemented is refused by name, never ignored."""

from __future__ import annotations

import re
from typing import Any

from pydantic import ConfigDict

from forkyard.base.errors import InvalidInput, NotSupported
from forkyard.e2b.schemas.base import Omittable, Optional, RequestBody, ResponseBody

MAX_HOST = 255

_PORT = "${PORT}"
_HOST = re.compile(r"(?:[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?|\[[0-9a-fA-F:.]+\])(?::[0-9]{1,5})?")


class EgressRules(RequestBody):
    """What a sandbox may reach. `allowOut` wins over `denyOut`."""

    model_config = ConfigDict(extra="allow")

    allowOut: Optional[list[str]] = None
    """IPv4 addresses and CIDR ranges. Domain names are not supported."""
    denyOut: Optional[list[str]] = None
    """IPv4 addresses and CIDR ranges; `0.0.0.0/0` is everything."""

    def refuse_unsupported(self, prefix: str) -> None:
        """Raise NotSupported naming the first setting that says something and is not implemented here."""
        for name, value in (self.model_extra or {}).items():
            if not is_empty(value):
                field = f"{prefix}{name}"[:100]
                raise NotSupported(f"{field} is not supported", field)


class SandboxNetworkConfig(EgressRules):
    """`network` of a new sandbox."""

    allowPublicTraffic: Optional[bool] = None
    """false: ports of the sandbox need the `trafficAccessToken`. Default true."""
    maskRequestHost: Optional[str] = None
    """Host header that programs in the sandbox see; `${PORT}` stands for the port."""

    def checked_mask(self) -> str | None:
        """The host mask, if it could stand in a Host header. Raises InvalidInput."""
        mask = self.maskRequestHost
        if not mask:
            return None
        host = mask.replace(_PORT, "65535")
        if len(mask) > MAX_HOST or not _HOST.fullmatch(host):
            raise InvalidInput(
                "network.maskRequestHost: not a host name, optionally with a port or ${PORT}",
                "network.maskRequestHost",
            )
        return mask


class SandboxNetworkUpdateConfig(EgressRules):
    """Replaces all egress rules; what is left out is cleared."""

    allow_internet_access: Optional[bool] = None
    """false: nothing outside is reached, but for what `allowOut` names."""


class SandboxNetworkInfo(ResponseBody):
    """Network settings as the sandbox has them."""

    allowPublicTraffic: bool
    allowOut: Omittable[list[str]] = None
    denyOut: Omittable[list[str]] = None
    maskRequestHost: Omittable[str] = None


def is_empty(value: Any) -> bool:
    """Whether a setting says nothing: null, or a list, object or text without content."""
    return value is None or (isinstance(value, (list, dict, str)) and not value)
