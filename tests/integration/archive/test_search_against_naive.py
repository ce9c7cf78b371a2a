"""The main proof of search: random queries over real shards find what a look at every message finds, in its order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postroom.archive.folding import fold, without_spam_and_trash
from postroom.archive.messages import IncomingMail, Provenance, ShardName
from postroom.archive.postgres.postgres_archive import PostgresArchive
from postroom.archive.preparing import PreparedMail, prepare
from postroom.archive.search import Search
from postroom.archive.shards.reader import shards_on_disk
from postroom.archive.shards.search_reader import SearchReader
from postroom.archive.shards.searching import search_shards
from postroom.archive.shards.selecting import count, selects
from postroom.mail.query import format_query
from postroom.mail.query.nodes import (
    And,
    Anywhere,
    HasAttachment,
    HasUserLabel,
    Labelled,
    MessageId,
    Node,
    Not,
    Or,
    Received,
    Size,
    Text,
    TextField,
)
from postroom.sim.gmail.generated import GeneratedMailbox
from tests.support.archives import ACCOUNT, fill_shards, from_source
from tests.support.databases import PostgresFactory
from tests.support.mail import letter
from tests.support.naive_search import find, trees

OTHER = "second@example.com"
FIXTURE = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]  # it only chooses between two that last
START = datetime(2023, 12, 20, tzinfo=UTC)
SUBJECTS = ["Invoice 17", "Re: Invoice 17", "Lunch on Friday", "Über uns", "ÉTÉ à Paris", "no-reply: résumé", ""]
BODIES = [
    "The total is 12.50 euro.",
    "See you at lunch, Ann",
    'He said "lunch" twice',
    "STRASSE straße 日本",
    "x_y a.b@c.de",
]
SENDERS = [
    "Ann <ann@friends.example>",
    "Böb Müller <bob@work.example>",
    "ann.bob@example.org",
    "Friday <no-reply@x.example>",
]
LABELS = ["INBOX", "UNREAD", "SPAM", "TRASH", "my bills", "Kunden/Süd", "work"]

TEXTS = [
    "invoice",
    "lunch",
    "friday",
    "ann",
    "bob",
    "uber",
    "été",
    "resume",
    "17",
    "12.50",
    "strasse",
    "日本",
    "total is",
]
PHRASES = ["ann@friends.example", "lunch on friday", "no-reply", "invoice 17", "example", "pdf", "report 1.pdf", "euro"]

leaves: st.SearchStrategy[Node] = st.one_of(
    st.builds(Text, st.sampled_from(TextField), st.sampled_from(TEXTS + PHRASES)),
    st.builds(Text, st.just(TextField.ANY), st.sampled_from(TEXTS)),
    st.sampled_from([*LABELS, "my-bills", "KUNDEN-süd", "nowhere"]).map(Labelled),
    st.integers(-2, 30).map(lambda day: Received(start=_ms(START + timedelta(days=day)))),
    st.integers(-2, 30).map(lambda day: Received(end=_ms(START + timedelta(days=day)))),
    st.sampled_from([250, 1024, 10 << 10, 64 << 10, 67 << 10, 1 << 20, 1 << 40]).map(lambda size: Size(over=size)),
    st.sampled_from([0, 300, 400, 1024]).map(lambda size: Size(under=size)),
    st.integers(0, 130).map(lambda number: MessageId(f"{number}@x.example")),
    st.sampled_from([HasAttachment(), HasUserLabel(), Anywhere(), And(())]),
)


def _ms(date: datetime) -> int:
    return int(date.timestamp()) * 1_000


def crafted(number: int) -> PreparedMail:
    """A message whose every trait follows from its number; some share a millisecond, some are large, two years are
    touched."""
    headers = {"Message-ID": f"<{number}@x.example>"}
    headers |= {"Cc": SENDERS[number % 4]} if number % 5 == 0 else {}
    headers |= {"Bcc": SENDERS[number % 3]} if number % 7 == 0 else {}
    headers |= {"List-ID": "Friday list <friday.lunch.example>"} if number % 6 == 0 else {}
    raw = letter(
        SUBJECTS[number % 7],
        BODIES[number % 5] + "\n",
        sender=SENDERS[number % 4],
        to=SENDERS[number % 3],
        headers=headers,
        attachment=(f"report {number % 3}.pdf", b"x" * number * (800 if number % 8 == 1 else 20))
        if number % 4 == 1
        else None,
    )
    labels = frozenset(label for place, label in enumerate(LABELS) if number % (place + 2) == 0)
    return prepare(
        IncomingMail(raw, Provenance.IMPORT, f"{number:016x}", None, labels, START + timedelta(hours=6 * (number // 3)))
    )


class Scene:
    """An archive, and everything that was put into it, by account and key."""

    def __init__(self, search: Search, mails: dict[tuple[str, str], PreparedMail], root: Path | None = None) -> None:
        self.root = root
        self.search = search
        self.mails = mails

    def found(self, node: Node) -> set[tuple[str, str]]:
        wanted = find(node, self.mails.values())
        known = {id(mail) for mail in wanted}
        return {key for key, mail in self.mails.items() if id(mail) in known}


@dataclass(frozen=True)
class Town:
    """The mail of two accounts."""

    crafted: list[PreparedMail]
    generated: list[PreparedMail]

    def by_account_and_key(self) -> dict[tuple[str, str], PreparedMail]:
        mine = {(ACCOUNT, mail.key): mail for mail in [*self.crafted[:90], *self.generated]}
        return mine | {(OTHER, mail.key): mail._replace() for mail in self.crafted[80:]}


@pytest.fixture(scope="module")
def town() -> Town:
    generated = from_source(GeneratedMailbox(40, seed=5, email=ACCOUNT), range(40))
    return Town([crafted(number) for number in range(120)], generated)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory, town: Town) -> Iterator[Scene]:
    """A year in two parts."""
    root = tmp_path_factory.mktemp("archive")
    fill_shards(root, [*town.crafted[:70], *town.generated])
    fill_shards(root, town.crafted[70:90], part=2)
    fill_shards(root, town.crafted[80:], account=OTHER)
    with search_shards(root) as search:
        yield Scene(search, town.by_account_and_key(), root)


@pytest.fixture(scope="module")
def tables(postgres_factory: PostgresFactory, town: Town) -> Iterator[Scene]:
    with PostgresArchive(postgres_factory.empty_url()) as place:
        with place.writer("a test") as archive:
            archive.submit(ACCOUNT, [*town.crafted[:90], *town.generated]).result()
            archive.submit(OTHER, town.crafted[80:]).result()
        with place.search() as search:
            yield Scene(search, town.by_account_and_key())


@pytest.fixture(params=["shards", "tables"])
def scene(request: pytest.FixtureRequest) -> Scene:
    found: Scene = request.getfixturevalue(request.param)
    return found


def pages(scene: Scene, query: str, limit: int) -> list[tuple[str, str]]:
    """All pages of a search, one after the other."""
    keys, token, dates = list[tuple[str, str]](), None, list[datetime]()
    while True:
        page = scene.search.search(query, limit=limit, after=token)
        assert page.problems == ()
        assert len(page.hits) == limit or page.next is None
        keys += [(hit.message.account, hit.message.key) for hit in page.hits]
        dates += [hit.message.date for hit in page.hits]
        token = page.next
        if token is None:
            assert dates == sorted(dates, reverse=True)
            return keys


@pytest.mark.req("SY-15")
@settings(deadline=None, derandomize=True, max_examples=160)
@given(trees(leaves), st.sampled_from([11, 60]))
def test_a_search_finds_what_a_look_at_every_message_finds_newest_first(shards: Scene, node: Node, limit: int) -> None:
    assert_found(shards, node, limit)


@pytest.mark.req("SY-15", "SY-18")
@settings(deadline=None, derandomize=True, max_examples=60)
@given(trees(leaves), st.sampled_from([11, 60]))
def test_the_same_search_finds_the_same_in_a_database(tables: Scene, node: Node, limit: int) -> None:
    assert_found(tables, node, limit)


def assert_found(scene: Scene, node: Node, limit: int) -> None:
    query = format_query(node)
    expected = scene.found(node)
    found = pages(scene, query, limit)
    assert len(found) == len(set(found))
    assert set(found) == expected, query
    assert scene.search.count(query).messages == len(expected)


@settings(deadline=None, derandomize=True, max_examples=80, suppress_health_check=FIXTURE)
@given(trees(leaves))
def test_ranking_changes_the_order_and_not_what_is_found(scene: Scene, node: Node) -> None:
    page = scene.search.search(format_query(node), sort="rank", limit=300)
    assert page.next is None
    assert page.problems == ()
    keys = [(hit.message.account, hit.message.key) for hit in page.hits]
    assert len(keys) == len(set(keys))
    assert set(keys) == scene.found(node)


@settings(deadline=None, derandomize=True, max_examples=80)
@given(trees(leaves, most=20))
def test_a_query_of_too_many_alternatives_means_the_same(shards: Scene, node: Node) -> None:
    """The plain way that is taken for them, forced on every query."""
    found = set()
    root = shards.root or Path()
    for name in shards_on_disk(root):
        found |= {(name.account, key) for key in _plainly(root, name, node)}
    assert found == shards.found(node)


def _plainly(root: Path, name: ShardName, node: Node) -> list[str]:
    reader = SearchReader(root, name)
    try:
        labels = reader.labels()
        parts = selects(fold(without_spam_and_trash(node), labels), labels, most=-1)
        statement = parts[0].newest()
        ids = [id for (id,) in reader.query(statement.sql, (*statement.values, 1_000))]
        counted = count(parts, None)
        assert reader.query(counted.sql, counted.values) == [(len(ids),)]
        keys = dict(reader.query("SELECT id, key FROM messages"))
        return [keys[id] for id in ids]
    finally:
        reader.close()


@pytest.mark.parametrize("length", [2, 40, 200])
def test_long_and_deep_queries_are_answered(scene: Scene, length: int) -> None:
    words = [Text(TextField.ANY, TEXTS[number % len(TEXTS)]) for number in range(length)]
    labelled = [Labelled(LABELS[number % len(LABELS)]) for number in range(length)]
    deep: Node = words[0]
    for depth in range(min(length, 12)):
        deep = And((words[depth % len(words)], Not(Or((deep, labelled[depth % len(labelled)])))))
    pairs = tuple(Or(pair) for pair in zip(words, labelled, strict=True))
    for node in (Or(tuple(words)), And(tuple(words)), Or(tuple(labelled)), And(pairs), Or(pairs), deep):
        assert set(pages(scene, format_query(node), 200)) == scene.found(node)
