"""Makes the vectors that an account lacks, newest mail first, a few hundred at a time. Of the extra `meaning`: import
this where it is used.

What is lacking follows from the archive and the file itself, so a kill repeats at most what was not written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from postroom.archive.backend import MailReader
from postroom.archive.meaning.embedding import LONGEST_TEXT, text_embedder, text_to_embed
from postroom.archive.meaning.vectors import AccountVectors, VectorWriter, writing_vectors
from postroom.archive.messages import TextRow

_AT_ONCE = 200
_LONGEST_BODY = 8 * LONGEST_TEXT
"""Quoted lines are left out, so more is read than counts."""


@dataclass(frozen=True, slots=True)
class VectorState:
    messages: int
    vectors: int
    """Made by this version of the model, and of messages as they are now."""

    @property
    def waiting(self) -> int:
        return self.messages - self.vectors


def make_vectors(
    reader: MailReader,
    root: Path,
    email: str,
    *,
    anew: bool = False,
    show: Callable[[int], None] = lambda made: None,
    is_over: Callable[[], bool] = lambda: False,
) -> int:
    """Make all that are lacking, or as many as there is time for; returns how many were made. `show` gets the number
    made since its last call."""
    made = 0
    with writing_vectors(root, email, anew=anew) as writer:
        waiting: list[TextRow] = []
        for portion in reader.text_rows(email):
            waiting += [row for row in portion if writer.lacks(row)]
            while len(waiting) >= _AT_ONCE and not is_over():
                made += _make(reader, writer, email, waiting[:_AT_ONCE], show)
                del waiting[:_AT_ONCE]
            if is_over():
                return made
        if waiting:
            made += _make(reader, writer, email, waiting, show)
    return made


def _make(
    reader: MailReader, writer: VectorWriter, email: str, rows: list[TextRow], show: Callable[[int], None]
) -> int:
    texts = reader.texts(email, rows, _LONGEST_BODY)
    writer.write(rows, text_embedder().embed([text_to_embed(*text) for text in texts]))
    show(len(rows))
    return len(rows)


def vector_state(reader: MailReader, root: Path, email: str) -> VectorState:
    known = AccountVectors.open(root, email).rows()
    messages = vectors = 0
    for portion in reader.text_rows(email):
        messages += len(portion)
        vectors += sum(known.get((row.row_id, row.part), (None,))[0] == row.check for row in portion)
    return VectorState(messages, vectors)
