"""The list of labels follows the mailbox, and so do actions: mail that is gone or came back needs nothing more."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from postroom.accounts.mailbox_state import DeletedLabel, describe_label, for_classifier, labels_of
from postroom.actions.mailbox_changes import ActionsMailboxObserver
from postroom.actions.snoozes import SnoozeState
from postroom.audit import SYSTEM, AuditFilter, list_entries
from postroom.db import Tx
from postroom.domain.actions import ActionStatus as S
from postroom.domain.jobs import LABELS_SYNC, SNOOZE_CHECK
from postroom.queue import NewJob
from postroom.sim.gmail.faults import GmailFault
from postroom.triage import guidance
from postroom.triage.rules.rule import RuleScope
from tests.support.actions import A_TEST, ActionScene
from tests.support.databases import on_sqlite
from tests.support.gmail_sim import api_client
from tests.support.queues import claim, count_jobs, record_of


async def sync_labels(scene: ActionScene) -> Any:
    """As the schedule does it; the job's record."""
    key = f"{LABELS_SYNC.name}:{scene.account.id}"
    [job] = await scene.queue.enqueue(NewJob(LABELS_SYNC.name, {"account_id": scene.account.id}, key=key))
    await scene.work()
    return await record_of(scene.queue, job.job_id)


async def known(scene: ActionScene) -> dict[str, str]:
    found = await scene.database.read(lambda tx: labels_of(tx, scene.account.id))
    return {label.label_id: label.name for label in found}


@pytest.mark.req("JB-17")
async def test_labels_are_listed_renamed_and_dropped_and_the_owners_words_stay(scene: ActionScene) -> None:
    disabled: list[str] = []

    def disable(tx: Tx, account_id: str, label: DeletedLabel, now: object) -> list[str]:
        disabled.append(label.name)
        return ["Travel to Travel"]

    scene.disable_rules = disable
    await sync_labels(scene)
    assert (await known(scene))["Label_7"] == "Receipts"

    def describe(tx: Tx) -> bool:
        now = scene.clock.now()
        return describe_label(tx, scene.account.id, "Label_7", now, description="Paid bills", available=False)

    def tell(tx: Tx) -> object:
        text = "Tickets get the label Travel."
        return guidance.add_model_rule(tx, "Tickets", RuleScope(), text, A_TEST, scene.clock.now())

    assert await scene.database.write(describe)
    await scene.database.write(tell)
    scene.clock.advance(3_600)
    scene.sim.control.delete_label("Label_8")
    await rename(scene, "Label_7", "Bills")
    record = await sync_labels(scene)
    assert record.result == {
        "labels": 15,
        "added": 0,
        "renamed": [["Receipts", "Bills"]],
        "deleted": ["Travel"],
        "disabled_rules": ["Travel to Travel"],
        "changed_rules": [],
        "guidance_to_look_at": ["Tickets"],
    }
    assert disabled == ["Travel"]
    found = {label.label_id: label for label in await scene.database.read(lambda tx: labels_of(tx, scene.account.id))}
    assert "Label_8" not in found
    bills = found["Label_7"]
    assert (bills.name, bills.description, bills.available_to_classifier) == ("Bills", "Paid bills", False)
    assert await scene.database.read(lambda tx: for_classifier(labels_of(tx, scene.account.id))) == []


async def rename(scene: ActionScene, label_id: str, name: str) -> None:
    async with api_client(scene.sim.url, scene.sim.token) as http:
        (await http.patch(f"labels/{label_id}", json={"name": name})).raise_for_status()


@pytest.mark.req("JB-17")
async def test_an_action_follows_a_renamed_label_and_makes_no_second_one(scene: ActionScene) -> None:
    await sync_labels(scene)
    await rename(scene, "Label_7", "Bills")
    await sync_labels(scene)
    gmail_id, action = await scene.do("apply_label", "INBOX", label="Receipts")
    assert action.status is S.COMPLETED
    assert "Label_7" in (scene.labels(gmail_id) or ())
    assert [name for name in (await known(scene)).values() if name in ("Receipts", "Bills")] == ["Bills"]


@pytest.mark.req("JB-17", "JB-7")
@on_sqlite
async def test_a_list_that_did_not_come_deletes_nothing(scene: ActionScene) -> None:
    await sync_labels(scene)
    before = await known(scene)
    for code, reason, state in [
        (503, "backendError", "queued"),
        (429, "rateLimitExceeded", "queued"),
        (403, "userRateLimitExceeded", "queued"),
        (403, "forbidden", "failed"),
        (401, "authError", "queued"),
    ]:
        rule = scene.fail("labels.list", GmailFault(kind="error", code=code, reason=reason))
        assert (await sync_labels(scene)).state == state, (code, reason)
        assert await known(scene) == before
        scene.sim.control.clear_faults(rule)
        scene.clock.advance(60)
        await sync_labels(scene)


@pytest.mark.req("JB-17")
@on_sqlite
async def test_a_list_that_cannot_be_whole_is_not_believed(scene: ActionScene, monkeypatch: pytest.MonkeyPatch) -> None:
    await sync_labels(scene)
    before = await known(scene)

    async def nothing() -> tuple[()]:
        return ()

    monkeypatch.setattr(scene.client, "list_labels", nothing)
    record = await sync_labels(scene)
    assert "not believed" in (record.last_error or "")
    assert await known(scene) == before


@on_sqlite
async def test_a_label_that_is_made_while_the_list_is_on_its_way_stays(
    scene: ActionScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = scene.client.list_labels

    async def slow() -> Any:
        answer = await listed()
        scene.clock.advance(1)
        monkeypatch.undo()
        await scene.want((await scene.message("INBOX"))[0], "apply_label", label="Just made")
        await scene.work()
        return answer

    monkeypatch.setattr(scene.client, "list_labels", slow)
    await sync_labels(scene)
    assert "Just made" in (await known(scene)).values()


async def tell(scene: ActionScene, labels: dict[str, set[str]], deleted: list[str]) -> None:
    watch = ActionsMailboxObserver(scene.queue)
    await scene.database.write(lambda tx: watch.changed(tx, scene.account.id, labels, deleted))


@pytest.mark.req("JB-18")
async def test_what_waits_for_mail_that_was_deleted_is_called_off(scene: ActionScene) -> None:
    gmail_id, _ = await scene.message("INBOX")
    other, _ = await scene.message("INBOX")
    queued, kept = await scene.want(gmail_id, "archive"), await scene.want(other, "archive")
    snoozed, action = await scene.do("snooze", "INBOX", amount=1, units="days")
    gone, _ = await scene.message("INBOX")
    waits = await scene.want(gone, "star")
    await tell(scene, {}, [gmail_id, snoozed, gone, "unknown"])
    assert (await scene.action(queued)).status is S.COMPLETED, "it was done before the deletion was told"
    called_off = await scene.action(waits)
    assert (called_off.status, called_off.error) == (S.CANCELED, "The message was deleted from the mailbox.")
    page = await scene.database.read(lambda tx: list_entries(tx, AuditFilter(subject_id=waits)))
    assert [entry.actor for entry in page.entries if entry.action == "action.cancel"] == [SYSTEM]
    assert (await scene.snooze(action.id)).state is SnoozeState.CANCELED
    assert (await record_of(scene.queue, (await scene.snooze(action.id)).job_id)).state == "canceled"
    await scene.work()
    assert (await scene.action(kept)).status is S.COMPLETED
    assert scene.labels(gone) == {"INBOX"}


@pytest.mark.req("JB-18", "JB-13")
async def test_a_snoozed_message_that_its_owner_brought_back_no_longer_waits(scene: ActionScene) -> None:
    gmail_id, action = await scene.do("snooze", "INBOX", amount=1, units="days")
    await scene.client.modify_message(gmail_id, add=["INBOX"])
    await tell(scene, {gmail_id: {"INBOX", "Postroom/Snoozed"}}, [])
    await scene.work()
    assert (await scene.snooze(action.id)).state is SnoozeState.CANCELED
    assert scene.labels(gmail_id) == {"INBOX"}
    await scene.client.modify_message(gmail_id, remove=["INBOX"])
    scene.clock.advance(timedelta(days=2).total_seconds())
    await scene.work()
    assert scene.labels(gmail_id) == frozenset(), "archived by its owner, it stays so"


@pytest.mark.req("JB-18", "JB-13")
async def test_old_news_of_a_snoozed_message_wake_nobody(scene: ActionScene) -> None:
    gmail_id, action = await scene.do("snooze", "INBOX", amount=1, units="days")
    await tell(scene, {gmail_id: {"INBOX", "UNREAD"}}, [])
    await scene.work()
    assert (await scene.snooze(action.id)).state is SnoozeState.WAITING
    assert "INBOX" not in (scene.labels(gmail_id) or ())


@pytest.mark.req("JB-18", "JB-13")
async def test_somebody_looks_again_where_news_come_while_somebody_looks(scene: ActionScene) -> None:
    gmail_id, _ = await scene.do("snooze", "INBOX", amount=1, units="days")
    await tell(scene, {gmail_id: {"INBOX"}}, [])
    [looking] = await claim(scene.queue, 1)
    await tell(scene, {gmail_id: {"INBOX"}}, [])
    assert looking.type == SNOOZE_CHECK.name
    assert await count_jobs(scene.database, type=SNOOZE_CHECK.name, state="queued") == 1
