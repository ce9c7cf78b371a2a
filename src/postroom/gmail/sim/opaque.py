"""Tokens that mean something to the server only: page tokens and attachment ids, sealed against invention."""

from __future__ import annotations

import base64
import hmac
import json

from postroom.gmail.sim import base64url

_SEAL_BYTES = 9


class Sealer:
    """Turns a small JSON value into an opaque token for one purpose, and back; anything else is not a token."""

    def __init__(self, key: str) -> None:
        self._key = key.encode()

    def seal(self, purpose: str, value: object) -> str:
        payload = json.dumps(value, separators=(",", ":")).encode()
        return base64.urlsafe_b64encode(self._mark(purpose, payload) + payload).decode().rstrip("=")

    def open(self, purpose: str, token: str) -> object | None:
        """The value, or None if this token was not made here for this purpose."""
        try:
            sealed = base64url.decode(token)
        except ValueError:
            return None
        mark, payload = sealed[:_SEAL_BYTES], sealed[_SEAL_BYTES:]
        if not hmac.compare_digest(mark, self._mark(purpose, payload)):
            return None
        value: object = json.loads(payload)
        return value

    def _mark(self, purpose: str, payload: bytes) -> bytes:
        return hmac.digest(self._key, purpose.encode() + b"\0" + payload, "sha256")[:_SEAL_BYTES]
