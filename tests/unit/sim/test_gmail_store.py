"""The mailbox under change: order, pages, threads and history."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.domain.clock import ManualClock
from postroom.sim.gmail.mailbox_store import ListPlace, MailboxStore
from postroom.sim.gmail.sources import MailSummary
from tests.support.mail import HOUR_MS, START_MS, letter, mailbox


def ids(found: Iterable[tuple[ListPlace, MailSummary]]) -> list[str]:
    return [mail.id for _, mail in found]


def test_a_listing_is_nearly_but_not_strictly_newest_first() -> None:
    dates = [mail.internal_date for _, mail in MailboxStore(mailbox(200), ManualClock()).walk(None, None, None)]
    assert dates != sorted(dates, reverse=True)
    ranks = {date: rank for rank, date in enumerate(sorted(dates, reverse=True))}
    assert max(abs(place - ranks[date]) for place, date in enumerate(dates)) < 16


def test_a_date_range_is_half_open() -> None:
    store = MailboxStore(mailbox(50), ManualClock())
    found = {mail.internal_date for _, mail in store.walk(START_MS + 10 * HOUR_MS, START_MS + 13 * HOUR_MS, None)}
    assert found == {START_MS + hour * HOUR_MS for hour in (10, 11, 12)}


def test_old_mail_that_arrives_late_is_found_by_its_date() -> None:
    store = MailboxStore(mailbox(50), ManualClock())
    late = store.insert(letter("Late"), frozenset(), internal_date=START_MS + 10 * HOUR_MS + 1)
    found = ids(store.walk(START_MS + 10 * HOUR_MS, START_MS + 11 * HOUR_MS, None))
    assert late.id in found
    assert len(found) == 2


def test_a_thread_counts_until_its_last_message_is_gone() -> None:
    store = MailboxStore(mailbox(3), ManualClock())
    first = store.insert(letter("Ask", headers={"Message-ID": "<ask@x.example>"}), frozenset({"INBOX"}))
    reply = store.insert(letter("Re: Ask", headers={"In-Reply-To": "<ask@x.example>"}), frozenset({"INBOX"}))
    assert reply.thread_id == first.thread_id
    assert store.thread_count == 4
    store.delete(first)
    assert store.thread_count == 4
    store.delete(reply)
    assert (store.thread_count, store.count) == (3, 3)


def test_a_label_that_changes_nothing_leaves_no_history() -> None:
    store = MailboxStore(mailbox(3), ManualClock())
    before = store.history.current
    mail = store.find(ids(store.walk(None, None, None))[0])
    assert mail is not None
    store.relabel(mail, frozenset({"INBOX"}), frozenset({"STARRED"}))
    assert store.history.current == before


Change = tuple[str, int]
CHANGES = st.lists(st.tuples(st.sampled_from(["page", "arrive", "old", "delete", "label"]), st.integers(0, 10**6)))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 60), CHANGES)
def test_paging_while_mail_comes_and_goes_skips_and_repeats_nothing(count: int, changes: list[Change]) -> None:
    """Whatever was there all the time is listed exactly once."""
    clock = ManualClock()
    store = MailboxStore(mailbox(count), clock)
    always = set(ids(store.walk(None, None, None)))
    listed: list[str] = []
    after: ListPlace | None = None
    for action, number in [*changes, *[("page", 0)] * 100]:
        alive = sorted(ids(store.walk(None, None, None)))
        clock.advance(number % 1000)
        if action == "page":
            page = [entry for entry, _ in zip(store.walk(None, None, after), range(3), strict=False)]
            listed += ids(page)
            after = page[-1][0] if page else after
        elif action == "arrive":
            store.insert(letter("New"), frozenset({"INBOX"}))
        elif action == "old":
            store.insert(letter("Old"), frozenset(), internal_date=START_MS + number * 100)
        elif alive:
            mail = store.get(alive[number % len(alive)])
            if action == "delete":
                always.discard(mail.id)
                store.delete(mail)
            else:
                store.relabel(mail, frozenset({"STARRED"}), frozenset())
    assert len(listed) == len(set(listed))
    assert always <= set(listed)
