"""A database whose process is killed, and one whose disk is full."""

import asyncio
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from forkyard.storage.engine import DatabaseUrl
from forkyard.storage.session import Database
from tests.integration.storage.test_sessions import names, team

WRITER = """
import asyncio, sys
from pathlib import Path
from sqlalchemy import text
from forkyard.storage.engine import sqlite_url
from forkyard.storage.session import Database

async def main():
    database = Database(sqlite_url(Path(sys.argv[1])))
    for number in range(1_000_000):
        async with database.write(durable=number % 2 == 0) as session:
            for half in "ab":
                await session.execute(
                    text(
                        "INSERT INTO teams (id, name, created_at) "
                        "VALUES (:name, :name, '2026-01-01 00:00:00.000000')"
                    ),
                    {"name": f"{number:06}{half}"},
                )
        print(number, flush=True)

asyncio.run(main())
"""

FULL_DISK = """
import asyncio, subprocess, sys
from pathlib import Path
from sqlalchemy import text
from forkyard.storage.engine import sqlite_url
from forkyard.storage.errors import DatabaseFull
from forkyard.storage.migrations import migrate
from forkyard.storage.session import Database

folder = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", folder], check=True)

async def main():
    url = sqlite_url(folder / "full.db")
    await migrate(url)
    database = Database(url)
    async def fill(name):
        async with database.write() as session:
            await session.execute(
                text("INSERT INTO teams (id, name, created_at) VALUES (:name, :text, '2026-01-01 00:00:00.000000')"),
                {"name": name, "text": name + "x" * 50_000},
            )
    written = 0
    try:
        while written < 100:
            await fill(f"{written:03}")
            written += 1
    except DatabaseFull:
        print("full")
    (folder / "ballast").unlink()
    async with database.read() as session:
        assert await session.scalar(text("SELECT count(*) FROM teams")) == written > 0
    async with database.write() as session:
        await session.execute(text("DELETE FROM teams"))
    await fill("after")
    print("usable")
    await database.close()

(folder / "ballast").write_bytes(b"x" * 13_000_000)
asyncio.run(main())
"""


async def test_what_was_committed_survives_kill_9_and_nothing_in_halves(sqlite_copy: DatabaseUrl) -> None:
    assert sqlite_copy.path is not None
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WRITER, str(sqlite_copy.path), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    said = -1
    while said < 25:
        said = int(await process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    rest = (await process.communicate())[0].split()
    said = int(rest[-1]) if rest else said
    database = Database(sqlite_copy)
    try:
        present = await names(database)
        pairs = {name[:6] for name in present}
        assert len(present) == 2 * len(pairs)
        assert [f"{number:06}" for number in range(said + 1)] == sorted(pairs)[: said + 1]
        assert len(pairs) <= said + 2
        async with database.write() as session:
            session.add(team("after"))
    finally:
        await database.close()


@pytest.mark.root
@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare"), reason="mounts a small file system as root"
)
async def test_a_full_disk_is_said_so_and_loses_nothing(tmp_path: Path) -> None:
    """In a mount namespace of its own, which goes with the process."""
    folder = tmp_path / "small"
    folder.mkdir()
    process = await asyncio.create_subprocess_exec(
        *("unshare", "--mount", sys.executable, "-c", FULL_DISK, str(folder)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output = (await process.communicate())[0].decode()
    assert process.returncode == 0, output
    assert [line for line in output.splitlines() if line in ("full", "usable")] == ["full", "usable"]
