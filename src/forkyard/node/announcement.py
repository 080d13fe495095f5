"""What `forkyard serve` prints when it is ready: where it is, and what points an SDK at it."""

from __future__ import annotations

import shlex

from forkyard.node.settings import Settings


def announcement(settings: Settings, seconds: float) -> str:
    """The text, with commands for a POSIX shell; `seconds` is how long the start took."""
    key_file = shlex.quote(str(settings.api_key_file))
    lines = [
        "",
        f"Forkyard is ready after {seconds:.1f} s at {settings.url}   (docs: {settings.url}/docs)",
        "",
        "Point an E2B SDK at it:",
        *(_line(name, value) for name, value in settings.sdk_variables.items()),
        f"  export E2B_API_KEY=$(cat {key_file})",
        "",
    ]
    if settings.sdk_domain is not None:
        lines.append(
            f"SDKs must find {settings.domain} and every name below it in the DNS, and trust the certificate's issuer."
        )
        if settings.plain_url is not None:
            lines.append(f"Without TLS, it is at {settings.plain_url} for this machine and its network.")
        lines.append("")
    return "\n".join(lines)


def _line(name: str, value: str) -> str:
    return f"  export {name}={shlex.quote(value)}" if value else f"  unset {name}"
