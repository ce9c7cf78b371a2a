"""Secrets that a browser carries: made here, stored only as hashes."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets

SESSION, LINK = "prt_session_", "prt_link_"
"""Both begin as our tokens do, so that the log masks one that strays into it."""

_FORM = re.compile(r"prt_(?:session|link)_[A-Za-z0-9_-]{43}")


def fresh(prefix: str) -> str:
    return prefix + secrets.token_urlsafe(32)


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def has_form(secret: str, prefix: str) -> bool:
    return secret.startswith(prefix) and _FORM.fullmatch(secret) is not None


def csrf_token(session_secret: str) -> str:
    """What the forms of a session carry. Follows from the cookie, so it is stored nowhere and ends with the session."""
    return hmac.new(session_secret.encode(), b"csrf", hashlib.sha256).hexdigest()


def is_csrf_token(offered: str, session_secret: str) -> bool:
    return hmac.compare_digest(offered.encode(), csrf_token(session_secret).encode())
