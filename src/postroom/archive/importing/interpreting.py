"""What a container (Takeout, mbox, Maildir) knows about a message: ids, labels, delivery date.

These are plain module-level functions because they are pickled by name for the preparing processes. Takeout writes
system labels in the account's language; the word for read or unread, which is on every message, says which one.
Takeout's own headers stay in the stored bytes, and provenance TAKEOUT says that Gmail's bytes may differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import lru_cache

from postroom.archive.importing.state import FoundMessage
from postroom.archive.messages import IncomingMail, Provenance
from postroom.mail.charsets import decode_words
from postroom.mail.parsing import parse_date

_ENGLISH = {
    "inbox": "INBOX",
    "sent": "SENT",
    "sent mail": "SENT",
    "draft": "DRAFT",
    "drafts": "DRAFT",
    "spam": "SPAM",
    "trash": "TRASH",
    "bin": "TRASH",
    "unread": "UNREAD",
    "starred": "STARRED",
    "important": "IMPORTANT",
    "chat": "CHAT",
    "category personal": "CATEGORY_PERSONAL",
    "category primary": "CATEGORY_PERSONAL",
    "category social": "CATEGORY_SOCIAL",
    "category promotions": "CATEGORY_PROMOTIONS",
    "category updates": "CATEGORY_UPDATES",
    "category forums": "CATEGORY_FORUMS",
    "opened": "",  # the absence of UNREAD
    "archived": "",  # the absence of INBOX
}
_GERMAN = {
    "posteingang": "INBOX",
    "gesendet": "SENT",
    "entwürfe": "DRAFT",
    "spam": "SPAM",
    "papierkorb": "TRASH",
    "ungelesen": "UNREAD",
    "markiert": "STARRED",
    "wichtig": "IMPORTANT",
    "geöffnet": "",
    "archiviert": "",
}
_FRENCH = {
    "boîte de réception": "INBOX",
    "messages envoyés": "SENT",
    "brouillons": "DRAFT",
    "spam": "SPAM",
    "corbeille": "TRASH",
    "non lus": "UNREAD",
    "favoris": "STARRED",
    "important": "IMPORTANT",
    "ouvert": "",
    "messages archivés": "",
}
_LANGUAGE_OF: Mapping[str, Mapping[str, str]] = {
    "geöffnet": _GERMAN,
    "ungelesen": _GERMAN,
    "ouvert": _FRENCH,
    "non lus": _FRENCH,
}
_FOLDERS = _ENGLISH | {"junk": "SPAM", "junk e-mail": "SPAM", "deleted items": "TRASH", "sent items": "SENT"}


def labels_of_header(value: str) -> frozenset[str]:
    """`X-Gmail-Labels`: names between commas, each maybe an encoded word, with quotes around those that hold commas."""
    return _named(_split(decode_words(value)))


def label_of_folder(name: str) -> str:
    return _FOLDERS.get(name.lower(), name)


def _named(names: list[str]) -> frozenset[str]:
    folded = [name.casefold() for name in names]
    known = next((_LANGUAGE_OF[name] for name in folded if name in _LANGUAGE_OF), _ENGLISH)
    return frozenset(_ids(known, names, folded))


def _ids(known: Mapping[str, str], names: list[str], folded: list[str]) -> Iterable[str]:
    for name, key in zip(names, folded, strict=True):
        label = known.get(key, name)
        if label:
            yield label


def _split(value: str) -> list[str]:
    """Between commas that stand outside of double quotes. A quote that is never closed is a plain character."""
    names: list[str] = []
    rest = " ".join(value.split())
    while rest:
        if rest.startswith('"') and (end := _closing_quote(rest)) > 0:
            name, rest = rest[1:end], rest[end + 1 :].partition(",")[2]
            name = name.replace('\\"', '"').replace('""', '"')
        else:
            name, _, rest = rest.partition(",")
        names.append(name.strip())
        rest = rest.lstrip()
    return [name for name in names if name]


def _closing_quote(text: str) -> int:
    """Where the quote that opens the text is closed: before a comma or the end."""
    position = text.find('"', 1)
    while position > 0 and text[position + 1 :].lstrip()[:1] not in ("", ","):
        position = text.find('"', position + 1)
    return position


_TAKEOUT_LINE = re.compile(rb"From (\d{1,20})@xxx(?: (.*))?")
_LONGEST_HEADERS = 64 << 10
_REMEMBERED_CHARS = 400
_THREAD = re.compile(rb"(?im)^X-GM-THRID:[ \t]*(\d{1,20})[ \t]*\r?$")
_LABELS = re.compile(rb"(?im)^X-Gmail-Labels:(.*(?:\n[ \t].*)*)")
_TOPMOST = re.compile(
    rb"X-GM-THRID:[ \t]*(\d{1,20})[ \t]*\r?\nX-Gmail-Labels:(.{0,200}+(?:\n[ \t].{0,200}+){0,3}+)\n(?![ \t])"
)
_ASCTIME = re.compile(rb"\w{3} (\w{3} +\d{1,2}) (\d{1,2}:\d\d(?::\d\d)?)(?: ([+-]\d{4}|[A-Z]{1,5}))? (\d{4})")


def plain(found: FoundMessage) -> IncomingMail:
    """Mail of which only the bytes and perhaps the folder are known."""
    return IncomingMail(found.raw, Provenance.IMPORT, labels=found.labels)


def takeout(found: FoundMessage) -> IncomingMail:
    """Gmail's own ids: decimal in the file, hexadecimal in the API. Mail without them is kept as plain mail is."""
    if not found.from_line:  # an .eml file that lay in the package
        return plain(found)
    line = _TAKEOUT_LINE.match(found.from_line)
    thread, labels = _own_headers(found.raw)
    return IncomingMail(
        found.raw,
        Provenance.TAKEOUT,
        gmail_id=_hexadecimal(line[1]) if line else None,
        thread_id=_hexadecimal(thread) if thread else None,
        labels=found.labels if labels is None else _labels_in(labels),
        received=date_of_line(found.from_line) if line else None,
    )


def delivery_date(found: FoundMessage) -> datetime | None:
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
    return parse_date(f"{number} {month} {year} {time} {zone or '+0000'}")


def _own_headers(raw: bytes) -> tuple[bytes | None, bytes | None]:
    """Takeout's thread and labels. They are searched for only where they are not the first two lines, as they are in
    what Takeout writes."""
    if (both := _TOPMOST.match(raw)) is not None:
        return both[1], both[2]
    head = _head(raw)
    thread, labels = _THREAD.search(head), _LABELS.search(head)
    return thread and thread[1], labels and labels[1]


def _labels_in(value: bytes) -> frozenset[str]:
    text = value.decode("utf-8", "replace")
    return _remembered_labels(text) if len(text) <= _REMEMBERED_CHARS else labels_of_header(text)


@lru_cache(4_096)
def _remembered_labels(value: str) -> frozenset[str]:
    """Most mail has one of a few sets of labels."""
    return labels_of_header(value)


def _head(raw: bytes) -> bytes:
    """The header block. Takeout writes its headers on top, so the first of a name is never one that a sender forged."""
    ends = [end for mark in (b"\n\n", b"\n\r\n") if (end := raw.find(mark, 0, _LONGEST_HEADERS)) >= 0]
    return raw[: min(ends, default=_LONGEST_HEADERS)]


def _hexadecimal(decimal: bytes) -> str:
    return f"{int(decimal):x}"
