"""Names for tab completion. Never fails and never waits long: a shell is waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from forkyard.base.errors import ForkyardError
from forkyard.cli.credentials import find_credentials
from forkyard.client.api import Api

_PATIENCE_S = 2.0


def complete_sandbox(incomplete: str) -> list[tuple[str, str]]:
    async def find(api: Api) -> list[tuple[str, str]]:
        return [
            (item["sandboxID"], f"{item.get('alias') or item['templateID']}, {item['state']}")
            async for item in api.sandboxes()
        ]

    return _ask(find, incomplete)


def complete_template(incomplete: str) -> list[tuple[str, str]]:
    async def find(api: Api) -> list[tuple[str, str]]:
        found = [
            (name, "template")
            for item in await api.templates()
            for name in item.get("names") or item["aliases"]
        ]
        async for item in api.snapshots():
            found += [(name, "snapshot") for name in [*item["names"], item["snapshotID"]]]
        return found

    return _ask(find, incomplete)


def complete_snapshot(incomplete: str) -> list[tuple[str, str]]:
    async def find(api: Api) -> list[tuple[str, str]]:
        return [(item["snapshotID"], " ".join(item["names"])) async for item in api.snapshots()]

    return _ask(find, incomplete)


def _ask(find: Callable[[Api], Awaitable[list[tuple[str, str]]]], incomplete: str) -> list[tuple[str, str]]:
    async def run() -> list[tuple[str, str]]:
        credentials = find_credentials()
        async with asyncio.timeout(_PATIENCE_S), Api(credentials.url, credentials.key) as api:
            return await find(api)

    try:
        return [(name, text) for name, text in asyncio.run(run()) if name.startswith(incomplete)]
    except (ForkyardError, TimeoutError, OSError, KeyError, TypeError, ValueError):
        return []
