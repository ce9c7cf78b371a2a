"""Where a message is: the folder of its account, the file of its year, and a row id made from its date.

Shards are `archive/<account>/<year>.db`, further parts of a full year `<year>-2.db`. A row id is the date in
milliseconds shifted by 16 bits, plus a slot that tells messages of the same millisecond apart: newest first needs no
sort, and a range of dates is a range of ids, also for old mail that arrives late.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from urllib.parse import quote

from postroom.domain.errors import BadInput
from postroom.mail.addresses import canonical_address

_FILE = re.compile(r"(\d{4})(?:-([2-9]|[1-9]\d+))?\.db")


@dataclass(frozen=True, slots=True, order=True)
class ShardName:
    """An account's year; `part` counts the files that it was split into."""

    account: str
    year: int
    part: int = 1

    @property
    def filename(self) -> str:
        return f"{self.year:04}.db" if self.part == 1 else f"{self.year:04}-{self.part}.db"

    def __str__(self) -> str:
        return f"{self.account}/{self.filename}"


def account_name(email: str) -> str:
    """The form of an address that names an account, and its folder."""
    account = canonical_address(email)
    if "@" not in account or len(account) > 200 or account.startswith("."):
        raise BadInput("account", f"{email!r} is not a mail address")
    return account


def folder_of(root: Path, account: str) -> Path:
    return root / quote(account, safe="@+-_.")


def path_of(root: Path, name: ShardName) -> Path:
    return folder_of(root, name.account) / name.filename


def year_of(date: datetime) -> int:
    """The year of the shard of a message, within 1970 and 9999."""
    return min(max(date.year, 1970), 9999)


def parse_name(text: str) -> ShardName:
    """A shard's name as `str` gives it."""
    account, _, filename = text.rpartition("/")
    name = parse_filename(account, filename)
    if name is None:
        raise BadInput("shard", f"{text!r} is not the name of a shard")
    return name


def parse_filename(account: str, filename: str) -> ShardName | None:
    match = _FILE.fullmatch(filename)
    return ShardName(account, int(match[1]), int(match[2] or 1)) if match else None


SLOT_BITS = 16
SLOTS = 1 << SLOT_BITS
LARGEST_ID = (1 << 63) - 1
_DAY_MS = 86_400_000
_LATEST_MS = (1 << (63 - SLOT_BITS)) - 1_025  # far past the year 6000, with room above for what flows over


def first_id(date_ms: int) -> int:
    """The smallest id of this millisecond; dates before 1970 share the first one."""
    return min(max(date_ms, 0), _LATEST_MS) << SLOT_BITS


def free_id(date_ms: int, largest_taken: Callable[[int], int | None]) -> int:
    """A free id: of this millisecond, or of the next one that is not full.

    `largest_taken` is asked for the largest id taken in a millisecond, by its first.
    """
    first = first_id(date_ms)
    while (taken := largest_taken(first)) == first + SLOTS - 1:
        first += SLOTS
    return first if taken is None else taken + 1


def id_range(first: date, last: date) -> tuple[int, int]:
    """The first id of the first day, and the first id after the last day; days are in UTC."""
    return first_id(_day_ms(first)), first_id(_day_ms(last) + _DAY_MS)


def _day_ms(day: date) -> int:
    return round(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp() * 1_000)


def cursor_of(row_id: int, part: int = 1) -> str:
    """Where a page of a walk ended."""
    return f"{row_id:x}.{part}"


def read_cursor(text: str) -> tuple[int, int]:
    """A row id and a part."""
    row_id, _, part = text.partition(".")
    try:
        found = int(row_id, 16), int(part)
    except ValueError:
        raise BadInput("cursor", "is not one that this tool gave") from None
    if not (0 <= found[0] <= LARGEST_ID and 0 < found[1] < 1 << 31):
        raise BadInput("cursor", "is not one that this tool gave")
    return found


def date_of_id(row_id: int) -> datetime:
    return datetime.fromtimestamp((row_id >> SLOT_BITS) / 1_000, UTC)
