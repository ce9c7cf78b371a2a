"""Whom this machine trusts on the network. Read once a process: it takes longer than most calls, for every client."""

from __future__ import annotations

import ssl
from functools import cache


@cache
def trusted() -> ssl.SSLContext:
    """For the `verify` of a client. The environment has no say in it."""
    import httpx2  # slow to load, and not needed where all is on this machine

    return httpx2.create_ssl_context(trust_env=False)
