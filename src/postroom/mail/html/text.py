"""The readable text of an HTML body, in linear time.

No tree is built: the rules by which browsers repair markup are quadratic in its depth (half a megabyte of open `<div>`
keeps a fast HTML5 parser busy for twenty seconds), and text needs only to know which tags break a line.
"""

from __future__ import annotations

import html
import re
from functools import lru_cache

MAX_HTML_CHARS = 2 << 20
_UNSEEN = re.compile(
    r"<!--.*?(?:-->|\Z)|<(style|script|head|title|template|svg)(?=[\s/>]).*?(?:</\1\s*>|\Z)", re.IGNORECASE | re.DOTALL
)
_INLINE = (
    "a|abbr|acronym|b|bdi|bdo|big|cite|code|del|em|font|i|ins|kbd|label|mark|nobr|q|s|samp|small|span|strike|strong|"
    "sub|sup|time|tt|u|var|wbr"
)
# No branch can cross a "<", so an unclosed tag costs its own length and no more.
_REST_OF_TAG = r"""(?=[\s/>])(?:(?:[^<>"']++|"[^"<]*+"|'[^'<]*+')*+>|[^<>]*+>)"""
_INLINE_TAG = re.compile(rf"</?(?:{_INLINE}){_REST_OF_TAG}", re.IGNORECASE)
_TAG = re.compile(rf"<[/!?]?[a-z][a-z0-9:-]{{0,40}}{_REST_OF_TAG}", re.IGNORECASE)
# A single blank between words, as nearly all are, is left alone.
_SPACE = re.compile(r"[\s\u200b\u200c\ufeff\u00ad\u034f]{2,}+|[^\S ]|[\u200b\u200c\ufeff\u00ad\u034f]")
_BREAK = "\ue001"
_REFERENCE = re.compile(r"&(?:#[0-9]++;?|#[xX][0-9a-fA-F]++;?|[a-zA-Z][a-zA-Z0-9]{1,31}+;?)")
_LONGEST_REFERENCE = 40


def html_to_text(markup: str, most: int = MAX_HTML_CHARS) -> str:
    """The words of the page, a line for each block; styles, scripts and comments are left out. Of a page of more than
    `most` characters, those of its beginning."""
    markup = _UNSEEN.sub(" ", markup[:most])
    markup = _TAG.sub(_BREAK, _INLINE_TAG.sub("", markup))
    lines = _SPACE.sub(" ", unescape(markup).replace("\0", "")).split(_BREAK)
    return "\n".join(line for line in map(str.strip, lines) if line)


def unescape(text: str) -> str:
    """Character references as characters. `html.unescape` does the same, but raises for a number of 5,000 digits."""
    return _REFERENCE.sub(_character, text) if "&" in text else text


def _character(found: re.Match[str]) -> str:
    written = found[0]
    if len(written) > _LONGEST_REFERENCE:
        beginning = 3 if written[2] in "xX" else 2
        # Many zeros are legal; more digits than this name no character.
        written = written[:beginning] + written[beginning:].lstrip("0")
        if len(written) > _LONGEST_REFERENCE:
            return "\N{REPLACEMENT CHARACTER}"
    return _known(written)


@lru_cache(4_096)
def _known(reference: str) -> str:
    return html.unescape(reference)
