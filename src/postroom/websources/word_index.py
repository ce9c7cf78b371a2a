"""Which pages can have certain words side by side: answered by an index, and never less than the whole answer.

PostgreSQL says which pages have all the words, SQLite which have them in that order. Whoever searches compares the
words themselves after that, so that both databases give the same answer by construction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Row, cast, column, insert, literal_column, select, table
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.types import Text

from postroom.db import Dialect, Tx
from postroom.db.tables.web import EVIDENCE_INDEX, EVIDENCE_WORDS, evidence_numbers, evidence_texts

WORDS = ("title_words", "text_words", "url_words")
_index = table(EVIDENCE_INDEX, column("rowid"), column(EVIDENCE_INDEX), *map(column, WORDS))


def update(tx: Tx, evidence_id: str, words: Mapping[str, Any]) -> None:
    """Before the words of this page are written: PostgreSQL sees to it by itself, SQLite has to be told old and new."""
    if tx.dialect is Dialect.POSTGRESQL:
        return
    columns = (evidence_numbers.c.number, *(evidence_texts.c[name] for name in WORDS))
    query = select(*columns).join(evidence_texts, evidence_texts.c.evidence_id == evidence_numbers.c.evidence_id)
    old = tx.execute(query.where(evidence_numbers.c.evidence_id == evidence_id)).one_or_none()
    if old is None:
        numbered = insert(evidence_numbers).values(evidence_id=evidence_id).returning(evidence_numbers.c.number)
        number = tx.execute(numbered).scalar_one()
    elif all(old._mapping[name] == words[name] for name in WORDS):
        return
    else:
        number = old.number
        _forget(tx, old)
    tx.execute(insert(_index).values(rowid=number, **{name: words[name] for name in WORDS}))


def may_say(tx: Tx, columns: Sequence[str], wanted: str) -> ColumnElement[bool]:
    """Holds for every page that has these folded words in one of the columns, and for few others."""
    if tx.dialect is Dialect.POSTGRESQL:
        words = literal_column(EVIDENCE_WORDS, ARRAY(Text))
        return words.contains(cast(wanted.split(), ARRAY(Text)))
    phrase = f'{{{" ".join(columns)}}} : "{wanted.strip()}"'
    found = select(_index.c.rowid).where(_index.c[EVIDENCE_INDEX].op("MATCH")(phrase))
    numbers = select(evidence_numbers.c.evidence_id).where(evidence_numbers.c.number.in_(found))
    return evidence_texts.c.evidence_id.in_(numbers)


def _forget(tx: Tx, old: Row[Any]) -> None:
    """FTS5 keeps no text, so it has to be told what it is to forget."""
    said = {name: old._mapping[name] for name in WORDS}
    tx.execute(insert(_index).values({EVIDENCE_INDEX: "delete", "rowid": old.number, **said}))
