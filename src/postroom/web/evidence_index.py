"""The word index of evidence: words in the one form in which both databases compare them, and candidates for a phrase.

PostgreSQL says which pages have all the words, SQLite which have them in that order. A search compares the words
themselves afterwards, so both databases give the same answer.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Row, cast, column, insert, literal_column, select, table
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.types import Text

from postroom.db import Dialect, Tx
from postroom.db.tables.web import EVIDENCE_INDEX, EVIDENCE_WORDS, evidence_numbers, evidence_texts

_BETWEEN = re.compile(r"[\W_]+")
_MARKS = re.compile(f"[{''.join(chr(code) for code in range(0x300, 0x20F0) if unicodedata.combining(chr(code)))}]")
# Letters that stand for themselves to Unicode, and that people write without their stroke all the same.
_STROKES = str.maketrans({"đ": "d", "ø": "o", "ł": "l", "ħ": "h", "ŧ": "t"})


LONGEST_WORD = 200
"""Of a longer word only the beginning counts: an index takes no entries of any length."""
_TOO_LONG = re.compile(rf"(\w{{{LONGEST_WORD}}})\w+")


def fold(text: str) -> str:
    """` zakon o porezu `; empty where there is no word at all. No quotes and no wildcards can be in it."""
    bare = text.casefold() if text.isascii() else _bare(text)
    words = _TOO_LONG.sub(r"\1", _BETWEEN.sub(" ", bare.translate(_STROKES))).strip()
    return f" {words} " if words else ""


def _bare(text: str) -> str:
    """Taken apart before and after its letters are made small: each of the two brings work for the other."""
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
    """FTS5 keeps no text, so a deletion has to pass the text that was indexed."""
    said = {name: old._mapping[name] for name in WORDS}
    tx.execute(insert(_index).values({EVIDENCE_INDEX: "delete", "rowid": old.number, **said}))
