"""Answers searches from the shards, asked in turn.

Newest first, shards are visited by year and only until the page is full. Shards of the same year (its parts, several
accounts) are merged by row id, which follows the date.
"""

from __future__ import annotations

import json
import os
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path
from typing import TypeVar

from postroom.archive.conversations.forest import ConversationMembers
from postroom.archive.folding import (
    fold,
    labels_in,
    leaves_of,
    segmented,
    without_attachment_text,
    without_conversations,
)
from postroom.archive.messages import LARGEST_ID, ArchivedMessage, ShardName, parse_filename, year_of
from postroom.archive.search import (
    MOST_RANKED,
    AfterMessage,
    AfterRank,
    FoundRow,
    Search,
    SearchHit,
    ShardProblem,
    Snippet,
    TimeLeft,
    after_message,
    after_rank,
)
from postroom.archive.shards import selecting
from postroom.archive.shards.attachment_texts import texts_in
from postroom.archive.shards.conversations import asked_index
from postroom.archive.shards.ranking import count_phrases, matched_in, word_counts, words_beginning
from postroom.archive.shards.reader import MESSAGE_COLUMNS
from postroom.archive.shards.search_reader import SearchReader, ShardFolder, Shards
from postroom.archive.shards.selecting import SearchPlans, Select, ShardPlan, Statement
from postroom.archive.shards.shard_file import ATTACHMENT_TEXTS_SINCE, SEGMENTED_SINCE
from postroom.archive.snippets import (
    AttachmentPhrases,
    Phrases,
    attachment_snippets,
    shown,
    shown_of_attachments,
    snippet,
)
from postroom.archive.words.ranking import MatchedWords, PhraseCounts, RankedPhrase, best_first, phrases_of
from postroom.domain.clock import Clock
from postroom.domain.errors import Fatal, Retryable
from postroom.mail.query import span
from postroom.mail.query.nodes import HasConversation, HasUserLabel, InConversation, Node, Size

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MS = 253_402_300_799_999  # the end of the year 9999

T = TypeVar("T")
Found = tuple[ShardName, int]
"""A message that the query found: its shard and row id."""


class ShardQuestions:
    """Everything that can be asked of these shards."""

    def __init__(self, shards: Shards, root: Path) -> None:
        self._shards = shards
        self._root = root
        self._plans = SearchPlans()
        self._threads = ThreadPoolExecutor(min(8, os.cpu_count() or 1), thread_name_prefix="search")

    def ask(self, node: Node, accounts: Sequence[str] | None, time_left: TimeLeft) -> ShardQuestion:
        return ShardQuestion(self._shards, self._threads, node, accounts, lambda: time_left() < 0, self._plans)

    def accounts(self) -> list[str]:
        return sorted({name.account for name in self._shards.names(None)})

    def conversation_named(self, name: str) -> str | None:
        return asked_index(self._root, lambda forest: forest.named(name), None)

    def conversations_of(self, messages: Sequence[ArchivedMessage]) -> list[str | None]:
        places = [(each.shard, each.row_id) for each in messages]
        unknown: list[str | None] = [None] * len(messages)
        return asked_index(self._root, lambda forest: forest.conversations_of(places), unknown)

    def members(self, conversations: Sequence[str], accounts: Sequence[str] | None) -> ConversationMembers:
        nothing = ConversationMembers((), ())
        return asked_index(self._root, lambda forest: forest.members(conversations, accounts), nothing)

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
        plans: SearchPlans,
    ) -> None:
        self._shards = shards
        self._is_late = is_late
        self._threads = threads
        self._node = node
        self._names = _within(node, shards.names(accounts))
        self._labels = tuple(dict.fromkeys(labels_in(node)))
        leaves = tuple(leaves_of(node))
        self._asks_user_labels = any(isinstance(leaf, HasUserLabel) for leaf in leaves)
        self._larger = {leaf.over for leaf in leaves if isinstance(leaf, Size) and leaf.over}
        self._asks_conversations = any(isinstance(leaf, InConversation | HasConversation) for leaf in leaves)
        self._plans = plans
        self._problems: dict[ShardName, str] = {}
        self._lock = threading.Lock()

    @property
    def problems(self) -> tuple[ShardProblem, ...]:
        return tuple(ShardProblem(str(name), problem) for name, problem in sorted(self._problems.items()))

    def newest(self, limit: int, token: str | None) -> tuple[tuple[SearchHit, ...], str | None]:
        """The newest after the token, and the token of the next page."""
        after = after_message(token) if token else None
        found: list[Found] = []
        has_few = False
        names_left = [name for name in self._names if after is None or name.year <= after.shard.year]
        for _, names in groupby(sorted(names_left, key=_year, reverse=True), key=_year):
            room = limit + 1 - len(found)
            if room <= 0:
                break
            here = [(name, id) for name in names for id in self._newest_in(name, room, after, has_few=has_few)]
            found += sorted(here, key=lambda one: (-one[1], one[0]))[:room]
            has_few = len(here) * 2 < room  # and so has the year before, probably
        page = found[:limit]
        return self._read(page), AfterMessage(*page[-1]).encoded() if len(found) > limit else None

    def newer(self, limit: int, token: str) -> tuple[SearchHit, ...]:
        """Like `newest`, the other way round: years upwards, until there are enough."""
        place = after_message(token)
        found: list[Found] = []
        for _, names in groupby(sorted(self._names, key=_year), key=_year):
            room = limit - len(found)
            if room <= 0:
                break
            here = [(name, id) for name in names for id in self._newer_in(name, room, place)]
            found += sorted(sorted(here, key=lambda one: one[0], reverse=True), key=lambda one: one[1])[:room]
        return self._read(found[::-1])

    def token_at(self, message: ArchivedMessage) -> str:
        account, _, filename = message.shard.rpartition("/")
        name = parse_filename(account, filename)
        if name is None:
            raise Fatal(f"{message.shard} is not the name of a shard.")
        return AfterMessage(name, message.row_id).encoded()

    def labels(self) -> list[str]:
        found = [self._ask(name, lambda reader: reader.labels().of_the_user) or () for name in self._names]
        return sorted({label for labels in found for label in labels}, key=str.casefold)

    def best(self, limit: int, token: str | None) -> tuple[tuple[SearchHit, ...], str | None]:
        """The candidates are the best of each shard by its own reckoning; all of them together are put in order."""
        start = after_rank(token).rank if token else 0
        end = min(start + limit, MOST_RANKED)
        ranked = self._ranked(end + 1)
        following = AfterRank(end).encoded() if len(ranked) > end and end < MOST_RANKED else None
        return self._read(ranked[start:end]), following

    def _ranked(self, most: int) -> list[Found]:
        """The candidates are the best of each shard by its own reckoning; all of them together are put in order."""
        phrases = phrases_of(self._node)
        picked = MOST_RANKED + 1 if phrases else most
        answers = self._ask_all(lambda reader: (reader.name, self._best_in(reader, picked)))
        candidates = sorted((score, -id, name) for name, scores in answers for id, score in scores.items())[:picked]
        ranked = [(name, -id) for _, id, name in sorted(candidates, key=lambda one: one[1:])]
        if phrases:
            ranked = best_first(self._matched(phrases, ranked), self._counted(phrases), ranked)
        return ranked[:most]

    def ranked(self, most: int) -> list[FoundRow]:
        return [FoundRow(name.account, name.year, name.part, id) for name, id in self._ranked(most)]

    def among(self, rows: Sequence[FoundRow]) -> set[FoundRow]:
        by_shard: defaultdict[ShardName, list[int]] = defaultdict(list)
        for row in rows:
            by_shard[_shard_of(row)].append(row.row_id)
        found: set[FoundRow] = set()
        for name in by_shard.keys() & set(self._names):
            matching = self._ask(name, partial(self._among_in, ids=by_shard[name])) or ()
            found |= {FoundRow(name.account, name.year, name.part, id) for id in matching}
        return found

    def hits(self, rows: Sequence[FoundRow]) -> tuple[SearchHit, ...]:
        return self._read([(_shard_of(row), row.row_id) for row in rows])

    def _matched(self, phrases: Sequence[RankedPhrase], found: Sequence[Found]) -> dict[Found, MatchedWords]:
        matched: dict[Found, MatchedWords] = {}
        for name, ids in _by_shard(found).items():
            here = self._ask(name, partial(matched_in, phrases=phrases, row_ids=ids)) or {}
            matched |= {(name, id): each for id, each in here.items()}
        return matched

    def _counted(self, phrases: Sequence[RankedPhrase]) -> PhraseCounts:
        """A single phrase says the same of every message, however rare it is."""
        if len(phrases) == 1:
            return PhraseCounts(1, (0,))
        counts = self._ask_all(partial(count_phrases, phrases=phrases))
        return PhraseCounts(
            sum(each.messages for each in counts),
            tuple(map(sum, zip(*(each.with_phrase for each in counts), strict=True))) or (0,) * len(phrases),
        )

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

    def word_counts(self, words: Sequence[str]) -> dict[str, int]:
        wanted = frozenset(words)
        return self._added_up(lambda reader: word_counts(reader, wanted))

    def words_like(self, beginning: str, shortest: int, longest: int) -> dict[str, int]:
        return self._added_up(lambda reader: words_beginning(reader, beginning, shortest, longest))

    def _added_up(self, ask: Callable[[SearchReader], dict[str, int]]) -> dict[str, int]:
        counts = Counter[str]()
        for answer in self._ask_all(ask):
            counts.update(answer)
        return dict(counts)

    def thread(self, thread_id: str, newest: int | None, before: int | None) -> tuple[ArchivedMessage, ...]:
        sql = f"SELECT {MESSAGE_COLUMNS} FROM messages WHERE thread_id = ? AND id < ? ORDER BY id DESC LIMIT ?"
        values = (thread_id, LARGEST_ID if before is None else before, -1 if newest is None else newest)
        answers = self._ask_all(lambda reader: [reader.read_row(row) for row in reader.query(sql, values)])
        messages = [message for answer in answers for message in answer]
        latest = sorted(messages, key=lambda message: message.row_id, reverse=True)[:newest]
        return tuple(sorted(latest, key=lambda message: (message.date, message.row_id, message.shard)))

    def at(self, places: Sequence[tuple[str, int]]) -> tuple[ArchivedMessage, ...]:
        by_shard: dict[str, list[int]] = {}
        for place, row_id in places:
            by_shard.setdefault(place, []).append(row_id)
        found: list[ArchivedMessage] = []
        for name in self._names:
            if (ids := by_shard.get(str(name))) is not None:
                found += (self._ask(name, partial(_messages_in, row_ids=ids)) or {}).values()
        return tuple(found)

    def threads(self, thread_ids: Sequence[str], newest: int) -> tuple[ArchivedMessage, ...]:
        marks = ", ".join("?" * len(thread_ids))
        ids = f"SELECT id FROM messages WHERE thread_id IN ({marks}) ORDER BY id DESC LIMIT ?"  # from the index alone
        sql = f"SELECT {MESSAGE_COLUMNS} FROM messages WHERE id IN ({ids})"
        values = (*thread_ids, newest)
        answers = self._ask_all(lambda reader: [reader.read_row(row) for row in reader.query(sql, values)])
        messages = [message for answer in answers for message in answer]
        return tuple(sorted(messages, key=lambda message: message.row_id, reverse=True)[:newest])

    def _read(self, found: Sequence[Found]) -> tuple[SearchHit, ...]:
        """The messages themselves, in the order in which they were found."""
        hits: dict[Found, SearchHit] = {}
        for name, ids in _by_shard(found).items():
            hits |= self._ask(name, partial(self._hits_in, ids=ids)) or {}
        return tuple(hits[one] for one in found if one in hits)

    def _newest_in(self, name: ShardName, limit: int, after: AfterMessage | None, *, has_few: bool) -> list[int]:
        """`has_few`: the shard probably has fewer than the limit. To go through all of them is quicker upwards, because
        the lists of the full-text index are written that way."""
        below = after.below(name) if after is not None and name.year == after.shard.year else None

        def ask(reader: SearchReader) -> list[int]:
            plan = self._plan(reader)
            if has_few and below is None:
                ids = _ids(reader, plan.oldest(), limit)
                if len(ids) < limit:
                    return sorted(ids, reverse=True)
            return sorted(_ids(reader, plan.newest(below), limit), reverse=True)[:limit]

        return self._ask(name, ask) or []

    def _newer_in(self, name: ShardName, limit: int, place: AfterMessage) -> list[int]:
        if name.year < place.shard.year:
            return []
        lowest = place.above(name) if name.year == place.shard.year else 0

        def ask(reader: SearchReader) -> list[int]:
            return sorted(_ids(reader, self._plan(reader).oldest(lowest), limit))[:limit]

        return self._ask(name, ask) or []

    def _best_in(self, reader: SearchReader, limit: int) -> dict[int, float]:
        scores: dict[int, float] = {}
        for statement in (select.best(limit) for select in self._plan(reader, by_text=True).selects):
            for id, score in reader.query(statement.sql, statement.values):
                scores[id] = min(score, scores.get(id, 0.0))
        return scores

    def _among_in(self, reader: SearchReader, ids: Sequence[int]) -> list[int]:
        labels = reader.labels()
        node = self._answerable(reader)
        statement = selecting.among(fold(node, labels), labels, ids)
        return [id for (id,) in reader.query(statement.sql, statement.values)]

    def _count_in(self, reader: SearchReader, limit: int | None) -> int:
        parts = self._plan(reader).selects
        statement = selecting.count(parts, limit)
        return int(reader.query(statement.sql, statement.values)[0][0]) if parts else 0

    def _hits_in(self, reader: SearchReader, ids: Sequence[int]) -> dict[Found, SearchHit]:
        phrases, column, attached = self._shown
        text = f"(SELECT {column} FROM texts WHERE texts.id = messages.id)"
        sql = f"SELECT {text}, {MESSAGE_COLUMNS} FROM messages WHERE id IN (SELECT value FROM json_each(?))"
        rows = reader.query(sql, (json.dumps(ids),))
        around = {row[1]: Snippet("") if row[0] is None else snippet(row[0], phrases) for row in rows}
        if attached is not None:
            around |= attachment_snippets(texts_in(reader, attached.ids(around)), attached)
        return {(reader.name, row[1]): SearchHit(reader.read_row(row[1:]), around[row[1]]) for row in rows}

    @cached_property
    def _shown(self) -> tuple[Phrases, str, AttachmentPhrases | None]:
        """What snippets show: of a body, how much of it that takes, and of attachments."""
        return *shown(self._node), shown_of_attachments(self._node)

    def _plan(self, reader: SearchReader, *, by_text: bool = False) -> ShardPlan:
        labels = reader.labels()
        label_facts = labels.as_seen_by(self._labels, users=self._asks_user_labels)
        with_index = self._asks_conversations and reader.has_conversations()
        sizes = reader.indexes_of(self._larger) if self._larger else ()

        def make() -> list[Select]:
            return selecting.selects(fold(self._answerable(reader), labels), labels, sizes, by_text=by_text)

        return self._plans.get((self._node, label_facts, sizes, by_text, reader.seen_version, with_index), make)

    def _answerable(self, reader: SearchReader) -> Node:
        """The query as this shard, and the index of conversations as it is, can answer it."""
        lacks_index = self._asks_conversations and not reader.has_conversations()
        return as_indexed(without_conversations(self._node) if lacks_index else self._node, reader.seen_version)

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


def _ids(reader: SearchReader, statements: Sequence[Statement], limit: int) -> set[int]:
    """Of each statement no more than the limit."""
    return {id for one in statements for (id,) in reader.query(one.sql, (*one.values, limit))}


def _messages_in(reader: SearchReader, row_ids: Sequence[int]) -> dict[int, ArchivedMessage]:
    return reader.messages(row_ids)


def _shard_of(row: FoundRow) -> ShardName:
    return ShardName(row.account, row.year, row.part)


def _by_shard(found: Sequence[Found]) -> dict[ShardName, list[int]]:
    by_shard: dict[ShardName, list[int]] = {}
    for name, id in found:
        by_shard.setdefault(name, []).append(id)
    return by_shard


def as_indexed(node: Node, version: int) -> Node:
    """The query as the index of a shard of this version can answer it."""
    if version < ATTACHMENT_TEXTS_SINCE:
        return without_attachment_text(node)
    return segmented(node) if version >= SEGMENTED_SINCE else node


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


def search_shards(root: Path, clock: Clock | None = None, patience_s: float = 30.0) -> Search:
    """A search over the shards below a folder, and over the conversations and vectors beside them."""
    return Search(ShardQuestions(ShardFolder(root), root), clock, patience_s, root)
