"""Why a server cannot be reached: DNS, network, TLS, or this machine's clock. Most reports of an expired login are
one of these, so each gets its own message and remedy.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from postroom.domain.checkups import Check, CheckVerdict, Finding
from postroom.domain.errors import BadInput, Retryable
from postroom.tls import trusted

if TYPE_CHECKING:
    import httpx2  # slow to load, and IMAP and commands that only look do without it

CONNECT_S = 10.0
READ_S = 30.0

_NO_ROUTE = frozenset({errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EADDRNOTAVAIL})
_OF_TIME = {9, 10}  # X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED


def http_client() -> httpx2.AsyncClient:
    """For the few calls outside the Gmail client: tokens, check-ups, keys."""
    import httpx2

    return httpx2.AsyncClient(timeout=httpx2.Timeout(READ_S, connect=CONNECT_S), trust_env=False, verify=trusted())


def require_safe_url(url: str, field: str) -> str:
    """The address without a trailing slash. Raises BadInput unless it uses TLS or is on this machine."""
    import httpx2

    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
        httpx2.URL(url), (host or "").encode("idna")  # what the client and the name server are given
    except (ValueError, httpx2.InvalidURL):
        host, parts = None, urlsplit("")
    if not host or parts.scheme not in ("http", "https") or not url.isprintable() or " " in url:
        raise BadInput(field, f"{url!r} is not a web address; write for example https://gmail.googleapis.com")
    if parts.username or parts.password:
        raise BadInput(field, "an address with a password in it is not taken; give the token by itself")
    if parts.query or parts.fragment:
        raise BadInput(field, f"{url!r} has a query or a fragment; give the plain address")
    if parts.scheme == "http" and not is_this_machine(host):
        raise BadInput(field, f"{url!r} would send secrets unencrypted; use https (http is only for this machine)")
    return url.rstrip("/")


def is_this_machine(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def unreachable(error: Exception, url: str) -> Retryable:
    """The error for a request that got no answer. Its message says that the login is not the problem."""
    _, message, remedy = explain(error, urlsplit(url).hostname or url)
    return Retryable(f"{message} {remedy} The login itself was not refused.")


def explain(error: BaseException, host: str) -> tuple[Check, str, str]:
    """Which of the four causes it is, and what to do."""
    import httpx2

    causes = list(_causes(error))
    if any(isinstance(cause, socket.gaierror) for cause in causes):
        return (
            Check.DNS,
            f"The name {host} cannot be resolved: this is a DNS or network problem.",
            "Check the spelling, the network connection and the name server.",
        )
    for cause in causes:
        if isinstance(cause, ssl.SSLError):
            return _explain_tls(cause, host)
    if any(isinstance(cause, (TimeoutError, httpx2.TimeoutException)) for cause in causes):
        return Check.NETWORK, f"{host} did not answer in time.", "Check the network and any firewall or proxy."
    if any(isinstance(cause, ConnectionRefusedError) for cause in causes):
        return (
            Check.NETWORK,
            f"{host} refused the connection.",
            "Check the address and port, and that the service is running.",
        )
    if any(isinstance(cause, OSError) and cause.errno in _NO_ROUTE for cause in causes):
        return Check.NETWORK, f"There is no route to {host}.", "Check that this machine is connected."
    detail = str(error) or type(error).__name__
    return Check.NETWORK, f"The connection to {host} failed ({detail}).", "Check the network and any proxy."


def _explain_tls(error: ssl.SSLError, host: str) -> tuple[Check, str, str]:
    if isinstance(error, ssl.SSLCertVerificationError):
        # Only errors of a real handshake carry these two.
        reason = getattr(error, "verify_message", error)
        if getattr(error, "verify_code", None) in _OF_TIME:
            return (
                Check.TLS,
                f"The certificate of {host} is not valid at this machine's time ({reason}).",
                "Check this machine's clock first, for example with `timedatectl`.",
            )
        return (
            Check.TLS,
            f"The certificate of {host} is not trusted ({reason}).",
            "A proxy or virus scanner may be reading the connection; add its certificate to those this system trusts.",
        )
    return (
        Check.TLS,
        f"{host} does not speak TLS as expected ({error.reason or error}).",
        "Check the port, and whether https is right.",
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and everything beneath it; libraries wrap several layers deep, and in groups."""
    waiting, seen = [error], set[int]()
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        waiting += [below for below in (each.__cause__, each.__context__) if below is not None]
        if isinstance(each, BaseExceptionGroup):
            waiting += each.exceptions


@dataclass(frozen=True)
class _Target:
    host: str
    port: int
    secure: bool


async def check_reach(url: str) -> list[Finding]:
    """Name, connection and certificate of a server, one finding each, up to the first that fails."""
    target = _target(url)
    findings: list[Finding] = []
    for check, attempt, success in (
        (Check.DNS, _resolve, "resolves"),
        (Check.NETWORK, _connect, "accepts connections"),
        (Check.TLS, _handshake, "has a certificate that this machine trusts"),
    ):
        if check is Check.TLS and not target.secure:
            break
        try:
            async with asyncio.timeout(CONNECT_S):
                await attempt(target)
        except OSError as error:  # also timeouts, TLS and name errors
            kind, message, remedy = explain(error, target.host)
            return [*findings, Finding(kind, CheckVerdict.FAILED, target.host, message, remedy)]
        findings.append(Finding(check, CheckVerdict.OK, target.host, f"{target.host} {success}."))
    return findings


def _target(url: str) -> _Target:
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    return _Target(parts.hostname or "", parts.port or (443 if secure else 80), secure)


async def _resolve(target: _Target) -> None:
    await asyncio.get_running_loop().getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)


async def _connect(target: _Target) -> None:
    _, writer = await asyncio.open_connection(target.host, target.port)
    await _hang_up(writer)


async def _handshake(target: _Target) -> None:
    _, writer = await asyncio.open_connection(target.host, target.port, ssl=trusted())
    await _hang_up(writer)


async def _hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):  # how the other side takes the end is not what was asked
        await writer.wait_closed()


TOLERATED_SKEW = timedelta(minutes=5)


def skew_of(headers: Mapping[str, str], now: datetime) -> timedelta | None:
    """How far the server's clock is ahead of ours; None if it does not say."""
    text = headers.get("date")
    if text is None:
        return None
    try:
        said = parsedate_to_datetime(text)
    except ValueError:
        return None
    return (said if said.tzinfo else said.replace(tzinfo=UTC)) - now


def skew_problem(skew: timedelta | None, server: str) -> str | None:
    """What is wrong with our clock and what to do, or None if it is right or unknown."""
    if skew is None or abs(skew) <= TOLERATED_SKEW:
        return None
    minutes = round(abs(skew).total_seconds() / 60)
    direction = "behind" if skew > timedelta() else "ahead of"
    return (
        f"This machine's clock is {minutes} minutes {direction} that of {server}. "
        "Set it, for example with `timedatectl set-ntp true`: logins, certificates and dates go wrong otherwise."
    )
