"""Contacts in CSV as Google, Outlook and others export them: columns are found by their names."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from postroom.domain.errors import BadInput
from postroom.mail.contact_files import AddressBook, Card, Kind, address_book, decoded

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
    text = decoded(data)
    csv.field_size_limit(_LONGEST_CELL)
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(text))
    try:
        header = next(rows, [])
        columns = _columns([cell.strip().lower() for cell in header])
        return address_book(_cards(rows, columns))
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


def _cards(rows: Iterator[list[str]], columns: _Columns) -> Iterator[Card]:
    for number, row in enumerate(rows, start=2):
        if number > MOST_ROWS:
            raise BadInput("file", f"has more than {MOST_ROWS:,} lines")
        if not any(cell.strip() for cell in row):
            continue
        places = [place for place in columns.addresses if place < len(row)]
        cells = [cell for place in places for cell in _cell(row, place).split(_SEVERAL)]
        person = _cell(row, columns.name) or f"{_cell(row, columns.first)} {_cell(row, columns.last)}".strip()
        company = _cell(row, columns.company)
        kind = Kind.PERSON if person or not company else Kind.ORGANISATION
        yield Card(f"line {number}", tuple(filter(None, map(str.strip, cells))), person or company, kind)


def _cell(row: Sequence[str], place: int | None) -> str:
    return row[place].strip() if place is not None and place < len(row) else ""
