"""Labels renamed and deleted at the source, and what a walk alone does not see. On both databases."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from postroom.accounts.history import move_cursor
from postroom.archive.messages import IncomingMail, Provenance, Relabelling
from postroom.db import Database
from postroom.domain.clock import ManualClock
from postroom.mailboxes.errors import HistoryExpired
from postroom.mailboxes.labels import LabelNames
from postroom.sim.gmail.faults import FaultRule, GmailFault
from postroom.sync.labels import LabelFollower, SourceReconciliation, names_seen
from postroom.sync.slices import Granularity, Slice
from postroom.sync.state import begin_walk, finish_slice, get_state
from tests.support.databases import on_sqlite
from tests.support.mail import letter, mailbox
from tests.support.sync import SyncedAccount, synced_account

pytestmark = pytest.mark.req("SY-13")


@pytest.fixture
async def scene(database: Database, tmp_path: Path, clock: ManualClock) -> AsyncIterator[SyncedAccount]:
    """Six letters in the archive; the first three at work, the others at home."""
    async with synced_account(
        database, mailbox(6, Label_1="Work", Label_2="Home"), tmp_path / "archive", clock
    ) as made:
        ids = [str(each["id"]) for each in made.control.truth(hashes=False)]
        await made.client.modify_messages(ids[:3], add=["Label_1"])
        await made.client.modify_messages(ids[3:], add=["Label_2"])
        await made.bring_all()
        yield made


def rename(scene: SyncedAccount, label_id: str, name: str) -> None:
    scene.control._box.store.labels.change(label_id, {"name": name}, whole=False)


async def refresh(scene: SyncedAccount) -> None:
    await scene.fetcher().names.refresh()
    assert scene.present() == await scene.truth()


async def seen(scene: SyncedAccount) -> dict[str, frozenset[str]]:
    return await scene.database.read(lambda tx: names_seen(tx, scene.account.id))


@on_sqlite
async def test_a_renamed_label_is_renamed_without_asking_for_its_members(scene: SyncedAccount) -> None:
    rename(scene, "Label_1", "Office")
    scene.control.reset_counters()
    await refresh(scene)
    assert scene.control.state().calls.get("messages.list", 0) == 0
    assert (await seen(scene))["Label_1"] == {"Office"}


@on_sqlite
async def test_labels_that_change_names_with_each_other_are_told_apart(scene: SyncedAccount) -> None:
    rename(scene, "Label_1", "x")
    rename(scene, "Label_2", "Work")
    rename(scene, "Label_1", "Home")
    await refresh(scene)


@on_sqlite
async def test_a_label_that_is_deleted_is_taken_away_and_one_made_anew_with_its_name_is_another(
    scene: SyncedAccount,
) -> None:
    scene.control.delete_label("Label_1")
    await refresh(scene)
    made = await scene.client.create_label("Work")
    await scene.client.modify_message(sorted(scene.archived())[5], add=[made.id])
    reader = await scene.claim()
    await scene.deltas(reader).read()
    scene.control.delete_label(made.id)
    again = await scene.client.create_label("Work")
    await scene.client.modify_message(sorted(scene.archived())[4], add=[again.id])
    await scene.deltas(reader).read()
    assert scene.present() == await scene.truth()


@on_sqlite
async def test_mail_that_is_gone_keeps_the_labels_that_it_had(scene: SyncedAccount) -> None:
    reader = await scene.claim()
    gone = next(key for key, labels in scene.present().items() if "Work" in labels)
    await scene.client.delete_message(gone)
    await scene.deltas(reader).read()
    scene.control.delete_label("Label_1")
    await refresh(scene)
    assert "Work" in scene.archived()[gone].labels


class DyingFollower(LabelFollower):
    """Renames, and dies before that is on record."""

    async def _apply(self, changes: object) -> None:
        await super()._apply(changes)  # type: ignore[arg-type]
        raise KeyboardInterrupt


async def test_a_crash_amid_a_rename_and_another_rename_end_well(scene: SyncedAccount) -> None:
    rename(scene, "Label_1", "Office")
    dying = DyingFollower(scene.database, scene.account.id, scene.mailbox, scene.store)
    with pytest.raises(KeyboardInterrupt):
        await LabelNames(scene.mailbox, dying).refresh()
    assert (await seen(scene))["Label_1"] == {"Work", "Office"}
    rename(scene, "Label_1", "Bureau")
    rename(scene, "Label_2", "Work")
    await refresh(scene)
    assert await seen(scene) == {"Label_1": {"Bureau"}, "Label_2": {"Work"}}


@on_sqlite
async def test_mail_with_an_old_name_on_its_way_is_renamed_too(scene: SyncedAccount) -> None:
    new = scene.control.deliver(letter("New"), frozenset({"INBOX", "Label_1"}))
    fetcher = scene.fetcher()
    await fetcher.names.refresh()
    rename(scene, "Label_1", "Office")
    await fetcher.fetch([new])
    assert "Work" in scene.present()[new], "the name in use until the labels are looked at again"
    await fetcher.names.refresh()
    assert scene.present() == await scene.truth()


async def walk_again(scene: SyncedAccount) -> None:
    """An expired history id: the cursor is set anew, then every id is listed, and the unknown are fetched."""
    reader = await scene.claim()
    history_id = (await scene.client.get_profile()).history_id
    now, whole = scene.clock.now(), Slice(0, None)

    def begin(tx: object) -> int:
        move_cursor(tx, reader, history_id, now)  # type: ignore[arg-type]
        return begin_walk(tx, scene.account.id, [whole], 1, Granularity.WEEK, now).walk  # type: ignore[arg-type]

    walk = await scene.database.write(begin)
    truth = [str(each["id"]) for each in scene.control.truth(hashes=False)]
    known = await scene.store.known(truth)
    await scene.fetcher().fetch([each for each in truth if each not in known])
    await scene.database.write(lambda tx: finish_slice(tx, scene.account.id, walk, whole, len(truth), now))


def reconciliation(scene: SyncedAccount) -> SourceReconciliation:
    return SourceReconciliation(scene.database, scene.account.id, scene.fetcher(), scene.clock)


async def a_gap(scene: SyncedAccount) -> list[str]:
    """Much happens, and the history of it is forgotten."""
    ids = sorted(scene.archived())
    reader = await scene.claim()
    await scene.client.delete_message(ids[0])
    await scene.client.modify_message(ids[1], add=["STARRED", "Label_2"], remove=["INBOX"])
    await scene.client.trash_message(ids[2])
    rename(scene, "Label_2", "House")
    scene.control.deliver(letter("New"), frozenset({"INBOX", "Label_1"}))
    scene.control.expire_history()
    with pytest.raises(HistoryExpired):
        await scene.deltas(reader).read()
    return ids


async def test_after_an_expired_history_id_labels_and_deletions_of_the_gap_are_found(scene: SyncedAccount) -> None:
    ids = await a_gap(scene)
    await walk_again(scene)
    assert scene.present() != await scene.truth(), "a list of ids shows neither"
    await reconciliation(scene)()
    assert scene.present() == await scene.truth()
    assert scene.archived()[ids[0]].deleted_at_source is not None


async def test_it_is_done_once_after_each_walk(scene: SyncedAccount) -> None:
    await walk_again(scene)
    chore = reconciliation(scene)
    await chore()
    scene.control.reset_counters()
    await chore()
    assert scene.control.state().requests == 0
    state = await scene.database.read(lambda tx: get_state(tx, scene.account.id))
    assert not state.needs_comparing


@on_sqlite
async def test_what_changes_meanwhile_is_put_right_by_the_history(
    scene: SyncedAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await a_gap(scene)
    await walk_again(scene)
    chore, number = reconciliation(scene), 0
    change_labels = type(scene.store).change_labels

    async def and_somebody_works(store: object, changes: list[Relabelling]) -> set[str]:
        nonlocal number
        number += 1
        if number == 1:
            await scene.client.delete_message(ids[3])
            scene.control.deliver(letter("Newer"), frozenset({"INBOX", "Label_2"}))
            await scene.client.modify_message(ids[4], add=["Label_1"], remove=["INBOX", "Label_2"])
            await scene.client.modify_message(ids[1], remove=["STARRED"])
        return await change_labels(store, changes)  # type: ignore[arg-type]

    monkeypatch.setattr(type(scene.store), "change_labels", and_somebody_works)
    await chore()
    assert number > 0
    await scene.deltas(await scene.claim()).read()
    assert scene.present() == await scene.truth()


@on_sqlite
async def test_mail_that_a_list_does_not_show_and_that_is_there_is_not_marked(scene: SyncedAccount) -> None:
    """It is asked for by itself first; and one that cannot be had at all is there."""
    hidden = sorted(scene.archived())[1]
    await walk_again(scene)
    scene.control.add_fault(
        FaultRule(fault=GmailFault(kind="malformed"), method="messages.get", ids=frozenset({hidden}))
    )
    new = scene.control.deliver(letter("In the archive, not in the list"))
    await scene.fetcher().fetch([new])
    store = scene.control._box.store
    walk = store.walk
    store.walk = lambda *some: (each for each in walk(*some) if each[1].id not in (new, hidden))  # type: ignore[method-assign]
    outcome = await reconciliation(scene).reconcile()
    assert outcome.deleted == 0


@on_sqlite
async def test_a_mark_on_mail_that_is_there_is_taken_back(scene: SyncedAccount) -> None:
    ids = sorted(scene.archived())
    await scene.store.mark_deleted(ids[:2], scene.clock.now())
    await walk_again(scene)
    outcome = await reconciliation(scene).reconcile()
    assert outcome.restored == 2
    assert scene.present() == await scene.truth()


@on_sqlite
async def test_labels_of_an_old_takeout_give_way_to_those_of_the_source(scene: SyncedAccount) -> None:
    """The walk does not fetch what the archive has; so only this finds that the Takeout's labels are old."""
    new = scene.control.deliver(letter("Old"), frozenset({"INBOX"}))
    raw = scene.control._box.store.raw(new)
    labels = frozenset({"UNREAD", "Long gone"})
    await scene.store.store([IncomingMail(raw, Provenance.TAKEOUT, new, new, labels, scene.clock.now())])
    await walk_again(scene)
    await reconciliation(scene)()
    assert scene.present()[new] == {"INBOX"}
    assert scene.present() == await scene.truth()
