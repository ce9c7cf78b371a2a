"""Search over an archive: parses a query, asks the shards in turn, returns a page.

Newest first, shards are visited by year and only until the page is full. Shards of the same year (its parts, several
accounts) are merged by row id, which follows the date.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TypeVar

from postroom.archive.layout import ShardName, year_of
from postroom.archive.messages import ArchivedMessage
from postroom.archive.search import selecting
from postroom.archive.search.answers import (
    MOST_RANKED,
    AfterMessage,
    AfterRank,
    ArchivedThread,
    SearchCount,
    SearchHit,
    SearchPage,
    SearchQuestion,
    SearchQuestions,
    ShardProblem,
    Snippet,
    Sort,
    TimeLeft,
    after_message,
    after_rank,
)
from postroom.archive.search.folding import fold, labels_in, without_spam_and_trash
from postroom.archive.search.readers import SearchReader, ShardFolder, Shards
from postroom.archive.search.selecting import Select
from postroom.archive.search.snippets import snippets
from postroom.archive.shards.reader import MESSAGE_COLUMNS
from postroom.domain.clock import Clock, SystemClock
from postroom.domain.errors import BadInput, Fatal, Retryable
from postroom.mail.query import parse, span
from postroom.mail.query.nodes import EVERYTHING, Node

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

    def newest(self, limit: int, token: str | None) -> tuple[tuple[SearchHit, ...], str | None]:
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

    def best(self, limit: int, token: str | None) -> tuple[tuple[SearchHit, ...], str | None]:
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

    def _read(self, found: Sequence[Found]) -> tuple[SearchHit, ...]:
        """The messages themselves, in the order in which they were found."""
        by_shard: dict[ShardName, list[int]] = {}
        for name, id in found:
            by_shard.setdefault(name, []).append(id)
        hits: dict[Found, SearchHit] = {}
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

    def _hits_in(self, reader: SearchReader, ids: Sequence[int]) -> dict[Found, SearchHit]:
        marks = ", ".join("?" * len(ids))
        rows = reader.query(f"SELECT {MESSAGE_COLUMNS} FROM messages WHERE id IN ({marks})", tuple(ids))
        around = snippets(reader, self._node, ids)
        messages = [reader.read_row(row) for row in rows]
        return {(reader.name, m.row_id): SearchHit(m, around.get(m.row_id, Snippet(""))) for m in messages}

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


MOST_HITS = 500


class Search:
    """Safe to use from several threads. Readers never wait for writers, nor writers for them.

    A shard that cannot be read is named in the answer's `problems` and does not spoil the rest.
    """

    def __init__(self, archive: Path | SearchQuestions, clock: Clock | None = None, patience_s: float = 30.0) -> None:
        """A path is the folder of the shards. A query that takes longer than `patience_s` is given up."""
        self._archive: SearchQuestions = ShardQuestions(ShardFolder(archive)) if isinstance(archive, Path) else archive
        self._clock = clock or SystemClock()
        self._patience_s = patience_s

    def search(
        self,
        query: str,
        *,
        accounts: Sequence[str] | None = None,
        limit: int = 20,
        sort: Sort | str = Sort.DATE,
        after: str | None = None,
    ) -> SearchPage:
        """A page of what matches. `after` is the `next` of the page before."""
        if not 1 <= limit <= MOST_HITS:
            raise BadInput("limit", f"{limit} is not between 1 and {MOST_HITS}")
        ask = self._ask(query, accounts)
        hits, following = ask.best(limit, after) if _sort(sort) is Sort.RANK else ask.newest(limit, after)
        return SearchPage(hits, following, ask.problems)

    def count(self, query: str, *, accounts: Sequence[str] | None = None, limit: int | None = None) -> SearchCount:
        """How many messages match; with a limit, counting stops there."""
        if limit is not None and limit < 1:
            raise BadInput("limit", f"{limit} is less than 1")
        ask = self._ask(query, accounts)
        messages, is_exact = ask.count(limit)
        return SearchCount(messages, is_exact, ask.problems)

    def message(self, account: str, key: str) -> ArchivedMessage | None:
        """One message by its key; None if the archive does not have it."""
        ask = self._question(EVERYTHING, [account])
        found = ask.message(key)
        if found is None and ask.problems:
            first = ask.problems[0]
            raise Fatal(f"The message may be in {first.shard}, which cannot be read: {first.problem}")
        return found

    def thread(
        self, account: str, thread_id: str, *, newest: int | None = None, before: int | None = None
    ) -> ArchivedThread:
        """All messages of a thread, whichever shards they are in, spam and trash too.

        Of a very long one, only the newest so many, and only those before a row id.
        """
        ask = self._question(EVERYTHING, [account])
        messages = ask.thread(thread_id, newest, before)
        return ArchivedThread(messages, ask.problems)

    def accounts(self) -> list[str]:
        """Whose mail can be searched."""
        return self._archive.accounts()

    def close(self) -> None:
        self._archive.close()

    def __enter__(self) -> Search:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _ask(self, query: str, accounts: Sequence[str] | None) -> SearchQuestion:
        readable = query.encode("utf-8", "replace").decode()  # half a character can be in no mail, nor in a database
        node = parse(readable, int(self._clock.now().timestamp() * 1_000), strict=True)
        return self._question(without_spam_and_trash(node), accounts)

    def _question(self, node: Node, accounts: Sequence[str] | None) -> SearchQuestion:
        deadline = self._clock.monotonic() + self._patience_s
        return self._archive.ask(node, accounts, lambda: deadline - self._clock.monotonic())


def _sort(sort: Sort | str) -> Sort:
    try:
        return Sort(sort)
    except ValueError:
        raise BadInput("sort", f"{sort!r} is not one of {', '.join(Sort)}") from None
