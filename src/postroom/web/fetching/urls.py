"""Addresses of web pages: their one canonical form, and the dated pages of an archive. Pure.

Two spellings of the same address become the same text. What is not the address of a public web page (another
scheme, a password in it, no host) is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date, timedelta
from hashlib import sha1
from ipaddress import IPv6Address
from urllib.parse import SplitResult, urlsplit

import idna

from postroom.domain.errors import BadInput

LONGEST_URL = 2_048

_HASH_IN_JOB_ID = 12
_DEFAULT_PORTS = {"http": 80, "https": 443}
_TRACKING = re.compile(
    r"utm_\w+|mtm_\w+|pk_\w+|hsa_\w+|gclid|gclsrc|dclid|gbraid|wbraid|fbclid|msclkid|yclid|twclid|ttclid|igshid|igsh|"
    r"mc_cid|mc_eid|_hsenc|_hsmi|_ga|_gl|mkt_tok|oly_anon_id|oly_enc_id|vero_id|srsltid|phpsessid|jsessionid",
    re.IGNORECASE,
)
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_IN_PATH = _UNRESERVED | frozenset(b"!$&'()*+,;=:@/")
_IN_QUERY = _UNRESERVED | frozenset(b"!$'()*,;:@/?=")
_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})|(.)", re.DOTALL)
_HOST = re.compile(r"(?!-)[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_LONGEST_HOST = 253


def canonicalize_url(url: str) -> str:
    """The one form of this address. Sorted parameters, no fragment, no trailing slash, no tracking."""
    parts = _split(url)
    path = _without_dots(_escaped(parts.path, _IN_PATH)).rstrip("/") or "/"
    query = _sorted(parts.query)
    canonical = f"{parts.scheme}://{_authority(parts)}{path}" + (f"?{query}" if query else "")
    if len(canonical) > LONGEST_URL:
        raise _refused(url, f"is longer than {LONGEST_URL} characters")
    return canonical


def url_hash(canonical_url: str) -> str:
    return sha1(canonical_url.encode("ascii"), usedforsecurity=False).hexdigest()


def backfill_job_id(source_slug: str, url: str) -> str:
    """Stable: the same for every spelling of the address, in every process and version."""
    return f"backfill:{source_slug}:{url_hash(canonicalize_url(url))[:_HASH_IN_JOB_ID]}"


def host_of(canonical_url: str) -> str:
    return urlsplit(canonical_url).hostname or ""


def tidy(url: str) -> str:
    """The address as a browser would read it from a page, without surrounding white space and line breaks."""
    return re.sub(r"[\t\r\n]", "", url.strip(" \t\r\n\f\v"))


def _split(url: str) -> SplitResult:
    text = tidy(url)
    if len(text) > LONGEST_URL * 4:
        raise _refused(url, f"is longer than {LONGEST_URL} characters")
    if _CONTROL.search(text):
        raise _refused(url, "has control characters")
    head, mark, tail = re.fullmatch(r"([^?#]*)([?#]?)(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
    try:
        # Browsers read a backslash before the query as a slash, so an address cannot hide its host behind one.
        parts = urlsplit(head.replace("\\", "/") + mark + tail)
    except ValueError:
        raise _refused(url, "is not an address") from None
    if parts.scheme not in _DEFAULT_PORTS:
        raise _refused(url, "does not begin with http:// or https://")
    if "@" in parts.netloc:
        raise _refused(url, "has a user name or password in it")
    return parts


def _authority(parts: SplitResult) -> str:
    try:
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise _refused(parts.geturl(), "has no valid port") from None
    name = f"[{_ipv6(parts, host)}]" if parts.netloc.startswith("[") else _name(parts, host)
    return name if port in (None, _DEFAULT_PORTS[parts.scheme]) else f"{name}:{port}"


def _ipv6(parts: SplitResult, host: str) -> str:
    try:
        address = IPv6Address(host)
    except ValueError:
        raise _refused(parts.geturl(), "has no valid host") from None
    if address.scope_id is not None:
        raise _refused(parts.geturl(), "names a network of this machine")
    return address.compressed


def _name(parts: SplitResult, host: str) -> str:
    try:
        ascii_name = host if host.isascii() else idna.encode(host, uts46=True).decode()
    except (idna.IDNAError, UnicodeError):
        ascii_name = ""
    ascii_name = ascii_name.lower().removesuffix(".")
    if len(ascii_name) > _LONGEST_HOST or not _HOST.fullmatch(ascii_name):
        raise _refused(parts.geturl(), "has no valid host")
    return ascii_name


def _escaped(text: str, allowed: frozenset[int]) -> str:
    """Normalised percent-encoding: only where needed, and in capitals."""

    def one(match: re.Match[bytes]) -> bytes:
        if match[1] is None:
            return match[2] if match[2][0] in allowed else b"%%%02X" % match[2][0]
        byte = int(match[1], 16)
        return bytes([byte]) if byte in _UNRESERVED else b"%%%02X" % byte

    try:
        return _ESCAPE.sub(one, text.encode()).decode("ascii")
    except UnicodeEncodeError:
        raise _refused(text, "has characters that nothing can encode") from None


def _without_dots(path: str) -> str:
    kept: list[str] = []
    segments = path.split("/")
    for segment in segments[1:]:
        if segment == "..":
            del kept[-1:]
        elif segment != ".":
            kept.append(segment)
    return "/" + "/".join(kept)


def _sorted(query: str) -> str:
    pairs = (_escaped(pair.replace("+", " "), _IN_QUERY) for pair in query.split("&"))
    return "&".join(sorted(pair for pair in pairs if pair and not _TRACKING.fullmatch(pair.split("=")[0])))


def _refused(url: str, problem: str) -> BadInput:
    shown = url if len(url) <= 200 else f"{url[:200]}…"
    return BadInput("url", f"{shown!r} {problem}")


_PLACEHOLDER = re.compile(r"\{(yyyy|yy|mm|m|dd|d)\}")
_FORMS = {"yyyy": "{0.year:04d}", "yy": "{1:02d}", "mm": "{0.month:02d}", "m": "{0.month}", "dd": "{0.day:02d}"}


def placeholders_in(pattern: str) -> frozenset[str]:
    return frozenset(_PLACEHOLDER.findall(pattern))


def page_of(pattern: str, day: date) -> str:
    """The page of the archive that this day is on."""

    def filled(match: re.Match[str]) -> str:
        return _FORMS.get(match[1], "{0.day}").format(day, day.year % 100)

    return _PLACEHOLDER.sub(filled, pattern)


def pages_between(pattern: str, first: date, last: date) -> Iterator[str]:
    """The pages of all days from first to last, both included, each page once, newest first."""
    used = placeholders_in(pattern)
    by_day, by_month = bool(used & {"dd", "d"}), bool(used & {"mm", "m"})
    day = last
    while day >= first:
        yield page_of(pattern, day)
        day = _before(day, by_day=by_day, by_month=by_month)


def _before(day: date, *, by_day: bool, by_month: bool) -> date:
    """The last day of the page before this one's."""
    if not by_day:
        day = day.replace(day=1) if by_month else day.replace(month=1, day=1)
    return day - timedelta(days=1)
