"""The categories in force (DQ-2): what is shipped, the owner's `categories.toml` in the home folder, and the senders
whom the owner put somewhere ("this sender is finance"). Corrections are stored and audited; connectors receive all of
it with their heartbeat."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from sqlalchemy import delete, func, select

from postroom import audit
from postroom.audit import Actor
from postroom.db import Tx
from postroom.db.database import insert
from postroom.db.tables.mail import category_corrections as table
from postroom.domain.errors import BadInput, NotFound
from postroom.mail.categories import Categories, shipped, with_owner
from postroom.mail.categories.definitions import sender_place
from postroom.mail.categories.model import NONE

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


def corrected_senders(tx: Tx) -> Mapping[str, str]:
    return {row.sender: row.category for row in tx.execute(select(table.c.sender, table.c.category))}


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
