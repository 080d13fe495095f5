"""Sessions on both databases: concurrency, cancellation, rollback, what readers see."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import func, select, text, update
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session
from sqlalchemy.util import await_only

from forkyard.auth.models import Team
from forkyard.storage import session as sessions
from forkyard.storage.dialect import insert_into, lock_name_txn
from forkyard.storage.engine import DatabaseUrl, sqlite_url
from forkyard.storage.errors import DatabaseBusy, DatabaseUnavailable, InvalidDatabaseUrl, InvalidValue
from forkyard.storage.session import Database
from forkyard.testing.postgres import PostgresServer

WRITERS = 50
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def team(name: str) -> Team:
    return Team(id=name, name=name, created_at=NOW)


async def add_team(database: Database, name: str) -> None:
    async with database.write() as session:
        session.add(team(name))
        await (
            session.flush()
        )  # in the block, where cancelling takes it back; without, it is part of the commit


async def names(database: Database) -> list[str]:
    async with database.read() as session:
        return list((await session.scalars(select(Team.name).order_by(Team.name))).all())


async def test_concurrent_writers_that_read_first_lose_nothing(database: Database) -> None:
    async with database.write() as session:
        session.add(Team(id="counter", name="0", created_at=NOW))

    async def add_one() -> None:
        async with database.write() as session:
            counter = await session.get_one(Team, "counter", with_for_update=True)
            counter.name = str(int(counter.name) + 1)

    await asyncio.gather(*(add_one() for _ in range(WRITERS)))
    assert await names(database) == [str(WRITERS)]


async def test_a_sequence_number_taken_in_the_appending_transaction_is_never_taken_twice(
    database: Database,
) -> None:
    async def append() -> None:
        async with database.write() as session:
            await lock_name_txn(session, "sequence")
            last = await session.scalar(select(func.count()).select_from(Team))
            session.add(team(f"{last:03}"))

    await asyncio.gather(*(append() for _ in range(WRITERS)))
    assert await names(database) == [f"{number:03}" for number in range(WRITERS)]


async def test_writers_in_two_processes_wait_for_each_other(database: Database) -> None:
    """A second `Database` shares nothing with the first but the database, like another process."""
    async with database.write() as session:
        session.add(Team(id="counter", name="0", created_at=NOW))
    other = Database(database.url)

    async def add_one(which: Database) -> None:
        async with which.write() as session:
            counter = await session.get_one(Team, "counter", with_for_update=True)
            counter.name = str(int(counter.name) + 1)

    try:
        await asyncio.gather(*(add_one(which) for which in (database, other) for _ in range(20)))
    finally:
        await other.close()
    assert await names(database) == ["40"]


async def test_readers_do_not_wait_for_a_writer_and_see_the_last_commit(database: Database) -> None:
    async with database.write() as session:
        session.add(team("before"))
    async with database.write() as session:
        session.add(team("after"))
        await session.flush()
        async with asyncio.timeout(5):
            assert await asyncio.gather(*(names(database) for _ in range(20))) == [["before"]] * 20
    assert await names(database) == ["after", "before"]


async def test_each_statement_of_a_reader_sees_the_newest_commit(database: Database) -> None:
    async with database.read() as reader:
        assert await reader.scalar(select(func.count()).select_from(Team)) == 0
        async with database.write() as session:
            session.add(team("new"))
        assert await reader.scalar(select(func.count()).select_from(Team)) == 1


async def test_an_error_rolls_back(database: Database) -> None:
    async def fail() -> None:
        async with database.write() as session:
            session.add(team("never"))
            await session.flush()
            raise LookupError

    with pytest.raises(LookupError):
        await fail()
    assert await names(database) == []


async def test_a_violated_key_is_told_apart_and_leaves_the_database_usable(database: Database) -> None:
    async def add_it() -> None:
        async with database.write() as session:
            session.add(team("one"))

    await add_it()
    with pytest.raises(IntegrityError):
        await add_it()
    async with database.write() as session:
        session.add(team("two"))
    assert await names(database) == ["one", "two"]


@pytest.mark.parametrize("step", ["between statements", "in a statement", "while waiting for its turn"])
async def test_a_cancelled_writer_rolls_back_and_lets_the_next_one_in(database: Database, step: str) -> None:
    entered = asyncio.Event()

    async def write() -> None:
        async with database.write() as session:
            session.add(team("never"))
            await session.flush()
            entered.set()
            if step == "in a statement":
                for number in range(100_000):
                    await session.execute(update(Team).values(name=f"never {number}"))
            await asyncio.Event().wait()

    if step == "while waiting for its turn":
        async with database.write() as session:
            session.add(team("holder"))
            await session.flush()
            waiting = asyncio.create_task(database.write().__aenter__())
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
    else:
        task = asyncio.create_task(write())
        await entered.wait()
        for _ in range(3 if step == "in a statement" else 0):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
    async with asyncio.timeout(5), database.write() as session:
        session.add(team("next"))
    assert "next" in await names(database)
    assert "never" not in await names(database)


async def test_cancelling_at_any_moment_writes_all_or_nothing(database: Database) -> None:
    """Cancel after each number of passes of the event loop: before, in, and after the commit."""
    for passes in range(60):

        async def write_two(passes: int = passes) -> None:
            async with database.write() as session:
                session.add(team(f"{passes} a"))
                await session.flush()
                session.add(team(f"{passes} b"))

        task = asyncio.create_task(write_two())
        for _ in range(passes):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        present = [name for name in await names(database) if name.startswith(f"{passes} ")]
        if task.cancelled():
            assert present in ([], [f"{passes} a", f"{passes} b"])
        else:
            assert present == [f"{passes} a", f"{passes} b"]
    async with asyncio.timeout(5), database.write() as session:
        session.add(team("last"))


async def test_a_commit_that_has_begun_is_finished(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = asyncio.Event()
    commit_and_close = sessions._commit_and_close

    def slow_commit(session: Session) -> None:
        begun.set()
        await_only(asyncio.sleep(0.05))
        commit_and_close(session)

    async def write() -> None:
        async with database.write() as session:
            session.add(team("committed"))

    monkeypatch.setattr(sessions, "_commit_and_close", slow_commit)
    task = asyncio.create_task(write())
    await begun.wait()
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    await asyncio.wait([task])
    assert task.cancelled()
    assert await names(database) == ["committed"]


async def test_a_writer_cancelled_while_another_process_writes(sqlite_copy: DatabaseUrl) -> None:
    first, second = Database(sqlite_copy), Database(sqlite_copy)
    try:
        async with first.write() as session:
            session.add(team("first"))
            await session.flush()
            task = asyncio.create_task(add_team(second, "never"))
            # Nothing tells when the thread is inside BEGIN; if this is too short, less is tested.
            await asyncio.sleep(0.1)
            task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        async with second.write() as session:
            session.add(team("second"))
        assert await names(first) == ["first", "second"]
    finally:
        await first.close()
        await second.close()


async def test_writing_inside_writing_is_refused_instead_of_hanging(database: Database) -> None:
    async with database.write():
        with pytest.raises(RuntimeError, match="inside"):
            await database.write().__aenter__()
    async with database.write() as session:
        session.add(team("fine"))
    assert await names(database) == ["fine"]


async def test_a_read_session_cannot_write(database: Database) -> None:
    async def write() -> None:
        async with database.read() as session:
            await session.execute(insert_into(session, Team).values(id="x", name="x", created_at=NOW))

    with pytest.raises(DBAPIError, match=r"readonly|read-only"):
        await write()
    assert await names(database) == []


async def test_insert_into_tells_whether_it_inserted(database: Database) -> None:
    async def insert(team_id: str) -> str | None:
        async with database.write() as session:
            statement = insert_into(session, Team).values(id=team_id, name="only", created_at=NOW)
            return await session.scalar(statement.on_conflict_do_nothing().returning(Team.id))

    results = await asyncio.gather(*(insert(str(number)) for number in range(20)))
    assert len([result for result in results if result is not None]) == 1


async def test_text_that_cannot_be_stored_is_invalid_input(database: Database) -> None:
    async def add_it(name: str) -> None:
        async with database.write() as session:
            session.add(team(name))

    with pytest.raises((InvalidValue, DBAPIError, UnicodeEncodeError)):
        await add_it("broken \ud800")
    if database.dialect == "postgresql":
        with pytest.raises(InvalidValue):
            await add_it("nul \0")
    assert await names(database) == []


async def test_a_relaxed_write_is_seen_at_once(database: Database) -> None:
    async with database.write(durable=False) as session:
        session.add(team("relaxed"))
    assert await names(database) == ["relaxed"]


async def test_durable_writers_wait_together_for_the_disk(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    if database.dialect != "sqlite":
        pytest.skip("PostgreSQL has its own")
    flushes = 0
    wal = database._wal
    assert wal is not None
    flush = wal._flush

    def counted() -> None:
        nonlocal flushes
        flushes += 1
        flush()

    monkeypatch.setattr(wal, "_flush", counted)

    async def add(number: int, durable: bool) -> None:
        async with database.write(durable) as session:
            session.add(team(f"{durable} {number}"))

    await asyncio.gather(*(add(number, durable=False) for number in range(10)))
    assert flushes == 0
    await add(0, durable=True)
    assert flushes == 1
    await asyncio.gather(*(add(number, durable=True) for number in range(1, WRITERS)))
    assert 1 < flushes <= WRITERS


async def test_relaxed_commits_are_flushed_some_time_later(
    sqlite_copy: DatabaseUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed = asyncio.Event()
    loop = asyncio.get_running_loop()
    monkeypatch.setattr("forkyard.storage.wal.SOON", 0.01)
    monkeypatch.setattr(
        "forkyard.storage.wal.WalFlush._flush", lambda _self: loop.call_soon_threadsafe(flushed.set)
    )
    database = Database(sqlite_copy)
    async with database.write(durable=False) as session:
        session.add(team("relaxed"))
    async with asyncio.timeout(5):
        await flushed.wait()
    await database.close()


async def test_closing_flushes_what_nobody_waited_for(
    sqlite_copy: DatabaseUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[str] = []
    monkeypatch.setattr("forkyard.storage.wal.WalFlush._flush", lambda _self: flushed.append("flushed"))
    database = Database(sqlite_copy)
    async with database.write(durable=False) as session:
        session.add(team("relaxed"))
    assert flushed == []
    await database.close()
    assert flushed == ["flushed"]


async def test_flush_makes_relaxed_commits_durable(database: Database) -> None:
    if database.dialect == "sqlite":
        pytest.skip("tested by counting flushes")
    async with database.read() as session:
        async with database.write(durable=False) as writer:
            writer.add(team("relaxed"))
        written = await session.scalar(text("SELECT pg_current_wal_insert_lsn()"))
        await database.flush()
        # Without the call above this holds only after 0.2 s or more, when the server does it by itself.
        assert await session.scalar(text("SELECT pg_current_wal_flush_lsn()")) >= written


async def test_transact_repeats_after_a_deadlock(database: Database) -> None:
    async with database.write() as session:
        session.add_all([team("a"), team("b")])
    both_hold_one = asyncio.Barrier(2)
    tries = 0

    async def rename(first: str, second: str) -> None:
        async def work(session: object) -> None:
            nonlocal tries
            tries += 1
            assert isinstance(session, type_of_session)
            await session.execute(update(Team).where(Team.id == first).values(created_at=NOW))
            if database.dialect == "postgresql" and tries <= 2:
                await both_hold_one.wait()
            await session.execute(update(Team).where(Team.id == second).values(created_at=NOW))

        await database.transact(work)

    async with database.read() as session:
        type_of_session = type(session)
    async with asyncio.timeout(20):
        await asyncio.gather(rename("a", "b"), rename("b", "a"))
    assert tries == (3 if database.dialect == "postgresql" else 2)


async def test_a_lock_held_by_another_process_is_waited_for_only_so_long(
    sqlite_copy: DatabaseUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forkyard.storage.engine._SQLITE_PRAGMAS", ("busy_timeout=50",))
    first, second = Database(sqlite_copy), Database(sqlite_copy)
    try:
        async with first.write() as session:
            session.add(team("first"))
            await session.flush()
            with pytest.raises(DatabaseBusy):
                await add_team(second, "never")
        async with second.write() as session:
            session.add(team("second"))
        assert await names(first) == ["first", "second"]
    finally:
        await first.close()
        await second.close()


async def test_a_turn_that_does_not_come_is_an_error(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    if database.dialect != "sqlite":
        pytest.skip("PostgreSQL has no turns")
    monkeypatch.setattr("forkyard.storage.session.WRITER_TIMEOUT", 0.05)

    async def wait_for_turn() -> None:
        async with database.write():
            raise AssertionError("two writers at once")

    async with database.write():
        with pytest.raises(DatabaseBusy):
            await asyncio.create_task(wait_for_turn())


async def test_a_file_that_is_no_database_is_said_so(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but long enough to be mistaken for one" * 100)
    database = Database(sqlite_url(path))
    try:
        with pytest.raises(DatabaseUnavailable, match="not a database"):
            await database.write().__aenter__()
    finally:
        await database.close()


async def test_sqlite_files_are_private(database: Database) -> None:
    if database.url.path is None:
        pytest.skip("a file is needed")
    fresh = database.url.path.parent / "new" / "fresh.db"
    other = Database(sqlite_url(fresh))
    async with other.write() as session:
        await session.execute(text("CREATE TABLE x (y)"))
    assert fresh.stat().st_mode & 0o077 == 0
    assert fresh.with_name("fresh.db-wal").stat().st_mode & 0o077 == 0
    await other.close()


async def test_postgresql_killed_and_started_again(
    postgres_server: PostgresServer, postgres_url: DatabaseUrl
) -> None:
    database = Database(postgres_url)
    try:
        async with database.write() as session:
            session.add(team("kept"))
        await asyncio.to_thread(postgres_server.crash)
        try:
            with pytest.raises(DatabaseUnavailable):
                await names(database)
            with pytest.raises(DatabaseUnavailable):
                await database.write().__aenter__()
        finally:
            await asyncio.to_thread(postgres_server.start)
        assert await names(database) == ["kept"]
        async with database.write() as session:
            await session.delete(await session.get_one(Team, "kept"))
    finally:
        await database.close()


async def test_postgresql_killed_in_the_middle_of_a_transaction(
    postgres_server: PostgresServer, postgres_url: DatabaseUrl
) -> None:
    database = Database(postgres_url)

    async def write() -> None:
        async with database.write() as session:
            session.add(team("lost"))
            await session.flush()
            await asyncio.to_thread(postgres_server.crash)

    try:
        try:
            with pytest.raises(DatabaseUnavailable):
                await write()
        finally:
            await asyncio.to_thread(postgres_server.start)
        assert await names(database) == []
    finally:
        await database.close()


async def test_an_address_where_nothing_listens(tmp_path: Path) -> None:
    database = Database(DatabaseUrl("postgresql", dsn=f"postgresql://nobody:secret@/none?host={tmp_path}"))
    with pytest.raises(DatabaseUnavailable) as caught:
        await database.read().__aenter__()
    assert "secret" not in str(caught.value)
    await database.close()


@pytest.mark.parametrize("dsn", ["postgresql://u:hunter2:x/y@h/db", "postgresql://u:hunter2@h:port/db"])
async def test_an_address_that_cannot_be_read(dsn: str) -> None:
    database = Database(DatabaseUrl("postgresql", dsn=dsn))
    with pytest.raises((InvalidDatabaseUrl, DatabaseUnavailable)) as caught:
        await database.read().__aenter__()
    assert "hunter" not in str(caught.value)
    assert caught.value.__cause__ is None or "hunter" not in str(caught.value.__cause__)
    await database.close()


async def test_a_ping_tells_whether_the_database_is_there(database: Database) -> None:
    await database.ping()
    if database.url.path is None:
        async with database.write() as session:
            await session.execute(text("ALTER TABLE alembic_version RENAME TO hidden"))
        try:
            with pytest.raises(Exception, match="alembic_version"):
                await database.ping()
        finally:
            async with database.write() as session:
                await session.execute(text("ALTER TABLE hidden RENAME TO alembic_version"))
        return
    aside = database.url.path.with_suffix(".aside")
    database.url.path.rename(aside)
    with pytest.raises(DatabaseUnavailable, match="is gone"):
        await database.ping()
    aside.rename(database.url.path)
    await database.ping()
