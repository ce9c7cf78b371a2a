"""Where a message hangs in the forest of conversations does not depend on the order in which mail is indexed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.archive.conversations.facts import MOST_REFERENCES, StoredHead, facts_of, head_of
from postroom.archive.conversations.forest import TABLES, ConversationForest
from postroom.archive.messages import IncomingMail
from postroom.archive.preparing import pack
from postroom.mail.parsing import parse_date
from postroom.reading.mail import read_headers
from tests.support.conversations import HOME, START, mail

pytestmark = pytest.mark.req("FD-5")
STRANGER = "mallory@evil.example"


class _InMemory:
    prefix = ""
    mark = "?"

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def query(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql, values).fetchall()

    def many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        self._connection.executemany(sql, rows)


def stored(number: int, letter: IncomingMail) -> StoredHead:
    date = parse_date(read_headers(letter.raw).get("Date")) or START
    packed = pack(letter.raw)
    thread = letter.thread_id or f"t{number}"
    digest = number.to_bytes(32)
    return StoredHead("place", number, HOME, thread, int(date.timestamp() * 1_000), digest, head_of(*packed))


def conversations(letters: Iterable[IncomingMail], order: Sequence[int]) -> set[frozenset[int]]:
    """As sets of the numbers of their messages."""
    heads = [stored(number, each) for number, each in enumerate(letters)]
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(TABLES.format(t="", i="", bytes="BLOB"))
        forest = ConversationForest(_InMemory(connection))
        for number in order:
            forest.add([facts_of(heads[number])])
        assert forest.add(map(facts_of, heads)) == 0, "indexing again changes nothing"
        found: dict[str | None, set[int]] = {}
        names = forest.conversations_of([("place", number) for number in range(len(heads))])
        for number, name in enumerate(names):
            found.setdefault(name, set()).add(number)
        for name, numbers in found.items():
            assert {each.row_id for each in forest.members([name or ""]).members} == numbers
    return {frozenset(numbers) for numbers in found.values()}


HOSTILE = [
    mail("a1"),
    mail("a2", answers="a1", day=1, sender=HOME, to="ann@x.example"),
    mail("b1", sender="bob@x.example", subject="Salary"),
    mail("b2", answers="b1", day=1, sender=HOME, to="bob@x.example"),
    mail("joins", after=["a2", "b2"], day=2, sender=STRANGER),
    mail("again", after=["b2", "joins", "a1"], day=3, sender=STRANGER),
    mail("answer", after=["a2", "b2", "again"], day=4, sender=HOME, to=STRANGER),
    mail("b1", answers="a2", day=5, sender=STRANGER),
    mail("c2", answers="c1", day=1, sender=HOME, to="carl@x.example", subject="Cut"),
    mail("c3", answers="c2", day=2, sender="carl@x.example", subject="Cut"),
    mail("c1", answers="a1", day=0.5, sender=STRANGER),
]


@given(st.permutations(range(len(HOSTILE))))
@settings(max_examples=60, deadline=None)
def test_no_order_of_arrival_lets_a_stranger_join_two_conversations(order: list[int]) -> None:
    together = conversations(HOSTILE, order)
    private = frozenset({0, 1, 2, 3, 8, 9})
    expected = {frozenset({0, 1}), frozenset({2, 3}), frozenset({8, 9})}
    assert {each & private for each in together} - {frozenset()} == expected


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_every_order_of_arrival_gives_the_same_conversations(data: st.DataObject) -> None:
    """Of mail that refers backwards, to anything, with some threads of Gmail among it."""
    count = data.draw(st.integers(2, 9))
    people = ["ann@x.example", "bob@x.example", HOME, STRANGER]
    letters = []
    for number in range(count):
        earlier = data.draw(st.lists(st.integers(-1, number - 1), max_size=3)) if number else []
        letters.append(
            mail(
                f"m{number}",
                after=[f"m{each}" for each in earlier],
                sender=data.draw(st.sampled_from(people)),
                to=data.draw(st.sampled_from(people)),
                subject=data.draw(st.sampled_from(["Lunch", "Re: Lunch", "Dinner"])),
                day=number,
                thread="1a" if data.draw(st.integers(0, 4)) == 0 else None,
            )
        )
    first = conversations(letters, range(count))
    assert conversations(letters, data.draw(st.permutations(range(count)))) == first


def test_messages_that_refer_to_each_other_in_a_circle_are_one_conversation() -> None:
    circle = [mail("a", answers="c"), mail("b", answers="a"), mail("c", answers="b")]
    assert conversations(circle, [0, 1, 2]) == conversations(circle, [2, 1, 0]) == {frozenset({0, 1, 2})}


def test_of_an_endless_chain_the_nearest_and_the_first_count() -> None:
    chain = [f"r{number}" for number in range(200)]
    facts = facts_of(stored(0, mail("m", after=chain)))
    first, last = (facts_of(stored(1, mail(name))).named for name in ("r0", "r199"))
    assert len(facts.references) == MOST_REFERENCES
    assert (facts.references[0], facts.references[-1]) == (last, first)


@pytest.mark.parametrize("head", [b"", b"\0\xff" * 500, b"From: \r\nReferences: <<<>>> <@> <1>\r\nMessage-ID: <>\r\n"])
def test_a_head_that_says_nothing_is_a_message_alone(head: bytes) -> None:
    facts = facts_of(StoredHead("place", 1, HOME, "t1", 0, bytes(32), head))
    assert (facts.references, facts.named, facts.author, facts.is_believed) == ((), "", "", False)


def test_damaged_bytes_have_no_head() -> None:
    assert head_of("zstd", b"nothing") == b""
