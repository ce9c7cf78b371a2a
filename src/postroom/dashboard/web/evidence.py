"""Kept web pages: search, one page with its versions, what of it can be shown, and two versions compared."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from pydantic import Field
from sqlalchemy import func, select

from postroom.dashboard.display.differences import TextDifference, difference
from postroom.dashboard.display.formatting import clean
from postroom.dashboard.paging import ListQuery, Paged, number_after
from postroom.db import Tx
from postroom.db.tables.web import evidence as table
from postroom.domain.errors import BadInput
from postroom.domain.extras import Extra, is_installed
from postroom.domain.ids import parse_id
from postroom.mail.charsets import decode_text
from postroom.web import evidence
from postroom.web.evidence import Evidence, EvidenceHit, EvidenceText, search

LONGEST_PAGE = 512 << 10
_MARKUP = re.compile(rb"\s*(?:<!--|<!doctype|<html|<head|<body|<\?xml)", re.IGNORECASE)
_HTML_TYPES = ("text/html", "application/xhtml+xml")
_MARKS = (b"\xff\xfe", b"\xfe\xff")


class PageKind(StrEnum):
    MARKUP = "markup"
    TEXT = "text"
    BYTES = "bytes"


@dataclass(frozen=True, slots=True)
class ShownPage:
    kind: PageKind
    text: str
    """Empty if the page is not text: a PDF, a picture."""
    is_cut: bool


def shown_page(body: bytes, content_type: str | None) -> ShownPage:
    """Judged by the bytes; the server's content type decides only where they do not tell."""
    start = body[:LONGEST_PAGE]
    if start.startswith(b"%PDF-") or (b"\0" in start[:4096] and not start.startswith(_MARKS)):
        return ShownPage(PageKind.BYTES, "", False)
    is_markup = content_type in _HTML_TYPES or _MARKUP.match(start) is not None
    text, _ = decode_text(start, _declared(start) if is_markup else None)
    return ShownPage(PageKind.MARKUP if is_markup else PageKind.TEXT, text, len(body) > LONGEST_PAGE)


def _declared(start: bytes) -> str | None:
    """The charset that the page declares; without the web extra, old evidence is still shown, judged by its bytes."""
    if not is_installed(Extra.WEB):
        return None
    from w3lib.encoding import html_body_declared_encoding

    return html_body_declared_encoding(start[:4096])


LONGEST_QUERY = 1_000
LONGEST_TEXT = 200_000
MOST_VERSIONS = 100
FURTHEST = 10_000
"""How many results can be paged through; beyond that, a narrower query is needed."""


class ComparedText(StrEnum):
    """Which part of two versions is compared."""

    TEXT = "text"
    SOURCE = "source"


@dataclass(frozen=True, slots=True)
class EvidenceVersion:
    id: str
    content_hash: str
    fetched_at: datetime
    last_verified_at: datetime
    size: int


@dataclass(frozen=True, slots=True)
class EvidenceDetail:
    evidence: Evidence
    size: int
    text: EvidenceText | None
    """Null if it was not extracted yet."""
    is_text_cut: bool
    versions: Sequence[EvidenceVersion]
    """The newest versions of the same address, newest first, this one included."""

    @property
    def title(self) -> str:
        return (self.text and self.text.title) or self.evidence.url

    @property
    def before(self) -> EvidenceVersion | None:
        """The previous version."""
        older = (each for each in self.versions if each.fetched_at < self.evidence.fetched_at)
        return next(older, None)


@dataclass(frozen=True, slots=True)
class VersionComparison:
    url: str
    of: ComparedText
    old: EvidenceVersion
    new: EvidenceVersion
    difference: TextDifference


@dataclass(frozen=True, slots=True)
class VersionPair:
    """Two versions with their texts, to be compared off the event loop."""

    url: str
    of: ComparedText
    old: EvidenceVersion
    new: EvidenceVersion
    old_text: str
    new_text: str

    def compared(self) -> VersionComparison:
        return VersionComparison(self.url, self.of, self.old, self.new, difference(self.old_text, self.new_text))


class EvidenceQuery(ListQuery):
    query: str = Field(
        "",
        max_length=LONGEST_QUERY,
        description="words, subject: (title), from: (address), label: (source), after:, before:, OR, -; empty: all",
    )


def find_evidence(tx: Tx, wanted: EvidenceQuery, now: datetime) -> Paged[EvidenceHit]:
    """The latest day first. A query that cannot be parsed is refused with the position of the error."""
    offset, limit = number_after(wanted.after, FURTHEST) or 0, wanted.limit
    found = search(tx, wanted.query, now, limit=limit + 1, offset=offset)
    has_more = len(found) > limit and offset + limit < FURTHEST
    return Paged(found[:limit], str(offset + limit) if has_more else None)


def evidence_detail(tx: Tx, evidence_id: str) -> EvidenceDetail:
    kept, text = evidence.read(tx, parse_id(evidence_id, "evidence"))
    versions = _versions(tx, kept)
    size = next((each.size for each in versions if each.id == kept.id), None)
    return EvidenceDetail(
        kept,
        _size(tx, kept.id) if size is None else size,
        None if text is None else _shortened(text),
        text is not None and len(text.text) > LONGEST_TEXT,
        versions,
    )


def page_of(tx: Tx, evidence_id: str) -> ShownPage:
    """The page as markup or as text; empty if it is neither."""
    kept, _ = evidence.read(tx, parse_id(evidence_id, "evidence"))
    return shown_page(evidence.raw_content(tx, kept.id), kept.content_type)


def raw_of(tx: Tx, evidence_id: str) -> bytes:
    """The exact bytes."""
    return evidence.raw_content(tx, parse_id(evidence_id, "evidence"))


def two_versions(tx: Tx, one_id: str, other_id: str, of: ComparedText) -> VersionPair:
    """Two versions of one address, the older first, whichever was named first."""
    found = [evidence.read(tx, parse_id(each, "evidence"))[0] for each in (one_id, other_id)]
    old, new = sorted(found, key=lambda each: (each.fetched_at, each.id))
    if old.url != new.url:
        raise BadInput("other", "belongs to another address: only versions of the same page can be compared")
    return VersionPair(new.url, of, _version(tx, old), _version(tx, new), _text_of(tx, old, of), _text_of(tx, new, of))


def _text_of(tx: Tx, kept: Evidence, of: ComparedText) -> str:
    if of is ComparedText.SOURCE:
        return clean(shown_page(evidence.raw_content(tx, kept.id), kept.content_type).text)
    _, text = evidence.read(tx, kept.id)
    return "" if text is None else clean(text.text)


def _shortened(text: EvidenceText) -> EvidenceText:
    return EvidenceText(
        text.title, text.text[:LONGEST_TEXT], text.published_on, text.language, text.extractor, text.problem
    )


def _versions(tx: Tx, kept: Evidence) -> list[EvidenceVersion]:
    query = (
        select(
            table.c.id,
            table.c.content_hash,
            table.c.fetched_at,
            table.c.last_verified_at,
            func.length(table.c.raw_content),
        )
        .where(table.c.url == kept.url)
        .order_by(table.c.fetched_at.desc(), table.c.id.desc())
        .limit(MOST_VERSIONS)
    )
    return [EvidenceVersion(*row) for row in tx.execute(query)]


def _version(tx: Tx, kept: Evidence) -> EvidenceVersion:
    return EvidenceVersion(kept.id, kept.content_hash, kept.fetched_at, kept.last_verified_at, _size(tx, kept.id))


def _size(tx: Tx, evidence_id: str) -> int:
    query = select(func.length(table.c.raw_content)).where(table.c.id == evidence_id)
    return int(tx.execute(query).scalar_one())
