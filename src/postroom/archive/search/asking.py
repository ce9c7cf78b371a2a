"""One query, asked of many shards.

Newest first, the shards are visited by year and only until the page is full: ids follow dates, so that everything in a
later year comes first. Shards of the same year (parts of it, several accounts) are merged by id.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import groupby
from typing import TypeVar

from postroom.archive.layout import ShardName, year_of
from postroom.archive.model import ArchivedMessage
from postroom.archive.reading import MESSAGE_COLUMNS
from postroom.archive.search import selecting
from postroom.archive.search.folding import fold, labels_in
from postroom.archive.search.model import Hit, ShardProblem, Snippet
from postroom.archive.search.paging import MOST_RANKED, AfterMessage, AfterRank, after_message, after_rank
from postroom.archive.search.questions import TimeLeft
from postroom.archive.search.selecting import Select
from postroom.archive.search.shards import SearchReader, Shards
from postroom.archive.search.snippets import snippets
from postroom.domain.errors import Fatal, Retryable
from postroom.mail.query import span
from postroom.mail.query.nodes import Node

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LARGEST_ID = (1 << 63) - 1
_LAST_MS = 253_402_300_799_999  # the end of the year 9999

T = TypeVar("T")
Found = tuple[ShardName, int]
"""A message that the query found: its shard and row id."""


class ShardQuestions:
    """Everything that can be asked of these shards."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._threads = ThreadPoolExecutor(min(8, os.cpu_count() or 1), thread_name_prefix="search")

    def ask(self, node: Node, accounts: Sequence[str] | None, time_left: TimeLeft) -> ShardQuestion:
        return ShardQuestion(self._shards, self._threads, node, accounts, is_late=lambda: time_left() < 0)

    def accounts(self) -> list[str]:
        return sorted({name.account for name in self._shards.names(None)})

    def close(self) -> None:
        self._threads.shutdown()
        self._shards.close()


class ShardQuestion:
    def __init__(
        self,
        shards: Shards,
        threads: Executor,
        node: Node,
        accounts: Sequence[str] | None,
        is_late: Callable[[], bool],
    ) -> None:
        self._shards = shards
        self._is_late = is_late
        self._threads = threads
        self._node = node
        self._names = _within(node, shards.names(accounts))
        self._labels = tuple(dict.fromkeys(labels_in(node)))
        self._plans: dict[Hashable, list[Select]] = {}
        self._problems: dict[ShardName, str] = {}
        self._lock = threading.Lock()

    @property
    def problems(self) -> tuple[ShardProblem, ...]:
        return tuple(ShardProblem(str(name), problem) for name, problem in sorted(self._problems.items()))

    def newest(self, limit: int, token: str | None) -> tuple[tuple[Hit, ...], str | None]:
        """The newest after the token, and the token of the next page."""
        after = after_message(token) if token else None
        found: list[Found] = []
        for _, names in groupby(sorted(self._names, key=_year, reverse=True), key=_year):
            room = limit + 1 - len(found)
            if room <= 0:
                break
            here = [(name, id) for name in names for id in self._newest_in(name, room, after)]
            found += sorted(here, key=lambda one: (-one[1], one[0]))[:room]
        page = found[:limit]
        return self._read(page), AfterMessage(*page[-1]).encoded() if len(found) > limit else None

    def best(self, limit: int, token: str | None) -> tuple[tuple[Hit, ...], str | None]:
        """The best of all shards; how good a message is depends on the others in its shard."""
        start = after_rank(token).rank if token else 0
        end = min(start + limit, MOST_RANKED)
        answers = self._ask_all(lambda reader: (reader.name, self._best_in(reader, end + 1)))
        ranked = sorted((score, -id, name) for name, scores in answers for id, score in scores.items())
        page = [(name, -id) for _, id, name in ranked[start:end]]
        return self._read(page), AfterRank(end).encoded() if len(ranked) > end and end < MOST_RANKED else None

    def count(self, limit: int | None) -> tuple[int, bool]:
        if limit is None:
            return sum(self._ask_all(partial(self._count_in, limit=None))), True
        total = 0
        for name in self._names:
            total += self._ask(name, partial(self._count_in, limit=limit + 1 - total)) or 0
            if total > limit:
                return limit, False
        return total, True

    def message(self, key: str) -> ArchivedMessage | None:
        """The newest shards are asked first: most mail that is asked for is new."""
        for name in sorted(self._names, key=_year, reverse=True):
            if (found := self._ask(name, lambda reader: reader.message(key))) is not None:
                return found
        return None

    def thread(self, thread_id: str, newest: int | None, before: int | None) -> tuple[ArchivedMessage, ...]:
        sql = f"SELECT {MESSAGE_COLUMNS} FROM messages WHERE thread_id = ? AND id < ? ORDER BY id DESC LIMIT ?"
        values = (thread_id, _LARGEST_ID if before is None else before, -1 if newest is None else newest)
        answers = self._ask_all(lambda reader: [reader.read_row(row) for row in reader.query(sql, values)])
        messages = [message for answer in answers for message in answer]
        latest = sorted(messages, key=lambda message: message.row_id, reverse=True)[:newest]
        return tuple(sorted(latest, key=lambda message: (message.date, message.row_id, message.shard)))

    def _read(self, found: Sequence[Found]) -> tuple[Hit, ...]:
        """The messages themselves, in the order in which they were found."""
        by_shard: dict[ShardName, list[int]] = {}
        for name, id in found:
            by_shard.setdefault(name, []).append(id)
        hits: dict[Found, Hit] = {}
        for name, ids in by_shard.items():
            hits |= self._ask(name, partial(self._hits_in, ids=ids)) or {}
        return tuple(hits[one] for one in found if one in hits)

    def _newest_in(self, name: ShardName, limit: int, after: AfterMessage | None) -> list[int]:
        if after is not None and name.year > after.shard.year:
            return []
        below = after.below(name) if after is not None and name.year == after.shard.year else None

        def ask(reader: SearchReader) -> list[int]:
            parts = [select.newest(limit, below) for select in self._selects(reader)]
            ids = {id for part in parts for (id,) in reader.query(part.sql, part.values)}
            return sorted(ids, reverse=True)[:limit]

        return self._ask(name, ask) or []

    def _best_in(self, reader: SearchReader, limit: int) -> dict[int, float]:
        scores: dict[int, float] = {}
        for statement in (select.best(limit) for select in self._selects(reader, by_text=True)):
            for id, score in reader.query(statement.sql, statement.values):
                scores[id] = min(score, scores.get(id, 0.0))
        return scores

    def _count_in(self, reader: SearchReader, limit: int | None) -> int:
        parts = self._selects(reader)
        statement = selecting.count(parts, limit)
        return int(reader.query(statement.sql, statement.values)[0][0]) if parts else 0

    def _hits_in(self, reader: SearchReader, ids: Sequence[int]) -> dict[Found, Hit]:
        marks = ", ".join("?" * len(ids))
        rows = reader.query(f"SELECT {MESSAGE_COLUMNS} FROM messages WHERE id IN ({marks})", tuple(ids))
        around = snippets(reader, self._node, ids)
        messages = [reader.read_row(row) for row in rows]
        return {(reader.name, m.row_id): Hit(m, around.get(m.row_id, Snippet(""))) for m in messages}

    def _selects(self, reader: SearchReader, *, by_text: bool = False) -> list[Select]:
        """One plan serves all shards that look the same to this query, and most do."""
        labels = reader.labels()
        seen = (labels.as_seen_by(self._labels), by_text)
        if seen not in self._plans:
            self._plans[seen] = selecting.selects(fold(self._node, labels), labels, by_text=by_text)
        return self._plans[seen]

    def _ask_all(self, ask: Callable[[SearchReader], T]) -> list[T]:
        """All shards at once, each on a thread of its own."""
        answers: Iterable[T | None] = self._threads.map(lambda name: self._ask(name, ask), self._names)
        return [answer for answer in answers if answer is not None]

    def _ask(self, name: ShardName, ask: Callable[[SearchReader], T]) -> T | None:
        """None if the shard cannot be read: the answer then says so, and is complete but for that shard."""
        try:
            with self._shards.reader(name) as reader:
                reader.give_up_when(self._is_late)
                return ask(reader)
        except (Fatal, Retryable) as error:
            with self._lock:
                self._problems[name] = error.message
            return None


def _year(name: ShardName) -> int:
    return name.year


def _within(node: Node, names: Sequence[ShardName]) -> list[ShardName]:
    """The shards whose year the query's dates touch."""
    start, end = span(node)
    first = _year_at(start) if start is not None else 0
    last = _year_at(end - 1) if end is not None else 9999
    return [name for name in names if first <= name.year <= last]


def _year_at(milliseconds: int) -> int:
    return year_of(_EPOCH + timedelta(milliseconds=min(max(milliseconds, 0), _LAST_MS)))
