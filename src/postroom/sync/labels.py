"""Gmail's label ids as the names that the archive stores: a system label by its id, one of the owner's by its name."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from postroom.gmail.client import GmailClient


class LabelNames:
    """Asks Gmail once, and again only when an id turns up that nobody has seen."""

    def __init__(self, client: GmailClient) -> None:
        self._client = client
        self._names: dict[str, str] = {}
        self._asking = asyncio.Lock()

    async def names(self, label_ids: Iterable[str]) -> frozenset[str]:
        """An id that Gmail does not list either (a label deleted meanwhile) stays as it is."""
        wanted = frozenset(label_ids)
        if not wanted <= self._names.keys():
            await self._learn(wanted)
        return frozenset(self._names[each] for each in wanted)

    async def refresh(self) -> None:
        """Ask Gmail again: labels may have been renamed."""
        listed = await self._client.list_labels()
        self._names.update({label.id: label.id if label.is_system else label.name for label in listed})

    async def _learn(self, wanted: frozenset[str]) -> None:
        async with self._asking:
            if wanted <= self._names.keys():
                return
            await self.refresh()
            for unlisted in wanted - self._names.keys():
                self._names[unlisted] = unlisted
