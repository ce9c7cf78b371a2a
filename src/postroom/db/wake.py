"""Tells waiting workers, in this process and in others, that something of interest was committed.

A wake-up is a hint: it may be lost with a crash or a broken connection, so every waiter also looks by itself now and
then. It carries one of a few topics and no data.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager
from enum import StrEnum


class Topic(StrEnum):
    """What happened. The value is one character, because it travels through a pipe."""

    WORK = "w"
    CANCEL = "c"


class Wakeups:
    """One listener's mailbox: the topics that came since it last looked."""

    def __init__(self) -> None:
        self._topics: set[Topic] = set()
        self._arrived = asyncio.Event()

    def put(self, topic: str) -> None:
        """A topic that is not known comes from a newer Postroom and means nothing here."""
        if topic in set(Topic):
            self._topics.add(Topic(topic))
            self._arrived.set()

    async def wait(self) -> None:
        await self._arrived.wait()

    def take(self) -> set[Topic]:
        topics, self._topics = self._topics, set()
        self._arrived.clear()
        return topics


class Wake(ABC):
    @abstractmethod
    async def send(self, topic: Topic) -> None:
        """Wake every listener. Call it after the commit, never inside the transaction."""

    @abstractmethod
    def listen(self) -> AbstractAsyncContextManager[Wakeups]:
        """Receive wake-ups for as long as the block lasts."""

    @abstractmethod
    async def close(self) -> None: ...
