"""Gmail's label ids as the names that the archive stores: a system label by its id, one of the owner's by its name."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Protocol

from postroom.gmail.client import GmailClient

Names = Mapping[str, str]
"""The names of labels, by their ids."""


class NameKeeper(Protocol):
    """Sees to it that the archive holds labels by the names that are in use."""

    async def record(self, names: Names) -> Mapping[str, frozenset[str]]:
        """These are about to be used; returns those that were on record before."""

    async def follow(self, before: Mapping[str, frozenset[str]], names: Names) -> None:
        """These are in use, and no others: bring the archive from what was on record to them."""


class LabelNames:
    """Asks Gmail once, and again when an id turns up that nobody has seen; `refresh` finds out what was renamed."""

    def __init__(self, client: GmailClient, keeper: NameKeeper | None = None) -> None:
        self._client = client
        self._keeper = keeper
        self._names: dict[str, str] = {}
        self._unlisted: set[str] = set()
        self._asking = asyncio.Lock()

    async def names(self, label_ids: Iterable[str]) -> frozenset[str]:
        """An id that Gmail does not list is left out: it is of a label that was deleted meanwhile."""
        wanted = frozenset(label_ids)
        if not wanted <= self._seen:
            async with self._asking:
                if not wanted <= self._seen:
                    await self._learn()
                    self._unlisted |= wanted - self._names.keys()
        return frozenset(self._names[each] for each in wanted if each in self._names)

    async def refresh(self) -> Names:
        """Ask Gmail for all, and let the archive follow. Not for those who are bringing mail: it waits for them."""
        before: Mapping[str, frozenset[str]] = {}
        async with self._asking:
            listed = await self._list()
            if self._keeper:
                before = await self._keeper.record(listed)
            self._names = listed
        if self._keeper:
            await self._keeper.follow(before, listed)
        return dict(listed)

    async def _learn(self) -> None:
        """Only what is new: a label that was renamed keeps the name that it has in the archive until `refresh`."""
        listed = await self._list()
        new = {label_id: name for label_id, name in listed.items() if label_id not in self._names}
        if self._keeper and new:
            await self._keeper.record(new)
        self._names |= new

    async def _list(self) -> dict[str, str]:
        return {label.id: label.id if label.is_system else label.name for label in await self._client.list_labels()}

    @property
    def _seen(self) -> set[str]:
        return self._names.keys() | self._unlisted
