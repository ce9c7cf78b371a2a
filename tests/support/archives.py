"""Mail for the archive's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

from postroom.archive.account_store import AccountStore
from postroom.archive.files import FilesPlace
from postroom.archive.model import IncomingMail, Provenance
from postroom.archive.service import owned_archive
from postroom.gmail.sim.mailbox import GeneratedMailbox

ME = "me@example.org"


def incoming(box: GeneratedMailbox, index: int, provenance: Provenance = Provenance.API) -> IncomingMail:
    summary = box.summary(index)
    return IncomingMail(
        raw=box.raw(index),
        provenance=provenance,
        gmail_id=summary.id,
        thread_id=summary.thread_id,
        labels=summary.label_ids,
        received=datetime.fromtimestamp(summary.internal_date / 1_000, UTC),
    )


def generated(count: int, seed: int = 1) -> list[IncomingMail]:
    box = GeneratedMailbox(count, seed, ME)
    return [incoming(box, index) for index in range(count)]


def letter(body: str = "Hello", *, message_id: str | None = "<a@example.org>", date: str = "Thu, 01 Jan 2026") -> bytes:
    head = f"From: Ann <ann@example.org>\r\nTo: {ME}\r\nSubject: A letter\r\nDate: {date} 12:00:00 +0000\r\n"
    named = f"Message-ID: {message_id}\r\n" if message_id else ""
    return f"{head}{named}\r\n{body}\r\n".encode()


@asynccontextmanager
async def opened_store(root: Path, email: str, purpose: str = "a test") -> AsyncIterator[AccountStore]:
    """An account's part of the archive below `root`, owned until the block ends."""
    async with owned_archive(FilesPlace(root), purpose) as service:
        yield service.of(email)
