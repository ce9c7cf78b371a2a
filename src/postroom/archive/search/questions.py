"""What an archive must answer to be searched: one query at a time, newest first or best first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from postroom.archive.model import ArchivedMessage
from postroom.archive.search.model import Hit, ShardProblem
from postroom.mail.query.nodes import Node

TimeLeft = Callable[[], float]
"""The seconds until a query is given up."""


class Question(Protocol):
    """One query."""

    @property
    def problems(self) -> tuple[ShardProblem, ...]:
        """What could not be asked so far."""

    def newest(self, limit: int, token: str | None) -> tuple[tuple[Hit, ...], str | None]:
        """The newest after the token, and the token of the next page."""

    def best(self, limit: int, token: str | None) -> tuple[tuple[Hit, ...], str | None]: ...

    def count(self, limit: int | None) -> tuple[int, bool]:
        """How many there are, at most so many, and whether that is all."""

    def message(self, key: str) -> ArchivedMessage | None: ...

    def thread(self, thread_id: str, newest: int | None, before: int | None) -> tuple[ArchivedMessage, ...]: ...


class Questions(Protocol):
    def ask(self, node: Node, accounts: Sequence[str] | None, time_left: TimeLeft) -> Question: ...

    def accounts(self) -> list[str]:
        """Whose mail can be searched."""

    def close(self) -> None: ...
