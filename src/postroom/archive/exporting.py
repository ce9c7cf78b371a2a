"""Mail out of the archive, byte for byte: as `.eml` files, or as one mbox that an import turns back into the same mail;
and a list of it as a table (CSV).

Files are written whole or not at all, under names that are never paths, and never over a file with other content.
"""

from __future__ import annotations

import csv
import io
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from postroom.archive.backend import MailReader
from postroom.archive.importing.mbox import mbox_entry
from postroom.archive.messages import ArchivedMessage
from postroom.domain.errors import BadInput, Fatal
from postroom.mail.mime import safe_filename


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """A file that appears under its name when it is complete. Raises FileExistsError if the name is taken by then."""
    partial = path.with_name(f".{secrets.token_hex(8)}.partial")
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _give_name(partial, path)
    except FileExistsError:
        raise
    except OSError as error:
        raise Fatal(f"{path} cannot be written: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)


def write_under_free_name(folder: Path, name: str, content: bytes) -> tuple[Path, bool]:
    """Write a file; a name that other content has gets a number. Returns the path, and False if it existed already."""
    for candidate in _candidates(folder / name):
        if _holds(candidate, content):
            return candidate, False
        with suppress(FileExistsError):
            with atomic_file(candidate) as file:
                file.write(content)
            return candidate, True
    raise Fatal(f"{folder} has no free name for {name}")


def output_folder(path: Path) -> Path:
    """The folder to write to, made if it is missing."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput("out", f"{path} cannot be made a folder: {error.strerror}") from error
    return path


def _give_name(partial: Path, path: Path) -> None:
    try:
        os.link(partial, path)  # unlike a rename it fails where the name is taken
    except FileExistsError:
        raise
    except OSError:
        if path.exists():  # a file system without links
            raise FileExistsError(path) from None
        partial.rename(path)


def _candidates(path: Path) -> Iterator[Path]:
    yield path
    for number in range(2, 10_000):
        yield path.with_name(f"{path.stem}-{number}{path.suffix}")


def _holds(path: Path, content: bytes) -> bool:
    return path.is_file() and path.stat().st_size == len(content) and path.read_bytes() == content


_LONGEST_SUBJECT = 120  # bytes: with date and key well within what file systems take

Messages = Iterable[ArchivedMessage]


@dataclass(slots=True)
class ExportReport:
    exported: int = 0
    already_there: int = 0
    bytes: int = 0


ShowExport = Callable[[ExportReport], None]


def count_messages(messages: Messages) -> ExportReport:
    """What an export would write."""
    report = ExportReport()
    for message in messages:
        report.exported += 1
        report.bytes += message.size
    return report


def export_eml(archive: MailReader, messages: Messages, folder: Path, show: ShowExport | None = None) -> ExportReport:
    """One file a message, named by date, subject and key. Files that are there already with these bytes stay."""
    output_folder(folder)
    report = ExportReport()
    for message in messages:
        raw = archive.raw_of(message)
        _, is_new = write_under_free_name(folder, eml_name(message.key, message.date, message.subject), raw)
        report.exported += is_new
        report.already_there += not is_new
        report.bytes += len(raw)
        if show is not None:
            show(report)
    return report


@contextmanager
def _whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file that appears when it is complete, and never over another."""
    if path.exists():
        raise BadInput("out", f"{path} exists; name a file that does not")
    output_folder(path.parent)
    try:
        with atomic_file(path) as file:
            yield file
    except FileExistsError:
        raise BadInput("out", f"{path} was made by another process meanwhile; name another file") from None


def export_mbox(archive: MailReader, messages: Messages, path: Path, show: ShowExport | None = None) -> ExportReport:
    """One mbox (mboxrd quoting); it appears when it is complete, and never over another file."""
    report = ExportReport()
    with _whole_file(path) as file:
        for message in messages:
            raw = archive.raw_of(message)
            file.write(mbox_entry(raw, message.date))
            report.exported += 1
            report.bytes += len(raw)
            if show is not None:
                show(report)
    return report


CSV_COLUMNS = ("date", "from", "to", "subject", "labels", "size", "account", "key")


def export_csv(archive: MailReader, messages: Messages, path: Path, show: ShowExport | None = None) -> ExportReport:
    """One line a message, without its text: a table for spreadsheets (RFC 4180, UTF-8, times in UTC)."""
    report = ExportReport()
    with _whole_file(path) as file:
        file.write(_csv_line(CSV_COLUMNS))
        for message in messages:
            file.write(_csv_line(_csv_row(archive, message)))
            report.exported += 1
            report.bytes += message.size
            if show is not None:
                show(report)
    return report


def _csv_row(archive: MailReader, message: ArchivedMessage) -> list[str]:
    to = [value for name, value in archive.headers_of(message) if name.lower() == "to"]
    words = [message.sender, ", ".join(to), message.subject, ", ".join(message.labels)]
    rest = [str(message.size), message.account, message.key]
    return [message.date.isoformat(timespec="seconds"), *map(_no_formula, words), *rest]


def _no_formula(text: str) -> str:
    """On one line, and nothing that a spreadsheet would calculate: a subject is written by strangers."""
    line = " ".join(text.replace("\x00", " ").split())
    return f"'{line}" if line.startswith(("=", "+", "-", "@")) else line


def _csv_line(cells: Iterable[str]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerow(cells)
    return text.getvalue().encode("utf-8", "replace")


def eml_name(key: str, date: datetime, subject: str) -> str:
    subject = safe_filename(subject.replace("/", "-").replace("\\", "-"))
    subject = subject.encode()[:_LONGEST_SUBJECT].decode(errors="ignore").strip(". ")
    parts = [f"{date:%Y-%m-%d}", subject, key]
    return " ".join(part for part in parts if part) + ".eml"
