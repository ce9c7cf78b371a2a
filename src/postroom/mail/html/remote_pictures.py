"""Remote pictures of a message: what to fetch, and what came back. Pure.

What only tells a sender that mail was opened is left out: pictures of one or two pixels, and the parts of an address
that are known to track people. An address can still be the reader's own, so fetching it may tell the sender all the
same.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

from postroom.mail.html.markup import images

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
