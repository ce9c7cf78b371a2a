"""Every id that the source lists below the watermark is stored, bad, or named as a gap. On both databases."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from postroom.archive.messages import IncomingMail, Provenance
from postroom.archive.shards.file_archive import FileArchive
from postroom.db import Database
from postroom.domain.clock import ManualClock
from postroom.sim.gmail.faults import FaultRule, GmailFault
from postroom.sync.fetch import record_bad
from postroom.sync.labels import SourceCheck, SourceGap, SourceGapKind, SourceReport
from postroom.sync.slices import Granularity, Slice
from postroom.sync.state import begin_walk, finish_slice
from tests.support.databases import on_sqlite
from tests.support.mail import HOUR_MS, START_MS, letter, mailbox
from tests.support.sync import SyncedAccount, synced_account

pytestmark = pytest.mark.req("SY-17")

WATERMARK = (START_MS + 8 * HOUR_MS) // 1_000
"""Eight of the ten letters are older."""


@pytest.fixture
async def scene(database: Database, tmp_path: Path, clock: ManualClock) -> AsyncIterator[SyncedAccount]:
    async with synced_account(database, mailbox(10), tmp_path / "archive", clock) as made:
        await made.bring_all()
        below, above = Slice(0, WATERMARK), Slice(WATERMARK, None)
        now, account_id = clock.now(), made.account.id
        state = await database.write(
            lambda tx: begin_walk(tx, account_id, [below, above], WATERMARK, Granularity.WEEK, now)
        )
        await database.write(lambda tx: finish_slice(tx, account_id, state.walk, below, 8, now))
        yield made


async def check(scene: SyncedAccount) -> SourceReport:
    return await SourceCheck(scene.database, scene.account, scene.mailbox, FileArchive(scene.root)).run()


def deliver(scene: SyncedAccount, hour: int, **labels: str) -> str:
    return scene.control.deliver(
        letter(f"Late {hour}"), frozenset(labels.values() or {"INBOX"}), internal_date=START_MS + hour * HOUR_MS + 1
    )


async def test_a_complete_archive_has_no_gap(scene: SyncedAccount) -> None:
    listed: list[int] = []
    report = await SourceCheck(scene.database, scene.account, scene.mailbox, FileArchive(scene.root)).run(listed.append)
    assert report == SourceReport("owner@example.com", WATERMARK, listed=8, stored=8)
    assert report.is_complete
    assert sum(listed) == 8


@on_sqlite
async def test_what_is_missing_is_named_also_in_spam_and_trash(scene: SyncedAccount) -> None:
    missing = sorted([deliver(scene, 1), deliver(scene, 2, label="SPAM"), deliver(scene, 3, label="TRASH")])
    deliver(scene, 9)
    report = await check(scene)
    assert [gap.gmail_id for gap in report.gaps] == missing
    assert {gap.lack for gap in report.gaps} == {SourceGapKind.MISSING}
    assert (report.listed, report.stored) == (11, 8)


@on_sqlite
async def test_a_deletion_mark_on_mail_that_is_there_is_a_gap(scene: SyncedAccount) -> None:
    wrong = sorted(scene.archived())[0]
    await scene.store.mark_deleted([wrong], scene.clock.now())
    assert (await check(scene)).gaps == (SourceGap(wrong, SourceGapKind.MARKED),)


async def test_a_bad_message_is_no_gap(scene: SyncedAccount) -> None:
    bad = deliver(scene, 1)
    await scene.database.write(lambda tx: record_bad(tx, scene.account.id, bad, "no", 1, scene.clock.now()))
    report = await check(scene)
    assert report.is_complete
    assert report.bad == (bad,)
    assert report.stored == 8


@on_sqlite
async def test_mail_that_goes_while_we_look_is_no_gap(scene: SyncedAccount) -> None:
    fleeting = deliver(scene, 1)
    gone = GmailFault(kind="error", code=404, reason="notFound", message="Requested entity was not found.")
    scene.control.add_fault(FaultRule(fault=gone, method="messages.get", ids=frozenset({fleeting})))
    report = await check(scene)
    assert report.is_complete
    assert (report.listed, report.stored) == (9, 8)


@on_sqlite
async def test_mail_that_is_gone_at_the_source_is_told_and_kept(scene: SyncedAccount) -> None:
    ids = sorted(scene.archived())
    await scene.client.delete_message(ids[0])
    await scene.client.delete_message(ids[9])
    report = await check(scene)
    assert report.gone == (ids[0],), "the other one is dated above the watermark"
    assert report.is_complete
    assert scene.archived()[ids[0]].deleted_at_source is None, "to look changes nothing"


@on_sqlite
async def test_an_import_that_dates_mail_otherwise_than_gmail_is_not_taken_for_gone(scene: SyncedAccount) -> None:
    new = deliver(scene, 9)
    raw, old = scene.control._box.store.raw(new), datetime(2001, 1, 1, tzinfo=UTC)
    await scene.store.store([IncomingMail(raw, Provenance.TAKEOUT, new, received=old)])
    report = await check(scene)
    assert report.gone == ()
    assert report.is_complete


@on_sqlite
async def test_an_account_that_was_never_synced_has_nothing_to_compare(
    database: Database, tmp_path: Path, clock: ManualClock
) -> None:
    async with synced_account(database, mailbox(1), tmp_path / "archive", clock) as fresh:
        assert await check(fresh) == SourceReport("owner@example.com", 0)
