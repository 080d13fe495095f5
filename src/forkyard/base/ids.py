"""Random identifiers. All come from the operating system's generator; none can be guessed from another."""

import re
import secrets
import uuid

ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"

_SANDBOX_ID = re.compile(r"i[a-z0-9]{19}")
_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")
_TEMPLATE_ID = re.compile(r"[a-z0-9]{20}")


def random_text(length: int) -> str:
    """`length` characters of `[a-z0-9]`, each equally likely (5.17 bits a character)."""
    number = secrets.randbelow(len(ALPHABET) ** length)
    chars: list[str] = []
    for _ in range(length):
        number, index = divmod(number, len(ALPHABET))
        chars.append(ALPHABET[index])
    return "".join(chars)


def new_sandbox_id() -> str:
    """`i` and 19 characters of `[a-z0-9]`. No dashes: host names `<port>-<id>.<domain>` are split there."""
    return "i" + random_text(19)


def is_sandbox_id(text: str) -> bool:
    """Whether `text` has the form of a sandbox id (says nothing about whether it exists)."""
    return _SANDBOX_ID.fullmatch(text) is not None


def new_template_id() -> str:
    """20 characters of `[a-z0-9]`."""
    return random_text(20)


def is_template_id(text: str) -> bool:
    """Whether `text` has the form of a template id (says nothing about whether it exists)."""
    return _TEMPLATE_ID.fullmatch(text) is not None


def new_uuid() -> str:
    """A random (version 4) UUID in its usual lower-case form with dashes; used for builds, teams and keys."""
    return str(uuid.uuid4())


def is_uuid(text: str) -> bool:
    """Whether `text` is a UUID as `new_uuid` writes them."""
    return _UUID.fullmatch(text) is not None


def new_build_id() -> str:
    """A UUID: SDKs parse build ids as such."""
    return new_uuid()


def new_instance_id() -> str:
    """6 characters of `[a-z0-9]`: short enough to fit, with more, into a 15-byte network interface name."""
    return random_text(6)


def new_short_id(length: int = 12) -> str:
    """`length` characters of `[a-z0-9]` for requests, transitions, lock owners (12 characters: 62 bits)."""
    return random_text(length)
