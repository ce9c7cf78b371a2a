"""Evidence is found with the language of mail, and both databases give the same answer."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import partial

import pytest
from sqlalchemy import select, text, true

from postroom.db import Database, Dialect, Tx
from postroom.db.tables.web import EVIDENCE_INDEX, evidence_texts
from postroom.domain.clock import ManualClock
from postroom.domain.errors import BadInput
from postroom.web import evidence
from postroom.web.evidence import fold, keep, search, write_text
from postroom.web.extraction.web_reader import Extracted
from postroom.web.fetching.interface import Fetched, Validators

NOW = datetime(2026, 1, 10, 12, tzinfo=UTC)


@dataclass(frozen=True)
class _Page:
    name: str
    slug: str
    title: str | None
    text: str
    day: date | None
    size: int = 10


PAGES = (
    _Page("a", "gazette", "Zakon o porezu na dohodak", "Prijava se podnosi do kraja veljače.", date(2025, 3, 1)),
    _Page("b", "gazette", "Žalba", "Porez na dobit i Zakon o radu. Café (2025)!", date(2025, 6, 1), 5_000),
    _Page("c", "tax-office", None, "dohodak porezu na; 100% snake_case 'quote'", None),
    _Page("d", "tax-office", "Obavijest", "Ništa važno.", date(2024, 12, 31)),
    _Page("e", "tax-office", "日本の税", "所得税 法人税", date(2023, 1, 1)),
)


@pytest.fixture
async def filled(database: Database, clock: ManualClock) -> Database:
    for page in PAGES:
        url = f"https://www.{page.slug}.test/documents/{page.name}"
        body = page.name.encode() * page.size
        fetched = Fetched(url, url, 200, body, "text/html", None, Validators(), clock.now())
        stored = await database.write(partial(keep, url=url, source_slug=page.slug, fetched=fetched))
        extracted = Extracted("x", page.title, page.text, page.day, "hr")
        await database.write(partial(write_text, evidence_id=stored.id, extracted=extracted, now=clock.now()))
        clock.advance(1)
    return database


async def _found(database: Database, query: str) -> str:
    hits = await database.read(lambda tx: search(tx, query, NOW))
    return "".join(hit.url[-1] for hit in hits)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", "cbade"),
        ("zakon", "ba"),
        ("ZAKON porezu", "a"),
        ('"porezu na dohodak"', "a"),
        ('"dohodak porezu"', "c"),
        ("porez", "b"),
        ("cafe", "b"),
        ("zalba OR obavijest", "bd"),
        ("{zalba obavijest}", "bd"),
        ("-zakon", "cde"),
        ("zakon -rad", "ba"),
        ("zakon -radu", "a"),
        ("subject:zakon", "a"),
        ("subject:(zakon dohodak)", "a"),
        ("label:gazette", "ba"),
        ("in:tax-office", "cde"),
        ("from:gazette.test", "ba"),
        ("from:documents/d", "d"),
        ("after:2025/03/01", "cba"),
        ("before:2025/03/01", "de"),
        ("after:2025-03-01 before:2025-06-01", "a"),
        ("newer_than:30d", "c"),
        ("larger:1000", "b"),
        ("smaller:1000 label:gazette", "a"),
        ("所得税", "e"),
        ('"100"', "c"),
        ('"snake_case"', "c"),
        ("'quote'", "c"),
        ("in:anywhere zakon", "ba"),
        ("before:253402300799", "cbade"),
    ],
)
async def test_a_query_finds_the_same_pages_everywhere(filled: Database, query: str, found: str) -> None:
    assert await _found(filled, query) == found


@pytest.mark.parametrize(
    "query",
    [
        "has:attachment",
        "to:me",
        "cc:me",
        "list:x",
        "rfc822msgid:a@b",
        "form:x",
        "subject:",
        '"open',
        " ".join(["a"] * 200),
    ],
)
async def test_what_means_nothing_here_is_refused(filled: Database, query: str) -> None:
    with pytest.raises(BadInput):
        await _found(filled, query)


@pytest.mark.parametrize("query", ["%", "_", "'; DROP TABLE evidence; --", "\\", '""', "'"])
async def test_no_query_is_more_than_words(filled: Database, query: str) -> None:
    try:
        await _found(filled, query)
    except BadInput:
        return
    assert await _found(filled, "") == "cbade"


async def test_pages_of_hits_follow_each_other(filled: Database) -> None:
    first = await filled.read(lambda tx: search(tx, "", NOW, limit=2))
    second = await filled.read(lambda tx: search(tx, "", NOW, limit=2, offset=2))
    assert [hit.url[-1] for hit in (*first, *second)] == ["c", "b", "a", "d"]
    assert first[1].title == "Žalba"
    assert first[1].beginning.startswith("Porez na dobit")
    assert first[0].fetched_at < first[0].fetched_at + timedelta(seconds=1)


async def test_the_index_never_hides_what_a_comparison_of_all_pages_finds(
    filled: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = ["porezu", "zakon o", "subject:zakon", "from:documents", "所得税", "-porez", "porez OR važno", "a" * 300]
    queries += ['"na dohodak"', "dohodak porezu", "100%", "subject:日本の税 所得税", "-(zakon OR žalba) larger:1", "-a"]
    indexed = [await _found(filled, query) for query in queries]
    monkeypatch.setattr(evidence, "may_say", lambda tx, columns, wanted: true())
    assert [await _found(filled, query) for query in queries] == indexed
    assert any(indexed)


async def test_a_text_that_was_read_anew_is_found_by_its_new_words_only(filled: Database, clock: ManualClock) -> None:
    [hit] = await filled.read(lambda tx: search(tx, "važno", NOW))
    for words in ("Sasvim novo", "Sasvim novo", "z" * 10_000 + " kraj"):
        await filled.write(
            partial(write_text, evidence_id=hit.id, extracted=Extracted("y", None, words), now=clock.now())
        )
    assert [await _found(filled, query) for query in ("važno", "novo", "obavijest", "kraj", "z" * 9_000)] == [
        *("", "", "", "d", "d")
    ]


async def test_words_are_found_through_the_index(filled: Database) -> None:
    """Not that it is quicker, which depends on the machine: that it is asked at all."""

    def plan(tx: Tx) -> str:
        if tx.dialect is Dialect.POSTGRESQL:
            tx.execute(text("SET LOCAL enable_seqscan = off"))
        found = select(evidence_texts.c.evidence_id).where(evidence.may_say(tx, evidence.WORDS, fold("porezu")))
        statement = str(found.compile(tx.connection, compile_kwargs={"literal_binds": True}))
        explain = "EXPLAIN" if tx.dialect is Dialect.POSTGRESQL else "EXPLAIN QUERY PLAN"
        return str(tx.rows(f"{explain} {statement}"))

    assert EVIDENCE_INDEX in await filled.read(plan)
