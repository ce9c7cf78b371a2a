"""HTML as it stands in mail: its readable text and its tags, found in linear time, and its remote pictures. Pure.

No tree is built: the rules by which browsers repair markup are quadratic in its depth (half a megabyte of open `<div>`
keeps a fast HTML5 parser busy for twenty seconds), and text needs only to know which tags break a line. The rewriter
that shows mail and the list of its remote pictures use the same scan, so that both see the same tags.

Of the pictures, what only tells a sender that mail was opened is left out: those of one or two pixels, and the parts
of an address that are known to track people. An address can still be the reader's own, so fetching it may tell the
sender all the same.
"""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit, urlunsplit

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
_UNSEEN_SPACES = "\u200b\u200c\ufeff\u00ad\u034f"
_BREAK = "\ue001"
_REFERENCE = re.compile(r"&(?:#[0-9]++;?|#[xX][0-9a-fA-F]++;?|[a-zA-Z][a-zA-Z0-9]{1,31}+;?)")
_LONGEST_REFERENCE = 40


def html_to_text(markup: str, most: int = MAX_HTML_CHARS) -> str:
    """The words of the page, a line for each block; styles, scripts and comments are left out. Of a page of more than
    `most` characters, those of its beginning."""
    markup = _UNSEEN.sub(" ", markup[:most])
    markup = _TAG.sub(_BREAK, _INLINE_TAG.sub("", markup))
    text = unescape(markup).replace("\0", "")
    for space in _UNSEEN_SPACES:  # one by one: a page has few of them, and a pattern looks at every character
        text = text.replace(space, " ")
    return "\n".join(filter(None, [" ".join(line.split()) for line in text.split(_BREAK)]))


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


MOST_PICTURES = 60
LONGEST_ADDRESS = 2_000
_MOST_PIXELS = 40_000_000
_PIXEL = 2
"""A picture that is at most so wide and so high is there to be counted, not to be seen."""
_LENGTH = re.compile(r"\s*([0-9]{1,6})(?:\.[0-9]*)?\s*(?:px)?\s*", re.IGNORECASE)
_HIDING = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden|(?:^|;)\s*opacity\s*:\s*0(?![.0-9])", re.IGNORECASE)
_STYLED = re.compile(r"(?:^|;)\s*(?:max-)?(width|height)\s*:\s*([^;]{1,20})", re.IGNORECASE)
_UNSAFE = re.compile(r"[^\x21-\x7e]|[\\<>\"']")
_TRACKING = frozenset(
    {
        *(
            "_hsenc",
            "_hsmi",
            "_openstat",
            "dclid",
            "fbclid",
            "gbraid",
            "gclid",
            "igshid",
            "mc_cid",
            "mc_eid",
            "mkt_tok",
        ),
        *("ml_subscriber", "ml_subscriber_hash", "msclkid", "oly_anon_id", "oly_enc_id", "rb_clickid", "s_cid"),
        *("ttclid", "twclid", "vero_conv", "vero_id", "wbraid", "wickedid", "yclid"),
    }
)
_TRACKING_STARTS = ("utm_", "pk_", "mtm_", "hsa_")


@dataclass(frozen=True, slots=True)
class RemotePictures:
    addresses: tuple[str, ...]
    """Each once, without what is known to track."""
    left_out: int
    """Counting pixels, and pictures beyond the most that are fetched."""


def remote_pictures(markup: str) -> RemotePictures:
    found: dict[str, None] = {}
    left_out = 0
    for given in images(markup):
        address = picture_address(given)
        if address is not None and (address in found or len(found) < MOST_PICTURES):
            found[address] = None
        elif address is not None or is_remote(given):
            left_out += 1
    return RemotePictures(tuple(found), left_out)


def is_remote(given: Mapping[str, str]) -> bool:
    """Whether a picture with these attributes is neither empty nor part of the message."""
    source = given.get("src", "").strip().lower()
    return bool(source) and not source.startswith(("cid:", "data:"))


def picture_address(given: Mapping[str, str]) -> str | None:
    """Where to fetch the picture with these attributes; None if it is not remote, or there only to be counted."""
    source = given.get("src", "").strip()
    if _is_pixel(given) or len(source) > LONGEST_ADDRESS:
        return None
    if source.startswith("//"):
        source = f"https:{source}"
    source = source.replace(" ", "%20")
    if _UNSAFE.search(source):
        return None
    try:
        parts = urlsplit(source)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            return None
    except ValueError:
        return None
    return urlunsplit((parts.scheme, parts.netloc, parts.path, without_tracking(parts.query), ""))


def without_tracking(query: str) -> str:
    """The query string without the names that are known to track people; everything else as it was written."""
    return "&".join(part for part in query.split("&") if not _tracks(part.partition("=")[0].lower()))


def _tracks(name: str) -> bool:
    return name in _TRACKING or name.startswith(_TRACKING_STARTS)


def _is_pixel(given: Mapping[str, str]) -> bool:
    style = given.get("style", "")
    if _HIDING.search(style) or "hidden" in given:
        return True
    sizes = {name.lower(): value for name, value in _STYLED.findall(style)}
    sizes = {name: given[name] for name in ("width", "height") if name in given} | sizes
    lengths = [int(found[1]) for value in sizes.values() if (found := _LENGTH.fullmatch(value))]
    return bool(lengths) and (max(lengths) <= _PIXEL if len(lengths) == 2 else lengths[0] == 0)


@dataclass(frozen=True, slots=True)
class Raster:
    """A picture of points, known by its first bytes."""

    media_type: str
    width: int
    height: int

    @property
    def is_pixel(self) -> bool:
        return max(self.width, self.height) <= _PIXEL


def raster_of(data: bytes) -> Raster | None:
    """What the bytes are, whatever their server says; None for all but PNG, GIF, JPEG and WebP of a sane size."""
    found = _png(data) or _gif(data) or _jpeg(data) or _webp(data)
    if found is None or not (found.width and found.height) or found.width * found.height > _MOST_PIXELS:
        return None
    return found


def data_address(media_type: str, data: bytes) -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode('ascii')}"


def _png(data: bytes) -> Raster | None:
    if not data.startswith(b"\x89PNG\r\n\x1a\n") or data[12:16] != b"IHDR" or len(data) < 24:
        return None
    return Raster("image/png", int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big"))


def _gif(data: bytes) -> Raster | None:
    if data[:6] not in (b"GIF87a", b"GIF89a") or len(data) < 10:
        return None
    return Raster("image/gif", int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little"))


_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_MOST_SEGMENTS = 500


def _jpeg(data: bytes) -> Raster | None:
    if not data.startswith(b"\xff\xd8\xff"):
        return None
    position = 2
    for _ in range(_MOST_SEGMENTS):
        if position + 9 > len(data) or data[position] != 0xFF:
            return None
        marker = data[position + 1]
        if marker in _FRAMES:
            height, width = data[position + 5 : position + 7], data[position + 7 : position + 9]
            return Raster("image/jpeg", int.from_bytes(width, "big"), int.from_bytes(height, "big"))
        # A filler byte stands alone; every other segment says how long it is.
        position += 1 if marker == 0xFF else 2 + int.from_bytes(data[position + 2 : position + 4], "big")
    return None


def _webp(data: bytes) -> Raster | None:
    if data[:4] != b"RIFF" or data[8:12] != b"WEBP" or len(data) < 30:
        return None
    match data[12:16]:
        case b"VP8X":
            width, height = (int.from_bytes(data[at : at + 3], "little") + 1 for at in (24, 27))
        case b"VP8L" if data[20] == 0x2F:
            bits = int.from_bytes(data[21:25], "little")
            width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8 " if data[23:26] == b"\x9d\x01\x2a":
            width, height = (int.from_bytes(data[at : at + 2], "little") & 0x3FFF for at in (26, 28))
        case _:
            return None
    return Raster("image/webp", width, height)
