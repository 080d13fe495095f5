"""The base class of all tables. Domain packages declare theirs from it in their own `models.py`."""

import enum
from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import Enum, MetaData, Text
from sqlalchemy.orm import DeclarativeBase

from forkyard.storage.dialect import BigInt, JsonColumn, UtcDateTime

__all__ = ["Base", "BigInt", "JsonColumn", "UtcDateTime"]

# Fixed names, so that a migration can drop or change what an earlier one made.
NAMING_CONVENTION = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


def _enum_values(members: type[enum.Enum]) -> list[str]:
    return [str(member.value) for member in members]


class Base(DeclarativeBase):
    """All tables share one metadata.

    `Mapped[...]` types become: `str` text without a length limit, `int` 64 bits, `datetime` UtcDateTime,
    `dict` and `list` JsonColumn, an enum its *values* as text (no type of the database's own, so that adding
    a member needs no migration).
    """

    metadata = MetaData(naming_convention=NAMING_CONVENTION)
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        str: Text(),
        int: BigInt,
        datetime: UtcDateTime(),
        dict[str, Any]: JsonColumn(),
        dict[str, str]: JsonColumn(),
        list[Any]: JsonColumn(),
        list[str]: JsonColumn(),
        enum.Enum: Enum(enum.Enum, native_enum=False, length=40, values_callable=_enum_values),
    }
