"""Mail out of the archive, byte for byte: as `.eml` files or as one mbox that an import turns back into the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from postroom.archive.mbox_format import written
from postroom.archive.new_files import output_folder, whole_file, write_under_free_name
from postroom.archive.reading import ArchiveReader, ShardReader
from postroom.domain.errors import BadInput
from postroom.mail.bodies import safe_filename

_LONGEST_SUBJECT = 120  # bytes: with date and key well within what file systems take
_PAGE = 1_000

Messages = Iterable[tuple[ShardReader, int]]
"""What to export: a shard and a row id in it, message by message."""


@dataclass(slots=True)
class ExportReport:
    exported: int = 0
    already_there: int = 0
    bytes: int = 0


ShowExport = Callable[[ExportReport], None]


class MessageFacts(NamedTuple):
    key: str
    date: datetime
    subject: str


def all_messages(archive: ArchiveReader, account: str | None = None) -> Iterator[tuple[ShardReader, int]]:
    """Every message of the archive or of an account, oldest first."""
    for shard in reversed(list(archive.shards(account))):
        yield from ((shard, row_id) for row_id in _row_ids(shard))


def count_messages(messages: Messages) -> ExportReport:
    """What an export would write."""
    report = ExportReport()
    for reader, row_id in messages:
        [(size,)] = reader.query("SELECT size FROM messages WHERE id = ?", (row_id,))
        report.exported += 1
        report.bytes += size
    return report


def export_eml(messages: Messages, folder: Path, show: ShowExport | None = None) -> ExportReport:
    """One file a message, named by date, subject and key. Files that are there already with these bytes stay."""
    output_folder(folder)
    report = ExportReport()
    for reader, row_id in messages:
        raw = reader.raw(row_id)
        _, is_new = write_under_free_name(folder, eml_name(_facts(reader, row_id)), raw)
        report.exported += is_new
        report.already_there += not is_new
        report.bytes += len(raw)
        if show is not None:
            show(report)
    return report


def export_mbox(messages: Messages, path: Path, show: ShowExport | None = None) -> ExportReport:
    """One mbox (mboxrd quoting); it appears when it is complete, and never over another file."""
    if path.exists():
        raise BadInput("out", f"{path} exists; name a file that does not")
    output_folder(path.parent)
    report = ExportReport()
    try:
        with whole_file(path) as file:
            for reader, row_id in messages:
                raw = reader.raw(row_id)
                file.write(written(raw, _facts(reader, row_id).date))
                report.exported += 1
                report.bytes += len(raw)
                if show is not None:
                    show(report)
    except FileExistsError:
        raise BadInput("out", f"{path} was made by somebody else meanwhile; name another file") from None
    return report


def eml_name(facts: MessageFacts) -> str:
    subject = safe_filename(facts.subject.replace("/", "-").replace("\\", "-"))
    subject = subject.encode()[:_LONGEST_SUBJECT].decode(errors="ignore").strip(". ")
    parts = [f"{facts.date:%Y-%m-%d}", subject, facts.key]
    return " ".join(part for part in parts if part) + ".eml"


def _row_ids(reader: ShardReader) -> Iterator[int]:
    last = -1
    while page := reader.query("SELECT id FROM messages WHERE id > ? ORDER BY id LIMIT ?", (last, _PAGE)):
        for (last,) in page:
            yield last


def _facts(reader: ShardReader, row_id: int) -> MessageFacts:
    [(key, date_ms, subject)] = reader.query("SELECT key, date_ms, subject FROM messages WHERE id = ?", (row_id,))
    return MessageFacts(key, datetime.fromtimestamp(date_ms / 1_000, UTC), subject)
