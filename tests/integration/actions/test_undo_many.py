"""All that the model did since a moment is undone as one deed, and what could not be is told."""

from __future__ import annotations

from datetime import timedelta

import pytest

from postroom.actions import undo
from postroom.actions.undo import Progress, Survey, UndoSpan, start_undo_many, survey_undo
from postroom.audit import AuditFilter, list_entries
from postroom.domain.actions import Origin
from postroom.domain.errors import BadInput
from tests.support.actions import A_TEST, ActionScene
from tests.support.dashboard_data import add_decision
from tests.support.databases import on_sqlite

pytestmark = pytest.mark.req("HW-6")


async def done(scene: ActionScene, name: str, *labels: str) -> str:
    """By the model, a minute after the one before; Gmail's id of the message."""
    mail = await scene.message(*labels)
    await add_decision(scene, mail, name)
    await scene.work()
    scene.clock.advance(60)
    return mail[0]


async def look(scene: ActionScene, span: UndoSpan) -> Survey:
    return await scene.database.read(lambda tx: survey_undo(tx, span))


async def test_what_the_model_did_since_a_moment_is_undone_and_nothing_else(
    scene: ActionScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(undo, "_AT_ONCE", 2)
    before = await done(scene, "archive", "INBOX")
    begin = scene.clock.now()
    archived, starred, read = [await done(scene, name, "INBOX", "UNREAD") for name in ("archive", "star", "mark_read")]
    already = await done(scene, "star", "INBOX", "STARRED")
    own, _ = await scene.do("archive", "INBOX")
    changed = await done(scene, "archive", "INBOX")
    await scene.want(changed, "apply_label", label="INBOX")
    await scene.work()
    span = UndoSpan(begin, scene.clock.now())

    preview = await look(scene, span)
    assert (preview.total, preview.counts) == (5, {Progress.OPEN: 4, Progress.LEFT: 1})
    await scene.database.write(lambda tx: start_undo_many(tx, scene.queue, span, A_TEST))
    assert scene.labels(archived) == {"UNREAD"}, "a worker does it"
    await scene.work()

    for gmail_id in (archived, starred, read):
        assert scene.labels(gmail_id) == {"INBOX", "UNREAD"}
    assert scene.labels(before) == scene.labels(own) == set()
    assert scene.labels(already) == {"INBOX", "STARRED"}
    after = await look(scene, span)
    assert after.counts == {Progress.UNDONE: 4, Progress.LEFT: 1}
    assert [item.reason for item in after.not_undone] == [
        "the message was changed since, and is left as it is",
        "it changed nothing",
    ]
    entries = (await scene.database.read(lambda tx: list_entries(tx, AuditFilter(action="actions.undo_span")))).entries
    assert [entry.after for entry in entries] == [span.to_json()]

    await scene.database.write(lambda tx: start_undo_many(tx, scene.queue, span, A_TEST))
    await scene.work()
    assert (await look(scene, span)).counts == after.counts, "a second press undoes nothing twice"


@on_sqlite
async def test_what_was_sent_or_destroyed_is_told_as_left(scene: ActionScene) -> None:
    from sqlalchemy import update

    from postroom.db.tables.triage import actions

    begin = scene.clock.now()
    await done(scene, "archive", "INBOX")
    gone = {"type": "forward", "undo_hint": {"irreversible": True, "inverse_action": "none"}}
    await scene.database.write(lambda tx: tx.execute(update(actions).values(gone)))
    found = await look(scene, UndoSpan(begin, scene.clock.now()))
    assert [item.reason for item in found.not_undone] == ["the message was forwarded, and cannot be called back"]


@on_sqlite
async def test_a_span_says_what_is_wrong_with_it(scene: ActionScene) -> None:
    now = scene.clock.now()
    with pytest.raises(BadInput, match="before until"):
        UndoSpan(now, now)
    with pytest.raises(BadInput, match="only what the model or a rule did"):
        UndoSpan(now - timedelta(hours=1), now, Origin.PERSON)
