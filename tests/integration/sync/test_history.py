"""What happens at the source reaches the archive, once, whatever goes wrong in between. On both databases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from postroom.accounts.history import LEASE, HistoryLeaseLost, ReaderElsewhere, claim_reader, move_cursor
from postroom.actions import lifecycle, requests
from postroom.actions.mailbox_changes import ActionsMailboxObserver as ActionsWatch
from postroom.archive.messages import IncomingMail, Relabelling, StoredMessage
from postroom.archive.service import AccountStore
from postroom.audit import Actor
from postroom.db import Database, Tx
from postroom.db.tables.mail import messages
from postroom.domain.actions import ActionStatus, parse_action
from postroom.domain.clock import ManualClock
from postroom.domain.jobs import CATALOGUE
from postroom.mailboxes.errors import HistoryExpired, MailboxUnavailable
from postroom.mailboxes.gmail.client import GmailClient
from postroom.mailboxes.gmail.resources import HistoryPage, HistoryRecord
from postroom.mailboxes.protocol import RemoteMessage
from postroom.queue import JobQueue
from postroom.sim.gmail.faults import FaultRule, GmailFault
from postroom.sync.fetch import FetchOutcome, MailFetcher, OnChunk, bad_of
from postroom.sync.history import ChangeCounts
from postroom.sync.state import get_state
from tests.support.actions import make_message, rows_of
from tests.support.databases import on_sqlite
from tests.support.mail import letter, mailbox
from tests.support.sync import SyncedAccount, synced_account

pytestmark = pytest.mark.req("SY-13")


@pytest.fixture
async def scene(database: Database, tmp_path: Path, clock: ManualClock) -> AsyncIterator[SyncedAccount]:
    """Six letters, all of them in the archive."""
    async with synced_account(database, mailbox(6, Label_1="Work"), tmp_path / "archive", clock) as made:
        await made.bring_all()
        yield made


async def assert_same_as_source(scene: SyncedAccount) -> None:
    assert scene.present() == await scene.truth()


class Crash(BaseException):
    """The process dies here."""


class CrashingStore(AccountStore):
    """Does its work, and dies just after the named effect."""

    def __init__(self, scene: SyncedAccount, after: str) -> None:
        super().__init__(scene.store.backend, scene.store._archive, scene.account.email, scene.store._thread)
        self._after = after

    async def store(self, mails: Sequence[IncomingMail], *, is_of_walk: bool = False) -> list[StoredMessage]:
        stored = await super().store(mails, is_of_walk=is_of_walk)
        self._die("store")
        return stored

    async def change_labels(self, changes: Sequence[Relabelling]) -> set[str]:
        unknown = await super().change_labels(changes)
        self._die("change_labels")
        return unknown

    async def mark_deleted(self, gmail_ids: Sequence[str], when: object) -> set[str]:
        unknown = await super().mark_deleted(gmail_ids, when)  # type: ignore[arg-type]
        self._die("mark_deleted")
        return unknown

    def _die(self, effect: str) -> None:
        if effect == self._after:
            raise Crash(effect)


async def some_of_everything(scene: SyncedAccount) -> list[str]:
    """New mail, label changes and deletions; returns the ids of what was there before."""
    ids = sorted(scene.archived())
    scene.control.deliver(letter("New"))
    await scene.client.modify_message(ids[0], add=["Label_1", "STARRED"], remove=["INBOX"])
    await scene.client.delete_message(ids[1])
    await scene.client.trash_message(ids[2])
    return ids


async def test_new_mail_label_changes_and_deletions_arrive(scene: SyncedAccount) -> None:
    reader = await scene.claim()
    ids = await some_of_everything(scene)
    deltas = await scene.deltas(reader).read()
    assert (deltas.stored, deltas.deleted, deltas.bad) == (1, 1, 0)
    await assert_same_as_source(scene)
    archived = scene.archived()
    assert set(archived[ids[0]].labels) == {"Work", "STARRED"}
    assert archived[ids[1]].deleted_at_source == scene.clock.now()
    assert "TRASH" in archived[ids[2]].labels
    state = await scene.database.read(lambda tx: get_state(tx, scene.account.id))
    assert state.counters["stored"] == 1


@pytest.mark.req("JB-18")
async def test_changes_reach_the_mail_that_was_taken_in_for_triage(scene: SyncedAccount) -> None:
    reader = await scene.claim()
    ids = sorted(scene.archived())[:3]
    for gmail_id in ids:
        await make_message(scene.database, scene.clock, scene.account, gmail_id, labels=["INBOX"])
    await some_of_everything(scene)
    await scene.deltas(reader).read()
    rows = {row.external_event_id: row for row in await rows_of(scene.database, messages)}
    assert [rows[each].labels for each in ids] == [["STARRED", "Work"], ["INBOX"], ["TRASH"]]
    assert [rows[each].deleted_at_source for each in ids] == [None, scene.clock.now(), None]


@pytest.mark.req("JB-18")
async def test_what_waits_for_mail_that_was_deleted_is_called_off_by_a_sync_too(scene: SyncedAccount) -> None:
    reader = await scene.claim()
    gone = sorted(scene.archived())[1]
    await make_message(scene.database, scene.clock, scene.account, gone, labels=["INBOX"])
    queue = JobQueue(scene.database, CATALOGUE, scene.clock)

    def want(tx: Tx) -> str:
        return requests.request_action(
            tx, queue, requests.message_named(tx, gone), parse_action("archive"), Actor("cli", "owner")
        )

    action_id = await scene.database.write(want)
    await some_of_everything(scene)
    await scene.deltas(reader, watch=ActionsWatch(queue)).read()
    found = await scene.database.read(lambda tx: lifecycle.get_action(tx, action_id))
    assert (found.status, found.error) == (ActionStatus.CANCELED, "The message was deleted from the mailbox.")


@on_sqlite
async def test_nothing_new_moves_nothing(scene: SyncedAccount) -> None:
    reader = await scene.claim()
    before = await scene.cursor()
    assert await scene.deltas(reader).read() == ChangeCounts()
    assert await scene.cursor() == before


@pytest.mark.parametrize("effect", ["store", "change_labels", "mark_deleted"])
async def test_a_crash_between_an_effect_and_the_cursor_loses_nothing_and_doubles_nothing(
    scene: SyncedAccount, effect: str
) -> None:
    reader = await scene.claim()
    before = await scene.cursor()
    await some_of_everything(scene)
    crashing = CrashingStore(scene, effect)
    with pytest.raises((Crash, BaseExceptionGroup)):
        await scene.deltas(reader, scene.fetcher(crashing)).read()
    assert await scene.cursor() == before, "the cursor has not moved past what is not known to be on disk"
    await scene.deltas(reader).read()
    await assert_same_as_source(scene)
    assert len(scene.archived()) == 7


@on_sqlite
async def test_a_page_read_again_changes_nothing(scene: SyncedAccount, clock: ManualClock) -> None:
    reader = await scene.claim()
    start = await scene.cursor()
    assert start is not None
    await some_of_everything(scene)
    await scene.deltas(reader).read()
    once = scene.archived()
    for _ in range(2):
        clock.advance(60)
        await scene.database.write(lambda tx: move_cursor(tx, reader, start, scene.clock.now()))
        await scene.deltas(reader).read()
        assert scene.archived() == once


@pytest.mark.parametrize("kind", ["duplicate_history", "reorder_history"])
@on_sqlite
async def test_records_that_come_twice_or_out_of_order_are_understood(scene: SyncedAccount, kind: str) -> None:
    reader = await scene.claim()
    ids = await some_of_everything(scene)
    for _ in range(3):
        await scene.client.modify_message(ids[4], add=["STARRED"])
        await scene.client.modify_message(ids[4], remove=["STARRED"])
        await scene.client.modify_message(ids[5], remove=["INBOX"])
        await scene.client.modify_message(ids[5], add=["INBOX"])
    scene.control.add_fault(FaultRule(fault=GmailFault.model_validate({"kind": kind}), method="history.list"))
    await scene.deltas(reader).read()
    await assert_same_as_source(scene)


@on_sqlite
async def test_mail_that_came_and_went_within_a_page_is_not_asked_for(scene: SyncedAccount) -> None:
    reader = await scene.claim()
    await scene.client.delete_message(scene.control.deliver(letter("Short-lived")))
    scene.control.reset_counters()
    deltas = await scene.deltas(reader).read()
    assert deltas == ChangeCounts()
    assert scene.control.state().calls.get("messages.get", 0) == 0
    await assert_same_as_source(scene)


@on_sqlite
async def test_mail_that_goes_between_the_page_and_the_fetch_is_counted_and_no_error(scene: SyncedAccount) -> None:
    reader = await scene.claim()
    new = scene.control.deliver(letter("Gone soon"))
    gone = GmailFault(kind="error", code=404, reason="notFound", message="Requested entity was not found.")
    scene.control.add_fault(FaultRule(fault=gone, method="messages.get", ids=frozenset({new})))
    assert await scene.deltas(reader).read() == ChangeCounts(gone=1)
    assert await scene.database.read(lambda tx: bad_of(tx, scene.account.id)) == []


@on_sqlite
async def test_many_pages_some_of_them_empty_are_read_to_the_end(scene: SyncedAccount) -> None:
    """The stand-in gives an empty page with a token at every fourth place, as Gmail does now and then."""
    reader = await scene.claim()
    ids = sorted(scene.archived())
    for number in range(620):
        action = {"add": ["STARRED"]} if number % 2 == 0 else {"remove": ["STARRED"]}
        await scene.client.modify_message(ids[number % 3], **action)
    pages: list[ChangeCounts] = []
    total = await scene.deltas(reader, on_page=pages.append).read()
    assert len(pages) >= 2
    assert total.relabelled == sum(page.relabelled for page in pages) > 500
    await assert_same_as_source(scene)
    assert await scene.cursor() == scene.control.state().history_id


@on_sqlite
async def test_the_cursor_moves_page_by_page_and_stays_behind_the_next_page(scene: SyncedAccount) -> None:
    reader = await scene.claim()
    ids, start = sorted(scene.archived()), await scene.cursor()
    for number in range(520):
        action = {"add": ["STARRED"]} if number % 2 == 0 else {"remove": ["STARRED"]}
        await scene.client.modify_message(ids[0], **action)

    def die_after_the_first(page: ChangeCounts) -> None:
        if page.relabelled:
            raise Crash

    with pytest.raises(Crash):
        await scene.deltas(reader, on_page=die_after_the_first).read()
    moved = await scene.cursor()
    assert start is not None
    assert moved is not None
    assert int(start) < int(moved) < int(scene.control.state().history_id)
    await scene.deltas(reader).read()
    await assert_same_as_source(scene)


@on_sqlite
async def test_a_label_that_was_made_a_moment_ago_is_known_by_its_name(scene: SyncedAccount) -> None:
    reader = await scene.claim()
    fetcher = scene.fetcher()
    await scene.deltas(reader, fetcher).read()
    made = await scene.client.create_label("Brand new")
    new = scene.control.deliver(letter("Labelled"), frozenset({"INBOX", made.id}))
    old = sorted(scene.archived())[0]
    await scene.client.modify_message(old, add=[made.id])
    await scene.deltas(reader, fetcher).read()
    assert "Brand new" in scene.present()[old] & scene.present()[new]
    await assert_same_as_source(scene)


@on_sqlite
async def test_a_label_that_is_deleted_before_its_change_is_read_leaves_no_trace(scene: SyncedAccount) -> None:
    reader = await scene.claim()
    made = await scene.client.create_label("Passing")
    await scene.client.modify_message(sorted(scene.archived())[0], add=[made.id])
    scene.control.delete_label(made.id)
    await scene.deltas(reader).read()
    await assert_same_as_source(scene)


async def test_an_expired_history_id_is_told_and_the_cursor_stays(scene: SyncedAccount) -> None:
    reader = await scene.claim()
    before = await scene.cursor()
    scene.control.expire_history()
    with pytest.raises(HistoryExpired):
        await scene.deltas(reader).read()
    assert await scene.cursor() == before


async def test_a_reader_that_lost_its_lease_moves_no_cursor(scene: SyncedAccount) -> None:
    """The other one takes over in the middle of a page; what the first one did meanwhile does no harm."""
    reader = await scene.claim()
    before = await scene.cursor()
    await some_of_everything(scene)
    later = scene.clock.now() + LEASE + timedelta(seconds=1)
    other = await scene.database.write(lambda tx: claim_reader(tx, scene.account.id, "another", later))
    with pytest.raises(HistoryLeaseLost):
        await scene.deltas(reader).read()
    assert await scene.cursor() == before
    await scene.deltas(other).read()
    await assert_same_as_source(scene)


@on_sqlite
async def test_a_lease_is_renewed_while_much_mail_is_brought(scene: SyncedAccount, clock: ManualClock) -> None:
    reader = await scene.claim()
    for number in range(250):
        scene.control.deliver(letter(f"Number {number}"))

    class SlowBringer(MailFetcher):
        async def fetch(self, ids: Iterable[str], on_chunk: OnChunk = lambda chunk: None) -> FetchOutcome:
            outcome = await super().fetch(ids, on_chunk)
            clock.advance(LEASE.total_seconds() * 0.9)
            with pytest.raises(ReaderElsewhere):
                await scene.database.write(lambda tx: claim_reader(tx, scene.account.id, "another", clock.now()))
            return outcome

    made = scene.fetcher()
    deltas = await scene.deltas(reader, SlowBringer(made.mailbox, made.store, made.names)).read()
    assert deltas.stored == 250
    await assert_same_as_source(scene)


@pytest.mark.req("SY-5")
async def test_a_message_that_cannot_be_had_is_listed_as_bad_and_the_rest_goes_on(scene: SyncedAccount) -> None:
    reader = await scene.claim()
    poison = scene.control.deliver(letter("Poison"))
    good = scene.control.deliver(letter("Good"))
    scene.control.add_fault(
        FaultRule(fault=GmailFault(kind="malformed"), method="messages.get", ids=frozenset({poison}))
    )
    deltas = await scene.deltas(reader).read()
    assert (deltas.stored, deltas.bad) == (1, 1)
    assert good in scene.present()
    [bad] = await scene.database.read(lambda tx: bad_of(tx, scene.account.id))
    assert bad.key == poison
    assert await scene.cursor() == scene.control.state().history_id
    await scene.client.modify_message(poison, add=["STARRED"])
    scene.control.reset_counters()
    await scene.deltas(reader).read()
    assert scene.control.state().calls.get("messages.get", 0) == 0, "it waits for its next try"
    await scene.client.delete_message(poison)
    await scene.deltas(reader).read()
    assert await scene.database.read(lambda tx: bad_of(tx, scene.account.id)) == []


@on_sqlite
async def test_a_network_that_is_down_makes_no_message_bad(scene: SyncedAccount) -> None:
    reader = await scene.claim()
    scene.control.deliver(letter("Wanted"))
    before = await scene.cursor()
    number = scene.control.add_fault(FaultRule(fault=GmailFault(kind="error", code=503), method="*", skip=2))
    with pytest.raises(MailboxUnavailable):
        await scene.deltas(reader).read()
    assert await scene.cursor() == before
    assert await scene.database.read(lambda tx: bad_of(tx, scene.account.id)) == []
    scene.control.clear_faults(number)
    assert (await scene.deltas(reader).read()).stored == 1


@on_sqlite
async def test_mail_that_was_fetched_before_its_deletion_and_stored_after_it_is_marked(
    scene: SyncedAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A walk beside has the message in hand when its deletion and relabelling are read."""
    reader = await scene.claim()
    deleted, relabelled = scene.control.deliver(letter("Deleted")), scene.control.deliver(letter("Relabelled"))
    fetcher = scene.fetcher()
    await fetcher.names.refresh()
    fetched, go_on = asyncio.Event(), asyncio.Event()
    sink = fetcher._reader._sink
    keep = sink.store

    async def keep_later(mails: Sequence[tuple[RemoteMessage, frozenset[str]]]) -> Sequence[StoredMessage]:
        fetched.set()
        await go_on.wait()
        return await keep(mails)

    monkeypatch.setattr(sink, "store", keep_later)
    walk = asyncio.create_task(fetcher.fetch([deleted, relabelled]))
    await fetched.wait()
    await scene.client.delete_message(deleted)
    await scene.client.modify_message(relabelled, remove=["INBOX"], add=["STARRED"])
    waits, settled = asyncio.Event(), scene.store.settled

    async def seen_to_wait() -> None:
        waits.set()
        await settled()

    monkeypatch.setattr(scene.store, "settled", seen_to_wait)
    reading = asyncio.create_task(scene.deltas(reader).read())
    waiting = asyncio.create_task(waits.wait())
    await asyncio.wait({reading, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    go_on.set()
    await walk
    await reading
    await assert_same_as_source(scene)
    assert scene.archived()[deleted].deleted_at_source is not None


@on_sqlite
async def test_the_cursor_goes_no_further_than_the_first_page_saw(
    scene: SyncedAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes while later pages are read may be on none of them; their history ids are past it all the same."""
    reader = await scene.claim()
    since = int(await scene.cursor() or 0)

    async def pages(self: GmailClient, since: str) -> AsyncIterator[HistoryPage]:
        yield HistoryPage((HistoryRecord(str(int(since) + 1)),), "more", str(int(since) + 2))
        yield HistoryPage((), None, str(int(since) + 9))

    monkeypatch.setattr(GmailClient, "list_history", pages)
    await scene.deltas(reader).read()
    assert await scene.cursor() == str(since + 2)
