"""Every action and its undo against the stand-in: afterwards the labels are those of before, whatever they were."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import update

from postroom.accounts.mailbox_state import labels_of
from postroom.actions.undo import why_not_now
from postroom.app.digest.content import DigestKind, DigestPeriod, count_digest
from postroom.db import Tx
from postroom.db.tables.queue import job_steps
from postroom.db.tables.triage import action_links, actions
from postroom.domain.actions import ActionStatus as S
from postroom.domain.actions import ActionType, Origin
from postroom.domain.errors import BadInput
from postroom.mailboxes.limiter import Limiter
from postroom.mailboxes.ports import PriorityLane
from postroom.queue.inspection import show_job
from postroom.sim.gmail import oauth
from tests.support.actions import ActionScene, rows_of
from tests.support.databases import on_sqlite
from tests.support.gmail_sim import FixedToken, client_of
from tests.support.queues import record_of

REVERSIBLE: list[tuple[str, dict[str, Any]]] = [
    ("archive", {}),
    ("apply_label", {"label": "Receipts"}),
    ("apply_label", {"label": "INBOX"}),
    ("remove_label", {"label": "Label_7"}),
    ("remove_label", {"label": "Nowhere"}),
    ("mark_read", {}),
    ("mark_unread", {}),
    ("star", {}),
    ("unstar", {}),
    ("trash", {}),
    ("restore", {}),
    ("snooze", {"amount": 2, "units": "hours"}),
]
LABELS = ["INBOX", "UNREAD", "STARRED", "IMPORTANT", "TRASH", "SPAM", "Label_7", "Label_8", "CATEGORY_UPDATES"]
CASES = st.lists(
    st.tuples(st.sampled_from(REVERSIBLE), st.frozensets(st.sampled_from(LABELS))), min_size=8, max_size=14
)
DONE: list[tuple[str, dict[str, str], set[str], set[str] | None]] = [
    ("archive", {}, {"INBOX", "UNREAD"}, {"UNREAD"}),
    ("apply_label", {"label": "receipts"}, {"INBOX"}, {"INBOX", "Label_7"}),
    ("apply_label", {"label": "Label_8"}, {"INBOX"}, {"INBOX", "Label_8"}),
    ("remove_label", {"label": "Receipts"}, {"INBOX", "Label_7"}, {"INBOX"}),
    ("mark_read", {}, {"INBOX", "UNREAD"}, {"INBOX"}),
    ("mark_unread", {}, {"INBOX"}, {"INBOX", "UNREAD"}),
    ("star", {}, {"INBOX"}, {"INBOX", "STARRED"}),
    ("unstar", {}, {"INBOX", "STARRED"}, {"INBOX"}),
    ("trash", {}, {"INBOX", "UNREAD"}, {"UNREAD", "TRASH"}),
    ("restore", {}, {"TRASH", "UNREAD"}, {"UNREAD"}),
    ("delete", {}, {"INBOX"}, None),
]


@pytest.mark.req("JB-12")
async def test_each_action_does_what_it_says(scene: ActionScene) -> None:
    for name, parameters, before, after in DONE:
        gmail_id, action = await scene.do(name, *before, **parameters)
        assert (action.status, action.error) == (S.COMPLETED, None), name
        assert scene.labels(gmail_id) == after, name
        assert action.pre_image is not None
        assert action.pre_image["labels"] == sorted(before), name
    steps = [step.name for step in await rows_of(scene.database, job_steps)]
    assert sorted(steps) == sorted(["pre_image", "execute"] * len(DONE))


@pytest.mark.req("JB-12", "JB-15")
@settings(max_examples=4, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(cases=CASES)
async def test_after_the_undo_the_labels_are_those_of_before(scene: ActionScene, cases: list[Any]) -> None:
    told: list[tuple[str, str, frozenset[str], str]] = []
    for (name, parameters), labels in cases:
        gmail_id, _ = await scene.message(*labels)
        told.append((gmail_id, await scene.want(gmail_id, name, **parameters), labels, name))
    await scene.work()
    for _, action_id, _, name in told:
        action = await scene.action(action_id)
        assert action.status is S.COMPLETED, (name, action.error)
        if not (action.undo_hint or {}).get("nothing_changed"):
            await scene.ask_to_undo(action_id)
    await scene.work()
    for gmail_id, action_id, labels, name in told:
        assert scene.labels(gmail_id) == labels, (name, (await scene.action(action_id)).undo_hint)


@pytest.mark.req("UX-3")
async def test_the_digest_counts_an_undo_by_what_it_took_back(scene: ActionScene) -> None:
    for name, parameters, before in (("archive", {}, ["INBOX"]), ("apply_label", {"label": "Receipts"}, ["INBOX"])):
        _, action = await scene.do(name, *before, **parameters)
        await scene.undo(action.id)
    today = DigestPeriod.current(DigestKind.DAY, scene.clock.now(), ZoneInfo("UTC"))
    counted = await scene.database.read(lambda tx: count_digest(tx, today))
    undone = {each.type: each.count for each in counted.done if each.origin is Origin.UNDO}
    assert undone == {ActionType.ARCHIVE: 1, ActionType.APPLY_LABEL: 1}
    assert sum(each.count for each in counted.done) == 4


@on_sqlite
async def test_what_changed_nothing_has_nothing_to_undo(scene: ActionScene) -> None:
    gmail_id, action = await scene.do("archive", "UNREAD")
    assert action.undo_hint == {
        "action": "archive",
        "inverse_action": "none",
        "inverse_parameters": {},
        "irreversible": False,
        "nothing_changed": True,
    }
    with pytest.raises(BadInput, match="it changed nothing"):
        await scene.undo(action.id)
    assert scene.labels(gmail_id) == {"UNREAD"}


@pytest.mark.req("JB-15")
async def test_an_undo_takes_back_only_what_its_action_changed(scene: ActionScene) -> None:
    gmail_id, action = await scene.do("archive", "INBOX", "UNREAD")
    assert action.undo_hint is not None
    assert (action.undo_hint["inverse_action"], action.undo_hint["inverse_parameters"]) == (
        "apply_label",
        {"label": "INBOX"},
    )
    await scene.client.modify_message(gmail_id, add=["Label_8"], remove=["UNREAD"])
    undone = await scene.undo(action.id)
    assert undone.status is S.COMPLETED
    assert scene.labels(gmail_id) == {"INBOX", "Label_8"}


@on_sqlite
async def test_mail_that_was_thrown_away_since_does_not_come_back_by_the_undo_of_something_else(
    scene: ActionScene,
) -> None:
    gmail_id, action = await scene.do("archive", "INBOX")
    await scene.client.trash_message(gmail_id)
    assert (await scene.undo(action.id)).status is S.COMPLETED
    assert scene.labels(gmail_id) == {"TRASH"}


@on_sqlite
async def test_what_the_owner_took_back_himself_is_left_as_he_left_it(scene: ActionScene) -> None:
    gmail_id, action = await scene.do("trash", "INBOX")
    await scene.client.untrash_message(gmail_id)
    assert (await scene.undo(action.id)).status is S.COMPLETED
    assert scene.labels(gmail_id) == frozenset(), "out of the trash, and archived by its owner"


@pytest.mark.req("JB-15")
async def test_an_action_is_undone_once(scene: ActionScene) -> None:
    _, action = await scene.do("star", "INBOX")
    undone = await scene.undo(action.id)
    job = await record_of(scene.queue, undone.job_id or "")
    assert job.key == f"undo.action:{scene.account.id}:{action.id}"
    assert job.payload == {"account_id": scene.account.id, "original_action_id": action.id}
    [link] = await rows_of(scene.database, action_links)
    assert (link.cause_action_id, link.effect_action_id, link.relation_type) == (undone.id, action.id, "undo_of")
    with pytest.raises(BadInput, match="undone already"):
        await scene.undo(action.id)
    with pytest.raises(BadInput, match="an undo itself"):
        await scene.undo(undone.id)


@pytest.mark.req("JB-15")
@on_sqlite
async def test_what_is_gone_for_good_cannot_be_undone(scene: ActionScene) -> None:
    _, action = await scene.do("delete", "INBOX")
    assert action.undo_hint is not None
    assert action.undo_hint["irreversible"] is True
    with pytest.raises(BadInput, match="deleted for ever"):
        await scene.undo(action.id)


async def test_several_actions_on_one_message_are_undone_from_the_last_to_the_first(scene: ActionScene) -> None:
    gmail_id, _ = await scene.message("INBOX")
    ids = [await scene.want(gmail_id, name) for name in ("star", "unstar", "star", "archive", "trash", "restore")]
    await scene.work()
    assert [(await scene.action(each)).status for each in ids] == [S.COMPLETED] * 6
    assert scene.labels(gmail_id) == {"STARRED"}
    for each in reversed(ids):
        await scene.ask_to_undo(each)
    await scene.work()
    assert scene.labels(gmail_id) == {"INBOX"}


@pytest.mark.req("JB-12")
async def test_delete_without_the_permission_says_which_one_is_missing(scene: ActionScene) -> None:
    token = scene.sim.control.new_token(frozenset({oauth.MODIFY}))
    async with client_of(scene.sim, credentials=FixedToken(token)) as client:
        scene.client = client
        gmail_id, action = await scene.do("delete", "INBOX")
    assert action.status is S.FAILED
    assert "https://mail.google.com/" in (action.error or "")
    assert "--full-access" in (action.error or "")
    job = await scene.database.read(lambda tx: show_job(tx, str(action.job_id))[0])
    assert (job.last_error or "").count("--full-access") == 1
    assert scene.labels(gmail_id) == {"INBOX"}


@on_sqlite
async def test_a_label_that_nobody_knows_is_made(scene: ActionScene) -> None:
    gmail_id, _ = await scene.do("apply_label", "INBOX", label="Brand/New")
    made = {label.name: label.id for label in await scene.client.list_labels()}["Brand/New"]
    assert scene.labels(gmail_id) == {"INBOX", made}
    again, _ = await scene.do("apply_label", "INBOX", label="brand/new")
    assert scene.labels(again) == {"INBOX", made}


async def test_a_label_that_was_deleted_since_fails_the_action_and_asks_for_the_labels(scene: ActionScene) -> None:
    await scene.do("apply_label", "INBOX", label="Receipts")
    scene.sim.control.delete_label("Label_7")
    gmail_id, _ = await scene.message("INBOX")
    action_id = await scene.want(gmail_id, "apply_label", label="Receipts")
    await scene.work()
    action = await scene.action(action_id)
    assert action.status is S.FAILED
    assert "Label_7" in (action.error or "")
    assert "Label_7" not in await known_labels(scene), "the labels were brought up to date"
    made = await scene.client.create_label("Receipts")
    await scene.retry(action_id)
    await scene.work()
    assert scene.labels(gmail_id) == {"INBOX", made.id}, "the name counts, not the label that had it"


@on_sqlite
async def test_a_label_is_no_way_into_the_trash(scene: ActionScene) -> None:
    gmail_id, action = await scene.do("apply_label", "INBOX", label="TRASH")
    assert (action.status, scene.labels(gmail_id)) == (S.FAILED, {"INBOX"})


async def known_labels(scene: ActionScene) -> set[str]:
    return {label.label_id for label in await scene.database.read(lambda tx: labels_of(tx, scene.account.id))}


async def test_what_rules_and_the_model_want_takes_turns_with_new_mail_and_a_person_goes_before(
    scene: ActionScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    lanes: set[PriorityLane] = set()
    admit = Limiter.admit

    def noted(
        limiter: Limiter, lane: PriorityLane, units: int, *, is_listing: bool
    ) -> AbstractAsyncContextManager[None]:
        lanes.add(lane)
        return admit(limiter, lane, units, is_listing=is_listing)

    monkeypatch.setattr(Limiter, "admit", noted)
    gmail_id, _ = await scene.message("INBOX")
    for origin, lane in (
        (Origin.RULE, PriorityLane.LIVE),
        (Origin.MODEL, PriorityLane.LIVE),
        (Origin.PERSON, PriorityLane.USER_ACTION),
    ):
        lanes.clear()
        action_id = await scene.want(gmail_id, "star")
        wanted = update(actions).where(actions.c.id == action_id).values(origin=origin)
        await scene.database.write(partial(Tx.execute, statement=wanted))
        await scene.work()
        assert lanes == {lane}


@pytest.mark.req("JB-15")
async def test_an_undo_is_titled_by_the_labels_name(scene: ActionScene) -> None:
    _, action = await scene.do("apply_label", "INBOX", label="Receipts")
    undo = await scene.undo(action.id)
    assert undo.wanted.to_json() == {"type": "remove_label", "label": "Receipts"}


@pytest.mark.req("JB-15")
async def test_an_undo_of_trash_after_a_restore_says_that_it_changed_nothing(scene: ActionScene) -> None:
    gmail_id, action = await scene.do("trash", "INBOX")
    await scene.want(gmail_id, "restore")
    await scene.work()
    before = scene.labels(gmail_id)
    undo = await scene.undo(action.id)
    assert scene.labels(gmail_id) == before
    assert (undo.undo_hint or {})["nothing_changed"] is True
    original = await scene.action(action.id)
    reason = await scene.database.read(lambda tx: why_not_now(tx, original))
    assert reason == "its undo found nothing left to take back: the message was changed since"
