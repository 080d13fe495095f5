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
from forkyard.node.edge_process import RunningEdge, end_edge, find_edge
from forkyard.node.preflight import check_start, find_image
from forkyard.node.server import Server
from forkyard.node.settings import Settings
from forkyard.templates.base_image.build import BaseImage


async def serve(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT, also while it starts; answers the exit code.

    Raises ForkyardError, with what to do, if it cannot.
    """
    configure_logging(_log_format(settings), settings.log_level)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    started = time.perf_counter()
    edge = await find_edge(settings)
    if not await _unless(stop, check_start(settings, edge)):
        return _stopped_early()
    image = find_image(settings)
    with Instance.open(settings.data_dir) as instance:
        server = Server(settings, instance)
        try:
            if not await _unless(stop, _start(server, image, edge)):
                return _stopped_early()
            _say(announcement(settings, time.perf_counter() - started))
            await stop.wait()
            _say("stopping ...")
            running = await server.stop()
        finally:
            if server.nothing_runs:
                instance.forget()
    if running:
        them = "1 sandbox keeps" if running == 1 else f"{running} sandboxes keep"
        _say(f"{them} running; `forkyard serve` takes up again what runs, `forkyard down` ends it")
    return 0


async def _start(server: Server, image: BaseImage, edge: RunningEdge | None) -> None:
    if edge is not None and not edge.fits(server.settings):
        _progress("the edge that runs has other settings: starting another")
        await end_edge(server.settings, edge)
    await server.start(image, _progress)


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Do the work; if `stop` comes before it is done, cancel it, let it clean up, and answer False."""
    task = asyncio.create_task(work)
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((task, stopping), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
    if task.done():
        await task
        return True
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return False
    return True


def _stopped_early() -> int:
    _say("stopped before it was ready")
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
