"""Subjects of answers: the marks that mail programs put before them, and the subject without them. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

_REPLY_WORDS = (
    "re", "aw", "antw", "antwort",  # English and many others, German, Dutch
    "sv", "vs", "svar",  # Swedish, Danish, Norwegian; Finnish
    "r", "rif", "res", "rép",  # Italian, Portuguese, French
    "odp", "odg", "ats", "atb", "vá", "ynt", "bls",  # Polish, Croatian, Lithuanian, Welsh, Hungarian, Turkish, Malay
    "на", "отв", "ответ", "отг", "відп", "απ",  # Russian, Bulgarian, Ukrainian, Greek
    "回复", "回覆", "答复", "返信", "답장", "회신",  # Chinese, Japanese, Korean
    "השב", "תגובה", "رد", "پاسخ",  # Hebrew, Arabic, Persian
)  # fmt: skip
_MARK = rf"\s*(?:{'|'.join(_REPLY_WORDS)})\s*(?:\[\d{{1,4}}\]|\(\d{{1,4}}\)|\^\d{{1,4}})?\s*[:：]"  # noqa: RUF001
REPLY_MARK = re.compile(_MARK, re.IGNORECASE)
"""At the beginning of an answer's subject."""
_TAG = re.compile(r"\s*\[[^\[\]]{1,60}\]")
_SPACE = re.compile(r"\s+")
_LONGEST = 500
_MOST_MARKS = 20


class BareSubject(NamedTuple):
    text: str
    """Without marks of answers and tags of mailing lists, in its compared form."""
    is_reply: bool


def bare_subject(subject: str) -> BareSubject:
    """`AW: [choir] Re[2]: Rehearsal` is an answer about `rehearsal`; a mark of forwarding stays."""
    rest, is_reply = subject[:_LONGEST], False
    for _ in range(_MOST_MARKS):
        if mark := REPLY_MARK.match(rest):
            is_reply = True
        elif not (mark := _TAG.match(rest)):
            break
        rest = rest[mark.end() :]
    return BareSubject(_SPACE.sub(" ", rest).strip().casefold(), is_reply)
