"""Where things lie: `archive/<account>/<year>.db`, parts of a full year as `<year>-2.db`. Names are never paths."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
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
    """The period a message belongs to; absurd dates are kept within four digits."""
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
