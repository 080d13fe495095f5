"""What all bodies have in common."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import ComputedFieldInfo, FieldInfo

T = TypeVar("T")


def _own_name(name: str, _info: FieldInfo | ComputedFieldInfo) -> str:
    return name


class RequestBody(BaseModel):
    """What clients send. Types are taken as they are (no "1" for 1); names that are not known are ignored, and null
    is the same as leaving the name out.
    """

    model_config = ConfigDict(
        strict=True,
        extra="ignore",
        frozen=True,
        use_attribute_docstrings=True,
        field_title_generator=_own_name,
    )


class ResponseBody(BaseModel):
    """What we answer."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True, field_title_generator=_own_name)


def _is_none(value: object) -> bool:
    return value is None


def _not_null(schema: dict[str, Any]) -> None:
    """Say in the schema what goes over the wire: the value or nothing, never null."""
    schema.pop("default", None)
    choices = [choice for choice in schema.pop("anyOf", ()) if choice != {"type": "null"}]
    if len(choices) == 1:
        schema.update(choices[0])
    elif choices:
        schema["anyOf"] = choices


Omittable = Annotated[T | None, Field(exclude_if=_is_none, json_schema_extra=_not_null)]
"""A value that is left out of the answer when there is none. Give the field the default None."""

Optional = Annotated[T | None, Field(json_schema_extra=_not_null)]
"""A value that a client may leave out. Give the field the default None."""

Seconds = Annotated[int, Field(ge=0, le=2**31 - 1)]
