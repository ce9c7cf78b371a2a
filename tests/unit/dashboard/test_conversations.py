"""Messages of a page as conversations: who wrote, what a row stands for, and on which page it is. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from postroom.archive.messages import ArchivedMessage, Provenance
from postroom.archive.search import SearchHit, Snippet
from postroom.dashboard.mail.conversations import MOST_IN_ROW, conversations, people_of
from postroom.dashboard.mail.search import TieredHit

pytestmark = pytest.mark.req("UX-1")
ME = "me@example.org"


def message(
    number: int, thread: str = "t", sender: str = "Ann Example <ann@example.org>", *labels: str
) -> ArchivedMessage:
    return ArchivedMessage(
        account=ME,
        key=f"k{number}",
        shard=f"{ME}/2026.db",
        row_id=number,
        date=datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=number),
        gmail_id=f"k{number}",
        thread_id=thread,
        message_id=None,
        sender=sender,
        subject=f"Letter {number}",
        size=1,
        sha256="",
        provenance=Provenance.API,
        has_attachment=number == 1,
        labels=labels,
        deleted_at_source=None,
    )


def listed(*found: ArchivedMessage) -> list[TieredHit]:
    return [TieredHit(SearchHit(each, Snippet(f"text {each.key}")), None) for each in found]


@pytest.mark.parametrize(
    ("senders", "people"),
    [
        (["Ann Example <ann@example.org>"] * 2, ("Ann Example",)),
        (["Ann Example <ann@example.org>", f"Owner <{ME.upper()}>"], ("Ann", "me")),
        (['"Example, Ann" <ann@example.org>', "bob@example.org", ""], ("Ann", "bob", "")),
        (['"boss@bank.example" <eve@example.org>', ME], ("eve", "me")),
        (["Me <eve@example.org>", "Me Too <eve@example.com>"], ("eve", "eve")),
        (["Me <eve@example.org>"], ("eve@example.org",)),
        ([f"P{each} X <p{each}@example.org>" for each in range(5)], ("P0", "…", "P3", "P4")),
    ],
)
def test_people_have_short_names_and_none_poses_as_another(senders: list[str], people: tuple[str, ...]) -> None:
    assert people_of([message(number, "t", sender) for number, sender in enumerate(senders)], {ME}) == people


def test_a_row_stands_for_all_that_is_known_of_its_conversation() -> None:
    reply = message(5, "t", f"Me <{ME}>", "INBOX", "STARRED")
    first = message(1, "t", "Ann Example <ann@example.org>", "INBOX", "UNREAD", "work")
    other = message(4, "u", "Bob <bob@example.org>", "INBOX")
    rows = conversations(listed(reply, other), [first, reply], {ME}, {}, is_first=True)
    assert [(row.newest.key, row.keys, row.people) for row in rows] == [
        ("k5", ("k5", "k1"), ("Ann", "me")),
        ("k4", ("k4",), ("Bob",)),
    ]
    assert rows[0].newest.snippet == "text k5"
    assert (rows[0].is_unread, rows[0].has_attachment, rows[0].is_starred) == (True, True, True)
    assert (rows[0].labels, rows[0].starred_keys) == (("INBOX", "work"), ("k5",))


def test_a_conversation_is_on_the_page_of_its_newest_message_only() -> None:
    newer, older, alone = message(9), message(3), message(4, "u")
    assert [row.thread for row in conversations(listed(newer), [older], {ME}, {}, is_first=True)] == ["t"]
    assert [row.thread for row in conversations(listed(alone, older), [newer], {ME}, {}, is_first=False)] == ["u"]
    # A message that arrived while the page was read hides nothing on the first one.
    assert [row.thread for row in conversations(listed(alone, older), [newer], {ME}, {}, is_first=True)] == ["u", "t"]


def test_a_row_stands_for_a_limited_number_of_messages_the_newest() -> None:
    many = [message(number) for number in range(MOST_IN_ROW + 5)]
    [row] = conversations(listed(many[-1]), many, {ME}, {}, is_first=True)
    assert (len(row.keys), row.keys[0]) == (MOST_IN_ROW, many[-1].key)


@pytest.mark.req("FD-5")
def test_messages_of_several_threads_are_one_row_where_the_index_says_so() -> None:
    """One that is not indexed yet is with its thread."""
    first, reply, late, other = message(1, "t"), message(2, "u"), message(3, "u"), message(4, "v")
    known = {(ME, "k1"): "c1", (ME, "k2"): "c1", (ME, "k4"): "c4"}
    rows = conversations(listed(other, late), [first, reply], {ME}, known, is_first=True)
    assert [(row.conversation, row.keys) for row in rows] == [("c4", ("k4",)), ("c1", ("k3", "k2", "k1"))]
    assert conversations(listed(late), [], {ME}, {}, is_first=True)[0].conversation is None
