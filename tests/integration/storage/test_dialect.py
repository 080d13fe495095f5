"""Column types and functions mean the same on both databases."""

import enum
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import Column, MetaData, Table, Text, insert, literal, select
from sqlalchemy.exc import StatementError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from forkyard.storage.dialect import JsonColumn, UtcDateTime, database_now
from forkyard.storage.errors import InvalidValue
from forkyard.storage.models import Base
from forkyard.storage.session import Database

THINGS = Table(
    "things", MetaData(), Column("id", Text), Column("at", UtcDateTime), Column("data", JsonColumn)
)
TIMES = [
    datetime(1970, 1, 1, tzinfo=UTC),
    datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=UTC),
    datetime(2026, 1, 1, 0, 0, 0, 999_999, tzinfo=UTC),
    datetime(2026, 1, 1, 1, 0, tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
]


class Rollback(Exception):
    """Ends a transaction whose tables were only for the test."""


@pytest_asyncio.fixture
async def session(database: Database) -> AsyncGenerator[AsyncSession]:
    """A transaction with the table THINGS, which is rolled back."""
    try:
        async with database.write() as session:
            await session.run_sync(lambda sync: THINGS.create(sync.connection()))
            yield session
            raise Rollback
    except Rollback:
        pass


async def test_times_come_back_equal_aware_and_in_utc(session: AsyncSession) -> None:
    await session.execute(insert(THINGS), [{"at": at} for at in TIMES])
    loaded = list((await session.scalars(select(THINGS.c.at))).all())
    assert loaded == TIMES
    assert {at.tzinfo for at in loaded} == {UTC}


async def test_times_of_other_zones_are_the_same_moment(session: AsyncSession) -> None:
    there = datetime(2026, 1, 1, 5, 30, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    await session.execute(insert(THINGS), {"at": there})
    assert await session.scalar(select(THINGS.c.at)) == datetime(2026, 1, 1, tzinfo=UTC)
    assert await session.scalar(select(THINGS.c.at).where(THINGS.c.at == there)) == there


async def test_times_sort_and_compare_as_moments(session: AsyncSession) -> None:
    await session.execute(insert(THINGS), [{"at": at} for at in reversed(TIMES)])
    assert list((await session.scalars(select(THINGS.c.at).order_by(THINGS.c.at))).all()) == TIMES
    for index, at in enumerate(TIMES):
        later = list((await session.scalars(select(THINGS.c.at).where(THINGS.c.at > at))).all())
        assert sorted(later) == TIMES[index + 1 :]


async def test_a_time_without_a_zone_is_refused(session: AsyncSession) -> None:
    with pytest.raises((StatementError, ValueError), match="time zone"):
        await session.execute(insert(THINGS), {"at": datetime(2026, 1, 1)})


@pytest.mark.parametrize(
    "offset", [timedelta(), timedelta(seconds=90.5), timedelta(days=-400), timedelta(microseconds=-1)]
)
async def test_the_database_clock_agrees_with_ours(session: AsyncSession, offset: timedelta) -> None:
    before = datetime.now(UTC)
    there = await session.scalar(select(database_now(offset)))
    after = datetime.now(UTC)
    millisecond = timedelta(milliseconds=1)
    assert there is not None
    assert before + offset - millisecond <= there <= after + offset + millisecond


async def test_a_lease_is_compared_with_the_database_clock(session: AsyncSession) -> None:
    lease = database_now(timedelta(seconds=30))
    await session.execute(insert(THINGS).values(id="held", at=lease))
    await session.execute(insert(THINGS).values(id="run out", at=database_now(timedelta(seconds=-30))))
    run_out = select(THINGS.c.id).where(THINGS.c.at < database_now())
    assert list((await session.scalars(run_out)).all()) == ["run out"]


@pytest.mark.parametrize(
    "value",
    [
        {},
        [],
        {"a": [1, 2.5, None, True, "x"]},
        {"é": "日本\u2028\x01\\u0000"},
        "text",
        0,
        {"big": 2**53},
        {"k": {"k": {}}},
    ],
)
async def test_json_comes_back_equal(session: AsyncSession, value: Any) -> None:
    await session.execute(insert(THINGS), {"data": value})
    assert await session.scalar(select(THINGS.c.data)) == value


async def test_json_none_is_null(session: AsyncSession) -> None:
    await session.execute(insert(THINGS), {"data": None})
    assert await session.scalar(select(literal(1)).where(THINGS.c.data.is_(None))) == 1


@pytest.mark.parametrize("value", [{"a": "nul \0"}, {"nul \0": 1}, ["\\\0"], {"a": "broken \ud800"}])
async def test_json_that_one_database_would_refuse_is_refused_on_both(
    session: AsyncSession, value: Any
) -> None:
    with pytest.raises(InvalidValue):
        await session.execute(insert(THINGS), {"data": value})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object()])
async def test_what_is_not_json_is_refused(session: AsyncSession, value: Any) -> None:
    with pytest.raises((StatementError, ValueError, TypeError)):
        await session.execute(insert(THINGS), {"data": value})


class Colour(enum.StrEnum):
    RED = "r"
    GREEN = "g"


async def test_plain_annotations_map_to_types_that_hold_them(database: Database) -> None:
    class Own(DeclarativeBase):
        metadata = MetaData()
        type_annotation_map = Base.type_annotation_map

    class Thing(Own):
        __tablename__ = "annotated"
        id: Mapped[int] = mapped_column(primary_key=True)
        size: Mapped[int]
        colour: Mapped[Colour]
        at: Mapped[datetime | None]
        data: Mapped[dict[str, Any] | None]

    async def store() -> None:
        async with database.write() as session:
            await session.run_sync(lambda sync: Own.metadata.create_all(sync.connection()))
            session.add(Thing(size=2**62, colour=Colour.GREEN, at=TIMES[1], data={"a": 1}))
            await session.flush()
            session.expunge_all()
            thing = (await session.scalars(select(Thing))).one()
            assert (thing.id, thing.size, thing.colour, thing.at, thing.data) == (
                1,
                2**62,
                Colour.GREEN,
                TIMES[1],
                {"a": 1},
            )
            assert await session.scalar(select(literal(1)).where(Thing.colour == "g")) == 1
            raise Rollback

    with pytest.raises(Rollback):
        await store()
