"""Secrets that a browser carries: made here, stored only as hashes."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets

SESSION, LINK, DEVICE = "prt_session_", "prt_link_", "prt_device_"
"""All begin as our tokens do, so that the log masks one that strays into it."""

_FORM = re.compile(r"prt_(?:session|link)_[A-Za-z0-9_-]{43}")
_DEVICE_FORM = re.compile(rf"{DEVICE}([A-Za-z0-9_-]{{22}})([0-9a-f]{{64}})")


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


def device_secret(passphrase_hash: str) -> str:
    """For a browser that knew the passphrase. It opens nothing; it only sets the browser apart from strangers.

    Follows from the stored hash, so it is stored nowhere and ends when the passphrase is changed.
    """
    device = secrets.token_urlsafe(16)
    return f"{DEVICE}{device}{_device_seal(device, passphrase_hash)}"


def device_of(offered: str, passphrase_hash: str) -> str | None:
    """The device that this secret was made for, if it was made here and for this passphrase."""
    found = _DEVICE_FORM.fullmatch(offered)
    if found is None or not hmac.compare_digest(found[2], _device_seal(found[1], passphrase_hash)):
        return None
    return found[1]


def _device_seal(device: str, passphrase_hash: str) -> str:
    return hmac.new(passphrase_hash.encode(), f"device {device}".encode(), hashlib.sha256).hexdigest()
