"""Mail and web pages written by strangers, made harmless to show or to download.

HTML is rewritten from known tags only, sanitised again by nh3 and shown in a frame without script, form or origin.
Links say where they lead. Downloads are served as attachments, whatever they claim to be.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape as escape_html
from urllib.parse import quote, urlsplit

import nh3
from markupsafe import Markup, escape
from starlette.responses import Response

from postroom.dashboard.display.formatting import clean
from postroom.mail.html import (
    LONGEST_HTML,
    MOST_TAGS,
    TAG,
    end_of_unseen,
    is_remote,
    picture_address,
    tag_attributes,
    unescape,
)
from postroom.mail.mime import safe_filename

LONGEST_URL = 2_000
_UNSEEN_IN_URLS = re.compile(r"[\s\x00-\x20\x7f-\xa0\xad\u034f\u061c\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff]")
"""What a reader does not see within an address, and a browser drops or obeys."""
_SCHEMES = frozenset({"http", "https", "mailto"})
_SAID = re.compile(r"(?:https?://)?(?:www\.)?([^\s/?#:@]+\.[^\s/?#:@.]{2,})(?:[/?#:].*)?", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class ShownLink:
    text: str
    url: str
    host: str
    """That the browser will ask, in the form in which it cannot pose as another; the domain of a mail address."""
    poses_as: str | None = None
    """Another host, which its text names."""


def safe_url(text: str) -> str | None:
    """A full address of the web or of a mailbox; None for everything else: scripts, data, files, relative ones."""
    url = _UNSEEN_IN_URLS.sub("", text[: 2 * LONGEST_URL]).encode("utf-8", "replace").decode()
    if len(url) > LONGEST_URL or "\\" in url:
        return None
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    if parts.scheme not in _SCHEMES or (parts.scheme != "mailto" and not url.lower().startswith(f"{parts.scheme}://")):
        return None
    return url if host_of(url) else None


def host_of(url: str) -> str:
    """Without the user whom the address may name before an `@`, and without letters that look like others."""
    try:
        parts = urlsplit(url)
        host = parts.path.rpartition("@")[2] if parts.scheme == "mailto" else parts.hostname or ""
    except ValueError:
        return ""
    host = host.partition("?")[0].lower()
    try:
        return host if host.isascii() else host.encode("idna").decode("ascii")
    except UnicodeError:
        return host.encode("punycode").decode("ascii")


def link_of(text: str, url: str) -> ShownLink:
    """From a `safe_url` and what the reader sees of it."""
    host = host_of(url)
    said = _SAID.fullmatch(_UNSEEN_IN_URLS.sub("", text))
    shown = host_of(f"https://{said[1]}") if said else ""
    is_other = bool(shown) and not url.startswith("mailto:") and not _same_site(shown, host)
    return ShownLink(text, url, host, shown if is_other else None)


def hides_its_host(url: str) -> bool:
    """What stands before the host, or letters within it, let it look like another."""
    host = host_of(url)
    try:
        netloc = urlsplit(url).netloc
    except ValueError:
        return True
    return not url.startswith("mailto:") and ("@" in netloc or host not in netloc.lower())


def _same_site(one: str, other: str) -> bool:
    one, other = one.removeprefix("www."), other.removeprefix("www.")
    return one == other or one.endswith(f".{other}") or other.endswith(f".{one}")


QUOTED = "Quoted text"
DEEPEST_HTML = 100
MOST_LINKS = 200
_LONGEST_LINK_TEXT = 200

_BLOCKS = (
    "address article aside blockquote center div dd dl dt figcaption figure footer h1 h2 h3 h4 h5 h6 header li main "
    "nav ol p pre section table caption colgroup tbody td tfoot th thead tr ul"
)
_INLINE = "a abbr b big cite code del em font i ins kbd mark q s samp small span strike strong sub sup tt u var"
_ATTRIBUTES = (
    "align bgcolor border cellpadding cellspacing color colspan dir face height lang rowspan size style valign width"
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
_ASKS_FOR_MORE = re.compile(r"url|image|expression|@|\\|/\*|&|<", re.IGNORECASE)
"""In a style: what loads something, or hides that it does."""


@dataclass(slots=True)
class HtmlRewriter:
    """What is written, and what was met on the way."""

    folds_quotes: bool = False
    pictures: Mapping[str, str] = field(default_factory=dict)
    """Remote pictures that were fetched: their content by their address."""
    remote_images: int = 0
    attached_images: int = 0
    shown: list[str] = field(default_factory=list)
    """The content of each fetched picture, in the order in which they stand."""
    links: list[ShownLink] = field(default_factory=list)
    is_cut: bool = False
    _picture_room: int = 24 << 20
    """Characters left for the content of pictures: one that stands there a thousand times counts each time."""
    _out: list[str] = field(default_factory=list)
    _open: list[str] = field(default_factory=list)
    _url: str | None = None
    _said: list[str] = field(default_factory=list)
    _has_text: bool = False
    _folded_at: int | None = None
    """How deep the quote stands that is folded."""

    def rewrite(self, source: str) -> str:
        self.is_cut = len(source) > LONGEST_HTML
        source = source[:LONGEST_HTML].replace("\0", "")
        position = tags = 0
        while (found := TAG.search(source, position)) is not None:
            tags += 1
            self._text(source[position : found.start()])
            if tags > MOST_TAGS:
                self.is_cut = True
                break
            position = self._after(found, source)
        else:
            self._text(source[position:])
        self._close_down_to(0)
        return "".join(self._out)

    def _after(self, found: re.Match[str], source: str) -> int:
        """Deal with a tag; where to go on."""
        if (beyond := end_of_unseen(found, source)) is not None:
            return beyond
        name = (found[2] or "").lower()
        if found[1]:
            self._end(name)
        elif name:
            self._start(name, found[3])
        return found.end()

    def _text(self, text: str) -> None:
        if not text:
            return
        plain = unescape(text)
        self._has_text = self._has_text or not plain.isspace()
        self._out.append(escape_html(plain, quote=False))
        if self._url is not None and sum(map(len, self._said)) < _LONGEST_LINK_TEXT:
            self._said.append(plain)

    def _start(self, name: str, written: str) -> None:
        if name in ("img", "image"):
            self._image(tag_attributes(written))
        elif name in VOID:
            self._out.append(f"<{name}>")
        elif name in TAGS:
            self._end_before(name)
            if len(self._open) == DEEPEST_HTML:
                return
            self._fold_before(name)
            self._out.append(f"<{name}{self._kept(name, tag_attributes(written))}>")
            self._open.append(name)

    def _fold_before(self, name: str) -> None:
        """An outer quote is folded, unless the message begins with it. Mail itself cannot bring this tag."""
        if self.folds_quotes and name == "blockquote" and self._has_text and name not in self._open:
            self._folded_at = len(self._open)
            self._out.append(f"<details><summary>{QUOTED}</summary>")

    def _kept(self, name: str, given: dict[str, str]) -> str:
        kept = {attribute: value for attribute, value in given.items() if attribute in ATTRIBUTES}
        if _ASKS_FOR_MORE.search(kept.get("style", "")):
            del kept["style"]
        if name == "a":
            self._url = safe_url(given.get("href", ""))
            if self._url is not None:
                kept |= {"href": self._url, "title": f"Leads to {host_of(self._url)}"}
        return "".join(f' {attribute}="{escape_html(value)}"' for attribute, value in kept.items())

    def _image(self, given: dict[str, str]) -> None:
        """Only what it would have said, unless it was fetched before: the frame loads nothing, not even what came with
        the message."""
        content = self.pictures.get(picture_address(given) or "", "")
        if content and len(content) <= self._picture_room:
            self._picture(content, given)
            return
        if is_remote(given):
            self.remote_images += 1
        elif given.get("src", "").strip():
            self.attached_images += 1
        self._text(escape_html(" ".join(given.get("alt", "").split())[:_LONGEST_LINK_TEXT]))

    def _picture(self, content: str, given: Mapping[str, str]) -> None:
        kept = {"src": f"{_PLACE}{len(self.shown)}", "alt": given.get("alt", "")[:_LONGEST_LINK_TEXT]}
        kept |= {name: given[name] for name in ("width", "height") if name in given}
        written = "".join(f' {name}="{escape_html(value)}"' for name, value in kept.items())
        self._out.append(f"<img{written}>")
        self.shown.append(content)
        self._picture_room -= len(content)

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
            if len(self._open) == self._folded_at:
                self._folded_at = None
                self._out.append("</details>")
            if name == "a":
                self._end_link()

    def _end_link(self) -> None:
        if self._url is not None and len(self.links) < MOST_LINKS:
            said = " ".join("".join(self._said).split())[:_LONGEST_LINK_TEXT]
            self.links.append(link_of(said, self._url))
        self._url = None
        self._said = []


SANDBOX = "allow-popups allow-popups-to-escape-sandbox"
"""No script, no form, no origin; a link that is clicked opens beside it, as a page that knows nothing of ours."""

FRAME_POLICY = "; ".join(
    (
        "default-src 'none'",
        "style-src 'unsafe-inline'",
        "form-action 'none'",
        "frame-ancestors 'self'",
        "base-uri 'none'",
        f"sandbox {SANDBOX}",
    )
)
"""Of the document alone. It also applies if the document is opened outside its frame."""

PICTURES_POLICY = f"{FRAME_POLICY}; img-src data:"
"""The same for a document with fetched pictures, which stand in it: the browser still asks no one."""

_PLACE = "https://picture.invalid/"
"""Where a fetched picture goes; the sanitiser lets no `data:` pass at all."""
_PLACED = re.compile(rf'(<img src="){re.escape(_PLACE)}([0-9]{{1,5}})"')
_FOLDING = ("details", "summary")
_STYLES = (
    "background background-color border border-bottom border-collapse border-color border-left border-radius "
    "border-right border-spacing border-style border-top border-width color display font font-family font-size "
    "font-style font-weight letter-spacing line-height list-style-type margin margin-bottom margin-left margin-right "
    "margin-top max-width min-width padding padding-bottom padding-left padding-right padding-top text-align "
    "text-decoration text-indent text-transform vertical-align white-space width word-break"
)


def _cleaner(*more: str) -> nh3.Cleaner:
    return nh3.Cleaner(
        tags={*TAGS, *_FOLDING, *more},
        attributes={"*": set(ATTRIBUTES), "a": {"href", "title"}} | {name: {"src", "alt"} for name in more},
        url_schemes={"http", "https", "mailto"},
        url_relative="deny",
        link_rel="noopener noreferrer",
        set_tag_attribute_values={"a": {"target": "_blank"}},
        filter_style_properties=set(_STYLES.split()),
    )


_CLEANER = _cleaner()
_PICTURES_CLEANER = _cleaner("img")
_STYLE = (
    ":root{color-scheme:light}"
    "body{margin:0;padding:12px 16px;background:#fff;color:#17202a;font:15px/1.5 system-ui,sans-serif;"
    "overflow-wrap:anywhere}"
    "a{color:#1a56b0}table{max-width:100%}img{max-width:100%;height:auto}pre{white-space:pre-wrap}"
    "summary{cursor:pointer;color:#55616e;padding:4px 0}"
    "blockquote{margin:0 0 0 8px;padding-left:12px;border-left:3px solid #d5dbe2}"
)


@dataclass(frozen=True, slots=True)
class SafeHtml:
    html: str
    """Sanitised: without script, without forms, without anything that is loaded."""
    remote_images: int
    """Pictures left out that would have been fetched from the web, which tells the sender that the mail was read."""
    attached_images: int
    """Pictures left out that came with the message."""
    links: tuple[ShownLink, ...]
    is_cut: bool
    """There was more of it than is shown."""

    @property
    def posing(self) -> tuple[ShownLink, ...]:
        return tuple(link for link in self.links if link.poses_as)


def safe_html(markup: str, *, folds_quotes: bool = False, pictures: Mapping[str, str] | None = None) -> SafeHtml:
    """`pictures` are remote pictures that were fetched: by address, their content as a `data:` address."""
    rewriting = HtmlRewriter(folds_quotes=folds_quotes, pictures=pictures or {})
    # Marks that turn the direction of writing can be written as entities: they are taken from what comes out.
    cleaner = _PICTURES_CLEANER if pictures else _CLEANER
    html = clean(cleaner.clean(rewriting.rewrite(markup.encode("utf-8", "replace").decode())))
    if pictures:
        html = _PLACED.sub(lambda found: f'{found[1]}{rewriting.shown[int(found[2])]}"', html)
    return SafeHtml(html, rewriting.remote_images, rewriting.attached_images, tuple(rewriting.links), rewriting.is_cut)


def frame_document(safe: SafeHtml) -> str:
    return (
        '<!doctype html><html lang=""><head><meta charset="utf-8"><title>The message</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>'
        f"<body>{safe.html}</body></html>"
    )


MOST_LINKS_IN_TEXT = 500
_URL = re.compile(
    rf"\b(?:https?://|mailto:)[^\s<>\"'\x00-\x20\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff\ufffd]{{3,{LONGEST_URL}}}"
)
_AFTER = ".,;:!?)]}*_"


def linked(text: str) -> Markup:
    """What was written, and nothing of it hidden: the text of a link is its address."""
    text = clean(text)
    if "://" not in text and "mailto:" not in text:
        return escape(text)
    out: list[Markup] = []
    position = 0
    for number, found in enumerate(_URL.finditer(text)):
        if number == MOST_LINKS_IN_TEXT:
            break
        shown = found[0].rstrip(_AFTER)
        url = safe_url(shown)
        if url is not None:
            out += [escape(text[position : found.start()]), _anchor(shown, url)]
            position = found.start() + len(shown)
    return Markup("").join([*out, escape(text[position:])])


_MOST_QUOTES = 100
_QUOTE = re.compile(
    r"(?:^[ \t]*>[^\n]*(?:\n|\Z)){3,}|^-{2,} ?Original Message ?-{2,}[ \t]*\n[\s\S]+", re.MULTILINE | re.IGNORECASE
)


def folded(text: str) -> Markup:
    """`linked`, with quotes of three lines or more folded, unless the text begins with one."""
    if ">" not in text and "original message" not in text.lower():
        return linked(text)
    out: list[Markup] = []
    position = 0
    for number, found in enumerate(_QUOTE.finditer(text)):
        if number == _MOST_QUOTES:
            break
        if text[: found.start()].isspace() or found.start() == 0:
            continue
        quote_ = Markup('<details class="quoted"><summary>{}</summary>{}</details>').format(QUOTED, linked(found[0]))
        out += [linked(text[position : found.start()]), quote_]
        position = found.end()
    return Markup("").join([*out, linked(text[position:])])


def _anchor(shown: str, url: str) -> Markup:
    link = Markup('<a href="{}" rel="noopener noreferrer" target="_blank">{}</a>').format(url, shown)
    if not hides_its_host(url):
        return link
    return link + Markup(' <strong class="leads">[leads to {}]</strong>').format(clean(host_of(url)))


OCTET_STREAM = "application/octet-stream"
_POLICY = "default-src 'none'; sandbox"


def download(content: bytes, name: str, media_type: str = OCTET_STREAM) -> Response:
    """Under a name that is no path, hides no ending, and breaks no header."""
    name = safe_filename(name.encode("utf-8", "replace").decode()) or "attachment"
    plain = "".join(char if char.isascii() and char.isprintable() and char not in '"\\%;' else "_" for char in name)
    disposition = f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"
    headers = {
        "content-disposition": disposition,
        "content-security-policy": _POLICY,
        "x-content-type-options": "nosniff",
        "x-download-options": "noopen",
    }
    return Response(content, media_type=media_type, headers=headers)
