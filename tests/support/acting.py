"""Actions on the mail of a stand-in, in the database of a running dashboard: wanted by rules, the model and people."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import update

from postroom.actions.intake import Intake
from postroom.db.tables.mail import messages
from postroom.db.tables.triage import decisions
from postroom.domain.actions import Order, Origin, Proposal
from postroom.domain.clock import ManualClock
from postroom.domain.ids import new_id
from postroom.settings import SafetySettings
from postroom.triage.rules.model import parse_draft
from postroom.triage.rules.rows import StoredRule
from postroom.triage.rules.store import add_rule
from postroom.triage.rules.wishes import parse_actions
from tests.support.action_scene import ME, Scene, scene_of
from tests.support.dashboards import Site

HOSTILE = "<script>window.hit=1</script><img src=x onerror='window.hit=1'>\u202egnp.exe"


@asynccontextmanager
async def acting(site: Site, **labels: str) -> AsyncIterator[Scene]:
    """A mailbox, and the worker that does what is wanted with it (`scene.work()`)."""
    async with scene_of(site.app.database, ManualClock(site.app.clock.now()), **labels) as scene:
        yield scene


async def rule(site: Site, name: str = "Receipts", actions: Any = ("archive",), **given: Any) -> StoredRule:
    condition = given.pop("condition", {"sender_domain": "shop.example"})
    draft = parse_draft({"name": name, "condition": condition, "actions": list(actions), **given})
    return await site.write(lambda tx: add_rule(tx, draft, ME, site.app.clock.now()))


async def mail(scene: Scene, *labels: str, **columns: Any) -> tuple[str, str]:
    """New mail: Gmail's id and ours."""
    gmail_id, message_id = await scene.message(*labels)
    if columns:
        await scene.database.write(
            lambda tx: tx.execute(update(messages).where(messages.c.id == message_id).values(**columns))
        )
    return gmail_id, message_id


async def decide(
    scene: Scene, ids: tuple[str, str], *names: str, by: StoredRule | None = None, reason: str = "", why: str = ""
) -> list[str]:
    """A rule, or the model, wants this; with a reason (`why`) a person is asked first. The actions' ids."""
    gmail_id, message_id = ids
    now, decision_id = scene.clock.now(), new_id()
    source, said = ("llm", "It is news.") if by is None else ("deterministic", f"The rule {by.name} matched.")
    made = {"id": decision_id, "message_id": message_id, "source": source, "action": names[0], "created_at": now}
    made |= {"reason": reason or said, "confidence": 0.93 if by is None else 1.0}
    made |= {} if by is None else {"rule_id": by.id, "rule_name": by.name}
    order = Order(
        account_id=scene.account.id,
        message_id=message_id,
        gmail_id=gmail_id,
        thread_id=gmail_id,
        decision_id=decision_id,
        origin=Origin.MODEL if by is None else Origin.RULE,
        wanted_by="model gpt-5-mini" if by is None else f"rule {by.name}",
        proposals=tuple(Proposal(wanted, (why,) if why else ()) for wanted in parse_actions(list(names))),
        rule_id=None if by is None else by.id,
        rule_name=None if by is None else by.name,
    )
    await scene.database.write(lambda tx: tx.execute(decisions.insert().values(made)))
    return list(await scene.database.write(lambda tx: Intake(scene.queue, SafetySettings()).accept(tx, order)))
