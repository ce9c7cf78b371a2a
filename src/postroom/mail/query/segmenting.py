"""Text for a full-text index and for a query to it, so that words of languages without spaces are found.

A run of Chinese, Japanese, Thai, Lao, Khmer or Burmese becomes overlapping pairs: `天气好` is `天气 气好 好`, and its
last character stands alone. In a query the pairs are a phrase, which finds the run wherever it stands: `气好` is one
pair, a single character is the beginning of a pair. What is written in other forms of the same letters (full-width
letters and digits, half-width kana, ligatures, ß) is written in the usual form. All other text stays as it is.

An index must be given the same text when a message is taken out of it: to change what `for_index` returns takes a new
version of the archive.
"""

from __future__ import annotations

import re
import unicodedata
from itertools import pairwise
from typing import NamedTuple

_LETTERS = (
    "\u0e01-\u0e30\u0e32\u0e33\u0e40-\u0e46"  # Thai
    "\u0e81-\u0eb0\u0eb2\u0eb3\u0ebd\u0ec0-\u0ec6\u0edc-\u0edf"  # Lao
    "\u1000-\u102a\u103f\u1050-\u1055\u105a-\u105d\u1061\u1065\u1066\u106e-\u1070\u1075-\u1081\u108e"  # Burmese
    "\u1780-\u17b3\u17d7\u17dc"  # Khmer
    "\u3005-\u3007\u303b\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"  # Chinese characters
    "\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff"  # kana
    "\u3105-\u312f\u31a0-\u31bf"  # bopomofo
)
_MARKS = (
    "\u0e31\u0e34-\u0e3a\u0e47-\u0e4e"
    "\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ecd"
    "\u102b-\u103e\u1056-\u1059\u105e-\u1060\u1062-\u1064\u1067-\u106d\u1071-\u1074\u1082-\u108d\u108f\u109a-\u109d"
    "\u17b4-\u17d3\u17dd"
    "\u3099\u309a"
)
_STAND_INS = "\ue031-\ue9dd"
_SHIFT = 0xD200
"""From a mark to its stand-in. The index takes marks as the ends of words, and private characters as letters."""
_OTHER_FORMS = (
    "\u00df\u1e9e"
    "\uf900-\ufaff"
    "\ufb00-\ufb06"
    "\ufb50-\ufdff\ufe70-\ufefc"
    "\uff10-\uffdc"
    "\U0001d400-\U0001d7ff"
    "\U0002f800-\U0002fa1f"
)
_DROPPED = "\u200b-\u200d\u2060\ufe00-\ufe0f\U000e0100-\U000e01ef"
"""Within a run, characters that only say how it is shown or where a line may end."""

SPACELESS = f"{_LETTERS}{_MARKS}"
"""Characters of the scripts without spaces, as part of a character class."""
BETWEEN = f"(?:[{_DROPPED}]|\\r?\\n)?"
"""A pattern: what may stand between two characters of a run."""

_ANY = re.compile(f"[{SPACELESS}{_OTHER_FORMS}]")
_COMMON = bytes({*range(0xE0), 0xE2})
"""In UTF-8, the first bytes of all characters below U+0800 and of those from U+2000 on, and what may follow them."""
_FORMS = re.compile(f"[{_OTHER_FORMS}]+")
_RUN = re.compile(f"[{SPACELESS}](?:[{SPACELESS}{_DROPPED}]|\\r?\\n(?=[{SPACELESS}]))*")
_UNIT = re.compile(f"[^{_MARKS}][{_MARKS}]*|[{_MARKS}]+")
_NOISE = re.compile(f"[{_DROPPED}\\r\\n]+")
_ENDS_SPACELESS = re.compile(f"[{SPACELESS}{_STAND_INS}]\\*?\\Z")
_SHIFTED = {
    code: chr(code + _SHIFT)
    for low, high in re.findall("(.)(?:-(.))?", _MARKS)
    for code in range(ord(low), ord(high or low) + 1)
    if code < 0x3000
}


class SegmentedQuery(NamedTuple):
    """Words for the index, in this order; the last one may be only the beginning of a word."""

    words: str
    is_prefix: bool


def needs_segmenting(text: str) -> bool:
    """Whether the index gets anything but the text as it is. Most text is cleared by its bytes, ten times as fast."""
    if text.isascii() or not ("\u00df" in text or text.encode("utf-8", "replace").translate(None, _COMMON)):
        return False
    return _ANY.search(text) is not None


def for_index(text: str) -> str:
    if not needs_segmenting(text):
        return text
    return _RUN.sub(lambda run: f" {' '.join(_pairs(units(run[0])))} ", usual_forms(text))


def for_query(text: str, is_prefix: bool) -> SegmentedQuery:
    """The same for what is searched for: a run at the end goes on in the mail or not, one before another word ends
    there."""
    if not needs_segmenting(text):
        return SegmentedQuery(text, is_prefix)
    text = usual_forms(text)
    last = max(_RUN.finditer(text), key=re.Match.start, default=None)
    if last is None or re.search(r"[^\W_]", text[last.end() :]):
        return SegmentedQuery(for_index(text), is_prefix)
    found = units(last[0])
    pairs = _pairs(found)[:-1] or found
    return SegmentedQuery(for_index(text[: last.start()]) + " " + " ".join(pairs), is_prefix or len(found) == 1)


def ends_without_space(text: str) -> bool:
    """Whether the last character, before an asterisk, is of a script without spaces."""
    return _ENDS_SPACELESS.search(text) is not None


def usual_forms(text: str) -> str:
    """Full-width letters as letters, ligatures as what they join; symbols that are no letters stay."""
    return _FORMS.sub(_usual, text)


def _usual(found: re.Match[str]) -> str:
    text = found[0].replace("\u00df", "ss").replace("\u1e9e", "ss")
    if text.isalnum():
        return unicodedata.normalize("NFKC", text)
    return "".join(unicodedata.normalize("NFKC", each) if each.isalnum() else each for each in text)


def units(run: str) -> list[str]:
    """The characters of a run, each with its marks, as the index has them."""
    return [unit.translate(_SHIFTED) for unit in written_units(run)]


def written_units(run: str) -> list[str]:
    """The characters of a run, each with its marks."""
    return _UNIT.findall(unicodedata.normalize("NFKC", _NOISE.sub("", run)))


def _pairs(found: list[str]) -> list[str]:
    return [*map("".join, pairwise(found)), found[-1]]
