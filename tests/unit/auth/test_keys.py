"""Keys, roles and the cache, without a database."""

import re
from dataclasses import replace

import pytest

from forkyard.auth.cache import CachedKey, KeyCache
from forkyard.auth.errors import RoleNotAllowed
from forkyard.auth.keys import hash_key, is_key, key_prefix, key_suffix, new_key
from forkyard.auth.principal import Principal
from forkyard.auth.roles import Role, Scope


def test_keys_have_the_form_that_sdks_check() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(re.fullmatch(r"e2b_[0-9a-f]{40}", key) and is_key(key) for key in keys)


def test_what_is_shown_and_stored_does_not_give_the_key() -> None:
    key = new_key()
    assert len(key_prefix(key)) + len(key_suffix(key)) - len("e2b_") == 8
    assert re.fullmatch(r"[0-9a-f]{64}", hash_key(key))
    assert key[4:] not in hash_key(key)


@pytest.mark.parametrize(
    ("role", "may", "may_not"),
    [
        (Role.ADMIN, set(Scope), set()),
        (Role.MEMBER, set(Scope) - {Scope.TEAM_WRITE}, {Scope.TEAM_WRITE}),
        (
            Role.READ_ONLY,
            {s for s in Scope if s.endswith(":read")},
            {s for s in Scope if s.endswith(":write")},
        ),
        (
            Role.SANDBOX_ONLY,
            {Scope.SANDBOXES_WRITE, Scope.TEMPLATES_READ},
            {Scope.TEMPLATES_WRITE, Scope.AGENTS_READ, Scope.TEAM_READ},
        ),
    ],
)
def test_roles(role: Role, may: set[Scope], may_not: set[Scope]) -> None:
    principal = Principal("team", "key", role)
    for scope in may:
        principal.require(scope)
    for scope in may_not:
        with pytest.raises(RoleNotAllowed, match=scope):
            principal.require(scope)


def entry(key_id: str, seen: float = 0.0) -> CachedKey:
    return CachedKey(Principal("team", key_id, Role.MEMBER), None, seen)


def test_the_cache_forgets_what_is_old_least_used_or_revoked() -> None:
    cache = KeyCache(max_age=5, size=2)
    for name in "ab":
        cache.put(name, entry(name), cache.begin())
    assert cache.get("a", 5.0) is not None
    cache.put("c", entry("c"), cache.begin())
    assert cache.get("b", 0) is None
    assert cache.get("a", 5.1) is None
    cache.put("c2", replace(entry("c")), cache.begin())
    cache.forget("c")
    assert cache.get("c", 0) is None
    assert cache.get("c2", 0) is None


def test_a_result_older_than_a_revocation_is_not_kept() -> None:
    cache = KeyCache(max_age=5)
    begun = cache.begin()
    cache.forget("k")
    cache.put("hash", entry("k"), begun)
    assert cache.get("hash", 0) is None
