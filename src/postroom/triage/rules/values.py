"""The values inside of conditions, each in the form in which it is compared; what cannot be one is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from postroom.accounts.mailbox_state import label_key
from postroom.domain.clock import DURATION_EXAMPLES, parse_duration
from postroom.domain.errors import BadInput
from postroom.mail.addresses import canonical_address, parse_addresses
from postroom.mail.patterns import fold, in_any_case
from postroom.triage.rules.facts import list_key

MOST_VALUES = 200
LONGEST_TEXT = 300
LONGEST_PATTERN = 1_000
_HEADER_NAME = re.compile(r"[!-9;-~]{1,200}")
_SIZE = re.compile(r"([0-9]{1,12})([KMG]?)B?", re.IGNORECASE)
_UNIT_BYTES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_UNSTORABLE = re.compile("[\\x00\\ud800-\\udfff]")
_LONGEST_AGE = timedelta(days=100 * 365)

T = TypeVar("T")


def one_or_more(data: object, where: str, read: Callable[[object, str], T]) -> tuple[T, ...]:
    """A single value, or a list of which one has to fit; each once."""
    if not isinstance(data, list):
        return (read(data, where),)
    if not 1 <= len(data) <= MOST_VALUES:
        raise BadInput(where, f"is a list of 1 to {MOST_VALUES} values; this one has {len(data):,}")
    return tuple(dict.fromkeys(read(each, f"{where}[{number}]") for number, each in enumerate(data)))


def text(data: object, where: str, longest: int = LONGEST_TEXT) -> str:
    if not isinstance(data, str):
        raise BadInput(where, f"is a text, not {_kind(data)}")
    if not data.strip() or len(data) > longest:
        raise BadInput(where, f"has 1 to {longest:,} characters, not only space")
    if not is_storable(data):
        raise BadInput(where, "holds a character that cannot be stored")
    return data


def is_storable(data: str) -> bool:
    """Neither NUL nor half a character: PostgreSQL takes the one for the end, and the other is in no alphabet."""
    return _UNSTORABLE.search(data) is None


def folded_text(data: object, where: str) -> str:
    found = fold(text(data, where)).strip()
    if not found:
        raise BadInput(where, "holds nothing that can be looked for")
    return found


def pattern(data: object, where: str) -> str:
    found = text(data, where, LONGEST_PATTERN)
    in_any_case(found, where)
    return found


def address(data: object, where: str) -> str:
    given = text(data, where)
    found = parse_addresses(given)
    if len(found) != 1 or not all(found[0].address.rpartition("@")) or "*" in found[0].domain or "*@" in given:
        hint = (
            "; for a whole domain use `sender_domain` (--domain)"
            if "@" not in given or given.startswith(("@", "*@"))
            else ""
        )
        raise BadInput(where, f"{given[:100]!r} is not one mail address{hint}")
    return found[0].canonical


def domain(data: object, where: str) -> str:
    given = text(data, where).strip()
    found = canonical_address(f"x@{given}").partition("@")[2]
    if "@" in given or not re.fullmatch(r"[^\s.@/]+(\.[^\s.@/]+)*", found):
        raise BadInput(where, f"{given[:100]!r} is not a domain; write for example example.org")
    if "*" in found:
        raise BadInput(where, "takes no `*`; to take in subdomains write {domain: example.org, subdomains: true}")
    return found


def header_name(data: object, where: str) -> str:
    given = text(data, where)
    if not _HEADER_NAME.fullmatch(given):
        raise BadInput(where, f"{given[:100]!r} is not the name of a header")
    return given.lower()


def label(data: object, where: str) -> str:
    return label_key(text(data, where))


def list_id(data: object, where: str) -> str:
    found = list_key(text(data, where))
    if not found:
        raise BadInput(where, "is empty; write what stands between < and > in the List-Id header")
    return found


def truth(data: object, where: str) -> bool:
    if not isinstance(data, bool):
        raise BadInput(where, f"is true or false, not {_kind(data)}")
    return data


def size(data: object, where: str) -> int:
    if isinstance(data, int) and not isinstance(data, bool) and 0 <= data < 1 << 40:
        return data
    found = _SIZE.fullmatch(data.strip()) if isinstance(data, str) else None
    if found is None:
        raise BadInput(where, "is a size: bytes, or for example 200K, 5M")
    return int(found[1]) * _UNIT_BYTES[found[2].upper()]


def age(data: object, where: str) -> timedelta:
    span = parse_duration(data) if isinstance(data, str) else None
    if span is None:
        raise BadInput(where, f"is an age: for example {DURATION_EXAMPLES}")
    if span > _LONGEST_AGE:
        raise BadInput(where, "a hundred years are the longest")
    return span


def _kind(data: object) -> str:
    match data:
        case None:
            return "nothing"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case list():
            return "a list"
        case dict():
            return "an object"
        case _:
            return f"a {type(data).__name__}"
