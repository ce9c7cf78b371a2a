"""The owner's categories: corrections are stored and audited, the file in the home folder counts, and a connector gets
both with its heartbeat."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from postroom import audit
from postroom.audit import Actor
from postroom.db import Database
from postroom.domain.errors import BadInput, NotFound
from postroom.mail.categories import facts_of, parse_categories
from postroom.mail.headers import Headers
from postroom.switchboard.definitions import (
    CategoryBook,
    correct_sender,
    corrected_senders,
    forget_correction,
    list_corrections,
)

ME, NOW = Actor("owner", "Ana"), datetime(2026, 11, 17, tzinfo=UTC)
BOOK = CategoryBook()
LETTER = Headers((("From", "Anna <anna@studio.example>"), ("Subject", "Your boarding pass LH 1790")))


@pytest.mark.req("DQ-2")
async def test_a_correction_is_stored_audited_and_in_force_until_it_is_forgotten(database: Database) -> None:
    correct = partial(correct_sender, categories=BOOK.defined, who=ME, now=NOW)
    assert (await database.read(BOOK.in_force)).matching(facts_of(LETTER)) == ("travel",)
    await database.write(lambda tx: correct(tx, sender="@Studio.example", category="finance"))
    await database.write(lambda tx: correct(tx, sender="studio.example", category="health"))
    assert (await database.read(BOOK.in_force)).matching(facts_of(LETTER)) == ("health",)
    (held,) = await database.read(list_corrections)
    assert (held.sender, held.category, held.created_by) == ("studio.example", "health", "Ana")
    await database.write(lambda tx: forget_correction(tx, "studio.example", ME, NOW))
    assert await database.read(corrected_senders) == {}
    page = await database.read(lambda tx: audit.list_entries(tx, audit.AuditFilter()))
    assert [entry.action for entry in page.entries if entry.action.startswith("category.")] == [
        "category.forget",
        "category.correct",
        "category.correct",
    ]


@pytest.mark.req("DQ-2")
async def test_mistakes_in_a_correction_change_nothing(database: Database) -> None:
    correct = partial(correct_sender, categories=BOOK.defined, who=ME, now=NOW)
    for sender, category, problem in (
        ("nothing", "finance", "neither a mail address nor a domain"),
        ("shop.example", "money", "is not a category"),
    ):
        with pytest.raises(BadInput, match=problem):
            await database.write(partial(correct, sender=sender, category=category))
    with pytest.raises(NotFound, match=r"you put shop\.example nowhere"):
        await database.write(lambda tx: forget_correction(tx, "shop.example", ME, NOW))
    assert await database.read(list_corrections) == []


@pytest.mark.req("DQ-2", "BF-16")
async def test_a_connector_gets_definitions_and_corrections_once(database: Database, tmp_path: Path) -> None:
    (tmp_path / "categories.toml").write_text(
        'version = 1\n[categories.choir]\ntitle = "Choir"\naccept = [{ subject = ["rehearsal"] }]\n', "utf-8"
    )
    book = CategoryBook.in_folder(tmp_path)
    assert "choir" in book.defined.selectable
    await database.write(lambda tx: correct_sender(tx, book.defined, "studio.example", "choir", ME, NOW))
    sent = await database.read(lambda tx: book.for_connector(tx, None))
    adopted = parse_categories(sent)
    assert adopted.names == book.defined.names
    assert adopted.matching(facts_of(LETTER)) == ("choir",)
    again = await database.read(lambda tx: book.for_connector(tx, sent["version"]))
    assert again == {"version": sent["version"]}
    await database.write(lambda tx: forget_correction(tx, "studio.example", ME, NOW))
    assert "corrections" in await database.read(lambda tx: book.for_connector(tx, sent["version"]))


def test_a_mistake_in_the_owners_file_is_refused_where_it_stands(tmp_path: Path) -> None:
    (tmp_path / "categories.toml").write_text("version = 1\n[categories.choir]\nyears = 2\n", "utf-8")
    with pytest.raises(BadInput, match=r"categories\.choir\.title: is missing"):
        CategoryBook.in_folder(tmp_path)
    assert CategoryBook.in_folder(tmp_path / "elsewhere").definitions == ""
