"""Tags of HTML as they stand in mail, found one after the other in linear time, without a tree. Pure.

The rewriter that shows mail and the list of its remote pictures use the same scan, so that both see the same tags.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from postroom.mail.html.text import unescape

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
