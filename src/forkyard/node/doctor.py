"""What `forkyard doctor` looks at: host, programs, remains of dead instances, versions still needed."""

from __future__ import annotations

from sqlalchemy.exc import SQLAlchemyError

from forkyard.base.errors import ForkyardError
from forkyard.host.checks import CheckResult, Status
from forkyard.host.errors import DataDirectoryInUse
from forkyard.host.remains import Remains, clean, find_remains
from forkyard.host.settings import apply_settings, undo_settings
from forkyard.node.edge_process import find_edge
from forkyard.node.preflight import check_certificate, check_machine, find_image, missing_programs
from forkyard.node.settings import Settings
from forkyard.node.versions import Version, list_versions, remove_unneeded

__all__ = ["CheckResult", "Status", "clean_up", "examine", "fix"]


async def examine(settings: Settings) -> list[CheckResult]:
    """Every check, in a fixed order; nothing is changed."""
    results = [_programs(settings), _image(settings)]
    certificate = await check_certificate(settings)
    results += [certificate] if certificate else []
    results += await check_machine(settings, await find_edge(settings))
    results += _remains_results([found for found in await find_remains() if found.dead])
    results += await _versions(settings)
    return results


def fix(*, undo: bool) -> list[str]:
    """Apply (or undo) the host settings that were measured to help; answers what was changed. Blocks."""
    return undo_settings() if undo else apply_settings()


async def clean_up(settings: Settings) -> list[str]:
    """Remove what instances left that are dead, and the versions that nothing needs; answers a line for each."""
    lines: list[str] = []
    for found in await find_remains():
        if found.dead:
            await clean(found)
            lines.append(f"removed: instance {found.instance}")
    try:
        lines += [f"removed: {v.kind} {v.sha256[:12]}" for v in await remove_unneeded(settings)]
    except DataDirectoryInUse:
        lines.append(
            "kept: versions, because a server runs; stop it to have those removed that nothing needs"
        )
    except (SQLAlchemyError, OSError, ValueError) as error:
        lines.append(f"kept: versions, because it cannot be told which are needed ({_sentence(error)})")
    return lines


def _programs(settings: Settings) -> CheckResult:
    missing = missing_programs(settings)
    if not missing:
        return CheckResult("programs", Status.OK, f"keeper, envd and edge in {settings.binaries}")
    return CheckResult(
        "programs",
        Status.FAILED,
        f"{', '.join(missing)} missing in {settings.binaries}",
        "a server cannot start without them",
        "run `make bootstrap`, or set FORKYARD_BIN_DIR",
    )


def _image(settings: Settings) -> CheckResult:
    try:
        image = find_image(settings)
    except ForkyardError as error:
        return CheckResult("base image", Status.FAILED, error.message)
    return CheckResult("base image", Status.OK, f"{image.image[:12]}, {image.size >> 20} MiB")


def _remains_results(dead: list[Remains]) -> list[CheckResult]:
    """A line for each dead instance; behind them how many there are, and what removes all of them."""
    if not dead:
        return []
    return [
        *(CheckResult("dead instance", Status.WARNING, _remains_of(found)) for found in dead),
        CheckResult(
            "remains",
            Status.WARNING,
            f"{_number(len(dead), 'dead instance')} left something behind",
            "that takes addresses, memory or processor time",
            "run `forkyard doctor --clean`",
        ),
    ]


def _remains_of(found: Remains) -> str:
    where = f" (of {found.data_dir})" if found.data_dir else ""
    return f"{found.instance}{where}: {_number(len(found.found), 'thing')} left"


async def _versions(settings: Settings) -> list[CheckResult]:
    """For each version of envd, runtime and image that lies there: what keeps it alive."""
    try:
        found = await list_versions(settings)
    except (ForkyardError, SQLAlchemyError, OSError, ValueError) as error:
        return [
            CheckResult(
                "versions",
                Status.WARNING,
                f"it cannot be told which versions are needed ({_sentence(error)})",
                "snapshots need the very envd, runtime and image that they were made with",
                "see that the database can be reached, and look again",
            )
        ]
    return [_version_result(version) for version in found]


def _version_result(version: Version) -> CheckResult:
    name = f"{version.kind} version"
    found = f"{version.sha256[:12]}, {version.size / (1 << 20):.1f} MiB"
    reasons = [
        *(["new sandboxes"] if version.current else []),
        *([_number(version.snapshots, "snapshot")] if version.snapshots else []),
        *([_number(version.machines, "running machine")] if version.machines else []),
    ]
    if reasons:
        return CheckResult(name, Status.OK, f"{found}: needed by {', '.join(reasons)}")
    return CheckResult(
        name,
        Status.HINT,
        f"{found}: needed by nothing",
        "it takes disk space",
        "stop the server (sandboxes run on), run `forkyard doctor --clean`, start it again",
    )


def _number(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _sentence(error: Exception) -> str:
    return error.message if isinstance(error, ForkyardError) else str(error).partition("\n")[0][:300]
