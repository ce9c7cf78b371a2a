"""How commands print (tables for people, `--json` for programs) and how they read times, durations and files."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from postroom.domain.clock import DURATION_EXAMPLES, as_amount, parse_duration, require_utc
from postroom.domain.errors import BadInput

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

# A pipe has no width of its own; a program that reads it wants whole cells.
console = Console(highlight=False, emoji=False, width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 300)
errors = Console(stderr=True, highlight=False, emoji=False)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

_GAP = 2
_NARROWEST = 12
_INDENT = "    "

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show what would happen, and change nothing.")]


def progress_bar(*columns: str | ProgressColumn) -> Progress:
    """Shown while its block lasts, on the error stream; nothing at all, not even a line's end, if that is a pipe."""
    from rich.progress import Progress

    return Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal)


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, default=_plain, ensure_ascii=False, indent=2))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str, names: int = 1) -> None:
    """A plain table; where the terminal is narrow, its widest columns are shortened; `empty` says that it has no rows.

    The first columns, `names` of them, name the thing and are copied into the next command: never shortened. If what
    the others say would hardly be readable, it stands below the names instead, line by line.
    """
    texts = [[shown(cell) for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(columns, *texts, strict=True)]
    if not texts:
        console.print(empty)
    elif (most := _widest(widths[names:], console.width - sum(widths[:names]) - _GAP * (len(widths) - 1))) is None:
        _print_stacked(columns, texts, names)
    else:
        table = Table(box=None, header_style="bold", pad_edge=False)
        for place, (name, width) in enumerate(zip(columns, widths, strict=True)):
            table.add_column(name, no_wrap=True, width=width if place < names else min(width, most))
        for row in texts:
            table.add_row(*map(Text, row))
        console.print(table)


def _widest(widths: Sequence[int], room: int) -> int | None:
    """The most that a column may take so that all fit; none if that is too little to read."""
    most = max(widths, default=0)
    while most >= _NARROWEST and sum(min(width, most) for width in widths) > room:
        most -= 1
    return most if sum(min(width, most) for width in widths) <= room else None


def _print_stacked(columns: Sequence[str], texts: Iterable[Sequence[str]], names: int) -> None:
    for row in texts:
        said = [f"{name} {cell}".strip() for name, cell in zip(columns, row, strict=True) if cell]
        console.print(Text("  ".join(row[:names])), soft_wrap=True)
        for line in Text(", ".join(said[names:])).wrap(console, console.width - len(_INDENT)):
            line.rstrip()
            console.print(Text(_INDENT) + line)


def shown(value: Any) -> str:
    """For people: a time is in the local zone; `postroom --utc` makes that UTC."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case datetime():
            return value.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        case list() if all(isinstance(each, str) for each in value):
            return printable(", ".join(value))
        case dict() | list():
            return printable(json.dumps(value, ensure_ascii=False, default=_plain))
        case _:
            return printable(str(value))


def printable(text: str) -> str:
    """Control characters made visible: what a mail server said must not steer the terminal."""
    return _CONTROL.sub(lambda match: repr(match[0])[1:-1], text)


def age(moment: datetime | None, now: datetime) -> str:
    """How long ago, in the largest unit that tells something: `3m`, `5h`, `12d`."""
    if moment is None:
        return "-"
    gone = max(now - moment, timedelta())
    for unit, size in (("d", timedelta(days=1)), ("h", timedelta(hours=1)), ("m", timedelta(minutes=1))):
        if gone >= size:
            return f"{gone // size}{unit}"
    return f"{gone.seconds}s"


def moment(seconds: int) -> str:
    """A time of mail, in seconds since 1970."""
    return shown(datetime.fromtimestamp(seconds, UTC)) if seconds else "none yet"


def minute(time: datetime) -> str:
    """A time in a list of mail: in the local zone as `shown` is, and short."""
    return f"{time.astimezone():%Y-%m-%d %H:%M}"


def duration(seconds: float) -> str:
    """About how long, in the units that a person would use."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5_400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3_600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"


def size(count: float) -> str:
    """So many bytes, to three figures."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1_000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.3g} {unit}"
        count /= 1_000
    return f"{count:,.3g} TB"


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, date):  # a datetime is one too
        return value.isoformat()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, frozenset):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} cannot be printed as JSON")


_LONG_UNITS = re.compile(r"\s*(?:(m)inutes?|(h)ours?|(d)ays?|(w)eeks?|(mo)nths?)")


def parse_instant(field: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return require_utc(datetime.fromisoformat(text), field)
    except ValueError:
        raise BadInput(field, f"{text[:60]!r} is not a time; write for example 2026-11-14T09:00:00+00:00") from None


def parse_day(field: str, text: str | None) -> date | None:
    try:
        return None if text is None else date.fromisoformat(text)
    except ValueError:
        raise BadInput(field, f"{text!r} is not a day; write for example 2024-01-31") from None


def parse_moment(field: str, text: str | None, now: datetime) -> datetime | None:
    """A time, or how long ago: `2h`."""
    ago = None if text is None else parse_duration(_short(text))
    return parse_instant(field, text) if ago is None else now - ago


def parse_length(field: str, text: str) -> dict[str, Any]:
    """`2h` as an amount with its units: minutes, hours or days."""
    length = as_amount(_short(text))
    if length is None:
        raise BadInput(field, f"{text[:60]!r} is not a length of time; write for example {DURATION_EXAMPLES}")
    return {"amount": length[0], "units": length[1]}


def read_file(field: str, file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise BadInput(field, f"{file} cannot be read: {error.strerror}") from None


def _short(text: str) -> str:
    """`2 hours` as `2h`."""
    return _LONG_UNITS.sub(lambda found: next(filter(None, found.groups())), text.strip().lower())
