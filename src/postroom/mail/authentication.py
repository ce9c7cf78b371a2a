"""`Authentication-Results` (RFC 8601): what the receiving server found out about who really sent a message. Pure.

Anyone can write such a header into a message. Only the topmost one under the receiving server's own name is believed:
that server adds its verdict above everything the sender wrote.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from postroom.mail.headers import Headers

_LONGEST = 16 << 10
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*+)"')
_OUTSIDE_COMMENTS = re.compile(r'[^"(]+')
_WITHIN_COMMENTS = re.compile(r"[^()\\]+")
_METHOD = re.compile(r"^\s*([a-z0-9_-]{1,40})(?:\s*/\s*[0-9]+)?\s*=\s*([a-z0-9_-]{1,40})", re.IGNORECASE)
_PROPERTY = re.compile(r"([a-z0-9_-]{1,40}+)\s*+\.\s*+([a-z0-9_-]{1,40}+)\s*+=\s*+([^\s;]{1,400})", re.IGNORECASE)
_FAILED = frozenset({"fail", "hardfail", "softfail"})
_SIGNER = {"dkim": ("header.d", "header.i"), "spf": ("smtp.mailfrom", "smtp.helo"), "dmarc": ("header.from",)}


class Authentication(StrEnum):
    """What the receiving server says of the sender in `From`."""

    PASSED = "passed"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class AuthenticationResult:
    method: str
    """`spf`, `dkim`, `dmarc` ..."""
    value: str
    domain: str
    """Whom it speaks of; empty where it does not say."""


def authentication_of(headers: Headers, servers: Collection[str], from_domain: str) -> Authentication:
    """DMARC decides where the server gives it. Else one check of SPF or DKIM that passed for the domain that `From`
    names is enough, as in DMARC: forwarding breaks the one or the other, a forger has neither."""
    results = receiving_results(headers, servers)
    if results is None:
        return Authentication.FAILED
    dmarc = [each for each in results if each.method == "dmarc"]
    if any(each.value in _FAILED for each in dmarc):
        return Authentication.FAILED
    if any(each.value == "pass" and (not each.domain or _aligned(each.domain, from_domain)) for each in dmarc):
        return Authentication.PASSED
    checks = [each for each in results if each.method in ("dkim", "spf")]
    if any(each.value == "pass" and _aligned(each.domain, from_domain) for each in checks):
        return Authentication.PASSED
    return Authentication.FAILED if any(each.value in _FAILED for each in checks) else Authentication.UNKNOWN


def is_refuted(headers: Headers, from_domain: str) -> bool:
    """Whether the topmost verdict, whichever server gave it, is that the sender failed. For what only takes trust away:
    a forger may add a verdict that it passed, and gains nothing here."""
    topmost = headers.get("Authentication-Results")
    if topmost is None or "fail" not in topmost.lower():
        return False
    server = _identity(_without_comments(topmost[:_LONGEST].partition(";")[0])[0])
    return authentication_of(headers, (server,), from_domain) is Authentication.FAILED


def receiving_results(headers: Headers, servers: Collection[str]) -> tuple[AuthenticationResult, ...] | None:
    """The verdicts of the topmost header that carries one of these server names.

    None where its end cannot be read: a server repeats in it what the sender called itself, so a sender may open a
    comment that swallows the verdict on it, or push that out of sight.
    """
    names = {server.lower() for server in servers}
    for value in headers.get_all("Authentication-Results"):
        plain, is_whole = _without_comments(value[:_LONGEST])
        identity, _, rest = plain.partition(";")
        if _identity(identity) in names:
            if not is_whole or len(value) > _LONGEST:
                return None
            return tuple(found for statement in rest.split(";") if (found := _result(statement)))
    return ()


def _identity(text: str) -> str:
    """The server's name; a version number may stand behind it."""
    words = text.split()
    return words[0].lower() if words else ""


def _without_comments(value: str) -> tuple[str, bool]:
    """Comments may hold anything, semicolons included, and be nested; quoted text loses only its quotes. And whether
    every comment came to an end."""
    out: list[str] = []
    depth = position = 0
    while position < len(value):
        plain = (_WITHIN_COMMENTS if depth else _OUTSIDE_COMMENTS).match(value, position)
        if plain:
            out.append("" if depth else plain[0])
            position = plain.end()
            continue
        char = value[position]
        quoted = _QUOTED.match(value, position) if char == '"' and not depth else None
        if quoted:
            out.append(re.sub(r"[;\s]", "_", quoted[1]))
            position = quoted.end()
            continue
        if char == "\\" and depth:
            position += 1
        elif char == "(":
            depth += 1
        elif char == ")" and depth:
            depth -= 1
            out.append(" ")
        elif not depth:
            out.append(char)
        position += 1
    return "".join(out), depth == 0


def _result(statement: str) -> AuthenticationResult | None:
    head = _METHOD.match(statement)
    if head is None:
        return None
    method = head[1].lower()
    properties = {f"{kind}.{name}".lower(): value for kind, name, value in _PROPERTY.findall(statement)}
    signer = next((properties[name] for name in _SIGNER.get(method, ()) if name in properties), "")
    return AuthenticationResult(method, head[2].lower(), signer.rpartition("@")[2].lower().rstrip("."))


def _aligned(signer: str, from_domain: str) -> bool:
    """The same domain, or one above or below it, as DMARC's relaxed mode would have it; a bare `com` matches
    nothing."""
    if not signer or not from_domain or "." not in signer:
        return False
    return signer == from_domain or signer.endswith(f".{from_domain}") or from_domain.endswith(f".{signer}")
