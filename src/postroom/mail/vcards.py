"""vCard files of versions 2.1, 3.0 and 4.0: folded lines, groups, several addresses, quoted-printable of old phones."""

from __future__ import annotations

import quopri
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from postroom.domain.errors import BadInput
from postroom.mail.charsets import decode_text
from postroom.mail.contact_files import AddressBook, Card, Kind, address_book, decoded

MOST_CARDS = 200_000
_FOLD = re.compile(r"\r?\n[ \t]")
_SOFT_BREAK = re.compile(r"=\r?\n")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_PROPERTY = re.compile(r"(?:[A-Za-z0-9-]+\.)?([A-Za-z0-9-]+)((?:;(?:\"[^\"]*\"|[^\":])*)?):(.*)", re.DOTALL)
_KINDS = {"org": Kind.ORGANISATION, "organization": Kind.ORGANISATION}
_NOT_CONTACTS = frozenset({"group", "location"})


def read_vcards(data: bytes) -> AddressBook:
    cards = list(_cards(decoded(data)))
    if not cards:
        raise BadInput("file", "holds no vCard; one begins with BEGIN:VCARD")
    return address_book(card.as_card() for card in cards if card.kind.lower() not in _NOT_CONTACTS)


@dataclass
class _Raw:
    number: int
    full_name: str = ""
    parts_of_name: str = ""
    organisation: str = ""
    kind: str = ""
    emails: list[str] = field(default_factory=list)

    def as_card(self) -> Card:
        name = self.full_name or self.parts_of_name or self.organisation
        kind = _KINDS.get(self.kind.lower(), Kind.PERSON)
        if kind is Kind.PERSON and not (self.full_name or self.parts_of_name) and self.organisation:
            kind = Kind.ORGANISATION
        return Card(f"card {self.number}", tuple(self.emails), name, kind)


def _cards(text: str) -> Iterator[_Raw]:
    card: _Raw | None = None
    count = 0
    for name, parameters, value in _properties(text):
        if name == "BEGIN" and value.strip().upper() == "VCARD":
            count += 1
            if count > MOST_CARDS:
                raise BadInput("file", f"holds more than {MOST_CARDS:,} cards")
            card = _Raw(count)
        elif name == "END" and card is not None:
            yield card
            card = None
        elif card is not None:
            _fill(card, name, _plain(value, parameters))


def _properties(text: str) -> Iterator[tuple[str, str, str]]:
    for line in _logical_lines(_FOLD.sub("", text)):
        if match := _PROPERTY.fullmatch(line):
            yield match[1].upper(), match[2], match[3]


def _logical_lines(text: str) -> Iterator[str]:
    """Lines, those of quoted-printable values joined with what follows their soft break."""
    pending: list[str] = []
    for line in text.splitlines():
        is_quoted = bool(pending) or "QUOTED-PRINTABLE" in line.partition(":")[0].upper()
        pending.append(line)
        if is_quoted and line.endswith("="):
            continue
        yield "\n".join(pending)
        pending.clear()
    if pending:
        yield "\n".join(pending).rstrip("=\n")


def _plain(value: str, parameters: str) -> str:
    upper = parameters.upper()
    if "QUOTED-PRINTABLE" not in upper:
        return value
    charset = re.search(r"CHARSET=\"?([\w.:-]+)", upper)
    raw = quopri.decodestring(_SOFT_BREAK.sub("", value).encode("utf-8", "replace"))
    return decode_text(raw, charset[1] if charset else None)[0]


def _fill(card: _Raw, name: str, value: str) -> None:
    match name:
        case "EMAIL" if value.strip():
            card.emails.append(_unescaped(value).strip())
        case "FN" if not card.full_name:
            card.full_name = _unescaped(value).strip()
        case "N" if not card.parts_of_name:
            family, given, *_ = [*_split(value), "", ""]
            card.parts_of_name = f"{given} {family}".strip()
        case "ORG" if not card.organisation:
            card.organisation = " ".join(part for part in _split(value) if part)
        case "KIND":
            card.kind = value.strip()


def _split(value: str) -> list[str]:
    """A structured value at its semicolons, those that are escaped excepted."""
    return [_unescaped(part).strip() for part in re.split(r"(?<!\\);", value)]


def _unescaped(value: str) -> str:
    return _ESCAPE.sub(lambda match: " " if match[1] in "nN" else match[1], value)
