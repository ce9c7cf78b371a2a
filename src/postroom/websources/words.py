"""Words as both databases compare them: small letters without accents, letters and digits only, a space around each."""

from __future__ import annotations

import re
import unicodedata

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
