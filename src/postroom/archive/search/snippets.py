"""A short piece of text around what was searched for, plain, with the places of the words as offsets."""

from __future__ import annotations

import re
from collections.abc import Sequence

from postroom.archive.search.matching import in_body, wanted_in_body
from postroom.archive.search.model import Snippet
from postroom.archive.search.shards import SearchReader
from postroom.mail.query.nodes import Node

_OPEN, _CLOSE = "\ufdd0", "\ufdd1"  # never characters of a text
_WORDS = 24
_LONGEST = 240
_BEGINNING = 1_000
_BODY = 4
_MARK = re.compile(rf"([{_OPEN}{_CLOSE}])")
_SPACE = re.compile(r"\s+")


def snippets(reader: SearchReader, node: Node, row_ids: Sequence[int]) -> dict[int, Snippet]:
    """For each message the part of its body that has most of the query's words, or else its beginning."""
    words = list(dict.fromkeys(wanted_in_body(node)))
    found = _around(reader, words, row_ids) if words else {}
    missing = [row_id for row_id in row_ids if row_id not in found]
    return found | _beginnings(reader, missing)


def _around(reader: SearchReader, words: Sequence[str], row_ids: Sequence[int]) -> dict[int, Snippet]:
    rows = reader.query(
        f"SELECT rowid, snippet(search, {_BODY}, ?, ?, '…', {_WORDS}) FROM search "
        f"WHERE search MATCH ? AND rowid IN ({_marks(row_ids)})",
        (_OPEN, _CLOSE, in_body(words), *row_ids),
    )
    return {row_id: marked(text) for row_id, text in rows}


def _beginnings(reader: SearchReader, row_ids: Sequence[int]) -> dict[int, Snippet]:
    rows = reader.query(
        f"SELECT id, substr(body, 1, {_BEGINNING}) FROM texts WHERE id IN ({_marks(row_ids)})", tuple(row_ids)
    )
    return {row_id: marked(text) for row_id, text in rows}


def marked(text: str) -> Snippet:
    """Marks turned into offsets, white space into single spaces, and no longer than a person reads."""
    written, marks, start = "", list[tuple[int, int]](), 0
    for piece in _MARK.split(_SPACE.sub(" ", text).strip()):
        if piece == _OPEN:
            start = len(written)
        elif piece == _CLOSE:
            marks.append((start, len(written)))
        else:
            written += piece
    short = written[:_LONGEST].rstrip()
    return Snippet(short, tuple((start, min(end, len(short))) for start, end in marks if start < len(short)))


def _marks(values: Sequence[int]) -> str:
    return ", ".join("?" * len(values))
