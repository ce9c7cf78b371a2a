"""What a page gives out and gets back unchanged: dated, signed, and readable by whoever carries it.

The key lives as long as the process. So nothing outlives a change of the settings, which needs a restart.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

_LONGEST = 50_000


@dataclass(frozen=True, slots=True)
class Opened:
    value: dict[str, Any]
    sealed_at: datetime
    is_genuine: bool
    """We gave it out, for this purpose. Anything else is only what somebody says."""

    def is_good(self, now: datetime, longest: timedelta) -> bool:
        """Genuine, and not older than that; a clock that was set back makes it too old rather than too young."""
        return self.is_genuine and timedelta() <= now - self.sealed_at <= longest


class Seal:
    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def close(self, purpose: str, value: Mapping[str, Any], now: datetime) -> str:
        written = json.dumps({"at": now.isoformat(), "value": dict(value)}, separators=(",", ":")).encode()
        text = base64.urlsafe_b64encode(written).decode()
        return f"{text}.{self._signature(purpose, text)}"

    def open(self, purpose: str, sealed: str) -> Opened | None:
        """None for what nobody can read."""
        text, _, signature = sealed.rpartition(".")
        try:
            if len(sealed) > _LONGEST:
                return None
            written = json.loads(base64.b64decode(text, b"-_", validate=True))
            at = datetime.fromisoformat(written["at"])
            is_genuine = hmac.compare_digest(signature.encode(), self._signature(purpose, text).encode())
            return Opened(dict(written["value"]), at, is_genuine)
        except (ValueError, TypeError, KeyError, RecursionError):
            return None

    def _signature(self, purpose: str, text: str) -> str:
        return hmac.new(self._key, f"{purpose}\n{text}".encode(), hashlib.sha256).hexdigest()
