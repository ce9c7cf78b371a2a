"""The tier policy of this installation (BF-20): rules stored as rows, seeded once and replaced as a whole.

Every replacement names its author and is audited. Connectors receive the policy with their heartbeat.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import delete, select

from postroom import audit
from postroom.audit import Actor
from postroom.db import Tx
from postroom.db.tables.mail import policy_rules
from postroom.domain.errors import BadInput
from postroom.domain.ids import new_id
from postroom.mail.tier_policy import MAX_RULES, TierPolicy, parse_policy, parse_rules

SUBJECT = ("policy", "tier policy")


def rules_with_version(tx: Tx) -> tuple[str, list[dict[str, Any]]]:
    """The rules in force, in their order, under a version that changes with any of them."""
    query = select(policy_rules).where(policy_rules.c.enabled).order_by(policy_rules.c.position, policy_rules.c.id)
    rules = [{"tier": row.tier, "condition": row.condition, "note": row.note} for row in tx.execute(query)]
    encoded = json.dumps(rules, sort_keys=True).encode()
    return hashlib.sha256(encoded).hexdigest()[:16], rules


def policy_in_force(tx: Tx) -> TierPolicy:
    """The rules in force, ready to decide by."""
    version, rules = rules_with_version(tx)
    return parse_policy({"version": version, "rules": rules})


def all_policy_rules(tx: Tx) -> list[dict[str, Any]]:
    """Also those that are switched off: what `replace_policy` takes."""
    rows = tx.execute(select(policy_rules).order_by(policy_rules.c.position, policy_rules.c.id))
    return [{"tier": row.tier, "condition": row.condition, "note": row.note, "enabled": row.enabled} for row in rows]


def all_rules_version(tx: Tx, *, lock: bool = False) -> str:
    """Changes with any rule, also one that is switched off. Locked, it holds until the transaction ends."""
    if lock:
        tx.lock_table(policy_rules)
    return hashlib.sha256(json.dumps(all_policy_rules(tx), sort_keys=True).encode()).hexdigest()[:16]


def replace_policy(tx: Tx, rules: Sequence[object], who: Actor, now: datetime) -> TierPolicy:
    """Replace all rules. One that cannot be read is refused by its name, and nothing changes."""
    if len(rules) > MAX_RULES:
        raise BadInput("rules", f"are {len(rules):,}; the most is {MAX_RULES}")
    checked = parse_rules(rules)
    tx.lock_table(policy_rules)
    before = {"version": rules_with_version(tx)[0], "rules": len(all_policy_rules(tx))}
    tx.execute(delete(policy_rules))
    rows = [
        {
            "id": new_id(),
            "position": number,
            "tier": rule.tier,
            "condition": rule.condition.model_dump(exclude_defaults=True),
            "note": rule.note,
            "enabled": rule.enabled,
            "updated_at": now,
        }
        for number, rule in enumerate(checked)
    ]
    if rows:
        tx.execute(policy_rules.insert(), rows)
    policy = policy_in_force(tx)
    after = {"version": policy.version, "rules": len(rows)}
    audit.record(tx, who, "policy.change", SUBJECT, now, before=before, after=after)
    return policy
