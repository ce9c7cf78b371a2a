"""UUIDv7 identifiers (RFC 9562): they sort by the time they were made, and strictly so within one process."""

from __future__ import annotations

import os
import re
import threading
import time
import uuid

from postroom.domain.errors import BadInput

_CANONICAL = re.compile("[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_COUNTER_BITS = 12
_VARIANT = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}
"""A random digit as the first of the variant, which leaves two of its bits random."""
_DIGITS, _DRAWN_AT_ONCE = 16, 256
_lock = threading.Lock()
_last_stamp = 0
_random: list[str] = []
"""Hexadecimal digits, drawn ahead: a call to the system lets another thread run, which costs more than the rest."""


def new_id() -> str:
    """A fresh UUIDv7 in its canonical text form.

    The 12 bits after the milliseconds count up, so that ids made in the same millisecond keep their order;
    when they overflow, or the clock goes back, the id borrows from the next millisecond.
    """
    global _last_stamp
    with _lock:
        stamp = max((time.time_ns() // 1_000_000) << _COUNTER_BITS, _last_stamp + 1)
        _last_stamp = stamp
        if not _random:
            drawn = os.urandom(_DIGITS // 2 * _DRAWN_AT_ONCE).hex()
            _random.extend(drawn[start : start + _DIGITS] for start in range(0, len(drawn), _DIGITS))
        tail = _random.pop()
    head = f"{stamp:015x}"
    return f"{head[:8]}-{head[8:12]}-7{head[12:]}-{_VARIANT[tail[0]]}{tail[1:4]}-{tail[4:]}"


os.register_at_fork(after_in_child=_random.clear)  # a child must not use what its parent uses


def parse_id(text: str, field: str) -> str:
    """The canonical form of an id that a person gave."""
    if _CANONICAL.fullmatch(text):
        return text
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise BadInput(field, f"{text!r} is not an id; ids look like 0199a1c2-7e5b-7abc-8def-0123456789ab") from None


def is_id(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text.lower()
    except ValueError:
        return False


def normal_email(text: str, field: str = "email") -> str:
    """The form under which an account is known: without spaces around it, in lower case."""
    email = text.strip().lower()
    name, at, host = email.rpartition("@")
    if not (name and at and host) or len(email) > 254 or any(ch.isspace() or not ch.isprintable() for ch in email):
        raise BadInput(field, f"{text!r} is not an e-mail address")
    return email
