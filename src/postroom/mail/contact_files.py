"""Address books as people export them: what stands in a vCard or CSV file, as addresses and names. Pure.

Nothing is guessed: an entry without a usable address is named in `problems` and left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from postroom.domain.errors import BadInput
from postroom.mail.addresses import canonical_address, parse_addresses

LARGEST_FILE = 64 << 20
_MOST_PROBLEMS = 100
_LONGEST_NAME = 200


class Kind(StrEnum):
    PERSON = "person"
    ORGANISATION = "organisation"


@dataclass(frozen=True, slots=True)
class BookEntry:
    """One address of a contact, in its compared form."""

    address: str
    name: str
    kind: Kind = Kind.PERSON


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
    kind: Kind = Kind.PERSON


def decoded(data: bytes) -> str:
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
