"""Search over the archive in PostgreSQL: the same questions as to the shards, and the same answers.

A query becomes one SQL condition on a row of `archive.messages`, called `m`. Newest first, the newest hundred messages
are looked at one by one, which finds common words at once; for the rest the server knows how rare each word is, and
either sorts what the index finds or walks back by date.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from postroom.archive import folding, search
from postroom.archive.conversations.forest import ConversationMembers
from postroom.archive.messages import LARGEST_ID, ArchivedMessage, account_name
from postroom.archive.postgres.attachment_texts import texts_in
from postroom.archive.postgres.connections import ArchiveConnections, ArchiveSession, Rows, sayable
from postroom.archive.postgres.conversations import PREFIX, has_index, opened_forest
from postroom.archive.postgres.ranking import count_phrases, matched_in
from postroom.archive.postgres.reader import COLUMNS, PostgresArchiveReader, read_row
from postroom.archive.postgres.reindexing import is_pending
from postroom.archive.postgres.selecting import RowCondition, RowConditions, joined, wanted_words
from postroom.archive.snippets import attachment_snippets, shown, shown_of_attachments, snippet
from postroom.archive.words.ranking import PhraseCounts, RankedPhrase, best_first, phrases_of
from postroom.domain.errors import BadInput
from postroom.mail.query import nodes


@dataclass(frozen=True, slots=True)
class AfterRow:
    """Everything older, and of the same instant everything in later accounts."""

    account: str
    row_id: int

    def encoded(self) -> str:
        return search.encode_page_token([search.Sort.DATE, self.account, self.row_id])


def after_row(token: str) -> AfterRow:
    match search.decode_page_token(token):
        case [search.Sort.DATE, str(account), int(row_id)] if row_id is not True and 0 <= row_id <= LARGEST_ID:
            return AfterRow(account, row_id)
    raise search.bad_page_token()


_IDS_OF_CONVERSATION = (
    f"SELECT c.id FROM {PREFIX}vertices v JOIN {PREFIX}members c ON c.vertex = v.vertex WHERE v.conversation = %s"
)
_WEIGHTS = "'{0.2, 0.4, 0.6, 1.0}'"  # body and the rest, recipients and file names, sender, subject
_RARE = 256
_SAMPLE = 1_000
"""Messages in which the words for a suggestion are counted."""
_FIRST = 100
"""How many of the newest messages are examined before the others."""
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


class PostgresQuestions:
    def __init__(self, connections: ArchiveConnections) -> None:
        self._connections = connections

    def ask(self, node: nodes.Node, accounts: Sequence[str] | None, time_left: search.TimeLeft) -> PostgresQuestion:
        names = None if accounts is None else sorted({account_name(account) for account in accounts})
        return PostgresQuestion(self._connections, node, names, time_left)

    def accounts(self) -> list[str]:
        return PostgresArchiveReader(self._connections).accounts()

    def conversation_named(self, name: str) -> str | None:
        with opened_forest(self._connections) as forest:
            return None if forest is None else next(map(forest.named, sayable([name])), None)

    def conversations_of(self, messages: Sequence[ArchivedMessage]) -> list[str | None]:
        with opened_forest(self._connections) as forest:
            if forest is None:
                return [None] * len(messages)
            return forest.conversations_of([(each.account, each.row_id) for each in messages])

    def members(self, conversations: Sequence[str], accounts: Sequence[str] | None) -> ConversationMembers:
        with opened_forest(self._connections) as forest:
            return ConversationMembers((), ()) if forest is None else forest.members(conversations, accounts)

    def close(self) -> None:
        """The connections belong to the archive and stay open."""


class PostgresQuestion:
    def __init__(
        self,
        connections: ArchiveConnections,
        node: nodes.Node,
        accounts: Sequence[str] | None,
        time_left: search.TimeLeft,
    ) -> None:
        self._connections = connections
        self._node = node
        self._names = accounts
        self._time_left = time_left
        self.problems: tuple[search.ShardProblem, ...] = ()

    def newest(self, limit: int, token: str | None) -> tuple[tuple[search.SearchHit, ...], str | None]:
        after = after_row(token) if token else None
        with self._connections.session() as session:
            asked = _Asked(session, self._node, self._names, self._time_left, after)
            found = asked.newest(limit + 1)
            hits = self._hits(asked, found[:limit])
        return hits, asked.position(found[limit - 1]).encoded() if len(found) > limit else None

    def newer(self, limit: int, token: str) -> tuple[search.SearchHit, ...]:
        with self._connections.session() as session, session.transaction():
            self._limit_statements(session)
            asked = _Asked(session, self._node, self._names, self._time_left)
            return self._hits(asked, asked.newer(limit, after_row(token))[::-1])

    def token_at(self, message: ArchivedMessage) -> str:
        return AfterRow(message.account, message.row_id).encoded()

    def labels(self) -> list[str]:
        with self._connections.session() as session:
            rows = session.query(_LABELS, (self._names is None, list(self._names or ())))
        index = folding.LabelIndex((label, name) for _, _, label, name in rows if label is not None)
        return sorted(index.of_the_user, key=str.casefold)

    def best(self, limit: int, token: str | None) -> tuple[tuple[search.SearchHit, ...], str | None]:
        start = search.after_rank(token).rank if token else 0
        end = min(start + limit, search.MOST_RANKED)
        with self._connections.session() as session:
            asked = _Asked(session, self._node, self._names, self._time_left)
            found = asked.best(end + 1)
            hits = self._hits(asked, found[start:end])
        return hits, search.AfterRank(end).encoded() if len(found) > end and end < search.MOST_RANKED else None

    def ranked(self, most: int) -> list[search.FoundRow]:
        with self._connections.session() as session:
            asked = _Asked(session, self._node, self._names, self._time_left)
            return [asked.row(each) for each in asked.best(most)]

    def among(self, rows: Sequence[search.FoundRow]) -> set[search.FoundRow]:
        with self._connections.session() as session:
            asked = _Asked(session, self._node, self._names, self._time_left)
            return {asked.row(each) for each in asked.among([row.row_id for row in rows])} & set(rows)

    def hits(self, rows: Sequence[search.FoundRow]) -> tuple[search.SearchHit, ...]:
        with self._connections.session() as session:
            asked = _Asked(session, self._node, self._names, self._time_left)
            return self._hits(asked, asked.found(rows))

    def count(self, limit: int | None) -> tuple[int, bool]:
        with self._connections.session() as session, session.transaction():
            self._limit_statements(session)
            counted = _Asked(session, self._node, self._names, self._time_left).count(limit)
        return (counted, True) if limit is None or counted <= limit else (limit, False)

    def word_counts(self, words: Sequence[str]) -> dict[str, int]:
        lexemes = " | ".join(f"'{word}'" for word in words)
        return self._words(lexemes, "u.lexeme = ANY(%s)", (list(words),))

    def words_like(self, beginning: str, shortest: int, longest: int) -> dict[str, int]:
        condition = "u.lexeme ^@ %s AND length(u.lexeme) BETWEEN %s AND %s AND strpos(u.lexeme, ':') = 0"
        return self._words(f"'{beginning}':*", condition, (beginning, shortest, longest))

    def _words(self, wanted: str, condition: str, values: Sequence[Any]) -> dict[str, int]:
        """Counted in so many messages that have some of them. The words are all letters."""
        sql = (
            "SELECT u.lexeme, count(*) FROM (SELECT m.tokens FROM archive.entries m WHERE m.account = ANY(%s) "
            f"AND m.tokens @@ %s::tsquery LIMIT {_SAMPLE}) AS sample, unnest(sample.tokens) u "
            f"WHERE {condition} GROUP BY 1"
        )
        with self._connections.session() as session, session.transaction():
            self._limit_statements(session)
            return dict(session.query(sql, (list(_accounts(session, self._names)), wanted, *values)))

    def message(self, key: str) -> ArchivedMessage | None:
        return next(iter(self._registered("r.key = ANY(%s)", (sayable([key]),), None)), None)

    def thread(self, thread_id: str, newest: int | None, before: int | None) -> tuple[ArchivedMessage, ...]:
        bound = LARGEST_ID if before is None else before
        messages = self._registered("r.thread_id = ANY(%s) AND r.id < %s", (sayable([thread_id]), bound), newest)
        return tuple(sorted(messages, key=lambda message: (message.date, message.row_id, message.shard)))

    def at(self, places: Sequence[tuple[str, int]]) -> tuple[ArchivedMessage, ...]:
        found: list[ArchivedMessage] = []
        sql = f"SELECT {COLUMNS} FROM archive.messages m WHERE m.account = %s AND m.id = ANY(%s)"
        with self._connections.session() as session:
            for account, email in _accounts(session, self._names).items():
                ids = [row_id for place, row_id in places if place == email]
                found += [read_row(row) for row in session.query(sql, (account, ids))] if ids else []
        return tuple(found)

    def threads(self, thread_ids: Sequence[str], newest: int) -> tuple[ArchivedMessage, ...]:
        messages = self._registered("r.thread_id = ANY(%s)", (sayable(thread_ids),), newest)
        return tuple(sorted(messages, key=lambda message: message.row_id, reverse=True))

    def _limit_statements(self, session: ArchiveSession) -> None:
        """Until the end of the transaction: some questions have less time than a search."""
        milliseconds = max(int(self._time_left() * 1_000), 1)
        session.query("SELECT set_config('statement_timeout', %s, true)", (f"{milliseconds}ms",))

    def _hits(self, asked: _Asked, found: Sequence[Found]) -> tuple[search.SearchHit, ...]:
        """A message that is in the index and missing in the archive is reported and does not fail the search."""
        hits = asked.hits(found)
        if len(hits) < len(found):
            detail = f"{len(found) - len(hits)} messages are in the index and nowhere else; run `postroom verify`."
            self.problems = (search.ShardProblem("archive.messages", detail),)
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
    """One query on one connection, with labels as this archive spells them."""

    def __init__(
        self,
        session: ArchiveSession,
        node: nodes.Node,
        names: Sequence[str] | None,
        time_left: search.TimeLeft,
        after: AfterRow | None = None,
    ) -> None:
        self._db = session
        self._node = node
        self._time_left = time_left
        self._after = after
        self._high = LARGEST_ID if after is None else after.row_id + 1
        self._accounts: dict[int, str] = {}
        self._labels: dict[str, list[int]] = defaultdict(list)
        whose = (names is None, list(names or ()))
        rows, first = session.together((_LABELS, whose), (_STEP, (*whose, self._high, _FIRST)))
        self._steps = [row_id for (row_id,) in first]
        for account, email, label, name in rows:
            self._accounts[account] = email
            if label is not None:
                self._labels[name].append(label)
        index = folding.LabelIndex((label, name) for _, _, label, name in rows if label is not None)
        is_answerable = not _asks_the_index(node) or has_index(session)
        self._indexed = self._as_indexed(node if is_answerable else folding.without_conversations(node))
        folded = folding.fold(self._indexed, index)
        whole = RowConditions(self._labels, index.of_the_user).of(folded)
        self._narrow = list(self._narrowed(folded))
        self._where = joined("AND", [*self._narrow, *self._following(), whole], empty="TRUE")

    def _as_indexed(self, node: nodes.Node) -> nodes.Node:
        """With words as they are cut now; as long as messages wait to be indexed anew, also as they were before."""
        if (found := folding.segmented(node)) == node:
            return node
        return folding.with_both_forms(node) if is_pending(self._db, list(self._accounts)) else found

    def newest(self, limit: int) -> list[Found]:
        """One statement of several parts, which the server executes in order until there are enough rows."""
        ends = [self._high, *([] if self._narrow else self._steps), 0]
        parts = [self._part(low, high, limit) for high, low in pairwise(ends)]
        sql = " UNION ALL ".join(f"({part.sql})" for part in parts)
        values = [value for part in parts for value in part.values]
        rows = self._query(f"SELECT * FROM ({sql}) AS found LIMIT %s", (*values, limit))
        return [(account, row_id) for account, row_id in rows]

    def newer(self, limit: int, place: AfterRow) -> list[Found]:
        """The oldest before a place, oldest first."""
        earlier = [number for number, email in self._accounts.items() if email < place.account]
        beyond = RowCondition(
            "m.id >= %s AND (m.id > %s OR m.account = ANY(%s))", (place.row_id, place.row_id, earlier)
        )
        return self._found(joined("AND", [beyond, self._where], empty="TRUE"), self._reversed_order, limit)

    def _part(self, low: int, high: int, limit: int) -> RowCondition:
        bounds = RowCondition("m.id >= %s AND m.id < %s", (low, high))
        return self._select(joined("AND", [bounds, self._where], empty="TRUE"), self._order, limit)

    def best(self, limit: int) -> list[Found]:
        """Without text to score, the newest are as good as any."""
        wanted = list(wanted_words(self._indexed))
        if not wanted:
            return self._found(self._where, self._order, limit)
        score = f"ts_rank({_WEIGHTS}, m.tokens, %s::tsquery, 1) DESC, {self._order}"
        found = self._found(self._where, score, search.MOST_RANKED + 1, (" | ".join(wanted),))
        return self._ranked(sorted(found, key=lambda one: (-one[1], self._accounts[one[0]])))[:limit]

    def _ranked(self, found: Sequence[Found]) -> list[Found]:
        """As the shards rank them; what the server's own score has picked are only the candidates."""
        phrases = phrases_of(self._node)
        ids = [row_id for _, row_id in found]
        matched = matched_in(self._db, phrases, sorted({account for account, _ in found}), ids) if found else {}
        return best_first(matched, self._counted(phrases), found)

    def _counted(self, phrases: Sequence[RankedPhrase]) -> PhraseCounts:
        """Over the years that the query touches, as shards count. A single phrase says the same of every message."""
        if len(phrases) == 1:
            return PhraseCounts(1, (0,))
        low, high = folding.ids_of_years(self._node)
        searched = ("m.account = ANY(%s) AND m.id >= %s AND m.id < %s", (list(self._accounts), low, high))
        conditions = [RowConditions({}, ()).of(self._as_indexed(phrase.text)) for phrase in phrases]
        return count_phrases(self._db, [(each.sql, each.values) for each in conditions], searched)

    def among(self, ids: Sequence[int]) -> list[Found]:
        chosen = "SELECT m.account, m.id FROM archive.entries m WHERE m.account = ANY(%s) AND m.id = ANY(%s)"
        sql = f"{chosen} AND {self._where.sql}"
        rows = self._query(sql, (list(self._accounts), list(ids), *self._where.values))
        return [(account, row_id) for account, row_id in rows]

    def row(self, found: Found) -> search.FoundRow:
        account, row_id = found
        return search.FoundRow(self._accounts[account], 0, 0, row_id)

    def found(self, rows: Sequence[search.FoundRow]) -> list[Found]:
        numbers = {email: number for number, email in self._accounts.items()}
        return [(numbers[row.account], row.row_id) for row in rows if row.account in numbers]

    def count(self, limit: int | None) -> int:
        bound = None if limit is None else limit + 1
        sql = f"SELECT 1 FROM archive.entries m WHERE m.account = ANY(%s) AND {self._where.sql} LIMIT %s"
        values = (list(self._accounts), *self._where.values, bound)
        return sum(count for (count,) in self._query(f"SELECT count(*) FROM ({sql}) AS found", values))

    def hits(self, found: Sequence[Found]) -> tuple[search.SearchHit, ...]:
        """In the order in which they were found."""
        if not found:
            return ()
        phrases, body = shown(self._node)
        sql = f"SELECT {COLUMNS}, {body} FROM archive.messages m WHERE m.account = ANY(%s) AND m.id = ANY(%s)"
        rows = self._query(sql, (sorted({account for account, _ in found}), [row_id for _, row_id in found]))
        snippets = {(row[0], row[1]): snippet(row[-1], phrases) for row in rows}
        snippets |= self._attached(snippets)
        hits = {(row[0], row[1]): search.SearchHit(read_row(row), snippets[row[0], row[1]]) for row in rows}
        return tuple(hits[one] for one in found if one in hits)

    def _attached(self, found: Mapping[Found, search.Snippet]) -> dict[Found, search.Snippet]:
        """Snippets of attachments, where those are to be shown."""
        wanted = shown_of_attachments(self._node)
        if wanted is None or not (where := wanted.ids(found)):
            return {}
        texts: dict[Found, list[tuple[str, str]]] = defaultdict(list)
        accounts, ids = sorted({account for account, _ in where}), [row_id for _, row_id in where]
        for account, row_id, name, text in texts_in(self._db, accounts, ids):
            texts[account, row_id].append((name, text))
        return attachment_snippets(texts, wanted)

    def position(self, found: Found) -> AfterRow:
        account, row_id = found
        return AfterRow(self._accounts[account], row_id)

    def _following(self) -> list[RowCondition]:
        """Of the same instant, only accounts that come later."""
        after = self._after
        if after is None:
            return []
        later = [number for number, email in self._accounts.items() if email > after.account]
        return [RowCondition("(m.id < %s OR m.account = ANY(%s))", (after.row_id, later))]

    @property
    def _order(self) -> str:
        """Of the same instant, the accounts stand in the order of their names."""
        if len(self._accounts) == 1:
            return "m.id DESC"
        ranks = ", ".join(str(number) for number in sorted(self._accounts, key=self._accounts.__getitem__))
        return f"m.id DESC, array_position(ARRAY[{ranks}]::integer[], m.account)"

    @property
    def _reversed_order(self) -> str:
        first, _, ranks = self._order.partition(", ")
        return f"{first.removesuffix(' DESC')}, {ranks} DESC" if ranks else "m.id"

    def _found(self, where: RowCondition, order: str, limit: int, order_values: Sequence[Any] = ()) -> list[Found]:
        select = self._select(where, order, limit, order_values)
        return [(account, row_id) for account, row_id in self._query(select.sql, select.values)]

    def _select(self, where: RowCondition, order: str, limit: int, order_values: Sequence[Any] = ()) -> RowCondition:
        sql = (
            f"SELECT m.account, m.id FROM archive.entries m WHERE m.account = ANY(%s) AND {where.sql} ORDER BY {order}"
        )
        return RowCondition(f"{sql} LIMIT %s", (list(self._accounts), *where.values, *order_values, limit))

    def _narrowed(self, folded: nodes.Node) -> Iterator[RowCondition]:
        """Conditions that few messages satisfy are evaluated first, as lists of ids."""
        parts = folded.parts if isinstance(folded, nodes.And) else (folded,)
        for part in parts:
            if isinstance(part, nodes.Labelled):
                sql = "SELECT id FROM archive.message_labels WHERE label = ANY(%s) LIMIT %s"
                ids = [row_id for (row_id,) in self._db.query(sql, (self._labels[part.label], _RARE + 1))]
                if len(ids) <= _RARE:
                    yield RowCondition("m.id = ANY(%s)", (ids,))
            elif isinstance(part, nodes.MessageId):
                yield self._named(part)
            elif isinstance(part, nodes.InConversation) and part.by is nodes.ConversationBy.ROOT:
                rows = self._db.query(_IDS_OF_CONVERSATION, (part.value,))
                yield RowCondition("m.id = ANY(%s)", ([row_id for (row_id,) in rows],))

    def _named(self, part: nodes.MessageId) -> RowCondition:
        hashes = RowConditions({}, ()).of(part).values[0]
        sql = "SELECT id FROM archive.register WHERE account = ANY(%s) AND message_hash = ANY(%s)"
        found = self._db.query(sql, (list(self._accounts), hashes))
        return RowCondition("m.id = ANY(%s)", ([row_id for (row_id,) in found],))

    def _query(self, sql: str, values: Sequence[Any]) -> Rows:
        """Raises BadInput when the time is over; the server aborts a single statement that takes too long."""
        if not self._accounts:
            return []
        if self._time_left() <= 0:
            raise BadInput("query", "this takes too long; narrow it, with dates for example")
        return self._db.query(sql, values)


def _asks_the_index(node: nodes.Node) -> bool:
    match node:
        case nodes.And(parts) | nodes.Or(parts):
            return any(map(_asks_the_index, parts))
        case nodes.Not(part):
            return _asks_the_index(part)
        case nodes.InConversation() | nodes.HasConversation():
            return True
        case _:
            return False


def _accounts(session: ArchiveSession, names: Sequence[str] | None) -> dict[int, str]:
    """The searched accounts that exist, by number."""
    rows = session.query("SELECT account, email FROM archive.accounts")
    return {account: email for account, email in rows if names is None or email in names}
