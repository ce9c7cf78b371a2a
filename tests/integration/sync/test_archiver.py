"""The archiver against the stand-in: what it removes, what it leaves, and that the proof is on disk first."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from postroom.archive.certificates import Removal, RemovalAction, RemovalResult
from postroom.archive.messages import Provenance
from postroom.archive.shards.certificates import Certificates, certificates_path, has_certificate
from postroom.archive.shards.file_archive import FileArchive
from postroom.archive.shards.ownership import Ownership
from postroom.archive.shards.reader import FileArchiveReader
from postroom.archive.shards.writer import FileArchiveWriter
from postroom.archive.status import OwnedElsewhere
from postroom.db import Database, connect
from postroom.domain.errors import BadInput, NotAllowed
from postroom.mailboxes.errors import LoginNeeded
from postroom.settings import ArchiverSettings
from postroom.sim.gmail import oauth
from postroom.sim.gmail.faults import FaultRule, GmailFault
from postroom.sim.gmail.mailbox_store import MailboxStore
from postroom.sim.gmail.server import running_sim
from postroom.sim.gmail.sources import MailSummary
from postroom.sync import state
from postroom.sync.fetch import record_bad
from postroom.sync.removal import KeepReason, UnsafeToRemove, find_messages, read_back
from tests.support.archiver import (
    CLOCK,
    FROM_INBOX,
    ArchiverScene,
    advance_watermark,
    archiver_scene,
    as_takeout,
    certified_on_disk,
    hour,
    incoming,
    store,
)
from tests.support.databases import SqliteFactory
from tests.support.mail import OWNER, mailbox

COUNT = 12
TRASH, DELETE = Removal(RemovalAction.TRASH), Removal(RemovalAction.DELETE)
SOURCE = mailbox(COUNT, Label_1="Family")
IDS = [SOURCE.summary(index).id for index in range(COUNT)]


@pytest.fixture
async def database(sqlite_factory: SqliteFactory) -> AsyncIterator[Database]:
    """One kind is enough: the archiver has no SQL of its own."""
    opened = await connect(sqlite_factory.url())
    yield opened
    await opened.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "archive"


@pytest.fixture
async def scene(database: Database, root: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ArchiverScene]:
    """Twelve letters, all stored; the sync has come as far as the tenth. Whatever is removed must be certified."""
    watch_removals(monkeypatch, root)
    async with running_sim(SOURCE) as sim:
        yield await archiver_scene(sim, SOURCE, database, root, hour(10))


def watch_removals(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    """In the instant of a removal, the stand-in itself looks for the certificate on disk."""
    relabel, delete = MailboxStore.relabel, MailboxStore.delete

    def watched_relabel(
        self: MailboxStore, mail: MailSummary, add: frozenset[str], remove: frozenset[str]
    ) -> MailSummary:
        if "TRASH" in add - mail.label_ids:
            assert (mail.id, "trash") in certified_on_disk(root)
        elif remove & mail.label_ids:
            assert (mail.id, "label") in certified_on_disk(root)
        return relabel(self, mail, add, remove)

    def watched_delete(self: MailboxStore, mail: MailSummary) -> None:
        assert (mail.id, "delete") in certified_on_disk(root)
        delete(self, mail)

    monkeypatch.setattr(MailboxStore, "relabel", watched_relabel)
    monkeypatch.setattr(MailboxStore, "delete", watched_delete)


def by_hand(scene: ArchiverScene, message_id: str, **change: frozenset[str]) -> None:
    """The owner changes labels, without a certificate."""
    box: Any = scene.sim.control._box
    mail = box.store.get(message_id)
    box.store._relabelled[message_id] = mail.label_ids.union(change.get("add", ())).difference(change.get("remove", ()))


@pytest.mark.req("SY-10")
async def test_only_mail_below_the_watermark_is_removed_each_with_its_certificate(scene: ArchiverScene) -> None:
    report = await scene.run(batch_size=4)
    assert scene.in_inbox() == set(IDS[10:])
    assert (report.removed, report.batches, report.is_complete) == (10, 3, True)
    for certificate in scene.certificates():
        assert (certificate.result, certificate.removal, certificate.watermark) == (
            RemovalResult.REMOVED,
            FROM_INBOX,
            hour(10),
        )
        index = IDS.index(certificate.proof.gmail_id)
        assert certificate.proof.size == len(SOURCE.raw(index))
        with FileArchiveReader(scene.root) as reader:
            kept = reader.message(OWNER, certificate.proof.key)
        assert kept is not None
        assert (kept.sha256, kept.shard, kept.row_id) == (
            certificate.proof.sha256,
            certificate.proof.shard,
            certificate.proof.row_id,
        )
    assert has_certificate(scene.root, OWNER, IDS) == set(IDS[:10])


@pytest.mark.req("SY-10")
async def test_trash_and_delete_do_what_they_say(scene: ArchiverScene) -> None:
    await scene.run(TRASH)
    assert {each for each, labels in scene.labels().items() if "TRASH" in labels} == set(IDS[:10])
    await scene.run(DELETE)
    assert set(scene.labels()) == set(IDS[10:])
    assert {(each.removal.action, each.result) for each in scene.certificates()} == {
        (RemovalAction.TRASH, RemovalResult.REMOVED),
        (RemovalAction.DELETE, RemovalResult.REMOVED),
    }


@pytest.mark.req("SY-10")
async def test_a_second_run_finds_nothing_to_do_and_what_was_put_back_stays(scene: ArchiverScene) -> None:
    await scene.run()
    by_hand(scene, IDS[0], add=frozenset({"INBOX"}))
    scene.sim.control.reset_counters()
    report = await scene.run()
    assert (report.removed, report.stays[KeepReason.REMOVED_BEFORE]) == (0, 10)
    assert IDS[0] in scene.in_inbox()
    assert "messages.batchModify" not in scene.sim.control.state().calls
    assert len(scene.certificates()) == 10


@pytest.mark.req("SY-10")
async def test_bad_starred_young_and_kept_mail_stays(scene: ArchiverScene) -> None:
    account_id = scene.account.id
    await scene.database.write(lambda tx: record_bad(tx, account_id, IDS[0], "broken", 1, CLOCK.now()))
    by_hand(scene, IDS[1], add=frozenset({"STARRED"}))  # the archive has not heard of it
    by_hand(scene, IDS[2], add=frozenset({"Label_1"}))
    report = await scene.run(settings=ArchiverSettings(keep_labels="starred, FAMILY, Nowhere"))
    assert scene.in_inbox() == {*IDS[:3], *IDS[10:]}
    assert (report.stays[KeepReason.BAD], report.stays[KeepReason.LABEL]) == (1, 2)
    assert "'Nowhere'" in report.notes[0]
    assert (await scene.run(settings=ArchiverSettings(keep_days=20_000))).stays[KeepReason.YOUNG] >= 2


@pytest.mark.req("SY-10")
async def test_the_watermark_is_read_again_before_every_batch(
    scene: ArchiverScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can only be lower than before after a restore of the database; then nothing more is removed above it."""

    async def lower(before: int) -> None:
        await scene.database.write(lambda tx: state._set(tx, scene.account.id, watermark=before))

    async with scene.archiver(batch_size=4) as archiver:
        await archiver.run(progress=lambda report: None, stop=lambda: archiver.report.batches == 1)
        await lower(hour(6))
        report = await archiver.run()
    assert scene.in_inbox() == set(IDS[6:])
    assert report.removed == 6
    await scene.database.write(lambda tx: advance_watermark(tx, scene.account.id, hour(12)))
    await scene.run()
    assert scene.in_inbox() == set()
    assert {each.watermark for each in scene.certificates()} == {hour(10), hour(6), hour(12)}


@pytest.mark.req("SY-10")
@pytest.mark.parametrize("changed", [False, True])
async def test_mail_of_a_takeout_is_compared_first_and_replaced_where_it_differs(
    database: Database, root: Path, changed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch_removals(monkeypatch, root)
    async with running_sim(SOURCE) as sim:
        store(root, [as_takeout(incoming(SOURCE, index), changed=changed) for index in range(5)])
        scene = await make_scene_on(sim, database, root)
        sim.control.reset_counters()
        report = await scene.run()
        assert (report.compared, report.replaced) == (5, 5 if changed else 0)
        assert scene.in_inbox() == set(IDS[10:])
        proofs = {each.proof.gmail_id: each.proof for each in scene.certificates()}
        assert {proof.provenance for proof in proofs.values()} == {Provenance.API}
        truth = {str(mail["id"]): mail["sha256"] for mail in sim.control.truth()}
        assert all(proofs[gmail_id].sha256 == truth[gmail_id] for gmail_id in IDS[:5])
        assert sim.control.state().calls["messages.get"] == 5


async def make_scene_on(sim: Any, database: Database, root: Path) -> ArchiverScene:
    """The scene in which letters 0 to 4 came before, and not from the API; the others are stored as usual."""
    scene = await archiver_scene(sim, mailbox(0), database, root, hour(10))
    store(root, [incoming(SOURCE, index) for index in range(5, COUNT)])
    return scene


@pytest.mark.req("SY-10")
async def test_takeout_mail_is_judged_by_the_date_that_gmail_has(database: Database, root: Path) -> None:
    """A Takeout's date can be years off; the watermark speaks of Gmail's."""
    async with running_sim(SOURCE) as sim:
        late = as_takeout(incoming(SOURCE, 11), changed=True)
        early = incoming(SOURCE, 0).received
        store(root, [replace(late, received=early)])
        scene = await archiver_scene(sim, mailbox(0), database, root, hour(10))
        report = await scene.run()
        assert scene.in_inbox() == set(IDS)
        assert (report.compared, report.stays[KeepReason.ABOVE_WATERMARK]) == (1, 1)


@pytest.mark.req("SY-10", "SY-7")
async def test_while_another_process_owns_the_archive_only_takeout_mail_waits(database: Database, root: Path) -> None:
    async with running_sim(SOURCE) as sim:
        store(root, [as_takeout(incoming(SOURCE, index), changed=True) for index in range(5)])
        scene = await make_scene_on(sim, database, root)
        with FileArchiveWriter(root, purpose="postroom sync run"):
            report = await scene.run()
        assert scene.in_inbox() == {*IDS[:5], *IDS[10:]}
        assert report.stays[KeepReason.NOT_COMPARED] == 5
        assert "`postroom sync run`" in report.notes[0]
        assert (await scene.run()).removed == 5


async def test_two_archivers_of_an_account_never_run_at_once(scene: ArchiverScene) -> None:
    folder = scene.root / OWNER
    rival = Ownership(folder, "postroom archive run")
    with pytest.raises(OwnedElsewhere, match="postroom archive run"):
        await scene.run()
    rival.release()
    await scene.run()


@pytest.mark.req("SY-10")
async def test_deleting_without_full_access_is_refused_before_anything_is_touched(scene: ArchiverScene) -> None:
    limited = replace(scene.account, scopes=frozenset({oauth.MODIFY}))
    with pytest.raises(NotAllowed, match="--full-access"):
        await ArchiverScene(scene.sim, scene.database, limited, scene.root).run(DELETE)
    assert scene.certificates() == []


@pytest.mark.req("SY-10")
async def test_a_refusal_by_gmail_leaves_everything_there_and_says_so(scene: ArchiverScene) -> None:
    """A bare token does not tell what it may do; Gmail does."""
    rule = FaultRule(
        fault=GmailFault(kind="error", code=403, reason="insufficientPermissions"), method="messages.batchDelete"
    )
    scene.sim.control.add_fault(rule)
    with pytest.raises(UnsafeToRemove, match=r"mail\.google\.com.*5 of them are still there"):
        await scene.run(DELETE, batch_size=5)
    assert set(scene.labels()) == set(IDS)
    assert [each.result for each in scene.certificates()] == [RemovalResult.LEFT] * 5
    scene.sim.control.clear_faults()
    assert (await scene.run(DELETE)).removed == 10
    assert len(scene.certificates()) == 10


@pytest.mark.req("SY-10")
async def test_a_refusal_after_a_lost_answer_records_what_truly_happened(scene: ArchiverScene) -> None:
    """The first attempt went through and nobody was told; the second is refused."""
    lost = FaultRule(fault=GmailFault(kind="drop", after_effect=True), method="messages.batchModify", times=1)
    refused = FaultRule(
        fault=GmailFault(kind="error", code=400, reason="failedPrecondition"), method="messages.batchModify"
    )
    scene.sim.control.add_fault(lost)
    scene.sim.control.add_fault(refused)
    with pytest.raises(UnsafeToRemove, match="0 of them are still there"):
        await scene.run()
    assert scene.in_inbox() == set(IDS[10:])
    assert [each.result for each in scene.certificates()] == [RemovalResult.REMOVED] * 10


async def test_a_label_that_does_not_exist_is_refused(scene: ArchiverScene) -> None:
    with pytest.raises(BadInput, match="no label 'Nowhere'"):
        await scene.run(Removal(RemovalAction.LABEL, "Nowhere"))


@pytest.mark.req("SY-10")
async def test_messages_that_vanished_meanwhile_count_as_removed(scene: ArchiverScene) -> None:
    gone = FaultRule(
        fault=GmailFault(kind="error", code=404, reason="notFound"), method="messages.batchModify", times=1
    )
    scene.sim.control.add_fault(gone)
    box: Any = scene.sim.control._box
    box.store._deleted.add(IDS[3])
    report = await scene.run()
    assert (report.removed, scene.in_inbox()) == (10, set(IDS[10:]))
    assert scene.sim.control.state().calls["messages.modify"] == 10


@pytest.mark.req("SY-10")
@pytest.mark.parametrize(
    "fault",
    [
        GmailFault(kind="error", code=429, reason="rateLimitExceeded"),
        GmailFault(kind="error", code=503),
        GmailFault(kind="truncate"),
        GmailFault(kind="malformed"),
        GmailFault(kind="drop"),
        GmailFault(kind="drop", after_effect=True),
        GmailFault(kind="error", code=500, after_effect=True),
    ],
)
@pytest.mark.parametrize("method", ["messages.batchModify", "messages.list"])
async def test_what_passes_is_outlasted(scene: ArchiverScene, fault: GmailFault, method: str) -> None:
    scene.sim.control.add_fault(FaultRule(fault=fault, method=method, times=3))
    report = await scene.run(batch_size=5)
    assert (report.removed, scene.in_inbox()) == (10, set(IDS[10:]))
    assert [each.result for each in scene.certificates()] == [RemovalResult.REMOVED] * 10


@pytest.mark.req("SY-10")
async def test_a_storm_that_does_not_pass_ends_the_run_and_the_next_asks_what_became_of_it(
    scene: ArchiverScene,
) -> None:
    lost = GmailFault(kind="drop", after_effect=True)
    scene.sim.control.add_fault(FaultRule(fault=lost, method="messages.batchModify", skip=1))
    with pytest.raises(UnsafeToRemove, match="next run first asks the mailbox"):
        await scene.run(batch_size=4)
    assert (
        sorted(each.result for each in scene.certificates())
        == [RemovalResult.INTENDED] * 4 + [RemovalResult.REMOVED] * 4
    )
    scene.sim.control.clear_faults()
    report = await scene.run(batch_size=4)
    assert (report.resumed, scene.in_inbox()) == (4, set(IDS[10:]))
    assert [each.result for each in scene.certificates()] == [RemovalResult.REMOVED] * 10


async def certify_only(scene: ArchiverScene, indexes: range, removal: Removal = FROM_INBOX) -> None:
    """As if the run had been killed between the certificates and the removal."""
    found = find_messages(FileArchive(scene.root), OWNER, [IDS[index] for index in indexes])
    with Certificates(scene.root, OWNER) as book:
        book.certify("killed", removal, read_back(FileArchive(scene.root), found.values()), hour(10), CLOCK.now())


@pytest.mark.req("SY-10")
async def test_certified_mail_that_is_still_there_is_removed_first_under_its_old_certificate(
    scene: ArchiverScene,
) -> None:
    await certify_only(scene, range(4, 8))
    report = await scene.run()
    assert (report.resumed, report.removed, scene.in_inbox()) == (4, 10, set(IDS[10:]))
    assert len(scene.certificates()) == 10
    assert {each.proof.gmail_id for each in scene.certificates() if each.batch == "killed"} == set(IDS[4:8])


@pytest.mark.req("SY-10")
async def test_certified_mail_that_may_not_go_any_more_stays_and_the_certificate_says_so(scene: ArchiverScene) -> None:
    await certify_only(scene, range(2))
    by_hand(scene, IDS[0], add=frozenset({"STARRED"}))
    account_id = scene.account.id
    await scene.database.write(lambda tx: record_bad(tx, account_id, IDS[1], "broken", 1, CLOCK.now()))
    report = await scene.run()
    assert scene.in_inbox() == {*IDS[:2], *IDS[10:]}
    assert {each.proof.gmail_id for each in scene.certificates() if each.result is RemovalResult.LEFT} == set(IDS[:2])
    assert (report.stays[KeepReason.LABEL], report.stays[KeepReason.BAD]) == (1, 1)


@pytest.mark.req("SY-10")
async def test_certified_mail_that_the_archive_lost_stops_the_run(scene: ArchiverScene) -> None:
    await certify_only(scene, range(3))
    [shard] = (scene.root / OWNER).glob("20*.db")
    with closing(sqlite3.connect(shard)) as connection:
        connection.execute("DELETE FROM messages WHERE gmail_id = ?", (IDS[1],))
        connection.commit()
    with pytest.raises(UnsafeToRemove, match=f"{IDS[1]} was certified and is not in the archive"):
        await scene.run()
    assert scene.in_inbox() == set(IDS)


@pytest.mark.req("SY-10")
async def test_a_source_that_cannot_say_what_became_of_a_removal_stops_the_run(scene: ArchiverScene) -> None:
    await certify_only(scene, range(3))
    rule = FaultRule(fault=GmailFault(kind="error", code=400, reason="failedPrecondition"), ids=frozenset({IDS[1]}))
    scene.sim.control.add_fault(rule)
    with pytest.raises(UnsafeToRemove, match=f"what became of message {IDS[1]}"):
        await scene.run()
    assert scene.in_inbox() == set(IDS)
    scene.sim.control.clear_faults()
    assert (await scene.run()).removed == 10


@pytest.mark.req("SY-10")
async def test_an_interrupted_delete_is_not_finished_by_a_run_that_only_takes_labels_away(scene: ArchiverScene) -> None:
    await certify_only(scene, range(3), DELETE)
    box: Any = scene.sim.control._box
    box.store._deleted.add(IDS[0])  # that one was carried out before the kill
    await scene.run()
    assert set(scene.labels()) == set(IDS[1:])
    deletes = {each.proof.gmail_id: each.result for each in scene.certificates() if each.removal == DELETE}
    assert deletes == {IDS[0]: RemovalResult.GONE, IDS[1]: RemovalResult.LEFT, IDS[2]: RemovalResult.LEFT}


@pytest.mark.req("SY-10")
async def test_bytes_that_changed_since_they_were_certified_get_a_certificate_of_their_own(
    database: Database, root: Path
) -> None:
    async with running_sim(SOURCE) as sim:
        store(root, [as_takeout(incoming(SOURCE, 0), changed=True)])
        scene = await archiver_scene(sim, mailbox(0), database, root, hour(10))
        await certify_only(scene, range(1))
        await scene.run()
        results = {each.proof.provenance: each.result for each in scene.certificates()}
        assert results == {Provenance.TAKEOUT: RemovalResult.LEFT, Provenance.API: RemovalResult.REMOVED}
        assert IDS[0] not in scene.in_inbox()


@pytest.mark.req("SY-10")
async def test_a_stop_is_obeyed_between_batches(scene: ArchiverScene) -> None:
    calls = iter([False, True])
    report = await scene.run(batch_size=4, stop=lambda: next(calls))
    assert (report.removed, report.is_complete) == (4, False)
    assert (await scene.run()).is_complete


async def test_a_run_that_is_cancelled_in_a_removal_leaves_its_certificates_open(scene: ArchiverScene) -> None:
    scene.sim.control.add_fault(FaultRule(fault=GmailFault(kind="hang"), method="messages.batchModify", times=1))
    running = asyncio.create_task(scene.run())
    while not scene.sim.control.state().fault_hits["1"]:
        await asyncio.sleep(0.005)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [each.result for each in scene.certificates()] == [RemovalResult.INTENDED] * 10
    assert (await scene.run()).removed == 10


async def test_a_login_that_ends_stops_the_run_with_the_remedy(scene: ArchiverScene) -> None:
    scene.sim.control.revoke()
    with pytest.raises(LoginNeeded, match="Log in again"):
        await scene.run()
    assert scene.in_inbox() == set(IDS)


@pytest.mark.req("SY-10")
async def test_nothing_is_removed_whose_certificate_nobody_could_find(scene: ArchiverScene, root: Path) -> None:
    async with scene.archiver() as archiver:
        certificates_path(root, OWNER).rename(root / "elsewhere.db")
        with pytest.raises(UnsafeToRemove, match="moved or deleted"):
            await archiver.run()
    assert scene.in_inbox() == set(IDS)
