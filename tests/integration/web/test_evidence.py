"""Evidence never changes, whoever tries; a changed page is new evidence."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from datetime import date
from functools import partial

import pytest
from sqlalchemy import delete, func, select, text, update
from sqlalchemy.exc import DBAPIError

from postroom.db import Database, Dialect, Tx
from postroom.db.tables.web import evidence, evidence_texts
from postroom.domain.clock import ManualClock
from postroom.domain.errors import NotFound
from postroom.web.evidence import keep, newest, raw_content, read, verify, write_text
from postroom.web.extraction.web_reader import Extracted
from postroom.web.fetching.interface import Fetched, Validators

URL = "https://gazette.test/documents/1"


def _fetched(clock: ManualClock, body: bytes, status: int = 200, etag: str | None = '"1"') -> Fetched:
    return Fetched(URL, URL, status, body, "text/html", "utf-8", Validators(etag), clock.now())


def _all(tx: Tx) -> list[tuple[object, ...]]:
    return [tuple(row) for row in tx.execute(select(evidence).order_by(evidence.c.id))]


@pytest.mark.req("WB-4", "WB-12")
async def test_a_changed_page_is_new_evidence_beside_the_old(database: Database, clock: ManualClock) -> None:
    first = await database.write(lambda tx: keep(tx, URL, "gazette", _fetched(clock, b"v1")))
    clock.advance(60)
    second = await database.write(lambda tx: keep(tx, URL, "gazette", _fetched(clock, b"v2")))
    assert first.id != second.id
    assert (first.is_new, second.is_new) == (True, True)
    assert await database.read(lambda tx: raw_content(tx, first.id)) == b"v1"
    assert await database.read(lambda tx: raw_content(tx, second.id)) == b"v2"
    assert first.content_hash == hashlib.sha256(b"v1").hexdigest()


@pytest.mark.req("WB-4", "WB-7")
async def test_the_same_content_is_the_same_evidence_verified_anew(database: Database, clock: ManualClock) -> None:
    first = await database.write(lambda tx: keep(tx, URL, "gazette", _fetched(clock, b"v1")))
    begun = clock.now()
    clock.advance(3_600)
    again = await database.write(lambda tx: keep(tx, URL, "other", _fetched(clock, b"v1", etag='"2"')))
    assert (again.id, again.is_new) == (first.id, False)
    found, _ = await database.read(lambda tx: read(tx, first.id))
    assert (found.fetched_at, found.last_verified_at) == (begun, clock.now())
    assert (found.source_slug, found.validators.etag) == ("gazette", '"2"')


@pytest.mark.req("WB-4")
async def test_verifying_touches_nothing_else(database: Database, clock: ManualClock) -> None:
    stored = await database.write(lambda tx: keep(tx, URL, "gazette", _fetched(clock, b"v1")))
    before = await database.read(_all)
    clock.advance(60)
    await database.write(lambda tx: verify(tx, stored.id, _fetched(clock, b"", 304, etag=None)))
    after = await database.read(_all)
    changed = {column.name for column, old, new in zip(evidence.c, before[0], after[0], strict=True) if old != new}
    assert changed == {"last_verified_at"}


@pytest.mark.req("WB-4")
async def test_the_content_that_a_page_went_back_to_is_its_newest(database: Database, clock: ManualClock) -> None:
    ids = []
    for body in (b"a", b"b", b"a"):
        fetched = _fetched(clock, body)
        ids.append((await database.write(partial(keep, url=URL, source_slug="gazette", fetched=fetched))).id)
        clock.advance(60)
    found = await database.read(lambda tx: newest(tx, URL))
    assert found is not None
    assert found.id == ids[0] == ids[2]


_ATTACKS: dict[str, Callable[[Tx], object]] = {
    "content": lambda tx: tx.execute(update(evidence).values(raw_content=b"forged")),
    "hash": lambda tx: tx.execute(update(evidence).values(content_hash="0" * 64)),
    "time": lambda tx: tx.execute(text("UPDATE evidence SET fetched_at = '2001-01-01T00:00:00.000000Z'")),
    "url": lambda tx: tx.execute(update(evidence).values(url="https://elsewhere.test/")),
    "url to nothing": lambda tx: tx.execute(text("UPDATE evidence SET url = NULL")),
    "id": lambda tx: tx.execute(text("UPDATE evidence SET id = '00000000-0000-7000-8000-000000000000'")),
    "with a mutable one": lambda tx: tx.execute(update(evidence).values(etag="x", raw_content=b"forged")),
    "one row": lambda tx: tx.execute(update(evidence).where(evidence.c.url == URL).values(raw_content=b"")),
    "delete": lambda tx: tx.execute(delete(evidence)),
    "delete one": lambda tx: tx.execute(text("DELETE FROM evidence WHERE url = :url"), {"url": URL}),
}
_ON_SQLITE: dict[str, str] = {
    "replace": "INSERT OR REPLACE INTO evidence SELECT id, url, x'00', content_hash, fetched_at, source_slug, "
    "final_url, content_type, etag, last_modified, last_verified_at FROM evidence",
    "update or replace": "UPDATE OR REPLACE evidence SET raw_content = x'00'",
    "rowid": "UPDATE evidence SET rowid = rowid + 1",
    "upsert": "INSERT INTO evidence SELECT * FROM evidence WHERE true "
    "ON CONFLICT (id) DO UPDATE SET raw_content = x'00'",
}
_ON_POSTGRES: dict[str, str] = {
    "truncate": "TRUNCATE evidence CASCADE",
    "upsert": "INSERT INTO evidence SELECT * FROM evidence ON CONFLICT (id) DO UPDATE SET raw_content = ''",
    "delete using": "DELETE FROM evidence USING evidence_texts WHERE evidence.id = evidence_texts.evidence_id",
    "with": "WITH gone AS (DELETE FROM evidence RETURNING id) SELECT count(*) FROM gone",
}


async def _attack(database: Database, attack: Callable[[Tx], object]) -> None:
    """Whether it is refused aloud or silently: nothing may have changed."""
    before = await database.read(_all)
    with suppress(DBAPIError):
        await database.write(lambda tx: attack(tx) and None)
    assert await database.read(_all) == before


async def _some_evidence(database: Database, clock: ManualClock) -> None:
    for body in (b"v1", b"v2"):
        fetched = _fetched(clock, body)
        stored = await database.write(partial(keep, url=URL, source_slug="gazette", fetched=fetched))
        await database.write(partial(write_text, evidence_id=stored.id, extracted=Extracted("x"), now=clock.now()))


@pytest.mark.req("WB-4")
@pytest.mark.parametrize("name", list(_ATTACKS))
async def test_direct_sql_cannot_change_or_remove_evidence(database: Database, clock: ManualClock, name: str) -> None:
    await _some_evidence(database, clock)
    with pytest.raises(DBAPIError):
        await database.write(lambda tx: _ATTACKS[name](tx) and None)
    await _attack(database, _ATTACKS[name])


@pytest.mark.req("WB-4")
async def test_nor_can_what_each_database_has_of_its_own(database: Database, clock: ManualClock) -> None:
    await _some_evidence(database, clock)
    statements = _ON_SQLITE if database.dialect is Dialect.SQLITE else _ON_POSTGRES
    for statement in statements.values():
        await _attack(database, partial(Tx.execute, statement=text(statement)))
    assert await database.read(lambda tx: tx.execute(select(func.count()).select_from(evidence)).scalar_one()) == 2


@pytest.mark.req("WB-4", "WB-7")
async def test_the_database_keeps_one_row_for_each_url_and_content(database: Database, clock: ManualClock) -> None:
    """The second level of deduplication, alone: a row inserted past all our code."""
    await _some_evidence(database, clock)
    copy = (
        "INSERT INTO evidence (id, url, raw_content, content_hash, fetched_at, source_slug, last_verified_at) "
        "SELECT '0199a1c2-7e5b-7abc-8def-0123456789ab', url, raw_content, content_hash, fetched_at, source_slug, "
        "last_verified_at FROM evidence LIMIT 1"
    )
    with suppress(DBAPIError):
        await database.write(lambda tx: tx.execute(text(copy)) and None)
    assert len(await database.read(_all)) == 2


async def test_a_better_reading_replaces_the_text_and_not_the_evidence(database: Database, clock: ManualClock) -> None:
    stored = await database.write(lambda tx: keep(tx, URL, "gazette", _fetched(clock, b"v1")))
    before = await database.read(_all)
    for extracted in (Extracted("one", problem="bad"), Extracted("two", "Title", "Text", date(2025, 1, 2), "hr")):
        await database.write(partial(write_text, evidence_id=stored.id, extracted=extracted, now=clock.now()))
    _, found = await database.read(lambda tx: read(tx, stored.id))
    assert found is not None
    assert (found.title, found.text, found.published_on, found.problem) == ("Title", "Text", date(2025, 1, 2), None)
    assert await database.read(_all) == before
    assert len(await database.read(lambda tx: tx.execute(select(evidence_texts.c.evidence_id)).all())) == 1


async def test_evidence_that_does_not_exist_is_not_found(database: Database) -> None:
    unknown = "0199a1c2-7e5b-7abc-8def-0123456789ab"
    with pytest.raises(NotFound):
        await database.read(lambda tx: read(tx, unknown))
    with pytest.raises(NotFound):
        await database.read(lambda tx: raw_content(tx, unknown))
    assert await database.read(lambda tx: newest(tx, URL)) is None


async def test_a_text_that_no_database_holds_is_kept_without_what_offends(
    database: Database, clock: ManualClock
) -> None:
    stored = await database.write(lambda tx: keep(tx, URL, "gazette", _fetched(clock, b"v1")))
    hostile = Extracted("pypdf 6", title="A\0B \ud800", text="one\0 two \udfff", problem="\0")
    await database.write(lambda tx: write_text(tx, stored.id, hostile, clock.now()))
    _, found = await database.read(lambda tx: read(tx, stored.id))
    assert found is not None
    assert (found.title, found.text, found.problem) == ("A\ufffdB ?", "one\ufffd two ?", "\ufffd")
