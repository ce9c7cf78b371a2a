"""What the owner defines, as it is in force in this installation: the tier policy (BF-20) and the categories (DQ-2).
Connectors receive both with their heartbeat.

The policy is rules stored as rows, seeded once and replaced as a whole; every replacement names its author and is
audited. The categories are what is shipped, the owner's `categories.toml` in the home folder, and the senders whom the
owner put somewhere ("this sender is finance"); corrections are stored and audited.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from sqlalchemy import delete, func, select

from postroom import audit
from postroom.audit import Actor
from postroom.db import Prepared, Tx
from postroom.db.database import insert
from postroom.db.tables.mail import category_corrections as table
from postroom.db.tables.mail import policy_rules
from postroom.domain.errors import BadInput, NotFound
from postroom.domain.ids import new_id
from postroom.mail.categories import Categories, shipped, with_owner
from postroom.mail.categories.definitions import sender_place
from postroom.mail.categories.model import NONE
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


OWN_FILE = "categories.toml"
MOST_CORRECTIONS = 5_000


@dataclass(frozen=True)
class CategoryBook:
    definitions: str = ""
    """The text of the owner's file; empty where there is none."""

    @classmethod
    def in_folder(cls, home: Path) -> CategoryBook:
        """A file with a mistake is refused, with the place where it stands."""
        path = home / OWN_FILE
        try:
            book = cls(path.read_text("utf-8") if path.exists() else "")
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(OWN_FILE, f"{path} cannot be read: {error}") from None
        _ = book.defined
        return book

    @cached_property
    def defined(self) -> Categories:
        """Without the corrections."""
        return with_owner(self.definitions) if self.definitions else shipped()

    def in_force(self, tx: Tx) -> Categories:
        return self.defined.corrected(corrected_senders(tx))

    def for_connector(self, tx: Tx, known_version: str | None) -> dict[str, Any]:
        """What a connector decides by; only its version where the connector has it."""
        content = {"definitions": self.definitions, "corrections": corrected_senders(tx)}
        version = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
        return {"version": version} if version == known_version else {"version": version, **content}


@dataclass(frozen=True, slots=True)
class CategoryCorrection:
    sender: str
    category: str
    created_by: str
    created_at: datetime


_CORRECTED = Prepared(select(table.c.sender, table.c.category))


def corrected_senders(tx: Tx) -> Mapping[str, str]:
    return {sender: category for sender, category in tx.run(_CORRECTED, {})}


def list_corrections(tx: Tx) -> list[CategoryCorrection]:
    return [CategoryCorrection(*row) for row in tx.execute(select(table).order_by(table.c.sender))]


def correct_sender(
    tx: Tx, categories: Categories, sender: str, category: str, who: Actor, now: datetime
) -> CategoryCorrection:
    """From now on mail from this address or domain is in this category alone, or with `none` in no category."""
    place = sender_place(sender)
    if category not in (NONE, *categories.names):
        raise BadInput(
            "category", f"{category!r} is not a category; choose from {', '.join(categories.names)} or {NONE}"
        )
    tx.lock_table(table)
    before = tx.execute(select(table).where(table.c.sender == place)).one_or_none()
    if before is None and int(tx.execute(select(func.count()).select_from(table)).scalar_one()) >= MOST_CORRECTIONS:
        raise BadInput("sender", f"there are {MOST_CORRECTIONS:,} corrections; define categories in {OWN_FILE} instead")
    made = CategoryCorrection(place, category, who.name, now)
    values = {"sender": place, "category": category, "created_by": who.name, "created_at": now}
    statement = insert(tx, table).values(**values)
    tx.execute(statement.on_conflict_do_update(index_elements=["sender"], set_=values))
    was = None if before is None else {"category": before.category}
    audit.record(tx, who, "category.correct", ("sender", place), now, before=was, after={"category": category})
    return made


def forget_correction(tx: Tx, sender: str, who: Actor, now: datetime) -> CategoryCorrection:
    place = sender_place(sender)
    row = tx.execute(select(table).where(table.c.sender == place)).one_or_none()
    if row is None:
        raise NotFound("sender", f"you put {place} nowhere")
    tx.execute(delete(table).where(table.c.sender == place))
    audit.record(tx, who, "category.forget", ("sender", place), now, before={"category": row.category})
    return CategoryCorrection(*row)
