"""Mail with attachments of every kind, and a program that indexes them until it is killed:
`python -m tests.support.attachments WHERE`, where WHERE is a folder or a database URL. It prints `ready`, then a line
for each batch that is recorded, and `done`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from email.message import EmailMessage

from postroom.archive.backend import ArchiveBackend, MailWriter
from postroom.archive.indexing import read_batch
from postroom.archive.messages import IncomingMail, Provenance
from postroom.reading.documents import EXTRACTOR_VERSION
from postroom.reading.limited import close_shared_readers
from tests.support import documents
from tests.support.archives import ME, place_at
from tests.support.hostile_documents import open_sheet

PER_BATCH = 4
AT_ONCE = 20


def index_all(
    archive: ArchiveBackend,
    writer: MailWriter,
    email: str,
    progress: Callable[[int], None] = lambda done: None,
    *,
    messages: int = AT_ONCE,
    version: int = EXTRACTOR_VERSION,
) -> int:
    """Index every attachment that waits; returns how many were read."""
    done, after = 0, None
    while (batch := read_batch(archive, email, after, messages=messages, version=version)) is not None:
        writer.record_readings(email, batch.messages)
        done, after = done + batch.attachments, batch.last
        progress(batch.attachments)
    return done


def with_attachments(number: int, files: Iterable[tuple[str, bytes]], body: str = "See the files.") -> IncomingMail:
    """A letter of the year 2026; a higher number is later."""
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "Ann <ann@friends.example>", ME, f"Letter {number}"
    message["Date"] = f"{1 + number // 1_440:02} Jan 2026 {number // 60 % 24:02}:{number % 60:02}:00 +0000"
    message["Message-ID"] = f"<files{number}@friends.example>"
    message.set_content(f"{body}\n")
    for name, content in files:
        message.add_attachment(content, maintype="application", subtype="octet-stream", filename=name)
    return IncomingMail(message.as_bytes(), Provenance.API, f"{number:016x}", f"{number:016x}", frozenset({"INBOX"}))


def readable() -> Mapping[str, bytes]:
    """A file of every kind that can be read, by name; each has the word before the dot of its name."""
    enclosed = b"From: Eve <eve@x.example>\nTo: a@x.example\nSubject: Old mail\nMIME-Version: 1.0\n\nwordeml inside\n"
    return {
        "wordpdf.pdf": documents.pdf("First page", "wordpdf on the second page"),
        "worddocx.docx": documents.docx("A contract about worddocx"),
        "wordxlsx.xlsx": documents.xlsx([["Item", "Cost"], ["wordxlsx", 12.5]]),
        "wordpptx.pptx": documents.pptx("Slide with wordpptx"),
        "wordodt.odt": documents.odt("Text with wordodt"),
        "wordods.ods": open_sheet(
            '<table:table-row><table:table-cell office:value-type="string"><text:p>wordods</text:p>'
            "</table:table-cell></table:table-row>"
        ),
        "wordrtf.rtf": rb"{\rtf1\ansi Some wordrtf here}",
        "wordhtml.html": b"<html><body><p>Page with <b>wordhtml</b></p></body></html>",
        "wordtxt.txt": b"Plain wordtxt text",
        "wordcsv.csv": b"a,b\nwordcsv,2\n",
        "wordics.ics": b"BEGIN:VCALENDAR\r\nBEGIN:VEVENT\r\nSUMMARY:wordics\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n",
        "wordvcf.vcf": b"BEGIN:VCARD\r\nVERSION:3.0\r\nFN:Ada wordvcf\r\nEND:VCARD\r\n",
        "wordeml.eml": enclosed,
        "wordzip.zip": documents.zipped({"inside.txt": b"The wordzip is inside"}),
        "wordtar.tar.gz": documents.tarred({"inside.txt": b"The wordtar is inside"}, packed=True),
    }


def index_until_killed(where: str) -> None:
    with place_at(where) as place, place.writer("a test's indexer") as writer:
        print("ready", flush=True)
        index_all(place, writer, ME, lambda done: print("batch", done, flush=True), messages=PER_BATCH)
        print("done", flush=True)
    close_shared_readers()


if __name__ == "__main__":
    index_until_killed(*sys.argv[1:])
