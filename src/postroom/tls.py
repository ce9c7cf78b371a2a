"""Whom this machine trusts on the network. Read once a process: it takes longer than most calls, for every client."""

from __future__ import annotations

import ssl
from functools import cache

import httpx2


@cache
def trusted() -> ssl.SSLContext:
    """For the `verify` of a client. The environment has no say in it."""
    return httpx2.create_ssl_context(trust_env=False)
