"""`forkyard serve` and `forkyard down`: the life of a server process."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Coroutine
from typing import Any, Literal

import uvloop

from forkyard.base.errors import ForkyardError
from forkyard.base.logging import configure_logging
from forkyard.host.instance import Instance
from forkyard.node.announcement import announcement
from forkyard.node.edge_process import end_edge, find_edge
from forkyard.node.preflight import check_start, find_image
from forkyard.node.server import Server
from forkyard.node.settings import Settings


async def serve(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; answers the exit code. Raises ForkyardError, with what to do, if it cannot."""
    configure_logging(_log_format(settings), settings.log_level)
    edge = await find_edge(settings)
    await check_start(settings, edge)
    image = find_image(settings)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    started = time.perf_counter()
    with Instance.open(settings.data_dir) as instance:
        if edge is not None and not edge.fits(settings):
            _progress("the edge that runs has other settings: starting another")
            await end_edge(settings, edge)
        server = Server(settings, instance)
        await server.start(image, _progress)
        _say(announcement(settings, time.perf_counter() - started))
        await stop.wait()
        _say("stopping ...")
        running = await server.stop()
        if not running:
            instance.forget()
    if running:
        _say(
            f"{running} sandboxes keep running; `forkyard serve` takes them up again, `forkyard down` ends them"
        )
    return 0


async def down(settings: Settings, *, quiet: bool) -> int:
    """End every sandbox that runs, and the edge and keeper with them; answers the exit code.

    Paused sandboxes and snapshots stay. Needs that no server runs on the data directory.
    """
    configure_logging(_log_format(settings), "error")
    with Instance.open(settings.data_dir) as instance:
        server = Server(settings, instance)
        ended = await server.end_all()
        instance.forget()
    if not quiet:
        _say(f"{ended} sandboxes ended; nothing runs any more")
    return 0


def _log_format(settings: Settings) -> Literal["json", "pretty"]:
    if settings.log_format == "auto":
        return "pretty" if sys.stderr.isatty() else "json"
    return settings.log_format


def _progress(part: str) -> None:
    _say(f"  {part} ...")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def run_serve(settings: Settings) -> int:
    """Bridge from the command line."""
    return _run(serve(settings))


def run_down(settings: Settings, *, quiet: bool) -> int:
    """Bridge from the command line."""
    return _run(down(settings, quiet=quiet))


def _run(work: Coroutine[Any, Any, int]) -> int:
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(work)
    except ForkyardError as error:
        sys.stderr.write(f"forkyard: {error.message}\n")
        return 2
