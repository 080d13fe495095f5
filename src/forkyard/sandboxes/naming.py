"""Names of templates and snapshots: `[namespace/]alias[:tag]`, or an id."""

from __future__ import annotations

import re
from dataclasses import dataclass

from forkyard.base.errors import InvalidInput
from forkyard.base.ids import is_template_id
from forkyard.sandboxes.core import Core
from forkyard.sandboxes.errors import SnapshotNotFound, TemplateNotFound
from forkyard.sandboxes.models import DEFAULT_TAG, Snapshot

_ALIAS = re.compile(r"[a-z0-9_-]{1,128}")
_TAG = re.compile(r"[a-z0-9_.-]{1,128}")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class Reference:
    alias: str
    tag: str = DEFAULT_TAG
    namespace: str | None = None


def parse_reference(text: str, field: str = "templateID") -> Reference:
    """Lower-cased and trimmed first, as E2B does. Raises InvalidInput naming the field."""
    rest = text.strip().lower()
    namespace, slash, rest_after = rest.rpartition("/")
    alias, colon, tag = rest_after.partition(":")
    if slash and not _ALIAS.fullmatch(namespace):
        raise InvalidInput(f"{field}: {text!r} has an invalid namespace", field)
    if not _ALIAS.fullmatch(alias):
        raise InvalidInput(
            f"{field}: {text!r} is not a valid name (1 to 128 of a-z, 0-9, - and _, then optionally :tag)",
            field,
        )
    if colon and (not _TAG.fullmatch(tag) or _UUID.fullmatch(tag)):
        raise InvalidInput(f"{field}: {text!r} has an invalid tag", field)
    return Reference(alias, tag or DEFAULT_TAG, namespace or None)


async def resolve_template(core: Core, team_id: str, text: str) -> tuple[Snapshot, str | None]:
    """What a create starts from, and the name it was found by (None for an id). Raises TemplateNotFound."""
    try:
        reference = parse_reference(text)
    except InvalidInput:
        raise TemplateNotFound(text[:200]) from None
    if reference.tag == DEFAULT_TAG and is_template_id(reference.alias):
        found = await core.store.find_by_id(team_id=team_id, any_id=reference.alias)
        if found is not None:
            names = (await core.store.names_of([found.id]))[found.id]
            return found, names[0].name if names else None
    found = await core.store.find_named(team_id=team_id, name=reference.alias, tag=reference.tag)
    if found is None:
        raise TemplateNotFound(text[:200])
    return found, reference.alias


async def resolve_snapshot(core: Core, team_id: str, text: str) -> Snapshot:
    """A snapshot of this team (not a shared template). Raises SnapshotNotFound."""
    try:
        found, _ = await resolve_template(core, team_id, text)
    except TemplateNotFound:
        raise SnapshotNotFound(text[:200]) from None
    if found.team_id != team_id:
        raise SnapshotNotFound(text[:200])
    return found
