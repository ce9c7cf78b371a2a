"""Evidence: what a page said, byte for byte, and when. Written once; only the columns about its checking may change.

A page that changes is new evidence beside the old. An unchanged page is the same evidence, verified again.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import date, datetime

from sqlalchemy import Row, select, update

from postroom.db import Tx
from postroom.db.database import insert
from postroom.db.tables.web import evidence, evidence_texts
from postroom.domain.errors import Fatal, NotFound
from postroom.domain.ids import new_id
from postroom.web import evidence_index
from postroom.web.evidence_index import fold
from postroom.web.extraction.documents import Extracted
from postroom.web.fetching.interface import Fetched, Validators

_LONGEST_TITLE = 1_000


@dataclass(frozen=True, slots=True)
class StoredEvidence:
    """Where a fetched page is kept now."""

    id: str
    content_hash: str
    is_new: bool


@dataclass(frozen=True, slots=True)
class Evidence:
    """All but the content itself."""

    id: str
    url: str
    final_url: str | None
    source_slug: str
    content_hash: str
    content_type: str | None
    fetched_at: datetime
    last_verified_at: datetime
    validators: Validators


@dataclass(frozen=True, slots=True)
class EvidenceText:
    title: str | None
    text: str
    published_on: date | None
    language: str | None
    extractor: str
    problem: str | None


def keep(tx: Tx, url: str, source_slug: str, fetched: Fetched) -> StoredEvidence:
    """The evidence for this content of this url: the one that is there already, verified, or a new one."""
    content_hash = hashlib.sha256(fetched.body).hexdigest()
    row_id = new_id()
    tx.insert_missing(
        evidence,
        {
            "id": row_id,
            "url": url,
            "raw_content": fetched.body,
            "content_hash": content_hash,
            "fetched_at": fetched.fetched_at,
            "source_slug": source_slug,
            "final_url": fetched.final_url if fetched.final_url != url else None,
            "content_type": fetched.content_type or None,
            "etag": fetched.validators.etag,
            "last_modified": fetched.validators.last_modified,
            "last_verified_at": fetched.fetched_at,
        },
    )
    same = (evidence.c.url == url) & (evidence.c.content_hash == content_hash)
    held: str = tx.execute(select(evidence.c.id).where(same)).scalar_one()
    if held != row_id:
        verify(tx, held, fetched)
    return StoredEvidence(held, content_hash, held == row_id)


def verify(tx: Tx, evidence_id: str, fetched: Fetched) -> None:
    """The page still has this content. Nothing but the columns of its checking is touched."""
    validators = fetched.validators
    values: dict[str, object] = {"last_verified_at": fetched.fetched_at}
    if validators.etag or validators.last_modified or not fetched.not_modified:
        values |= {"etag": validators.etag, "last_modified": validators.last_modified}
    tx.execute(update(evidence).where(evidence.c.id == evidence_id).values(**values))


def newest(tx: Tx, url: str) -> Evidence | None:
    """What the page said when it was last looked at."""
    query = select(*_COLUMNS).where(evidence.c.url == url)
    order = (evidence.c.last_verified_at.desc(), evidence.c.fetched_at.desc(), evidence.c.id.desc())
    row = tx.execute(query.order_by(*order).limit(1)).one_or_none()
    return None if row is None else _evidence(row)


def read(tx: Tx, evidence_id: str) -> tuple[Evidence, EvidenceText | None]:
    row = tx.execute(select(*_COLUMNS).where(evidence.c.id == evidence_id)).one_or_none()
    if row is None:
        raise NotFound("evidence", f"there is no evidence {evidence_id}")
    found = tx.execute(select(evidence_texts).where(evidence_texts.c.evidence_id == evidence_id)).one_or_none()
    return _evidence(row), None if found is None else _text(found)


def raw_content(tx: Tx, evidence_id: str) -> bytes:
    """The bytes as they were fetched, checked against their hash."""
    query = select(evidence.c.raw_content, evidence.c.content_hash).where(evidence.c.id == evidence_id)
    found = tx.execute(query).one_or_none()
    if found is None:
        raise NotFound("evidence", f"there is no evidence {evidence_id}")
    content = bytes(found.raw_content)
    if hashlib.sha256(content).hexdigest() != found.content_hash:
        raise Fatal(f"Evidence {evidence_id} no longer has its hash: the database is damaged. Restore a backup.")
    return content


def write_text(tx: Tx, evidence_id: str, extracted: Extracted, now: datetime) -> None:
    """What was read out of the content; a later and better reading replaces it."""
    url = tx.execute(select(evidence.c.url).where(evidence.c.id == evidence_id)).scalar_one()
    title = _storable(extracted.title)[:_LONGEST_TITLE] if extracted.title else None
    text = _storable(extracted.text)
    values = {
        "title": title,
        "text": text,
        "title_words": fold(title or ""),
        "text_words": fold(text),
        "url_words": fold(url),
        "published_on": extracted.published_on,
        "language": extracted.language,
        "extractor": extracted.extractor,
        "problem": _storable(extracted.problem) if extracted.problem else None,
        "extracted_at": now,
    }
    evidence_index.update_index(tx, evidence_id, values)
    row = insert(tx, evidence_texts).values(evidence_id=evidence_id, **values)
    tx.execute(row.on_conflict_do_update(index_elements=[evidence_texts.c.evidence_id], set_=values))


def _storable(text: str) -> str:
    """Without what PostgreSQL refuses to hold: a page can say anything."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


_COLUMNS = [column for column in evidence.c if column.name != "raw_content"]


def _evidence(row: Row[*tuple[object, ...]]) -> Evidence:
    return Evidence(
        id=row.id,
        url=row.url,
        final_url=row.final_url,
        source_slug=row.source_slug,
        content_hash=row.content_hash,
        content_type=row.content_type,
        fetched_at=row.fetched_at,
        last_verified_at=row.last_verified_at,
        validators=Validators(row.etag, row.last_modified),
    )


def _text(row: Row[*tuple[object, ...]]) -> EvidenceText:
    return EvidenceText(row.title, row.text, row.published_on, row.language, row.extractor, row.problem)
