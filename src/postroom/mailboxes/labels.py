"""Label ids of a mailbox as the names that the archive stores. A deleted label leaves no trace: its id has no name, so
it is left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Protocol

from postroom.mailboxes.protocol import Mailbox

LabelNamesById = Mapping[str, str]
"""The names of labels, by their ids."""


class LabelNameKeeper(Protocol):
    """Keeps the archive's label names in step with those of the mailbox."""

    async def record(self, names: LabelNamesById) -> Mapping[str, frozenset[str]]:
        """Note names that are about to be used; returns the names that were on record before, by label id."""

    async def follow(self, before: Mapping[str, frozenset[str]], names: LabelNamesById) -> None:
        """Bring the archive from the names that were on record to `names`, which are all that are in use."""


class LabelNames:
    """Lists the labels once, and again when an unknown id turns up. Renamed labels are found by `refresh`.

    Without a `keeper`, nothing is recorded: a new name takes effect with the next `refresh`.
    """

    def __init__(self, mailbox: Mailbox, keeper: LabelNameKeeper | None = None) -> None:
        self._mailbox = mailbox
        self._keeper = keeper
        self._names: dict[str, str] = {}
        self._unlisted: set[str] = set()
        self._asking = asyncio.Lock()

    async def prepare(self) -> None:
        """List the labels now, so that the first message need not wait for them behind other calls."""
        async with self._asking:
            if not self._names:
                await self._learn()

    async def names(self, label_ids: Iterable[str]) -> frozenset[str]:
        """The names of these labels. An id that the mailbox does not list is left out: its label was deleted."""
        wanted = frozenset(label_ids)
        if not wanted <= self._seen:
            async with self._asking:
                if not wanted <= self._seen:
                    await self._learn()
                    self._unlisted |= wanted - self._names.keys()
        return frozenset(self._names[each] for each in wanted if each in self._names)

    async def refresh(self) -> LabelNamesById:
        """List all labels and let the keeper follow. Never call it while storing mail: the keeper waits for that."""
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
        """Add new labels only: a renamed label keeps its name in the archive until `refresh`."""
        listed = await self._list()
        new = {label_id: name for label_id, name in listed.items() if label_id not in self._names}
        if self._keeper and new:
            await self._keeper.record(new)
        self._names |= new

    async def _list(self) -> dict[str, str]:
        return {label.id: label.name for label in await self._mailbox.labels()}

    @property
    def _seen(self) -> set[str]:
        return self._names.keys() | self._unlisted
