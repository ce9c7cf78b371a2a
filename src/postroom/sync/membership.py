"""Brings the archive's members of a label to those that the source lists, or takes a label away that is gone there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

from postroom.archive.account_store import AccountStore
from postroom.archive.model import Relabelling
from postroom.gmail.client import GmailClient
from postroom.gmail.errors import Gone, Refused
from postroom.sync.id_set import IdSet

_AT_ONCE = 500

T = TypeVar("T")


async def align_label(client: GmailClient, store: AccountStore, label_id: str, name: str) -> int:
    """One label at a time, so that memory stays small; returns how many messages gained or lost it.

    What changes at the source meanwhile is in its history, which is read after this. Ids that the archive does not have
    are left to whoever brings mail.
    """
    label = frozenset({name})
    with IdSet() as listed:
        try:
            async for ids in listed_ids(client, label_ids=(label_id,)):
                listed.add(ids)
        except (Refused, Gone):
            if any(each.id == label_id for each in await client.list_labels()):
                raise
            return 0  # deleted meanwhile; the next look at the labels takes it away
        members = await store.label_members(name)
        lost = [each for some in _portions(sorted(members)) for each in listed.lacking(some)]
        changed = await _change(store, [Relabelling(each, remove=label) for each in lost])
        for ids in listed.portions():
            gained = [Relabelling(each, add=label) for each in ids if each not in members]
            changed += await _change(store, gained)
    return changed


async def strip_label(store: AccountStore, name: str) -> int:
    """No message at the source has it. Mail that is not there any more, or never was, keeps what it had."""
    members = await store.label_members(name)
    return await _change(store, [Relabelling(each, remove=frozenset({name})) for each in sorted(members)])


async def listed_ids(
    client: GmailClient, query: str = "", *, label_ids: Sequence[str] = ()
) -> AsyncIterator[list[str]]:
    """What the source lists, spam and trash included, page by page."""
    async for page in client.list_messages(query, label_ids=label_ids, include_spam_trash=True):
        yield [ref.id for ref in page.messages]


async def _change(store: AccountStore, changes: Sequence[Relabelling]) -> int:
    unknown = 0
    for some in _portions(changes):
        unknown += len(await store.change_labels(some))
    return len(changes) - unknown


def _portions(items: Sequence[T]) -> list[Sequence[T]]:
    return [items[start : start + _AT_ONCE] for start in range(0, len(items), _AT_ONCE)]
