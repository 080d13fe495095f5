"""The bridge from a synchronous command to the asynchronous client, and from errors to messages and exit codes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

import typer

from forkyard.base.errors import ForkyardError
from forkyard.cli.credentials import NotLoggedIn, find_credentials
from forkyard.cli.exits import CONFLICT, FAILED, LIMIT, NOT_AUTHENTICATED, NOT_FOUND, UNREACHABLE, USAGE, fail
from forkyard.client.api import Api
from forkyard.client.errors import ApiError, ServerUnreachable

T = TypeVar("T")

_EXIT_BY_STATUS = {
    400: USAGE,
    401: NOT_AUTHENTICATED,
    403: NOT_AUTHENTICATED,
    404: NOT_FOUND,
    409: CONFLICT,
    422: USAGE,
    429: LIMIT,
    507: LIMIT,
}


def with_api(work: Callable[[Api], Awaitable[T]], *, failed: int | None = None) -> T:
    """Run `work` with a client. Errors are one line on stderr and an exit code (`failed` for all, if given)."""

    async def run() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        if task is not None:
            loop.add_signal_handler(signal.SIGTERM, task.cancel)  # What is half done is cleaned up.
        credentials = find_credentials()
        async with Api(credentials.url, credentials.key) as api:
            return await work(api)

    try:
        return asyncio.run(run())
    except KeyboardInterrupt:
        raise typer.Exit(128 + signal.SIGINT) from None
    except asyncio.CancelledError:
        raise typer.Exit(128 + signal.SIGTERM) from None
    except (Exception, ExceptionGroup) as error:
        cause = _first(error)
        if isinstance(cause, BrokenPipeError):
            # Whoever read our output has gone; Python would complain about stdout at its end otherwise.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            raise typer.Exit(128 + signal.SIGPIPE) from None
        if isinstance(cause, OSError):
            fail(f"{cause.filename or 'this machine'}: {cause.strerror or cause}", failed or FAILED)
        if not isinstance(cause, ForkyardError):
            raise
        fail(cause.message, failed if failed is not None else exit_code(cause))


def _first(error: Exception) -> Exception:
    """What failed first; tasks that ran beside each other fail as a group."""
    group = cast(ExceptionGroup[Exception], error)
    return _first(group.exceptions[0]) if isinstance(error, ExceptionGroup) else error


def exit_code(error: ForkyardError) -> int:
    """What a script can rely on; the list is in `forkyard --help`."""
    if isinstance(error, ApiError):
        return _EXIT_BY_STATUS.get(error.status, FAILED)
    if isinstance(error, ServerUnreachable):
        return UNREACHABLE
    if isinstance(error, NotLoggedIn):
        return NOT_AUTHENTICATED
    return FAILED
