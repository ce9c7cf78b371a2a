"""The tier policy of an installation: there from the start, told to connectors, changed only for what can be read."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from postroom.audit import Actor, AuditFilter, list_entries
from postroom.db import Database
from postroom.domain.clock import ManualClock
from postroom.domain.errors import BadInput
from postroom.mail.headers import Headers
from postroom.mail.tier_policy import RULES, SEED, Treatment, parse_policy
from postroom.switchboard import definitions
from tests.support.mail import ME
from tests.support.switchboards import Bench

pytestmark = pytest.mark.req("BF-20")

ANNA = Actor("operator", "anna")
BEAT = {"connector_type": "gmail", "endpoint_identity": ME, "instance": "1", "version": "1", "status": "running"}
ADVERT = Headers((("From", "shop@x.example"), ("List-Unsubscribe", "<https://x.example>")))


async def test_a_new_installation_has_the_seed_and_tells_it_to_connectors(bench: Bench) -> None:
    async with bench.client() as call:
        told = (await call("connector.heartbeat", BEAT))["policy"]
    adopted = parse_policy(told)
    assert adopted.rules == SEED.rules
    assert adopted.decide(ADVERT, {"CATEGORY_PROMOTIONS"}).treatment is Treatment.SKIP


async def test_opening_the_database_again_brings_no_rule_back(database: Database, clock: ManualClock) -> None:
    one = [{"tier": 2, "condition": {"sender_domain": ["x.example"]}, "note": "Mine."}]
    await database.write(lambda tx: definitions.replace_policy(tx, one, ANNA, clock.now()))
    await database.write(lambda tx: definitions.replace_policy(tx, [], ANNA, clock.now()))
    assert await database.read(definitions.all_policy_rules) == []


async def test_of_two_changes_at_once_one_stands(database: Database, clock: ManualClock) -> None:
    ways = [
        [{"tier": 2, "condition": {"sender_domain": [domain]}, "note": domain}] for domain in ("a.example", "b.example")
    ]
    for _ in range(10):
        changes = [partial(definitions.replace_policy, rules=rules, who=ANNA, now=clock.now()) for rules in ways]
        await asyncio.gather(*map(database.write, changes))
        [only] = await database.read(definitions.all_policy_rules)
        assert only["note"] in ("a.example", "b.example")


async def test_a_change_is_told_under_another_version_and_stands_in_the_audit(
    database: Database, clock: ManualClock
) -> None:
    before, _ = await database.read(definitions.rules_with_version)
    rules = [*RULES, {"tier": 3, "condition": {"subject": "lottery"}, "note": "Never.", "enabled": False}]
    after = await database.write(lambda tx: definitions.replace_policy(tx, rules, ANNA, clock.now()))
    assert after.version == before, "a rule that is switched off decides nothing"
    after = await database.write(lambda tx: definitions.replace_policy(tx, rules[:3], ANNA, clock.now()))
    assert (after.version != before, len(after.rules)) == (True, 3)
    [last, _] = (await database.read(lambda tx: list_entries(tx, AuditFilter(action="policy.change")))).entries
    assert (last.actor, last.before, last.after) == (
        ANNA,
        {"version": before, "rules": len(RULES) + 1},
        {"version": after.version, "rules": 3},
    )


@pytest.mark.parametrize(
    ("rule", "field"),
    [
        ({"tier": 4, "condition": {"subject": "x"}, "note": "a"}, "rules[0] (a).tier"),
        ({"tier": 2, "condition": {}, "note": "a"}, "rules[0] (a).condition"),
        ({"tier": 2, "condition": {"subject": "(("}, "note": "a"}, "rules[0] (a).condition.subject"),
        ({"tier": 2, "condition": {"from": "x"}, "note": "a"}, "rules[0] (a).condition.from"),
        ({"tier": 2, "condition": {"subject": "x"}, "note": "a\0"}, "rules[0].note"),
        ("nonsense", "rules[0]"),
    ],
)
async def test_a_rule_that_cannot_be_read_is_refused_by_name_and_nothing_changes(
    database: Database, clock: ManualClock, rule: Any, field: str
) -> None:
    with pytest.raises(BadInput) as refused:
        await database.write(lambda tx: definitions.replace_policy(tx, [rule], ANNA, clock.now()))
    assert refused.value.field == field
    assert (await database.read(definitions.policy_in_force)).rules == SEED.rules
