"""Search over the archive in PostgreSQL: the same questions as to the shards, and the same answers.

Newest first, the months are asked from the newest, one, then two, then four at a time, until the page is full: ids
follow dates, so that everything in a later month comes first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from postroom.archive.layout import account_name
from postroom.archive.model import ArchivedMessage
from postroom.archive.postgres.conditions import Condition, Conditions, joined, wanted_words
from postroom.archive.postgres.connections import Connections, Rows, Session
from postroom.archive.postgres.paging import AfterRow, after_row
from postroom.archive.postgres.reading import COLUMNS, DatabaseReader, messages_of
from postroom.archive.postgres.schema import partitions
from postroom.archive.rowids import first_id
from postroom.archive.search.folding import fold
from postroom.archive.search.labels import LabelIndex
from postroom.archive.search.model import Hit, ShardProblem
from postroom.archive.search.paging import MOST_RANKED, AfterRank, after_rank
from postroom.archive.search.questions import TimeLeft
from postroom.archive.search.snippets import shown, snippet
from postroom.domain.errors import BadInput
from postroom.mail.query import span
from postroom.mail.query.nodes import And, Labelled, MessageId, Node

_WEIGHTS = "'{0.2, 0.4, 0.6, 1.0}'"  # body and the rest, recipients and file names, sender, subject
_RARE = 256
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
    problems: tuple[ShardProblem, ...] = ()
    """A database answers whole, or not at all."""

    def __init__(
        self, connections: Connections, node: Node, accounts: Sequence[str] | None, time_left: TimeLeft
    ) -> None:
        self._connections = connections
        self._node = node
        self._names = accounts
        self._time_left = time_left

    def newest(self, limit: int, token: str | None) -> tuple[tuple[Hit, ...], str | None]:
        after = after_row(token) if token else None
        with self._connections.session() as session:
            asked = _Asked(session, self._node, self._names, self._time_left)
            rows: Rows = []
            for low, high in asked.windows(after):
                rows += asked.newest(low, high, after, limit + 1 - len(rows))
                if len(rows) > limit:
                    break
            hits = asked.hits(rows[:limit])
        following = None
        if len(rows) > limit:
            last = hits[-1].message
            following = AfterRow(last.account, last.row_id).encoded()
        return hits, following

    def best(self, limit: int, token: str | None) -> tuple[tuple[Hit, ...], str | None]:
        start = after_rank(token).rank if token else 0
        end = min(start + limit, MOST_RANKED)
        with self._connections.session() as session:
            asked = _Asked(session, self._node, self._names, self._time_left)
            rows = asked.best(end + 1)
            hits = asked.hits(rows[start:end])
        return hits, AfterRank(end).encoded() if len(rows) > end and end < MOST_RANKED else None

    def count(self, limit: int | None) -> tuple[int, bool]:
        with self._connections.session() as session:
            counted = _Asked(session, self._node, self._names, self._time_left).count(limit)
        return (counted, True) if limit is None or counted <= limit else (limit, False)

    def message(self, key: str) -> ArchivedMessage | None:
        return next(iter(self._registered("r.key = %s", (key,), None)), None)

    def thread(self, thread_id: str, newest: int | None, before: int | None) -> tuple[ArchivedMessage, ...]:
        bound = _LARGEST_ID if before is None else before
        messages = self._registered("r.thread_id = %s AND r.id < %s", (thread_id, bound), newest)
        return tuple(sorted(messages, key=lambda message: (message.date, message.row_id, message.shard)))

    def _registered(self, condition: str, values: Sequence[Any], newest: int | None) -> list[ArchivedMessage]:
        sql = (
            "SELECT r.id FROM archive.register r JOIN archive.accounts a USING (account) "
            f"WHERE a.email = ANY(%s) AND {condition} ORDER BY r.id DESC LIMIT %s"
        )
        rows_of = f"SELECT {COLUMNS} FROM archive.messages m WHERE m.account = ANY(%s) AND m.id = ANY(%s)"
        with self._connections.session() as session:
            ids = [row_id for (row_id,) in session.query(sql, (list(self._names or ()), *values, newest))]
            accounts = list(_accounts(session, self._names))
            return messages_of(session, session.query(rows_of, (accounts, ids))) if ids else []


class _Asked:
    """One query on one connection: as this archive's labels spell it, with a limit to its time."""

    def __init__(self, session: Session, node: Node, names: Sequence[str] | None, time_left: TimeLeft) -> None:
        self._db = session
        self._node = node
        self._time_left = time_left
        self._accounts = _accounts(session, names)
        self._by_email = {email: account for account, email in self._accounts.items()}
        self._partitions = partitions(session, list(self._accounts))
        self._labels: dict[str, list[int]] = defaultdict(list)
        sql = "SELECT label, name FROM archive.labels WHERE account = ANY(%s)"
        rows = session.query(sql, (list(self._accounts),))
        for label, name in rows:
            self._labels[name].append(label)
        index = LabelIndex((label, name) for label, name in rows)
        folded = fold(node, index)
        whole = Conditions(self._labels, index.of_the_user).of(folded)
        self._where = joined("AND", [*self._narrowed(folded), whole], empty="TRUE")
        self._span = span(folded)

    def windows(self, after: AfterRow | None) -> Iterator[tuple[int, int]]:
        """Ranges of ids, from the newest: one month, then twice as many each time."""
        start, end = self._span
        low = first_id(start) if start is not None else 0
        high = first_id(end) if end is not None else _LARGEST_ID
        if after is not None:
            high = min(high, after.row_id + 1)
        months = sorted({(month.low, month.high) for month in self._partitions}, reverse=True)
        touched = [month for month in months if month[1] > low and month[0] < high]
        done, width = 0, 1
        while done < len(touched):
            some = touched[done : done + width]
            yield max(low, some[-1][0]), min(high, some[0][1])
            done, width = done + width, width * 2

    def newest(self, low: int, high: int, after: AfterRow | None, limit: int) -> Rows:
        parts = [Condition("m.id >= %s AND m.id < %s", (low, high)), self._where]
        if after is not None and (account := self._by_email.get(after.account)) is not None:
            later = [number for number, email in self._accounts.items() if email > after.account]
            parts.append(Condition("(m.id < %s OR m.account = ANY(%s))", (after.row_id, later)))
            parts.append(Condition("NOT (m.id = %s AND m.account = %s)", (after.row_id, account)))
        return self._rows(joined("AND", parts, empty="TRUE"), self._order, limit)

    def best(self, limit: int) -> Rows:
        """Without text to score, the newest are as good as any."""
        wanted = list(wanted_words(self._node))
        if not wanted:
            return self._rows(self._where, self._order, limit)
        score = f"ts_rank({_WEIGHTS}, m.tokens, %s::tsquery, 1) DESC, {self._order}"
        return self._rows(self._where, score, limit, (" | ".join(wanted),))

    def count(self, limit: int | None) -> int:
        bound = None if limit is None else limit + 1
        sql = f"SELECT 1 FROM archive.messages m WHERE m.account = ANY(%s) AND {self._where.sql} LIMIT %s"
        values = (list(self._accounts), *self._where.values, bound)
        return int(self._query(f"SELECT count(*) FROM ({sql}) AS found", values)[0][0])

    def hits(self, rows: Rows) -> tuple[Hit, ...]:
        phrases, _ = shown(self._node)
        messages = messages_of(self._db, rows)
        return tuple(Hit(message, snippet(row[14], phrases)) for message, row in zip(messages, rows, strict=True))

    @property
    def _order(self) -> str:
        """Of the same instant, the accounts stand in the order of their names."""
        if len(self._accounts) == 1:
            return "m.id DESC"
        names = sorted(self._by_email)
        ranks = ", ".join(str(self._by_email[name]) for name in names)
        return f"m.id DESC, array_position(ARRAY[{ranks}]::integer[], m.account)"

    def _rows(self, where: Condition, order: str, limit: int, order_values: Sequence[Any] = ()) -> Rows:
        if not self._accounts:
            return []
        _, body = shown(self._node)
        sql = (
            f"SELECT {COLUMNS}, {body} FROM archive.messages m WHERE m.account = ANY(%s) AND {where.sql} "
            f"ORDER BY {order} LIMIT %s"
        )
        return self._query(sql, (list(self._accounts), *where.values, *order_values, limit))

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
        left = self._time_left()
        if left <= 0:
            raise BadInput("query", "this takes too long; narrow it, with dates for example")
        with self._db.transaction():
            self._db.query(f"SET LOCAL statement_timeout = {max(1, round(left * 1_000))}")
            return self._db.query(sql, values)


def _accounts(session: Session, names: Sequence[str] | None) -> dict[int, str]:
    """Those that are asked, and are there, by their numbers."""
    rows = session.query("SELECT account, email FROM archive.accounts")
    return {account: email for account, email in rows if names is None or email in names}
