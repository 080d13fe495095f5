"""Standard input and output as bytes: no thread that would outlive us, and the event loop is never blocked."""

from __future__ import annotations

import asyncio
import errno
import os
import select
import stat

_READ = 1 << 16
_ATOMIC = 4096
"""Bytes that a pipe which is ready takes without blocking (PIPE_BUF)."""


def open_missing() -> None:
    """Give standard files that are closed to /dev/null: the next file opened would get their number otherwise."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


async def read_stdin() -> bytes:
    """What comes next; b"" at the end, and when the terminal is gone."""
    return await read_some(0)


async def read_some(descriptor: int) -> bytes:
    """What comes next from an open file; b"" at the end. Raises OSError."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    try:
        loop.add_reader(descriptor, _settle, ready)
    except OSError:
        return os.read(descriptor, _READ)  # A regular file or /dev/null is always readable.
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)
    try:
        return os.read(descriptor, _READ)
    except OSError as error:
        if error.errno == errno.EIO:
            return b""
        raise


async def write_all(descriptor: int, data: bytes) -> None:
    """All of it, unbuffered. Signals and input are still served while the reader is slow. Raises OSError."""
    view = memoryview(data)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        while view:
            view = view[os.write(descriptor, view) :]
        return
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    while view:
        if not poll.poll(0):
            await _writable(descriptor)
        view = view[os.write(descriptor, view[:_ATOMIC]) :]


async def _writable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_writer(descriptor, _settle, ready)
    try:
        await ready
    finally:
        loop.remove_writer(descriptor)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
