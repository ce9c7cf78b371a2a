"""Hand-written SQL that goes to the driver as it stands, for the few statements where compiling and typing show.

Such a statement is written once with `:name` parameters; times are handed over with `bind_time` and read back with
`read_time`, ids are texts on both databases.
"""

from __future__ import annotations

import re
from datetime import datetime

from postroom.db.database import Dialect
from postroom.db.types import utc_text

_PARAMETER = re.compile(r"(?<![:\w]):(\w+)")


def statement(dialect: Dialect, sql: str) -> str:
    """The text as the dialect's driver wants it."""
    if dialect is Dialect.SQLITE:
        return sql
    return _PARAMETER.sub(r"%(\1)s", sql.replace("%", "%%"))


def bind_time(dialect: Dialect, moment: datetime) -> datetime | str:
    return utc_text(moment) if dialect is Dialect.SQLITE else moment


def read_time(value: datetime | str | None) -> datetime | None:
    return datetime.fromisoformat(value) if isinstance(value, str) else value
