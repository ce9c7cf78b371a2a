"""An import as it is ordered by a command or a page, what is kept of its progress and its end, and the folder of
uploaded files. Only what lies in that folder is ever removed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from postroom.accounts.account import mailbox_id
from postroom.accounts.troubled import ArrivalLane, MessageTrouble, TroubleKind, record_trouble
from postroom.archive.importing.sources import MailFormat, open_source
from postroom.archive.importing.state import ImportProgress, ImportReport, ImportSource, Unreadable
from postroom.archive.messages import account_name
from postroom.db import Database, Tx
from postroom.domain.clock import Clock
from postroom.domain.errors import BadInput, Fatal

UNFINISHED = ".part"
"""The ending of a file that is not an import yet."""
_FORGOTTEN = timedelta(days=1)


def uploads_folder(home: Path) -> Path:
    return home / "uploads"


def remove_upload(home: Path, path: Path) -> None:
    if path.parent != uploads_folder(home):
        raise Fatal(f"{path} is not an uploaded file; it was not removed.")
    path.unlink(missing_ok=True)


def remove_forgotten(home: Path, needed: Collection[Path], now: datetime) -> None:
    """Files of uploads that broke off long ago because the process was killed: no import needs them."""
    folder = uploads_folder(home)
    before = (now - _FORGOTTEN).timestamp()
    for path in folder.iterdir() if folder.is_dir() else ():
        if path not in needed and path.stat().st_mtime < before:
            remove_upload(home, path)


_KEPT_UNREADABLE = 100
_COUNTS = (
    "found",
    "stored",
    "duplicates",
    "with_problems",
    "bytes",
    "seconds",
    "unreadable_count",
    "not_mail",
    "resumed_from",
)


@dataclass(frozen=True, slots=True)
class ImportOrder:
    format: MailFormat
    path: Path
    """Absolute: the process that does it may have another working folder."""
    account: str
    keep_quotes: bool = False
    uploaded_as: str | None = None
    """The name that the file had where it came from; it is removed when it has been imported."""

    @classmethod
    def read(cls, arguments: Mapping[str, Any]) -> ImportOrder:
        """As it was written down; what is not an order is refused."""
        given = dict(arguments)
        if unknown := given.keys() - {field.name for field in fields(cls)}:
            raise BadInput(min(unknown), "is not a part of an import")
        path, account, name = given.get("path"), given.get("account"), given.get("uploaded_as")
        if not isinstance(path, str) or not Path(path).is_absolute():
            raise BadInput("path", "is not an absolute path")
        if not isinstance(account, str) or not isinstance(name, str | None):
            raise BadInput("account", "is not an address")
        try:
            format = MailFormat(given.get("format", ""))
        except ValueError:
            raise BadInput("format", f"is none of {', '.join(MailFormat)}") from None
        return cls(format, Path(path), account_name(account), given.get("keep_quotes") is True, name)

    def written(self) -> dict[str, Any]:
        return {**asdict(self), "format": str(self.format), "path": str(self.path)}

    def source(self) -> ImportSource:
        return open_source(self.format, self.path, self.account, keep_quotes=self.keep_quotes)


def progress_written(progress: ImportProgress) -> dict[str, Any]:
    counts = {name: getattr(progress.report, name) for name in _COUNTS}
    return {"bytes_done": progress.bytes_done, "bytes_total": progress.bytes_total, **counts}


def progress_read(written: Mapping[str, Any]) -> ImportProgress:
    report = ImportReport(**{name: written[name] for name in _COUNTS if name in written})
    return ImportProgress(int(written.get("bytes_done", 0)), written.get("bytes_total"), report)


def report_written(report: ImportReport) -> dict[str, Any]:
    unreadable = [asdict(each) for each in report.unreadable[:_KEPT_UNREADABLE]]
    counts = {name: getattr(report, name) for name in _COUNTS}
    return {**counts, "stopped": report.stopped, "unreadable": unreadable}


def report_read(written: Mapping[str, Any]) -> ImportReport:
    report = ImportReport(**{name: written[name] for name in _COUNTS if name in written})
    report.stopped = bool(written.get("stopped"))
    report.unreadable = [Unreadable(**each) for each in written.get("unreadable", ())]
    return report


async def list_troubled(database: Database, clock: Clock, owner: str, troubled: Mapping[str, str]) -> None:
    """So that they are tried again, also where the address is no account here."""
    troubles = [MessageTrouble(key, TroubleKind.READ, reason) for key, reason in troubled.items()]

    def record(tx: Tx) -> None:
        now = clock.now()
        record_trouble(tx, mailbox_id(tx, owner, now), ArrivalLane.IMPORT, troubles, now)

    await database.write(record)
