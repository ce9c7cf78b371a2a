"""HTML as it stands in mail: its readable text and its tags, found in linear time. Pure.

No tree is built: the rules by which browsers repair markup are quadratic in its depth (half a megabyte of open `<div>`
keeps a fast HTML5 parser busy for twenty seconds), and text needs only to know which tags break a line. The rewriter
that shows mail and the list of its remote pictures use the same scan, so that both see the same tags.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
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


LONGEST_HTML = 512 << 10
MOST_TAGS = 20_000
_LONGEST_ATTRIBUTES = 4_000
_GONE = (
    "script style title textarea xmp iframe noembed noframes noscript template object applet svg math select audio "
    "video canvas frameset"
)
UNSEEN = frozenset(_GONE.split())
"""Gone with all that is in them."""

# No branch crosses a "<": an unclosed tag costs its own length and no more.
TAG = re.compile(
    r"""<!--|<(/?)([a-zA-Z][a-zA-Z0-9:-]{0,40})(?=[\s/>])((?:[^<>"']++|"[^"<]*+"|'[^'<]*+')*+|[^<>]*+)>|<[!?/][^<>]*+>"""
)
_ATTRIBUTE = re.compile(r"""(?<![a-zA-Z-])([a-zA-Z-]{1,40}+)\s*+=\s*+(?:"([^"]*+)"|'([^']*+)'|([^\s"'>]++))""")
_ENDS = {name: re.compile(rf"</{name}[\s/>]", re.IGNORECASE) for name in UNSEEN}


def end_of_unseen(found: re.Match[str], source: str) -> int | None:
    """Where a comment, or an element that is not shown, ends; None for every other tag."""
    if found[0] == "<!--":
        end = source.find("-->", found.end() - 2)
        return len(source) if end < 0 else end + 3
    name = (found[2] or "").lower()
    if name not in UNSEEN or found[1]:
        return None
    ending = _ENDS[name].search(source, found.end())
    return len(source) if ending is None else ending.start()


def tag_attributes(written: str) -> dict[str, str]:
    """The first of each name counts, as in browsers."""
    found: dict[str, str] = {}
    for match in _ATTRIBUTE.finditer(written[:_LONGEST_ATTRIBUTES]):
        found.setdefault(match[1].lower(), unescape(match[2] or match[3] or match[4] or ""))
    return found


def images(source: str) -> Iterator[dict[str, str]]:
    """The attributes of each picture that is shown, in order; of a very long page, those of its beginning."""
    source = source[:LONGEST_HTML].replace("\0", "")
    position = tags = 0
    while (found := TAG.search(source, position)) is not None and tags < MOST_TAGS:
        tags += 1
        beyond = end_of_unseen(found, source)
        position = found.end() if beyond is None else beyond
        if not found[1] and (found[2] or "").lower() in ("img", "image"):
            yield tag_attributes(found[3])
