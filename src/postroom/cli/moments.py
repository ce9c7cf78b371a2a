"""Times and lengths of time as a person types them."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any

from postroom.domain.clock import require_utc
from postroom.domain.errors import BadInput

_LENGTH = re.compile(r"(\d{1,7})\s*(m|h|d|minutes?|hours?|days?)")
_UNITS = {"m": "minutes", "h": "hours", "d": "days"}


def instant(field: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return require_utc(datetime.fromisoformat(text), field)
    except ValueError:
        raise BadInput(field, f"{text[:60]!r} is not a time; write for example 2026-11-14T09:00:00+00:00") from None


def moment(field: str, text: str | None, now: datetime) -> datetime | None:
    """A time, or how long ago: `2h`."""
    if text is None or _LENGTH.fullmatch(text.strip().lower()) is None:
        return instant(field, text)
    ago = length(field, text)
    return now - timedelta(**{ago["units"]: ago["amount"]})


def length(field: str, text: str) -> dict[str, Any]:
    """`2h` as an amount with its units."""
    found = _LENGTH.fullmatch(text.strip().lower())
    if found is None:
        raise BadInput(field, f"{text[:60]!r} is not a length of time; write for example 30m, 2h or 3d")
    return {"amount": int(found[1]), "units": _UNITS[found[2][0]]}
