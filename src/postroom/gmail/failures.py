"""From a connection that failed to the error that says how: DNS, network, TLS, timeout, dropped or cut off. Pure."""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Iterator

import httpx2

from postroom.domain.errors import PostroomError
from postroom.gmail.errors import Unavailable, Unreachable
from postroom.gmail.refusals import Asked, not_gmail

_NO_WAY = frozenset({errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EADDRNOTAVAIL})


def failure_of(error: httpx2.HTTPError | TimeoutError, asked: Asked, host: str) -> PostroomError:
    """The one table of failures. What was never sent cannot have happened; everything else may have."""
    if isinstance(error, httpx2.ConnectError | httpx2.ProxyError):
        return _no_connection(error, host)
    if isinstance(error, httpx2.ConnectTimeout | httpx2.PoolTimeout):
        return Unreachable(f"{host} did not take the connection in time. The network may be down or very slow.")
    if isinstance(error, httpx2.UnsupportedProtocol):
        return not_gmail("its address does not begin with https://")
    return Unavailable(f"{_what_happened(error)} during {asked.method}", may_have_happened=asked.changes)


def _no_connection(error: Exception, host: str) -> Unreachable:
    for cause in _causes(error):
        if isinstance(cause, socket.gaierror):
            return Unreachable(f"The name {host} could not be looked up (DNS). Check the network and its name server.")
        if isinstance(cause, ssl.SSLError):
            return Unreachable(
                f"{host} could not prove who it is (TLS: {getattr(cause, 'reason', None) or 'failed'}). "
                "Check this machine's clock and whether a proxy is in between."
            )
        if isinstance(cause, ConnectionRefusedError):
            return Unreachable(f"{host} is there but refuses connections. Check the account's API address and port.")
        if isinstance(cause, OSError) and cause.errno in _NO_WAY:
            return Unreachable(f"There is no way to {host} (network unreachable). Check this machine's connection.")
    return Unreachable(f"{host} could not be reached.")


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


def _what_happened(error: Exception) -> str:
    match error:
        case TimeoutError() | httpx2.TimeoutException():
            return "Gmail did not answer in time"
        case httpx2.RemoteProtocolError():
            return "The connection to Gmail ended before the answer was complete"
        case httpx2.DecodingError():
            return "Gmail's answer could not be unpacked"
        case httpx2.NetworkError():
            return "The connection to Gmail was lost"
        case _:
            return f"The exchange with Gmail failed ({type(error).__name__})"
