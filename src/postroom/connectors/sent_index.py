"""Which messages the user has sent, by Message-ID (PQ-3): what a reply is recognised by.

The index itself is the Switchboard's, so that every connector of a mailbox and every restart share it. Here it is asked
for the few ids of one batch, and what it said is remembered.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Collection, Iterable
from typing import Protocol

from postroom.mail.headers import Headers

MOST_TARGETS = 100
"""Of an endless chain of references the latest count."""
_REMEMBERED = 20_000
_ID = re.compile(r"<([^<>\s]{1,996})>")
_BARE_ID = re.compile(r"[^<>\s@,]{1,500}@[^<>\s@,]{1,490}")


class SentRegister(Protocol):
    """Where the ids are kept."""

    async def sent_add(self, message_ids: Collection[str]) -> None: ...

    async def sent_lookup(self, message_ids: Collection[str]) -> frozenset[str]:
        """Those of them that the user sent."""


def message_id_of(headers: Headers) -> str | None:
    """The Message-ID with its angle brackets, which a careless sender may have left out."""
    return next(iter(_ids(headers.get("Message-ID"))), None)


def reply_targets(headers: Headers) -> tuple[str, ...]:
    """What the message answers: `In-Reply-To`, or `References` only where that header is absent."""
    name = "In-Reply-To" if (headers.get("In-Reply-To") or "").strip() else "References"
    return _ids(headers.get(name))[-MOST_TARGETS:]


def _ids(value: str | None) -> tuple[str, ...]:
    """Those that could be one: what cannot be printed is in no mail that a person has sent, and no call takes it."""
    if value is None:
        return ()
    found = tuple(f"<{each}>" for each in _ID.findall(value) if each.isprintable())
    bare = None if found else _BARE_ID.fullmatch(value.strip("<> \t"))
    return (f"<{bare[0]}>",) if bare and bare[0].isprintable() else found


class SentIndex:
    def __init__(self, register: SentRegister) -> None:
        self._register = register
        self._known: OrderedDict[str, None] = OrderedDict()

    async def add(self, message_ids: Iterable[str]) -> None:
        """The user sent these."""
        fresh = [each for each in dict.fromkeys(message_ids) if each not in self._known]
        if fresh:
            await self._register.sent_add(fresh)
            self._remember(fresh)

    async def among(self, message_ids: Iterable[str]) -> frozenset[str]:
        """Those of them that the user sent. Only a yes is remembered: a no may become a yes at any time."""
        wanted = frozenset(message_ids)
        known = {each for each in wanted if each in self._known}
        if unknown := wanted - known:
            found = await self._register.sent_lookup(sorted(unknown))
            self._remember(found)
            known |= found
        return frozenset(known)

    def _remember(self, message_ids: Iterable[str]) -> None:
        for each in message_ids:
            self._known[each] = None
            self._known.move_to_end(each)
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
