"""Where links of mail really lead, and which of them say that they lead elsewhere."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

LONGEST_URL = 2_000
_UNSEEN = re.compile(r"[\s\x00-\x20\x7f-\xa0\xad\u034f\u061c\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff]")
"""What a reader does not see within an address, and a browser drops or obeys."""
_SCHEMES = frozenset({"http", "https", "mailto"})
_SAID = re.compile(r"(?:https?://)?(?:www\.)?([^\s/?#:@]+\.[^\s/?#:@.]{2,})(?:[/?#:].*)?", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Link:
    text: str
    url: str
    host: str
    """That the browser will ask, in the form in which it cannot pose as another; the domain of a mail address."""
    poses_as: str | None = None
    """Another host, which its text names."""


def safe_url(text: str) -> str | None:
    """A full address of the web or of a mailbox; None for everything else: scripts, data, files, relative ones."""
    url = _UNSEEN.sub("", text[: 2 * LONGEST_URL]).encode("utf-8", "replace").decode()
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


def link_of(text: str, url: str) -> Link:
    """From a `safe_url` and what the reader sees of it."""
    host = host_of(url)
    said = _SAID.fullmatch(_UNSEEN.sub("", text))
    shown = host_of(f"https://{said[1]}") if said else ""
    is_other = bool(shown) and not url.startswith("mailto:") and not _same_site(shown, host)
    return Link(text, url, host, shown if is_other else None)


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
