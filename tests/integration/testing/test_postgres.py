"""The private PostgreSQL server: it comes back after a crash, and never outlives the process that started it."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest

from forkyard.testing.postgres import PostgresServer, running_postgres

STARTS_AND_WAITS = """
from forkyard.testing.postgres import running_postgres
with running_postgres() as server:
    print(server.folder, (server.folder / "data/postmaster.pid").read_text().split()[0], flush=True)
    input()
"""


async def rows(url: str, query: str) -> list[tuple[object, ...]]:
    connection = await asyncpg.connect(url)
    try:
        return [tuple(row) for row in await connection.fetch(query)]
    finally:
        await connection.close()


async def test_databases_are_separate() -> None:
    with running_postgres() as server:
        first, second = server.create_database(), server.create_database()
        await rows(first, "create table only_here (n int)")
        with pytest.raises(asyncpg.UndefinedTableError):
            await rows(second, "select * from only_here")
        server.drop_database(first)
        with pytest.raises(asyncpg.InvalidCatalogNameError):
            await rows(first, "select 1")


async def test_what_was_committed_survives_a_crash() -> None:
    with running_postgres() as server:
        url = server.create_database()
        connection = await asyncpg.connect(url)
        await connection.execute("create table kept (n int)")
        await connection.execute("insert into kept values (7)")
        server.crash()
        with pytest.raises((asyncpg.PostgresConnectionError, asyncpg.InterfaceError, OSError)):
            await connection.fetch("select * from kept")
        server.start()
        assert await rows(url, "select n from kept") == [(7,)]


def test_nothing_stays() -> None:
    with running_postgres() as server:
        pid = postmaster(server)
    assert not server.folder.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_killed_caller_takes_the_server_along() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", STARTS_AND_WAITS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    folder, pid = process.stdout.readline().split()
    server = os.pidfd_open(int(pid))
    try:
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert select.select([server], [], [], 10)[0], (
            "the server still runs 10 s after its caller was killed"
        )
    finally:
        os.close(server)
        subprocess.run(["rm", "-rf", folder], check=True)


def postmaster(server: PostgresServer) -> int:
    return int(Path(server.folder, "data/postmaster.pid").read_text().split()[0])
