"""`postroom model` and the undo of all that the model did, as a person meets them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import pytest

from postroom.accounts.account import NewAccount, add_account
from postroom.actions import lifecycle
from postroom.actions.lifecycle import NewAction
from postroom.db import Database, Tx, connect
from postroom.db.tables.access import audit_log
from postroom.db.tables.queue import jobs
from postroom.domain.actions import ActionStatus as S
from postroom.domain.actions import Origin, parse_action
from postroom.domain.clock import SystemClock
from postroom.domain.ids import new_id
from tests.support.actions import rows_of
from tests.support.commands import postroom

pytestmark = pytest.mark.req("HW-6")

T = TypeVar("T")
HINT = {"inverse_action": "apply_label", "inverse_parameters": {"label": "INBOX"}, "irreversible": False}


async def within(home: Path, act: Callable[[Database], Awaitable[T]]) -> T:
    home.mkdir(exist_ok=True, mode=0o700)
    database = await connect(f"sqlite:///{home / 'postroom.db'}")
    try:
        return await act(database)
    finally:
        await database.close()


async def test_the_model_is_stopped_and_started_by_one_command_each(home: Path) -> None:
    assert (await postroom("model", "status", "--json")).json["on"] is True
    assert "would be stopped" in (await postroom("model", "off", "--dry-run")).stdout
    assert (await postroom("model", "status", "--json")).json["on"] is True
    off = await postroom("model", "off")
    assert off.code == 0
    assert "goes to review" in off.stdout
    assert "The model is off, switched by cli " in (await postroom("model", "status")).stdout
    assert (await postroom("model", "on", "--json")).json["on"] is True
    changes = await within(home, lambda database: rows_of(database, audit_log))
    assert [(row.action, row.after) for row in changes] == [
        ("switch.change", {"value": False}),
        ("switch.change", {"value": True}),
    ]


@pytest.mark.req("BF-9")
async def test_the_ceiling_of_the_day_is_shown_set_and_audited(home: Path) -> None:
    assert "may cost $10.00 a day, backfill at most $6.00 of it" in (await postroom("model", "ceiling")).stdout
    assert "would be $2.50 a day" in (await postroom("model", "ceiling", "2.50", "--dry-run")).stdout
    set_now = (await postroom("model", "ceiling", "2.50", "--json")).json
    assert (set_now["ceiling_cents"], set_now["backfill_share_cents"]) == (250, 150)
    [entry] = await within(home, lambda database: rows_of(database, audit_log))
    assert (entry.action, entry.after) == ("model.ceiling", {"microdollars": 2_500_000})
    refused = await postroom("model", "ceiling", "much")
    assert refused.code != 0
    assert "dollars: 'much' is not an amount in dollars" in refused.stderr


async def test_all_that_the_model_did_is_listed_and_then_undone_by_a_job(home: Path) -> None:
    now = SystemClock().now()

    async def make(database: Database) -> str:
        account = await database.write(lambda tx: add_account(tx, NewAccount("me@example.org", "http://x.test"), now))

        def act(tx: Tx) -> str:
            found = []
            for origin in (Origin.MODEL, Origin.RULE):
                new = NewAction(account.id, "18c0", parse_action("archive"), origin, str(origin))
                found.append(lifecycle.insert_action(tx, new, now - timedelta(minutes=5)))
                at = now - timedelta(minutes=5)
                lifecycle.move_action(tx, found[-1], S.QUEUED, S.EXECUTING, at, job_id=new_id())
                lifecycle.move_action(tx, found[-1], S.EXECUTING, S.COMPLETED, at, undo_hint=HINT)
            return found[0]

        return await database.write(act)

    made = await within(home, make)
    seen = await postroom("actions", "undo", "--by", "model", "--since", "1h", "--dry-run")
    assert made in seen.stdout
    assert "can be undone" in seen.stdout
    done = (await postroom("actions", "undo", "--by", "model", "--since", "1h", "--json")).json
    assert (done["total"], done["open"], done["dry_run"]) == (1, 1, False)
    waiting = await within(home, lambda database: rows_of(database, jobs))
    assert [row.type for row in waiting] == ["undo.span"]
    wrong = await postroom("actions", "undo", "--by", "model")
    assert wrong.code == 2
    assert "needs --since" in wrong.stderr
