"""Gmail's label ids as the names that the archive stores: a system label by its id, one of the owner's by its name."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping

from postroom.gmail.client import GmailClient

Follow = Callable[[Mapping[str, str]], Awaitable[None]]


class LabelNames:
    """Asks Gmail once, and again only when an id turns up that nobody has seen.

    `follow` is told all ids with their names before the names are used: so a label that was renamed has its new name in
    the archive before any mail comes with it.
    """

    def __init__(self, client: GmailClient, follow: Follow | None = None) -> None:
        self._client = client
        self._follow = follow
        self._names: dict[str, str] = {}
        self._unlisted: set[str] = set()
        self._asking = asyncio.Lock()

    async def names(self, label_ids: Iterable[str]) -> frozenset[str]:
        """An id that Gmail does not list is left out: it is of a label that was deleted meanwhile."""
        wanted = frozenset(label_ids)
        if not wanted <= self._seen:
            async with self._asking:
                if not wanted <= self._seen:
                    await self._ask()
                    self._unlisted |= wanted - self._names.keys()
        return frozenset(self._names[each] for each in wanted if each in self._names)

    async def refresh(self) -> Mapping[str, str]:
        """Ask Gmail again: labels may have been renamed. Returns the name of every label, by its id."""
        async with self._asking:
            await self._ask()
        return dict(self._names)

    @property
    def _seen(self) -> set[str]:
        return self._names.keys() | self._unlisted

    async def _ask(self) -> None:
        listed = {label.id: label.id if label.is_system else label.name for label in await self._client.list_labels()}
        if self._follow is not None:
            await self._follow(listed)
        self._names = listed
