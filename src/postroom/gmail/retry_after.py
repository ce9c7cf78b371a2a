"""When Gmail says to come back: a header in seconds or as a date, or a time in the text of an error."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

LONGEST = timedelta(days=1)
_SECONDS = re.compile(r"\s*([0-9]{1,9})(?:\.[0-9]+)?\s*")
_IN_TEXT = re.compile(r"retry after\s+(\S+)", re.IGNORECASE)


def retry_after(headers: Mapping[str, str], message: str, now: datetime) -> timedelta | None:
    """How long to stay away; None where the answer does not say.

    Points in time are measured against the answer's own `Date`, because the clock here may be wrong.
    """
    server_now = _http_date(headers.get("date", "")) or now
    found = [_from_header(headers.get("retry-after", ""), server_now), _from_text(message, server_now)]
    waits = [wait for wait in found if wait is not None]
    return min(max(max(waits), timedelta()), LONGEST) if waits else None


def _from_header(value: str, now: datetime) -> timedelta | None:
    if seconds := _SECONDS.fullmatch(value):
        return timedelta(seconds=int(seconds[1]))
    at = _http_date(value)
    return None if at is None else at - now


def _from_text(message: str, now: datetime) -> timedelta | None:
    found = _IN_TEXT.search(message)
    if found is None:
        return None
    try:
        at = datetime.fromisoformat(found[1].rstrip(".,;)"))
    except ValueError:
        return _from_header(found[1].rstrip("s.,;)"), now)
    return (at.replace(tzinfo=UTC) if at.tzinfo is None else at) - now


def _http_date(value: str) -> datetime | None:
    if not value or len(value) > 60:
        return None
    try:
        at = parsedate_to_datetime(value)
    except (ValueError, TypeError, IndexError):
        return None
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at
