"""From a connection that failed to the error that says how: DNS, network, TLS, timeout, dropped or cut off. Pure."""

from __future__ import annotations

import httpx2

from postroom.domain.errors import PostroomError
from postroom.gmail.errors import Unavailable, Unreachable
from postroom.gmail.reach import explain
from postroom.gmail.refusals import Asked, not_gmail


def failure_of(error: httpx2.HTTPError | TimeoutError, asked: Asked, host: str) -> PostroomError:
    """The one table of failures. What was never sent cannot have happened; everything else may have."""
    if isinstance(error, httpx2.ConnectError | httpx2.ProxyError):
        return Unreachable(" ".join(explain(error, host)[1:]))
    if isinstance(error, httpx2.ConnectTimeout | httpx2.PoolTimeout):
        return Unreachable(f"{host} did not take the connection in time. The network may be down or very slow.")
    if isinstance(error, httpx2.UnsupportedProtocol):
        return not_gmail("its address does not begin with https://")
    return Unavailable(f"{_what_happened(error)} during {asked.method}", may_have_happened=asked.changes)


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
