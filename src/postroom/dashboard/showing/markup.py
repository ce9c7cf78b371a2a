"""HTML of mail, written anew from the tags that are known here, each with few attributes and none nested deeply.

Parsers repair markup in a time that grows with the square of its depth: half a megabyte of open `<div>` keeps the
sanitiser busy for minutes. What is written here is well-formed and shallow, so it is not. Nothing is safe because of
this module: `html.py` sanitises what it writes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html import escape

from postroom.dashboard.showing.links import Link, host_of, link_of, safe_url
from postroom.mail.html_text import unescape

LONGEST = 512 << 10
DEEPEST = 100
MOST_LINKS = 200
_MOST_TAGS = 20_000
_LONGEST_LINK_TEXT = 200
_LONGEST_ATTRIBUTES = 4_000

_BLOCKS = (
    "address article aside blockquote center div dd dl dt figcaption figure footer h1 h2 h3 h4 h5 h6 header li main "
    "nav ol p pre section table caption colgroup tbody td tfoot th thead tr ul"
)
_INLINE = "a abbr b big cite code del em font i ins kbd mark q s samp small span strike strong sub sup tt u var"
_ATTRIBUTES = (
    "align bgcolor border cellpadding cellspacing color colspan dir face height lang rowspan size style valign width"
)
_GONE = (
    "script style title textarea xmp iframe noembed noframes noscript template object applet svg math select audio "
    "video canvas frameset"
)
BLOCKS = frozenset(_BLOCKS.split())
INLINE = frozenset(_INLINE.split())
VOID = frozenset({"br", "col", "hr"})
TAGS = BLOCKS | INLINE | VOID
ATTRIBUTES = frozenset(_ATTRIBUTES.split())
_ENDED_BY_ANOTHER = {
    **{block: frozenset({"p"}) for block in BLOCKS},
    "li": frozenset({"li", "p"}),
    "dd": frozenset({"dd", "dt", "p"}),
    "dt": frozenset({"dd", "dt", "p"}),
    "td": frozenset({"td", "th", "p"}),
    "th": frozenset({"td", "th", "p"}),
    "tr": frozenset({"td", "th", "tr", "p"}),
    "a": frozenset({"a"}),
}
"""What people leave open, and the next of its kind ends: a list of a thousand `<li>` is no deeper than one."""
_UNSEEN = frozenset(_GONE.split())
"""Gone with all that is in them."""

# No branch crosses a "<": an unclosed tag costs its own length and no more.
_TAG = re.compile(
    r"""<!--|<(/?)([a-zA-Z][a-zA-Z0-9:-]{0,40})(?=[\s/>])((?:[^<>"']++|"[^"<]*+"|'[^'<]*+')*+|[^<>]*+)>|<[!?/][^<>]*+>"""
)
_ATTRIBUTE = re.compile(r"""(?<![a-zA-Z-])([a-zA-Z-]{1,40}+)\s*+=\s*+(?:"([^"]*+)"|'([^']*+)'|([^\s"'>]++))""")
_ENDS = {name: re.compile(rf"</{name}[\s/>]", re.IGNORECASE) for name in _UNSEEN}
_ASKS_FOR_MORE = re.compile(r"url|image|expression|@|\\|/\*|&|<", re.IGNORECASE)
"""In a style: what loads something, or hides that it does."""


@dataclass(slots=True)
class Rewriting:
    """What is written, and what was met on the way."""

    remote_images: int = 0
    attached_images: int = 0
    links: list[Link] = field(default_factory=list)
    is_cut: bool = False
    _out: list[str] = field(default_factory=list)
    _open: list[str] = field(default_factory=list)
    _url: str | None = None
    _said: list[str] = field(default_factory=list)

    def rewrite(self, source: str) -> str:
        self.is_cut = len(source) > LONGEST
        source = source[:LONGEST].replace("\0", "")
        position = tags = 0
        while (found := _TAG.search(source, position)) is not None:
            tags += 1
            self._text(source[position : found.start()])
            if tags > _MOST_TAGS:
                self.is_cut = True
                break
            position = self._after(found, source)
        else:
            self._text(source[position:])
        self._close_down_to(0)
        return "".join(self._out)

    def _after(self, found: re.Match[str], source: str) -> int:
        """Deal with a tag; where to go on."""
        name = (found[2] or "").lower()
        if found[0] == "<!--":
            end = source.find("-->", found.end() - 2)
            return len(source) if end < 0 else end + 3
        if name in _UNSEEN and not found[1]:
            ending = _ENDS[name].search(source, found.end())
            return len(source) if ending is None else ending.start()
        if found[1]:
            self._end(name)
        elif name:
            self._start(name, found[3])
        return found.end()

    def _text(self, text: str) -> None:
        if not text:
            return
        plain = unescape(text)
        self._out.append(escape(plain, quote=False))
        if self._url is not None and sum(map(len, self._said)) < _LONGEST_LINK_TEXT:
            self._said.append(plain)

    def _start(self, name: str, written: str) -> None:
        if name in ("img", "image"):
            self._image(_attributes(written))
        elif name in VOID:
            self._out.append(f"<{name}>")
        elif name in TAGS:
            self._end_before(name)
            if len(self._open) == DEEPEST:
                return
            self._out.append(f"<{name}{self._kept(name, _attributes(written))}>")
            self._open.append(name)

    def _kept(self, name: str, given: dict[str, str]) -> str:
        kept = {attribute: value for attribute, value in given.items() if attribute in ATTRIBUTES}
        if _ASKS_FOR_MORE.search(kept.get("style", "")):
            del kept["style"]
        if name == "a":
            self._url = safe_url(given.get("href", ""))
            if self._url is not None:
                kept |= {"href": self._url, "title": f"Leads to {host_of(self._url)}"}
        return "".join(f' {attribute}="{escape(value)}"' for attribute, value in kept.items())

    def _image(self, given: dict[str, str]) -> None:
        """Only what it would have said: nothing is loaded, not even what came with the message."""
        source = given.get("src", "").strip().lower()
        if source.startswith(("cid:", "data:")):
            self.attached_images += 1
        elif source:
            self.remote_images += 1
        self._text(escape(" ".join(given.get("alt", "").split())[:_LONGEST_LINK_TEXT]))

    def _end_before(self, name: str) -> None:
        ended = _ENDED_BY_ANOTHER.get(name)
        if ended is None:
            return
        keep = len(self._open)
        for depth in range(len(self._open) - 1, -1, -1):
            if self._open[depth] in ended:
                keep = depth
            elif self._open[depth] not in INLINE:
                break
        self._close_down_to(keep)

    def _end(self, name: str) -> None:
        if name in self._open:
            self._close_down_to(len(self._open) - 1 - self._open[::-1].index(name))

    def _close_down_to(self, depth: int) -> None:
        while len(self._open) > depth:
            name = self._open.pop()
            self._out.append(f"</{name}>")
            if name == "a":
                self._end_link()

    def _end_link(self) -> None:
        if self._url is not None and len(self.links) < MOST_LINKS:
            said = " ".join("".join(self._said).split())[:_LONGEST_LINK_TEXT]
            self.links.append(link_of(said, self._url))
        self._url = None
        self._said = []


def _attributes(written: str) -> dict[str, str]:
    """The first of each name counts, as in browsers."""
    found: dict[str, str] = {}
    for match in _ATTRIBUTE.finditer(written[:_LONGEST_ATTRIBUTES]):
        found.setdefault(match[1].lower(), unescape(match[2] or match[3] or match[4] or ""))
    return found
