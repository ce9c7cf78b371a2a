"""Address books as people export them: vCard 2.1, 3.0 and 4.0, and CSV from Google, Outlook and others. Pure.

Nothing is guessed: an entry without a usable address is named in `problems` and left out. CSV columns are found by
name.
"""

from __future__ import annotations

import csv
import io
import quopri
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from postroom.domain.errors import BadInput
from postroom.mail.addresses import canonical_address, parse_addresses
from postroom.mail.charsets import decode_text

LARGEST_FILE = 64 << 20
_MOST_PROBLEMS = 100
_LONGEST_NAME = 200


class ContactKind(StrEnum):
    PERSON = "person"
    ORGANISATION = "organisation"


@dataclass(frozen=True, slots=True)
class BookEntry:
    """One address of a contact, in its compared form."""

    address: str
    name: str
    kind: ContactKind = ContactKind.PERSON


@dataclass(frozen=True, slots=True)
class AddressBook:
    entries: tuple[BookEntry, ...]
    problems: tuple[str, ...]
    """What was left out and why, one line each; at most a hundred."""


@dataclass(frozen=True, slots=True)
class Card:
    """A contact as its file has it."""

    place: str
    """Where it stands, for a person: `card 3`, `line 17`."""
    addresses: tuple[str, ...]
    name: str
    kind: ContactKind = ContactKind.PERSON


def decode_address_book(data: bytes) -> str:
    """The file's text: UTF-8 or UTF-16 by its mark, else UTF-8, else what Windows programs write."""
    if len(data) > LARGEST_FILE:
        raise BadInput("file", f"has {len(data):,} bytes; the most is {LARGEST_FILE:,}")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("cp1252", "replace")


def address_book(cards: Iterable[Card]) -> AddressBook:
    """The cards as entries, each address once; the first name that it comes with stays."""
    entries: dict[str, BookEntry] = {}
    problems: list[str] = []
    for card in cards:
        usable = [address for text in card.addresses if (address := _usable(text))]
        if len(usable) < len(card.addresses):
            problems.append(f"{card.place}: not every address can be read")
        elif not usable:
            problems.append(f"{card.place}: has no address")
        name = shown_name(card.name)
        for address in usable:
            known = entries.get(address)
            if known is None or (name and not known.name):
                entries[address] = BookEntry(address, name, card.kind)
    return AddressBook(tuple(entries.values()), tuple(problems[:_MOST_PROBLEMS]))


def _usable(text: str) -> str | None:
    found = parse_addresses(text)
    if len(found) != 1:
        return None
    address = canonical_address(found[0].address)
    local, _, domain = address.rpartition("@")
    is_one = bool(local) and "." in domain.strip(".") and " " not in address and address.isprintable()
    return address if is_one else None


def shown_name(text: str) -> str:
    printable = "".join(char if char.isprintable() else " " for char in text)
    return " ".join(printable.split())[:_LONGEST_NAME]


MOST_ROWS = 500_000
MOST_COLUMNS = 1_000
_LONGEST_CELL = 100_000
_ADDRESS = re.compile(r"(primary |home |work |other |business )?e-?mail( ?address)?( ?[0-9]+)?( ?(address|- value))?")
_NAME = ("name", "full name", "display name", "file as")
_FIRST = ("given name", "first name", "vorname", "prenom", "nombre")
_LAST = ("family name", "last name", "surname", "nachname", "nom", "apellidos")
_COMPANY = ("organization name", "organization 1 - name", "company", "organisation", "firma")
_SEVERAL = " ::: "  # how Google writes several values into one cell


@dataclass(frozen=True, slots=True)
class _Columns:
    addresses: tuple[int, ...]
    name: int | None
    first: int | None
    last: int | None
    company: int | None


def read_csv(data: bytes) -> AddressBook:
    text = decode_address_book(data)
    csv.field_size_limit(_LONGEST_CELL)
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(text))
    try:
        header = next(rows, [])
        columns = _columns([cell.strip().lower() for cell in header])
        return address_book(_cards_of_rows(rows, columns))
    except csv.Error as error:
        raise BadInput("file", f"is not CSV: {error}") from None


def _delimiter(text: str) -> str:
    """The one of the header line: whichever of the usual ones it has most of."""
    header = text.partition("\n")[0]
    return max((",", ";", "\t"), key=header.count)


def _columns(names: Sequence[str]) -> _Columns:
    if len(names) > MOST_COLUMNS:
        raise BadInput("file", f"has {len(names):,} columns; the most is {MOST_COLUMNS:,}")
    addresses = tuple(place for place, name in enumerate(names) if _ADDRESS.fullmatch(name))
    if not addresses:
        raise BadInput(
            "file",
            "has no column of addresses; the first line should name one, such as `E-mail 1 - Value` (Google), "
            "`E-mail Address` (Outlook) or `email`",
        )
    return _Columns(addresses, *(_first_of(names, wanted) for wanted in (_NAME, _FIRST, _LAST, _COMPANY)))


def _first_of(names: Sequence[str], wanted: Sequence[str]) -> int | None:
    return next((names.index(name) for name in wanted if name in names), None)


def _cards_of_rows(rows: Iterator[list[str]], columns: _Columns) -> Iterator[Card]:
    for number, row in enumerate(rows, start=2):
        if number > MOST_ROWS:
            raise BadInput("file", f"has more than {MOST_ROWS:,} lines")
        if not any(cell.strip() for cell in row):
            continue
        places = [place for place in columns.addresses if place < len(row)]
        cells = [cell for place in places for cell in _cell(row, place).split(_SEVERAL)]
        person = _cell(row, columns.name) or f"{_cell(row, columns.first)} {_cell(row, columns.last)}".strip()
        company = _cell(row, columns.company)
        kind = ContactKind.PERSON if person or not company else ContactKind.ORGANISATION
        yield Card(f"line {number}", tuple(filter(None, map(str.strip, cells))), person or company, kind)


def _cell(row: Sequence[str], place: int | None) -> str:
    return row[place].strip() if place is not None and place < len(row) else ""


MOST_CARDS = 200_000
_FOLD = re.compile(r"\r?\n[ \t]")
_SOFT_BREAK = re.compile(r"=\r?\n")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_PROPERTY = re.compile(r"(?:[A-Za-z0-9-]+\.)?([A-Za-z0-9-]+)((?:;(?:\"[^\"]*\"|[^\":])*)?):(.*)", re.DOTALL)
_KINDS = {"org": ContactKind.ORGANISATION, "organization": ContactKind.ORGANISATION}
_NOT_CONTACTS = frozenset({"group", "location"})


def read_vcards(data: bytes) -> AddressBook:
    cards = list(_cards_of_lines(decode_address_book(data)))
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
        kind = _KINDS.get(self.kind.lower(), ContactKind.PERSON)
        if kind is ContactKind.PERSON and not (self.full_name or self.parts_of_name) and self.organisation:
            kind = ContactKind.ORGANISATION
        return Card(f"card {self.number}", tuple(self.emails), name, kind)


def _cards_of_lines(text: str) -> Iterator[_Raw]:
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
