"""From a message as it was found to mail for the archive: what its container knows of it, by format.

Functions of this module run in the preparing processes, so they are plain functions that can be named across processes.
Takeout's added headers (`X-GM-THRID`, `X-Gmail-Labels`) stay in the stored bytes: what is kept is what the file holds,
and the provenance TAKEOUT says that Gmail's own bytes may differ.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from postroom.archive.importing.gmail_labels import labels_of_header
from postroom.archive.importing.model import FoundMail
from postroom.archive.model import IncomingMail, Provenance

_TAKEOUT_LINE = re.compile(rb"From (\d{1,20})@xxx(?: (.*))?")
_LONGEST_HEADERS = 64 << 10
_THREAD = re.compile(rb"(?im)^X-GM-THRID:[ \t]*(\d{1,20})[ \t]*\r?$")
_LABELS = re.compile(rb"(?im)^X-Gmail-Labels:(.*(?:\n[ \t].*)*)")
_ASCTIME = re.compile(rb"\w{3} (\w{3} +\d{1,2}) (\d{1,2}:\d\d(?::\d\d)?)(?: ([+-]\d{4}|[A-Z]{1,5}))? (\d{4})")


def plain(found: FoundMail) -> IncomingMail:
    """Mail of which only the bytes and perhaps the folder are known."""
    return IncomingMail(found.raw, Provenance.IMPORT, labels=found.labels)


def takeout(found: FoundMail) -> IncomingMail:
    """Gmail's own ids: decimal in the file, hexadecimal in the API. Mail without them is kept as plain mail is."""
    line = _TAKEOUT_LINE.match(found.from_line)
    head = _head(found.raw)
    thread = _THREAD.search(head)
    labels = _LABELS.search(head)
    return IncomingMail(
        found.raw,
        Provenance.TAKEOUT,
        gmail_id=_hexadecimal(line[1]) if line else None,
        thread_id=_hexadecimal(thread[1]) if thread else None,
        labels=labels_of_header(labels[1].decode("utf-8", "replace")) if labels else found.labels,
        received=date_of_line(found.from_line) if line else None,
    )


def delivery_date(found: FoundMail) -> datetime | None:
    """When the container says that the message came."""
    return found.delivered or date_of_line(found.from_line)


def date_of_line(from_line: bytes) -> datetime | None:
    """The time in a `From ` line (`Thu May 10 08:30:00 +0000 2018`); one without a zone is taken for UTC."""
    match = _ASCTIME.search(from_line)
    if match is None:
        return None
    day, time, zone, year = (
        part.decode("ascii", "replace") for part in (match[1], match[2], match[3] or b"", match[4])
    )
    month, number = day.split()
    try:
        parsed = parsedate_to_datetime(f"{number} {month} {year} {time} {zone or '+0000'}")
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
    return parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed.astimezone(UTC)


def _head(raw: bytes) -> bytes:
    """The header block. Takeout writes its headers on top, so the first of a name is never one that a sender forged."""
    ends = [end for mark in (b"\n\n", b"\n\r\n") if (end := raw.find(mark, 0, _LONGEST_HEADERS)) >= 0]
    return raw[: min(ends, default=_LONGEST_HEADERS)]


def _hexadecimal(decimal: bytes) -> str:
    return f"{int(decimal):x}"
