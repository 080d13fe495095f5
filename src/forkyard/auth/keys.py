"""The form of API keys.

`e2b_` and 40 hexadecimal digits: some E2B SDKs check that form before they send a key.

Stored is the SHA-256 of the key. That is right here, unlike for passwords: a key has 160 random bits, so
nobody finds it by guessing however fast the hash is, and a slow hash would cost every request that is not
cached. Keys are looked up by their hash: an unknown key takes one hash and one index look-up like a known
one, and how far the index agrees with a hash that an attacker cannot steer tells nothing about a key.
"""

import hashlib
import re
import secrets

_FORM = re.compile(r"e2b_[0-9a-f]{40}")
_PREFIX_LENGTH = 8
_SUFFIX_LENGTH = 4


def new_key() -> str:
    """A new key with 160 random bits."""
    return "e2b_" + secrets.token_hex(20)


def is_key(text: str) -> bool:
    """Whether `text` has the form of a key."""
    return _FORM.fullmatch(text) is not None


def hash_key(key: str) -> str:
    """What is stored of a key: 64 hexadecimal digits."""
    return hashlib.sha256(key.encode()).hexdigest()


def key_prefix(key: str) -> str:
    """The beginning that is shown to tell keys apart (`e2b_1a2b`)."""
    return key[:_PREFIX_LENGTH]


def key_suffix(key: str) -> str:
    """The end that is shown; with the prefix it leaves 128 bits unknown."""
    return key[-_SUFFIX_LENGTH:]
