"""Searches evidence with the query language of mail; both databases give the same answer.

Words are compared as `fold` writes them. `subject:` is a page's title, `from:` its address, `label:` and `in:` its
source; dates are the day that the page names, or else the day on which it was fetched. The index only narrows
down the candidates; the words themselves are compared afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from sqlalchemy import ColumnElement, Date, and_, cast, false, func, literal, not_, or_, select, true

from postroom.db import Dialect, Tx
from postroom.db.tables.web import evidence, evidence_texts
from postroom.domain.errors import BadInput
from postroom.mail.query import parse
from postroom.mail.query.nodes import (
    And,
    Anywhere,
    HasAttachment,
    HasUserLabel,
    Labelled,
    MessageId,
    Node,
    Not,
    Or,
    Received,
    Size,
    Text,
    TextField,
)
from postroom.web import evidence_index
from postroom.web.evidence_index import fold

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
    """Evidence that the query means, the latest day first. Raises QueryError and BadInput, which name what is wrong."""
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
    """Read apart from the finding, which then does not carry the texts of all pages through its sorting."""
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


def _require_short(node: Node) -> None:
    """The databases refuse expressions of thousands of parts, each in its own words."""
    if (size := _leaves(node)) > MOST_PARTS:
        raise BadInput("query", f"asks for {size:,} things at once; the most is {MOST_PARTS}")


def _leaves(node: Node) -> int:
    match node:
        case And(parts) | Or(parts):
            return sum(_leaves(part) for part in parts)
        case Not(part):
            return _leaves(part)
        case _:
            return 1


def _condition(tx: Tx, node: Node) -> Condition:
    match node:
        case And(parts):
            return and_(true(), *(_condition(tx, part) for part in parts))
        case Or(parts):
            return or_(false(), *(_condition(tx, part) for part in parts))
        case Not(part):
            return not_(_condition(tx, part))
        case Text(field, words):
            return _says(tx, field, words)
        case Labelled(label):
            return func.lower(evidence.c.source_slug) == label.lower()
        case Received(start, end):
            return _between(tx, start, end)
        case Size(over, under):
            length = func.length(evidence.c.raw_content)
            return and_(true(), *_bounds(length, over, under))
        case Anywhere():
            return true()
        case HasAttachment() | HasUserLabel() | MessageId():
            raise BadInput("query", f"{_NAMES[type(node)]} has no meaning for web pages")


_NAMES = {HasAttachment: "has:attachment", HasUserLabel: "has:userlabels", MessageId: "rfc822msgid:"}


def _says(tx: Tx, field: TextField, words: str) -> Condition:
    """The words side by side, in one of the texts that the field stands for."""
    wanted = fold(words)
    if not wanted:
        return true()
    names = _columns(field)
    place = func.strpos if tx.dialect is Dialect.POSTGRESQL else func.instr
    said = or_(*(place(evidence_texts.c[name], wanted) > 0 for name in names))
    return and_(evidence_index.may_say(tx, names, wanted), said)


def _columns(field: TextField) -> Sequence[str]:
    match field:
        case TextField.ANY:
            return evidence_index.WORDS
        case TextField.SUBJECT:
            return ("title_words",)
        case TextField.FROM | TextField.FILENAME:
            return ("url_words",)
        case TextField.TO | TextField.CC | TextField.BCC | TextField.LIST:
            raise BadInput("query", f"{field}: has no meaning for web pages")


def _bounds(column: ColumnElement[int], over: int | None, under: int | None) -> list[Condition]:
    return ([column > over] if over is not None else []) + ([column < under] if under is not None else [])


def _between(tx: Tx, start: int | None, end: int | None) -> Condition:
    """Pages have days, not instants: a page is of a day as a whole, so a bound within a day takes the day in."""
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
