"""Rules, directions and guidance changed by what a page or a program saw of them: refused if that is no longer so."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from postroom.audit import Actor
from postroom.dashboard.changing.passphrase import require_proof
from postroom.dashboard.forms import Form
from postroom.dashboard.security.proof import Sensitive
from postroom.dashboard.visit import Visit
from postroom.db import Tx
from postroom.triage import guidance_store
from postroom.triage.guidance_store import Direction, StoredModelRule, changed_meanwhile
from postroom.triage.rules import store
from postroom.triage.rules.model import RuleDraft
from postroom.triage.rules.rows import StoredRule
from postroom.triage.safety import acts_alone


async def require_rule_proof(here: Visit, draft: RuleDraft | None, form: Form | None = None) -> None:
    """A rule that sends or destroys without approval is saved and switched on only with the passphrase."""
    if draft is not None and acts_alone(draft.actions, here.app.settings.safety, unattended=draft.unattended):
        await require_proof(here, Sensitive.UNATTENDED_RULE, form)


async def require_switch_proof(here: Visit, rule_id: str, form: Form | None = None) -> None:
    await require_rule_proof(here, (await here.read(lambda tx: store.rule_with_id(tx, rule_id))).draft, form)


def edit_rule(tx: Tx, rule_id: str, stamp: str | None, draft: RuleDraft, who: Actor, now: datetime) -> StoredRule:
    return store.edit_rule(tx, _as_seen(tx, rule_id, stamp), draft, who, now)


def remove_rule(tx: Tx, rule_id: str, stamp: str | None, who: Actor, now: datetime) -> StoredRule:
    rule = _as_seen(tx, rule_id, stamp)
    store.remove_rule(tx, rule, who, now)
    return rule


def switch_rule(tx: Tx, rule_id: str, who: Actor, now: datetime, *, on: bool) -> StoredRule:
    rule = store.rule_with_id(tx, rule_id)
    return store.enable_rule(tx, rule, who, now) if on else store.disable_rule(tx, rule, None, who, now)


def edit_direction(
    tx: Tx, direction_id: str, seen: datetime | None, changes: Mapping[str, Any], who: Actor, now: datetime
) -> Direction:
    before = guidance_store.direction_with_id(tx, direction_id)
    if seen not in (None, before.updated_at):
        raise changed_meanwhile("direction")
    return guidance_store.change_direction(tx, before, changes, who, now)


def remove_direction(tx: Tx, direction_id: str, who: Actor, now: datetime) -> Direction:
    before = guidance_store.direction_with_id(tx, direction_id)
    guidance_store.remove_direction(tx, before, who, now)
    return before


def edit_guidance(
    tx: Tx, guidance_id: str, seen: datetime | None, changes: Mapping[str, Any], who: Actor, now: datetime
) -> StoredModelRule:
    before = guidance_store.model_rule_with_id(tx, guidance_id)
    if seen not in (None, before.updated_at):
        raise changed_meanwhile(f"guidance {before.name}")
    return guidance_store.change_model_rule(tx, before, changes, who, now)


def remove_guidance(tx: Tx, guidance_id: str, who: Actor, now: datetime) -> StoredModelRule:
    before = guidance_store.model_rule_with_id(tx, guidance_id)
    guidance_store.remove_model_rule(tx, before, who, now)
    return before


def _as_seen(tx: Tx, rule_id: str, stamp: str | None) -> StoredRule:
    rule = store.rule_with_id(tx, rule_id)
    if stamp not in (None, rule.stamp):
        raise changed_meanwhile(f"rule {rule.name}")
    return rule
