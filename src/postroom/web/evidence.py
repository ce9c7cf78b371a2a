"""Evidence: what a page said, byte for byte, and when; its word index; and the search over it.

Evidence is written once; only the columns about its checking may change. A page that changes is new evidence beside
the old. Searches use the query language of mail: `subject:` is a page's title, `from:` its address, `label:` and
`in:` its source; dates are the day that the page names, or else the day on which it was fetched. The index only
narrows down the candidates; words are compared afterwards as `fold` writes them, so both databases give the same
answer.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Date,
    Row,
    and_,
    cast,
    column,
    false,
    func,
    literal,
    literal_column,
    not_,
    or_,
    select,
    table,
    true,
    types,
    update,
)

from postroom.db import Dialect, Tx
from postroom.db.database import insert
from postroom.db.tables.web import EVIDENCE_INDEX, EVIDENCE_WORDS, evidence, evidence_numbers, evidence_texts
from postroom.domain.errors import BadInput, Fatal, NotFound
from postroom.domain.ids import new_id
from postroom.mail.query import nodes, parse
from postroom.web.extraction.web_reader import Extracted
from postroom.web.fetching.interface import Fetched, Validators

_BETWEEN = re.compile(r"[\W_]+")
_MARKS = re.compile(f"[{''.join(chr(code) for code in range(0x300, 0x20F0) if unicodedata.combining(chr(code)))}]")
# Letters that stand for themselves to Unicode, and that people write without their stroke all the same.
_STROKES = str.maketrans({"đ": "d", "ø": "o", "ł": "l", "ħ": "h", "ŧ": "t"})


LONGEST_WORD = 200
"""Only the beginning of a longer word counts: index entries are limited in length."""
_TOO_LONG = re.compile(rf"(\w{{{LONGEST_WORD}}})\w+")


def fold(text: str) -> str:
    """The words of a text in the form in which they are compared, such as ` zakon o porezu `; empty without any word.
    The result contains no quotes and no wildcards."""
    bare = text.casefold() if text.isascii() else _bare(text)
    words = _TOO_LONG.sub(r"\1", _BETWEEN.sub(" ", bare.translate(_STROKES))).strip()
    return f" {words} " if words else ""


def _bare(text: str) -> str:
    """Decomposed before and after case folding, since each can change what the other produces."""
    small = unicodedata.normalize("NFKD", text).casefold()
    return _MARKS.sub("", unicodedata.normalize("NFKD", small).casefold())


WORDS = ("title_words", "text_words", "url_words")
_index = table(EVIDENCE_INDEX, column("rowid"), column(EVIDENCE_INDEX), *map(column, WORDS))


def update_index(tx: Tx, evidence_id: str, words: Mapping[str, Any]) -> None:
    """Call before the words of this page are written: SQLite's index needs the old and the new text, PostgreSQL's
    neither."""
    if tx.dialect is Dialect.POSTGRESQL:
        return
    columns = (evidence_numbers.c.number, *(evidence_texts.c[name] for name in WORDS))
    query = select(*columns).join(evidence_texts, evidence_texts.c.evidence_id == evidence_numbers.c.evidence_id)
    old = tx.execute(query.where(evidence_numbers.c.evidence_id == evidence_id)).one_or_none()
    if old is None:
        numbered = evidence_numbers.insert().values(evidence_id=evidence_id).returning(evidence_numbers.c.number)
        number = tx.execute(numbered).scalar_one()
    elif all(old._mapping[name] == words[name] for name in WORDS):
        return
    else:
        number = old.number
        _forget(tx, old)
    tx.execute(_index.insert().values(rowid=number, **{name: words[name] for name in WORDS}))


def may_say(tx: Tx, columns: Sequence[str], wanted: str) -> ColumnElement[bool]:
    """True for every page that has these folded words in one of the columns, and for few others."""
    if tx.dialect is Dialect.POSTGRESQL:
        from sqlalchemy.dialects.postgresql import ARRAY

        words = literal_column(EVIDENCE_WORDS, ARRAY(types.Text))
        return words.contains(cast(wanted.split(), ARRAY(types.Text)))
    phrase = f'{{{" ".join(columns)}}} : "{wanted.strip()}"'
    found = select(_index.c.rowid).where(_index.c[EVIDENCE_INDEX].op("MATCH")(phrase))
    numbers = select(evidence_numbers.c.evidence_id).where(evidence_numbers.c.number.in_(found))
    return evidence_texts.c.evidence_id.in_(numbers)


def _forget(tx: Tx, old: Row[Any]) -> None:
    """FTS5 keeps no text, so a deletion has to pass the text that was indexed."""
    said = {name: old._mapping[name] for name in WORDS}
    tx.execute(_index.insert().values({EVIDENCE_INDEX: "delete", "rowid": old.number, **said}))


_LONGEST_TITLE = 1_000


@dataclass(frozen=True, slots=True)
class StoredEvidence:
    """The evidence that a fetched page was stored as."""

    id: str
    content_hash: str
    is_new: bool


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence without its content."""

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
    """Store this content of this url: as new evidence, or by verifying the evidence that has it already."""
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
    """Record that the page still has this content. Only the columns about checking change."""
    validators = fetched.validators
    values: dict[str, object] = {"last_verified_at": fetched.fetched_at}
    if validators.etag or validators.last_modified or not fetched.not_modified:
        values |= {"etag": validators.etag, "last_modified": validators.last_modified}
    tx.execute(update(evidence).where(evidence.c.id == evidence_id).values(**values))


def newest(tx: Tx, url: str) -> Evidence | None:
    """The evidence of this url that was verified last."""
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
    """Store the text extracted from the content, replacing an earlier extraction."""
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
    update_index(tx, evidence_id, values)
    row = insert(tx, evidence_texts).values(evidence_id=evidence_id, **values)
    tx.execute(row.on_conflict_do_update(index_elements=[evidence_texts.c.evidence_id], set_=values))


def _storable(text: str) -> str:
    """Without characters that PostgreSQL refuses."""
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


MOST_HITS = 1_000
MOST_PARTS = 100
_SNIPPET = 160
_DAY_MS = 86_400_000
_EPOCH = date(1970, 1, 1)
_LAST_MS = (date(9999, 12, 31) - _EPOCH).days * _DAY_MS

Condition = ColumnElement[bool]


@dataclass(frozen=True, slots=True)
class EvidenceHit:
    id: str
    url: str
    source_slug: str
    title: str | None
    beginning: str
    published_on: date | None
    language: str | None
    fetched_at: datetime
    last_verified_at: datetime


def search(tx: Tx, query: str, now: datetime, *, limit: int = 20, offset: int = 0) -> list[EvidenceHit]:
    """Evidence that matches the query, the latest day first. Raises QueryError and BadInput."""
    if not 1 <= limit <= MOST_HITS:
        raise BadInput("limit", f"{limit} is not within 1 to {MOST_HITS}")
    node = parse(query, int(now.timestamp() * 1000), strict=True)
    _require_short(node)
    day = _day(tx)
    found = (
        select(evidence.c.id)
        .join(evidence_texts, evidence_texts.c.evidence_id == evidence.c.id)
        .where(_condition(tx, node))
        .order_by(day.desc(), evidence.c.fetched_at.desc(), evidence.c.id.desc())
        .limit(limit)
        .offset(max(offset, 0))
    )
    return _hits(tx, list(tx.execute(found).scalars()))


def _hits(tx: Tx, ids: list[str]) -> list[EvidenceHit]:
    """A separate query, so that the sort of the search does not carry the texts of all pages."""
    query = (
        select(
            *(evidence.c[name] for name in ("id", "url", "source_slug", "fetched_at", "last_verified_at")),
            *(evidence_texts.c[name] for name in ("title", "published_on", "language")),
            func.substr(evidence_texts.c.text, 1, _SNIPPET).label("beginning"),
        )
        .join(evidence_texts, evidence_texts.c.evidence_id == evidence.c.id)
        .where(evidence.c.id.in_(ids))
    )
    by_id = {row.id: EvidenceHit(**row._mapping) for row in tx.execute(query)}
    return [by_id[each] for each in ids]


def _require_short(node: nodes.Node) -> None:
    """Databases refuse expressions with thousands of parts; refuse them here with a clear error."""
    if (size := _leaves(node)) > MOST_PARTS:
        raise BadInput("query", f"asks for {size:,} things at once; the most is {MOST_PARTS}")


def _leaves(node: nodes.Node) -> int:
    match node:
        case nodes.And(parts) | nodes.Or(parts):
            return sum(_leaves(part) for part in parts)
        case nodes.Not(part):
            return _leaves(part)
        case _:
            return 1


def _condition(tx: Tx, node: nodes.Node) -> Condition:
    match node:
        case nodes.And(parts):
            return and_(true(), *(_condition(tx, part) for part in parts))
        case nodes.Or(parts):
            return or_(false(), *(_condition(tx, part) for part in parts))
        case nodes.Not(part):
            return not_(_condition(tx, part))
        case nodes.Text(field, words):
            return _says(tx, field, words)
        case nodes.Labelled(label):
            return func.lower(evidence.c.source_slug) == label.lower()
        case nodes.Received(start, end):
            return _between(tx, start, end)
        case nodes.Size(over, under):
            length = func.length(evidence.c.raw_content)
            return and_(true(), *_bounds(length, over, under))
        case nodes.Anywhere():
            return true()
        case _:
            raise BadInput("query", f"{_NAMES[type(node)]} has no meaning for web pages")


_NAMES = {
    nodes.HasAttachment: "has:attachment",
    nodes.HasUserLabel: "has:userlabels",
    nodes.HasConversation: "has:conversation",
    nodes.InConversation: "thread:",
    nodes.MessageId: "rfc822msgid:",
    nodes.Similar: "similar:",
}


def _says(tx: Tx, field: nodes.TextField, words: str) -> Condition:
    """The words side by side, in one of the texts that the field stands for."""
    wanted = fold(words)
    if not wanted:
        return true()
    names = _columns(field)
    place = func.strpos if tx.dialect is Dialect.POSTGRESQL else func.instr
    said = or_(*(place(evidence_texts.c[name], wanted) > 0 for name in names))
    return and_(may_say(tx, names, wanted), said)


def _columns(field: nodes.TextField) -> Sequence[str]:
    match field:
        case nodes.TextField.ANY:
            return WORDS
        case nodes.TextField.SUBJECT:
            return ("title_words",)
        case nodes.TextField.FROM | nodes.TextField.FILENAME:
            return ("url_words",)
        case (
            nodes.TextField.TO
            | nodes.TextField.CC
            | nodes.TextField.BCC
            | nodes.TextField.LIST
            | nodes.TextField.ATTACHMENT
        ):
            raise BadInput("query", f"{field}: has no meaning for web pages")


def _bounds(column: ColumnElement[int], over: int | None, under: int | None) -> list[Condition]:
    return ([column > over] if over is not None else []) + ([column < under] if under is not None else [])


def _between(tx: Tx, start: int | None, end: int | None) -> Condition:
    """Pages have days, not times: a bound within a day includes the whole day."""
    conditions: list[Condition] = []
    if start is not None:
        conditions.append(_day(tx) >= literal(_date(start), Date))
    if end is not None:
        conditions.append(_day(tx) < literal(_date(end + _DAY_MS - 1), Date))
    return and_(true(), *conditions)


def _date(milliseconds: int) -> date:
    return _EPOCH + timedelta(milliseconds=min(milliseconds, _LAST_MS))


def _day(tx: Tx) -> ColumnElement[date]:
    """The day that the page names, or that of the first fetch, in UTC."""
    fetched = (
        cast(func.timezone("UTC", evidence.c.fetched_at), Date)
        if tx.dialect is Dialect.POSTGRESQL
        else func.substr(evidence.c.fetched_at, 1, 10, type_=Date)
    )
    return func.coalesce(evidence_texts.c.published_on, fetched, type_=Date)
