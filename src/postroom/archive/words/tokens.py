"""Text cut into words and folded exactly as the file archive's index does it, so that both archives find the same mail.

SQLite's own tokeniser is asked about each character once: is it part of a word, and what is it folded to?
"""

from __future__ import annotations

import hashlib
import sqlite3
import threading

from postroom.mail.query.segmenting import for_index

_LONGEST_WORD = 200


class _Characters(dict[int, str]):
    """What each character becomes: itself, another one, nothing (an accent), or a space between words."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._db = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._db.execute("CREATE VIRTUAL TABLE t USING fts5 (x, tokenize = 'unicode61 remove_diacritics 2')")
        self._db.execute("CREATE VIRTUAL TABLE v USING fts5vocab (t, 'row')")

    def __missing__(self, code: int) -> str:
        with self._lock:
            self._db.execute("INSERT INTO t VALUES (?)", (f"x{chr(code)}x",))
            terms = [term for (term,) in self._db.execute("SELECT term FROM v")]
            self._db.execute("DELETE FROM t")
        self[code] = terms[0][1:-1] if terms[0] != "x" else " "
        return self[code]


_CHARACTERS = _Characters()


def words_of(text: str) -> list[str]:
    """The words of a text that the index takes as it is, such as that of a segmented query."""
    return folded_words(text.translate(_CHARACTERS))


def indexed_words(text: str) -> list[str]:
    """The words of a text as it stands in mail, also in languages without spaces."""
    return folded_words(folded_text(text))


def folded_text(text: str) -> str:
    """A text as it stands in mail, folded, with spaces between its words."""
    return for_index(text).translate(_CHARACTERS)


def folded_words(folded: str) -> list[str]:
    words = folded.split()
    if len(folded) <= _LONGEST_WORD or max(map(len, words), default=0) <= _LONGEST_WORD:
        return words
    return [word if len(word) <= _LONGEST_WORD else _short(word) for word in words]


def _short(word: str) -> str:
    """A long word as a prefix and its hash."""
    return f"{word[:50]}.{hashlib.sha256(word.encode()).hexdigest()[:32]}"
