"""Mail out of the archive, byte for byte: as `.eml` files or as one mbox that an import turns back into the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from postroom.archive.mbox_format import written
from postroom.archive.model import ArchivedMessage
from postroom.archive.new_files import output_folder, whole_file, write_under_free_name
from postroom.archive.place import MailReader
from postroom.domain.errors import BadInput
from postroom.mail.bodies import safe_filename

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


def export_mbox(archive: MailReader, messages: Messages, path: Path, show: ShowExport | None = None) -> ExportReport:
    """One mbox (mboxrd quoting); it appears when it is complete, and never over another file."""
    if path.exists():
        raise BadInput("out", f"{path} exists; name a file that does not")
    output_folder(path.parent)
    report = ExportReport()
    try:
        with whole_file(path) as file:
            for message in messages:
                raw = archive.raw_of(message)
                file.write(written(raw, message.date))
                report.exported += 1
                report.bytes += len(raw)
                if show is not None:
                    show(report)
    except FileExistsError:
        raise BadInput("out", f"{path} was made by somebody else meanwhile; name another file") from None
    return report


def eml_name(key: str, date: datetime, subject: str) -> str:
    subject = safe_filename(subject.replace("/", "-").replace("\\", "-"))
    subject = subject.encode()[:_LONGEST_SUBJECT].decode(errors="ignore").strip(". ")
    parts = [f"{date:%Y-%m-%d}", subject, key]
    return " ".join(part for part in parts if part) + ".eml"
