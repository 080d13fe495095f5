"""Structured logs: one line an event, JSON or for people, without secrets.

Log what happened as a constant text and give everything variable as a named value:

>>> log = get_logger(__name__)
>>> with log_context(sandbox_id=sandbox.id):
...     log.info("sandbox paused", seconds=0.21)
"""

import json
import logging
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Literal, TextIO, cast

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

LogFormat = Literal["json", "pretty"]

REDACTED = "[redacted]"

MAX_TEXT = 8 << 10
"""Characters kept of one logged text: much of what is logged comes out of sandboxes."""

_MAX_DEPTH = 6
_MAX_ITEMS = 100

_SECRET_NAME = re.compile(
    r"(?:^|[_\-.])(?:(?:api|access|private|secret|encryption)[_\-]?keys?|tokens?|secrets?|passwords?|passwd"
    r"|authorization|cookies?|credentials?|dsn|signature)$",
    re.IGNORECASE,
)
_SECRET_TEXT = re.compile(
    r"""
      \be2b_[0-9a-f]{16,}                              # our API keys
    | \bsk-[A-Za-z0-9_\-]{16,}                         # model providers
    | \b(?:AKIA|ASIA)[A-Z0-9]{16}\b                    # AWS
    | \bgh[pousr]_[A-Za-z0-9]{20,}                     # GitHub
    | \beyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]+   # JSON web tokens
    | (?<=://)[^\s/@:]*:[^\s/@]+(?=@)                  # user and password in a URL
    | (?<=Bearer\ )[A-Za-z0-9._~+/=\-]{8,}
    | (?<=Basic\ )[A-Za-z0-9+/=]{8,}
    | (?<=[?&]signature=)[^\s&]+
    """,
    re.VERBOSE,
)
# Control characters would let a sandbox write to the terminal of whoever reads the log.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def get_logger(name: str) -> FilteringBoundLogger:
    """A logger whose lines carry `logger=name`; pass `__name__`. May be made before logging is configured."""
    return cast(FilteringBoundLogger, structlog.get_logger(name))


def log_context(**values: Any) -> AbstractContextManager[None]:
    """Add values (request_id, sandbox_id) to all lines in the block, and of tasks started there."""
    return structlog.contextvars.bound_contextvars(**values)


def current_log_context() -> dict[str, Any]:
    """What `log_context` has added here."""
    return structlog.contextvars.get_contextvars()


def configure_logging(output: LogFormat = "json", level: str = "info", stream: TextIO | None = None) -> None:
    """Send all logs, those of libraries too, to `stream` (standard error); call once at the start.

    Raises ValueError for an unknown level.
    """
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ValueError(f"unknown log level {level!r}")
    target = stream or sys.stderr
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
        redact,
    ]
    if output == "json":
        render: Processor = structlog.processors.JSONRenderer(serializer=_to_json)
    else:
        render = structlog.dev.ConsoleRenderer(
            colors=target.isatty(), timestamp_key="time", exception_formatter=structlog.dev.plain_traceback
        )
    structlog.configure(
        processors=[_add_name, *shared, render],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=partial(_NamedLogger, target),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(target)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
            foreign_pre_chain=[_add_name, *shared],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    # What libraries say below a warning is about themselves.
    root.setLevel(logging.INFO if number <= logging.DEBUG else max(number, logging.WARNING))


def redact(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Hide values whose name or form says that they are secret, and cut what is too long."""
    for name, value in event.items():
        event[name] = _clean(name, value, 0)
    return event


def redact_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of `values`, of plain JSON types, without secrets and not longer than fits in a log."""
    return {name: _clean(name, value, 0) for name, value in values.items()}


def redact_text(text: str) -> str:
    """`text` without what looks like a secret, without control characters, at most MAX_TEXT characters."""
    text = _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text[: MAX_TEXT * 2])
    text = _SECRET_TEXT.sub(REDACTED, text)
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}[cut]"


def _clean(name: str, value: Any, depth: int) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if _SECRET_NAME.search(name):
        return REDACTED
    if isinstance(value, str):
        return redact_text(value)
    if depth >= _MAX_DEPTH:
        return "[too deep]"
    if isinstance(value, Mapping):
        pairs = list(cast(Mapping[Any, Any], value).items())[:_MAX_ITEMS]
        return {str(key): _clean(str(key), inner, depth + 1) for key, inner in pairs}
    if isinstance(value, list | tuple | set | frozenset):
        items = list(cast(Sequence[Any], value))[:_MAX_ITEMS]
        return [_clean("", inner, depth + 1) for inner in items]
    return redact_text(str(value))


def _to_json(event: EventDict, **_options: Any) -> str:
    return json.dumps(event, default=str, ensure_ascii=False)


class _NamedLogger(structlog.WriteLogger):
    def __init__(self, stream: TextIO, name: str = "forkyard") -> None:
        super().__init__(stream)
        self.name = name


def _add_name(logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    record = event.get("_record")  # there for lines of libraries
    event["logger"] = record.name if isinstance(record, logging.LogRecord) else logger.name
    return event
