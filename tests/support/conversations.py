"""Messages that refer to each other, by short names.

As a program it indexes the conversations of an archive until it is killed: `python -m tests.support.conversations
WHERE`, where WHERE is a folder or a database URL. It prints `ready`, then how many messages each batch added.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

from postroom.archive.indexing import index_conversations
from postroom.archive.messages import IncomingMail, Provenance
from tests.support.archives import place_at

HOME, WORK, OLD = "me@home.example", "me@work.example", "me@old.example"
PER_BATCH = 5
START = datetime(2026, 3, 2, 9, tzinfo=UTC)


def mail(
    name: str,
    *,
    after: Sequence[str] = (),
    answers: str | None = None,
    sender: str = "ann@x.example",
    to: str = HOME,
    subject: str = "Lunch",
    day: float = 0,
    headers: str = "",
    thread: str | None = None,
    labels: frozenset[str] = frozenset(),
    message_id: str | None = None,
) -> IncomingMail:
    """A message `name`, which refers to others by their names; with a thread it is one of Gmail's."""
    date = START + timedelta(days=day)
    lines = [
        f"From: {sender}",
        f"To: {to}",
        f"Subject: {subject}",
        f"Date: {format_datetime(date)}",
        f"Message-ID: {message_id or f'<{name}@x.example>'}",
        *([f"References: {' '.join(f'<{each}@x.example>' for each in after)}"] if after else []),
        *([f"In-Reply-To: <{answers}@x.example>"] if answers else []),
        *([headers] if headers else []),
    ]
    raw = "\r\n".join([*lines, "", f"This is {name}.", ""]).encode()
    gmail_id = None if thread is None else f"1{name.encode().hex():0<15.15}"
    provenance = Provenance.IMPORT if thread is None else Provenance.API
    return IncomingMail(raw, provenance, gmail_id, thread, labels, date if thread else None)


def index_until_killed(where: str) -> None:
    with place_at(where) as place:
        print("ready", flush=True)
        index_conversations(place, lambda added: print("batch", added, flush=True), messages=PER_BATCH)
        print("done", flush=True)


if __name__ == "__main__":
    index_until_killed(*sys.argv[1:])
