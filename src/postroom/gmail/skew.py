"""Notices that this machine's clock is wrong, from the Date header that every answer of a server carries."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

TOLERATED = timedelta(minutes=5)


def skew_of(headers: Mapping[str, str], now: datetime) -> timedelta | None:
    """How far the server's clock is ahead of ours; None if it does not say."""
    text = headers.get("date")
    if text is None:
        return None
    try:
        said = parsedate_to_datetime(text)
    except ValueError:
        return None
    return (said if said.tzinfo else said.replace(tzinfo=UTC)) - now


def complaint(skew: timedelta | None, server: str) -> str | None:
    """What is wrong with our clock and what to do, or None if it is right or nobody knows."""
    if skew is None or abs(skew) <= TOLERATED:
        return None
    minutes = round(abs(skew).total_seconds() / 60)
    direction = "behind" if skew > timedelta() else "ahead of"
    return (
        f"This machine's clock is {minutes} minutes {direction} that of {server}. "
        "Set it, for example with `timedatectl set-ntp true`: logins, certificates and dates go wrong otherwise."
    )
