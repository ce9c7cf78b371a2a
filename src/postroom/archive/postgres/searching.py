"""Search over the archive in PostgreSQL: the same questions as to the shards, and the same answers.

Newest first, the newest hundred messages are looked at one by one, and then the others: what is common is found at
once, and for the rest the server knows how rare each word is, and sorts what the index finds or goes back by date.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from postroom.archive.layout import account_name
from postroom.archive.model import ArchivedMessage
from postroom.archive.postgres.conditions import Condition, Conditions, joined, wanted_words
from postroom.archive.postgres.connections import Connections, Rows, Session, sayable
from postroom.archive.postgres.paging import AfterRow, after_row
from postroom.archive.postgres.reading import COLUMNS, DatabaseReader, read_row
from postroom.archive.search.folding import fold
from postroom.archive.search.labels import LabelIndex
from postroom.archive.search.model import Hit, ShardProblem
from postroom.archive.search.paging import MOST_RANKED, AfterRank, after_rank
from postroom.archive.search.questions import TimeLeft
from postroom.archive.search.snippets import shown, snippet
from postroom.domain.errors import BadInput
from postroom.mail.query.nodes import And, Labelled, MessageId, Node

_WEIGHTS = "'{0.2, 0.4, 0.6, 1.0}'"  # body and the rest, recipients and file names, sender, subject
_RARE = 256
_FIRST = 100
"""So many of the newest messages are looked at before the others."""
_STEP = (
    "SELECT id FROM archive.entries WHERE account = ANY(ARRAY(SELECT account FROM archive.accounts WHERE %s OR "
    "email = ANY(%s))) AND id < %s ORDER BY id DESC OFFSET %s LIMIT 1"
)
_LABELS = (
    "SELECT a.account, a.email, l.label, l.name FROM archive.accounts a LEFT JOIN archive.labels l USING (account) "
    "WHERE %s OR a.email = ANY(%s)"
)

Found = tuple[int, int]
"""A message that the query found: its account and row id."""
_LARGEST_ID = (1 << 63) - 1


class DatabaseQuestions:
    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def ask(self, node: Node, accounts: Sequence[str] | None, time_left: TimeLeft) -> DatabaseQuestion:
        names = None if accounts is None else sorted({account_name(account) for account in accounts})
        return DatabaseQuestion(self._connections, node, names, time_left)

    def accounts(self) -> list[str]:
        return DatabaseReader(self._connections).accounts()

    def close(self) -> None:
        """The connections are the archive's, and stay."""


class DatabaseQuestion:
    def __init__(
        self, connections: Connections, node: Node, accounts: Sequence[str] | None, time_left: TimeLeft
    ) -> None:
        self._connections = connections
        self._node = node
        self._names = accounts
        self._time_left = time_left
        self.problems: tuple[ShardProblem, ...] = ()

    def newest(self, limit: int, token: str | None) -> tuple[tuple[Hit, ...], str | None]:
        after = after_row(token) if token else None
        with self._connections.session() as session:
            asked = _Asked(session, self._node, self._names, self._time_left, after)
            found = asked.newest(limit + 1)
            hits = self._hits(asked, found[:limit])
        return hits, asked.place(found[limit - 1]).encoded() if len(found) > limit else None

    def best(self, limit: int, token: str | None) -> tuple[tuple[Hit, ...], str | None]:
        start = after_rank(token).rank if token else 0
        end = min(start + limit, MOST_RANKED)
        with self._connections.session() as session:
            asked = _Asked(session, self._node, self._names, self._time_left)
            found = asked.best(end + 1)
            hits = self._hits(asked, found[start:end])
        return hits, AfterRank(end).encoded() if len(found) > end and end < MOST_RANKED else None

    def count(self, limit: int | None) -> tuple[int, bool]:
        with self._connections.session() as session:
            counted = _Asked(session, self._node, self._names, self._time_left).count(limit)
        return (counted, True) if limit is None or counted <= limit else (limit, False)

    def message(self, key: str) -> ArchivedMessage | None:
        return next(iter(self._registered("r.key = ANY(%s)", (sayable([key]),), None)), None)

    def thread(self, thread_id: str, newest: int | None, before: int | None) -> tuple[ArchivedMessage, ...]:
        bound = _LARGEST_ID if before is None else before
        messages = self._registered("r.thread_id = ANY(%s) AND r.id < %s", (sayable([thread_id]), bound), newest)
        return tuple(sorted(messages, key=lambda message: (message.date, message.row_id, message.shard)))

    def _hits(self, asked: _Asked, found: Sequence[Found]) -> tuple[Hit, ...]:
        """A message that the index knows and the archive has lost is told of, and does not spoil the rest."""
        hits = asked.hits(found)
        if len(hits) < len(found):
            detail = f"{len(found) - len(hits)} messages are in the index and nowhere else; run `postroom verify`."
            self.problems = (ShardProblem("archive.messages", detail),)
        return hits

    def _registered(self, condition: str, values: Sequence[Any], newest: int | None) -> list[ArchivedMessage]:
        sql = (
            "SELECT r.id FROM archive.register r JOIN archive.accounts a USING (account) "
            f"WHERE a.email = ANY(%s) AND {condition} ORDER BY r.id DESC LIMIT %s"
        )
        rows_of = f"SELECT {COLUMNS} FROM archive.messages m WHERE m.account = ANY(%s) AND m.id = ANY(%s)"
        with self._connections.session() as session:
            ids = [row_id for (row_id,) in session.query(sql, (list(self._names or ()), *values, newest))]
            accounts = list(_accounts(session, self._names))
            return [read_row(row) for row in session.query(rows_of, (accounts, ids))] if ids else []


class _Asked:
    """One query on one connection: as this archive's labels spell it."""

    def __init__(
        self,
        session: Session,
        node: Node,
        names: Sequence[str] | None,
        time_left: TimeLeft,
        after: AfterRow | None = None,
    ) -> None:
        self._db = session
        self._node = node
        self._time_left = time_left
        self._after = after
        self._high = _LARGEST_ID if after is None else after.row_id + 1
        self._accounts: dict[int, str] = {}
        self._labels: dict[str, list[int]] = defaultdict(list)
        whose = (names is None, list(names or ()))
        rows, first = session.together((_LABELS, whose), (_STEP, (*whose, self._high, _FIRST)))
        self._steps = [row_id for (row_id,) in first]
        for account, email, label, name in rows:
            self._accounts[account] = email
            if label is not None:
                self._labels[name].append(label)
        index = LabelIndex((label, name) for _, _, label, name in rows if label is not None)
        folded = fold(node, index)
        whole = Conditions(self._labels, index.of_the_user).of(folded)
        self._narrow = list(self._narrowed(folded))
        self._where = joined("AND", [*self._narrow, *self._following(), whole], empty="TRUE")

    def newest(self, limit: int) -> list[Found]:
        """One statement, whose parts the server takes up one after the other until there are enough."""
        ends = [self._high, *([] if self._narrow else self._steps), 0]
        parts = [self._part(low, high, limit) for high, low in pairwise(ends)]
        sql = " UNION ALL ".join(f"({part.sql})" for part in parts)
        values = [value for part in parts for value in part.values]
        rows = self._query(f"SELECT * FROM ({sql}) AS found LIMIT %s", (*values, limit))
        return [(account, row_id) for account, row_id in rows]

    def _part(self, low: int, high: int, limit: int) -> Condition:
        bounds = Condition("m.id >= %s AND m.id < %s", (low, high))
        return self._select(joined("AND", [bounds, self._where], empty="TRUE"), self._order, limit)

    def best(self, limit: int) -> list[Found]:
        """Without text to score, the newest are as good as any."""
        wanted = list(wanted_words(self._node))
        if not wanted:
            return self._found(self._where, self._order, limit)
        score = f"ts_rank({_WEIGHTS}, m.tokens, %s::tsquery, 1) DESC, {self._order}"
        return self._found(self._where, score, limit, (" | ".join(wanted),))

    def count(self, limit: int | None) -> int:
        bound = None if limit is None else limit + 1
        sql = f"SELECT 1 FROM archive.entries m WHERE m.account = ANY(%s) AND {self._where.sql} LIMIT %s"
        values = (list(self._accounts), *self._where.values, bound)
        return sum(count for (count,) in self._query(f"SELECT count(*) FROM ({sql}) AS found", values))

    def hits(self, found: Sequence[Found]) -> tuple[Hit, ...]:
        """In the order in which they were found."""
        if not found:
            return ()
        phrases, body = shown(self._node)
        sql = f"SELECT {COLUMNS}, {body} FROM archive.messages m WHERE m.account = ANY(%s) AND m.id = ANY(%s)"
        rows = self._query(sql, (sorted({account for account, _ in found}), [row_id for _, row_id in found]))
        hits = {(row[0], row[1]): Hit(read_row(row), snippet(row[-1], phrases)) for row in rows}
        return tuple(hits[one] for one in found if one in hits)

    def place(self, found: Found) -> AfterRow:
        account, row_id = found
        return AfterRow(self._accounts[account], row_id)

    def _following(self) -> list[Condition]:
        """Of the same instant, only accounts that come later."""
        after = self._after
        if after is None:
            return []
        later = [number for number, email in self._accounts.items() if email > after.account]
        return [Condition("(m.id < %s OR m.account = ANY(%s))", (after.row_id, later))]

    @property
    def _order(self) -> str:
        """Of the same instant, the accounts stand in the order of their names."""
        if len(self._accounts) == 1:
            return "m.id DESC"
        ranks = ", ".join(str(number) for number in sorted(self._accounts, key=self._accounts.__getitem__))
        return f"m.id DESC, array_position(ARRAY[{ranks}]::integer[], m.account)"

    def _found(self, where: Condition, order: str, limit: int, order_values: Sequence[Any] = ()) -> list[Found]:
        select = self._select(where, order, limit, order_values)
        return [(account, row_id) for account, row_id in self._query(select.sql, select.values)]

    def _select(self, where: Condition, order: str, limit: int, order_values: Sequence[Any] = ()) -> Condition:
        sql = (
            f"SELECT m.account, m.id FROM archive.entries m WHERE m.account = ANY(%s) AND {where.sql} ORDER BY {order}"
        )
        return Condition(f"{sql} LIMIT %s", (list(self._accounts), *where.values, *order_values, limit))

    def _narrowed(self, folded: Node) -> Iterator[Condition]:
        """What few messages have is found by itself, and only those are looked at."""
        parts = folded.parts if isinstance(folded, And) else (folded,)
        for part in parts:
            if isinstance(part, Labelled):
                sql = "SELECT id FROM archive.message_labels WHERE label = ANY(%s) LIMIT %s"
                ids = [row_id for (row_id,) in self._db.query(sql, (self._labels[part.label], _RARE + 1))]
                if len(ids) <= _RARE:
                    yield Condition("m.id = ANY(%s)", (ids,))
            elif isinstance(part, MessageId):
                yield self._named(part)

    def _named(self, part: MessageId) -> Condition:
        hashes = Conditions({}, ()).of(part).values[0]
        sql = "SELECT id FROM archive.register WHERE account = ANY(%s) AND message_hash = ANY(%s)"
        found = self._db.query(sql, (list(self._accounts), hashes))
        return Condition("m.id = ANY(%s)", ([row_id for (row_id,) in found],))

    def _query(self, sql: str, values: Sequence[Any]) -> Rows:
        """A statement that takes too long by itself, the server breaks off."""
        if not self._accounts:
            return []
        if self._time_left() <= 0:
            raise BadInput("query", "this takes too long; narrow it, with dates for example")
        return self._db.query(sql, values)


def _accounts(session: Session, names: Sequence[str] | None) -> dict[int, str]:
    """Those that are asked, and are there, by their numbers."""
    rows = session.query("SELECT account, email FROM archive.accounts")
    return {account: email for account, email in rows if names is None or email in names}
