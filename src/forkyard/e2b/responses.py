"""Answers as bytes: models are made by this code, so they are serialised straight away and not validated again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fastapi.responses import Response
from pydantic import BaseModel


def answer(
    body: BaseModel | Sequence[BaseModel], *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """A JSON answer of one model or a list of them."""
    if isinstance(body, BaseModel):
        content = _to_json(body)
    else:
        content = b"[" + b",".join([_to_json(item) for item in body]) + b"]"
    return Response(content, status, headers, "application/json")


def no_content() -> Response:
    """204."""
    return Response(status_code=204)


def _to_json(model: BaseModel) -> bytes:
    return model.__pydantic_serializer__.to_json(model)
