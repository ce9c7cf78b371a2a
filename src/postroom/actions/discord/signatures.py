"""Whether a call really comes from Discord: an Ed25519 signature over the time it names and the body as it came."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

OLDEST = timedelta(minutes=5)
_SECONDS = re.compile(r"[0-9]{1,12}")
_SIGNATURE = re.compile(r"[0-9a-fA-F]{128}")


class Verifier:
    def __init__(self, public_key: str) -> None:
        self._key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key))

    def holds(self, signature: str, timestamp: str, body: bytes, now: datetime) -> bool:
        """False for a wrong signature, and for a right one of another day: it is somebody's recording."""
        if not _SECONDS.fullmatch(timestamp) or not _SIGNATURE.fullmatch(signature):
            return False
        if abs(now.timestamp() - int(timestamp)) > OLDEST.total_seconds():
            return False
        try:
            self._key.verify(bytes.fromhex(signature), timestamp.encode("ascii") + body)
        except InvalidSignature:
            return False
        return True
