"""Which messages belong together, as a forest: every message hangs below at most one other, and a tree is a
conversation, named after its root.

A message hangs below the nearest message that it refers to and the archive has. So it can join one conversation,
whatever its sender wrote into it, and cannot make one of two. Of several that it refers to, one whose author it was
sent to (or of the same mailing list) comes first. Another one counts only if it begins a conversation, or if the
message also refers to what that one refers to: a stranger who takes an unused Message-ID takes no answers with him to
where he points. Where Gmail put mail into a thread, that comes first of all. What arrives later may be nearer; then the
message, with all below it, moves there. So the order in which mail is indexed makes no difference, but where limits are
reached.

The statements are the same for SQLite and PostgreSQL but for the marks of values and the names of tables.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from postroom.archive.conversations.facts import ConversationFacts

MOST_IN_CONVERSATION = 1_000
"""Messages; a conversation that has so many takes no more."""
MOST_OF_ONE_ID = 20
"""Different messages with the same Message-ID that can be referred to: the oldest ones."""
SUBJECT_WITHIN_MS = 30 * 86_400_000
"""An answer without references belongs to mail of the same subject that is no older."""
_NEAR_SUBJECTS = 20
_DERIVED_THREAD = "t"
"""The first letter of a thread that Postroom made up itself; Gmail's are hexadecimal."""
_AT_ONCE = 500

TABLES = """
CREATE TABLE IF NOT EXISTS {t}vertices (     -- each message once, however many copies of it there are
    vertex TEXT PRIMARY KEY,                 -- the hash of Message-ID, date and references
    named TEXT NOT NULL,                     -- the hash of its Message-ID
    date_ms BIGINT NOT NULL,
    author TEXT NOT NULL,
    people TEXT NOT NULL,                    -- a JSON list of addresses
    list TEXT NOT NULL,
    subject TEXT NOT NULL,                   -- a hash, without marks of answers
    by_subject INTEGER NOT NULL,             -- an answer that refers to nothing
    believed INTEGER NOT NULL,
    parent TEXT,
    conversation TEXT NOT NULL               -- the vertex of the root
);
CREATE INDEX IF NOT EXISTS {i}vertices_named ON {t}vertices (named, date_ms, vertex);
CREATE INDEX IF NOT EXISTS {i}vertices_parent ON {t}vertices (parent);
CREATE INDEX IF NOT EXISTS {i}vertices_conversation ON {t}vertices (conversation, date_ms);
CREATE INDEX IF NOT EXISTS {i}vertices_subject ON {t}vertices (subject, date_ms) WHERE subject <> '';
CREATE TABLE IF NOT EXISTS {t}members (      -- each stored message
    place TEXT NOT NULL,                     -- its shard, or its account in PostgreSQL
    id BIGINT NOT NULL,                      -- its row there
    account TEXT NOT NULL,
    thread TEXT NOT NULL,
    sha256 {bytes} NOT NULL,
    vertex TEXT NOT NULL,
    PRIMARY KEY (place, id)
);
CREATE INDEX IF NOT EXISTS {i}members_vertex ON {t}members (vertex);
CREATE INDEX IF NOT EXISTS {i}members_thread ON {t}members (thread, account);
CREATE TABLE IF NOT EXISTS {t}refs (         -- what each message refers to
    target TEXT NOT NULL,                    -- the hash of a Message-ID, whether or not the archive has it
    vertex TEXT NOT NULL,
    position INTEGER NOT NULL,               -- 0 is the nearest
    PRIMARY KEY (target, vertex)
);
CREATE INDEX IF NOT EXISTS {i}refs_vertex ON {t}refs (vertex);
CREATE TABLE IF NOT EXISTS {t}places (       -- shards that were indexed whole, as they were then
    place TEXT PRIMARY KEY,
    stamp TEXT NOT NULL
);
"""
_STATEMENTS = {
    "vertex": "SELECT vertex, author, people, list, by_subject, believed, parent, conversation, subject, date_ms "
    "FROM {t}vertices WHERE vertex = {v}",
    "older of the same id": "SELECT count(*) FROM (SELECT 1 FROM {t}vertices WHERE named = {v} AND date_ms < {v} "
    "LIMIT {v}) AS same",
    "add vertex": "INSERT INTO {t}vertices (vertex, named, date_ms, author, people, list, subject, by_subject, "
    "believed, parent, conversation) VALUES ({v}, {v}, {v}, {v}, {v}, {v}, {v}, {v}, {v}, NULL, {v})",
    "add reference": "INSERT INTO {t}refs (target, vertex, position) VALUES ({v}, {v}, {v}) ON CONFLICT DO NOTHING",
    "put member": "INSERT INTO {t}members (place, id, account, thread, sha256, vertex) "
    "VALUES ({v}, {v}, {v}, {v}, {v}, {v}) ON CONFLICT (place, id) DO UPDATE SET account = excluded.account, "
    "thread = excluded.thread, sha256 = excluded.sha256, vertex = excluded.vertex",
    "member": "SELECT thread, sha256, vertex FROM {t}members WHERE place = {v} AND id = {v}",
    "referred to": "SELECT c.vertex, c.author, c.list, c.believed, c.conversation, NOT EXISTS (SELECT 1 FROM {t}refs p "
    "WHERE p.vertex = c.vertex AND p.position = 0 AND p.target NOT IN (SELECT q.target FROM {t}refs q "
    "WHERE q.vertex = r.vertex)) FROM {t}refs r "
    "JOIN {t}vertices c ON c.named = r.target WHERE r.vertex = {v} AND c.vertex <> r.vertex AND c.vertex IN "
    "(SELECT o.vertex FROM {t}vertices o WHERE o.named = r.target ORDER BY o.date_ms, o.vertex LIMIT {v}) "
    "ORDER BY r.position, c.date_ms, c.vertex",
    "referring": "SELECT r.vertex FROM {t}refs r JOIN {t}vertices v ON v.vertex = r.vertex "
    "WHERE r.target = {v} ORDER BY v.date_ms, v.vertex LIMIT {v}",
    "thread": "SELECT DISTINCT o.vertex, v.conversation, v.date_ms FROM {t}members m JOIN {t}members o "
    "ON o.thread = m.thread AND o.account = m.account JOIN {t}vertices v ON v.vertex = o.vertex "
    f"WHERE m.vertex = {{v}} AND substr(m.thread, 1, 1) <> '{_DERIVED_THREAD}' "
    "ORDER BY v.date_ms, o.vertex LIMIT {v}",
    "same subject before": "SELECT vertex, author, people, conversation FROM {t}vertices WHERE subject = {v} "
    "AND date_ms >= {v} AND date_ms <= {v} AND vertex <> {v} AND believed = 1 ORDER BY date_ms DESC, vertex LIMIT {v}",
    "same subject after": "SELECT vertex FROM {t}vertices WHERE subject = {v} AND date_ms >= {v} AND date_ms <= {v} "
    "AND vertex <> {v} AND by_subject = 1 ORDER BY date_ms, vertex LIMIT {v}",
    "above": "WITH RECURSIVE above(vertex) AS (SELECT CAST({v} AS TEXT) UNION SELECT p.parent FROM above "
    "JOIN {t}vertices p ON p.vertex = above.vertex WHERE p.parent IS NOT NULL) "
    "SELECT 1 FROM above WHERE vertex = {v}",
    "size": "SELECT count(*) FROM (SELECT 1 FROM {t}vertices WHERE conversation = {v} LIMIT {v}) AS counted",
    "set parent": "UPDATE {t}vertices SET parent = {v} WHERE vertex = {v}",
    "below": "WITH RECURSIVE below(vertex) AS (SELECT CAST({v} AS TEXT) UNION SELECT c.vertex FROM below "
    "JOIN {t}vertices c ON c.parent = below.vertex) SELECT vertex FROM below",
    "move": "UPDATE {t}vertices SET conversation = {v} WHERE vertex = {v}",
    "conversations of": "SELECT m.place, m.id, v.conversation FROM {t}members m JOIN {t}vertices v "
    "ON v.vertex = m.vertex WHERE (m.place, m.id) IN (VALUES {pairs})",
    "members": "SELECT m.place, m.id, m.account, m.vertex, v.author, v.people FROM {t}vertices v "
    "JOIN {t}members m ON m.vertex = v.vertex WHERE v.conversation IN ({values}) ORDER BY m.id DESC, m.place",
    "counts": "SELECT (SELECT count(*) FROM {t}members), (SELECT count(*) FROM (SELECT 1 FROM {t}vertices "
    "GROUP BY conversation HAVING count(*) > 1) AS several)",
    "stamp": "SELECT stamp FROM {t}places WHERE place = {v}",
    "set stamp": "INSERT INTO {t}places (place, stamp) VALUES ({v}, {v}) "
    "ON CONFLICT (place) DO UPDATE SET stamp = excluded.stamp",
}


IN_CONVERSATION = (
    "{id} IN (SELECT cm.id FROM {t}vertices cv JOIN {t}members cm ON cm.vertex = cv.vertex "
    "WHERE cv.conversation = {v} AND cm.place = {place})"
)
"""A condition of a search on the row `id` of a place."""
HAS_CONVERSATION = (
    "EXISTS (SELECT 1 FROM {t}members cm JOIN {t}vertices cv ON cv.vertex = cm.vertex JOIN {t}vertices ov "
    "ON ov.conversation = cv.conversation AND ov.vertex <> cv.vertex JOIN {t}members om ON om.vertex = ov.vertex "
    "WHERE cm.place = {place} AND cm.id = {id})"
)


class ForestTables(Protocol):
    """A database that has the tables, within a transaction where something is changed."""

    prefix: str
    """Of the names of tables."""
    mark: str
    """Of a value in a statement."""

    def query(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]: ...

    def many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None: ...


@dataclass(frozen=True, slots=True)
class ConversationPerson:
    address: str
    wrote: int
    """Messages that name this address as their author, each counted once."""
    received: int


@dataclass(frozen=True, slots=True)
class ConversationMember:
    place: str
    row_id: int
    account: str
    vertex: str
    """The same for copies of one message."""


@dataclass(frozen=True, slots=True)
class ConversationMembers:
    members: tuple[ConversationMember, ...]
    """Newest first."""
    people: tuple[ConversationPerson, ...]
    """Those who wrote most first."""


@dataclass(frozen=True, slots=True)
class ConversationCounts:
    messages: int
    """That are in the index."""
    conversations: int
    """Of at least two messages; copies of one are one."""


@dataclass(frozen=True, slots=True)
class _Vertex:
    vertex: str
    author: str
    people: tuple[str, ...]
    mailing_list: str
    by_subject: bool
    believed: bool
    parent: str | None
    conversation: str
    subject: str
    date_ms: int


class ConversationForest:
    def __init__(self, tables: ForestTables) -> None:
        self._tables = tables

    def add(self, messages: Iterable[ConversationFacts]) -> int:
        """Returns how many were new or had changed. Safe to repeat."""
        return sum(self._add(each) for each in messages)

    def conversations_of(self, places: Sequence[tuple[str, int]]) -> list[str | None]:
        """The name of each message's conversation; None while it is not indexed."""
        known: dict[tuple[str, int], str] = {}
        for start in range(0, len(places), _AT_ONCE):
            some = places[start : start + _AT_ONCE]
            pairs = ", ".join([f"({self._tables.mark}, {self._tables.mark})"] * len(some))
            rows = self._query("conversations of", *(value for place in some for value in place), pairs=pairs)
            known |= {(place, row_id): name for place, row_id, name in rows}
        return [known.get(place) for place in places]

    def named(self, name: str) -> str | None:
        """The conversation with this name, or with a name that it had before it hung below another message."""
        found = self._vertex(name)
        return None if found is None else found.conversation

    def members(self, conversations: Sequence[str], accounts: Sequence[str] | None = None) -> ConversationMembers:
        """Of all these conversations together: the messages in these accounts, and their people."""
        names = list(conversations)
        values = ", ".join([self._tables.mark] * len(names))
        found = self._query("members", *names, values=values) if names else []
        rows = [row for row in found if accounts is None or row[2] in accounts]
        wrote, received = Counter[str](), Counter[str]()
        for author, people in {vertex: (author, people) for *_, vertex, author, people in rows}.values():
            wrote.update([author] if author else [])
            received.update(set(json.loads(people)) - {author})
        people = [ConversationPerson(each, wrote[each], received[each]) for each in {**wrote, **received}]
        ranked = sorted(people, key=lambda person: (-person.wrote, -person.received, person.address))
        return ConversationMembers(tuple(ConversationMember(*row[:4]) for row in rows), tuple(ranked))

    def counts(self) -> ConversationCounts:
        return ConversationCounts(*self._query("counts")[0])

    def stamp(self, place: str) -> str | None:
        rows = self._query("stamp", place)
        return rows[0][0] if rows else None

    def set_stamp(self, place: str, stamp: str) -> None:
        self._query("set stamp", place, stamp)

    def _add(self, facts: ConversationFacts) -> bool:
        known = self._query("member", facts.place, facts.row_id)
        if known and (known[0][0], bytes(known[0][1]), known[0][2]) == (facts.thread, facts.sha256, facts.vertex):
            return False
        is_new = self._vertex(facts.vertex) is None
        if is_new:
            self._add_vertex(facts)
        self._query("put member", facts.place, facts.row_id, facts.account, facts.thread, facts.sha256, facts.vertex)
        self._settle(facts.vertex)
        for other in self._concerned(facts, is_new):
            self._settle(other)
        return True

    def _add_vertex(self, facts: ConversationFacts) -> None:
        people = json.dumps(facts.people, ensure_ascii=False)
        flags = (int(facts.is_answer_by_subject), int(facts.is_believed))
        written = (facts.author, people, facts.mailing_list, facts.subject, *flags)
        self._query("add vertex", facts.vertex, facts.named, facts.date_ms, *written, facts.vertex)
        rows = [(target, facts.vertex, position) for position, target in enumerate(facts.references)]
        self._tables.many(self._sql("add reference"), rows)

    def _concerned(self, facts: ConversationFacts, is_new: bool) -> Iterator[str]:
        """The messages for which this one may be nearer than what they hang below."""
        if is_new and facts.named and self._can_be_found(facts):
            yield from (row[0] for row in self._query("referring", facts.named, MOST_IN_CONVERSATION))
        if is_new and facts.subject and facts.is_believed:
            until = facts.date_ms + SUBJECT_WITHIN_MS
            after = self._query("same subject after", facts.subject, facts.date_ms, until, facts.vertex, _NEAR_SUBJECTS)
            yield from (row[0] for row in after)
        oldest = self._query("thread", facts.vertex, 2)
        if len(oldest) > 1 and oldest[0][0] == facts.vertex:
            yield oldest[1][0]  # it was the oldest of its thread

    def _can_be_found(self, facts: ConversationFacts) -> bool:
        """Some programs give all their mail one Message-ID, and someone may flood one: the oldest count."""
        values = (facts.named, facts.date_ms, MOST_OF_ONE_ID)
        return int(self._query("older of the same id", *values)[0][0]) < MOST_OF_ONE_ID

    def _settle(self, name: str) -> None:
        """Hang a message below the first of those that it may hang below."""
        vertex = self._vertex(name)
        if vertex is None:
            return
        for parent, conversation in self._candidates(vertex):
            if parent == vertex.parent:
                return
            if self._can_take(vertex, parent, conversation):
                self._move(vertex, parent, conversation)
                return

    def _candidates(self, vertex: _Vertex) -> Iterator[tuple[str, str]]:
        """Messages and their conversations, the best first."""
        mates = {row[0]: row[1] for row in self._query("thread", vertex.vertex, _AT_ONCE)}
        referred = self._query("referred to", vertex.vertex, MOST_OF_ONE_ID)
        in_thread = [(row[0], row[4]) for row in referred if row[0] in mates]
        yield from in_thread
        oldest = next(iter(mates), vertex.vertex)
        if oldest != vertex.vertex:
            yield oldest, mates[oldest]
        likely = [(row[0], row[4]) for row in referred if _is_likely(vertex, *row[1:4])]
        yield from likely
        yield from ((row[0], row[4]) for row in referred if row[5])
        if vertex.by_subject and vertex.believed:
            yield from self._of_same_subject(vertex)

    def _of_same_subject(self, vertex: _Vertex) -> Iterator[tuple[str, str]]:
        since = vertex.date_ms - SUBJECT_WITHIN_MS
        values = (vertex.subject, since, vertex.date_ms, vertex.vertex, _NEAR_SUBJECTS)
        for name, author, people, conversation in self._query("same subject before", *values):
            if author != vertex.author and author in vertex.people and vertex.author in json.loads(people):
                yield name, conversation

    def _can_take(self, vertex: _Vertex, parent: str, conversation: str) -> bool:
        if conversation == vertex.conversation:
            return not self._query("above", parent, vertex.vertex)  # else it would hang below itself
        return self._size(conversation) + self._size_below(vertex) <= MOST_IN_CONVERSATION

    def _size(self, conversation: str) -> int:
        return int(self._query("size", conversation, MOST_IN_CONVERSATION + 1)[0][0])

    def _size_below(self, vertex: _Vertex) -> int:
        return self._size(vertex.vertex) if vertex.parent is None else len(self._below(vertex))

    def _below(self, vertex: _Vertex) -> list[str]:
        return [row[0] for row in self._query("below", vertex.vertex)]

    def _move(self, vertex: _Vertex, parent: str, conversation: str) -> None:
        if conversation != vertex.conversation:
            self._tables.many(self._sql("move"), [(conversation, each) for each in self._below(vertex)])
        self._query("set parent", parent, vertex.vertex)

    def _vertex(self, name: str) -> _Vertex | None:
        rows = self._query("vertex", name)
        if not rows:
            return None
        vertex, author, people, mailing_list, by_subject, believed, *rest = rows[0]
        return _Vertex(vertex, author, tuple(json.loads(people)), mailing_list, bool(by_subject), bool(believed), *rest)

    def _sql(self, name: str, **lists: str) -> str:
        return _STATEMENTS[name].format(t=self._tables.prefix, v=self._tables.mark, **lists)

    def _query(self, name: str, *values: Any, **lists: str) -> list[tuple[Any, ...]]:
        return self._tables.query(self._sql(name, **lists), values)


def _is_likely(vertex: _Vertex, author: str, mailing_list: str, believed: int) -> bool:
    """Whether a message may well answer another: it was sent to the other's author, or both to the same list."""
    is_same_list = bool(mailing_list) and mailing_list == vertex.mailing_list
    return bool(believed) and (author in vertex.people or is_same_list)


def without_copies(members: Iterable[ConversationMember], preferred: str) -> list[ConversationMember]:
    """One of each message: the copy of the preferred account where there is one."""
    copies: defaultdict[str, list[ConversationMember]] = defaultdict(list)
    for each in members:
        copies[each.vertex].append(each)
    return [min(each, key=lambda copy: copy.account != preferred) for each in copies.values()]
