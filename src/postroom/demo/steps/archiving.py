"""A mailbox is added and comes into the archive, with a watermark that moves only over what is on disk."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from postroom.demo.post import DOCTOR
from postroom.demo.scene import Scene
from postroom.gmail.grants import StaticGrant
from postroom.mail.addresses import parse_addresses
from postroom.mail.contact_files import BookEntry
from postroom.switchboard import contacts
from postroom.switchboard.contacts import ContactSource
from postroom.sync.status import UP_TO_DATE, SyncStatus, status_of

QUERY = "(invoice OR receipt) newer_than:5y"


@dataclass(frozen=True)
class Archived:
    in_the_mailbox: int
    stored: int
    bad: int
    watermarks: tuple[int, ...]
    """As they were seen, in epoch seconds."""
    seconds: float
    found: int
    newest: tuple[dict[str, Any], ...]

    @property
    def lines(self) -> tuple[str, ...]:
        first, last = _day(self.watermarks[0]), _day(self.watermarks[-1])
        return (
            f"{self.stored:,} of {self.in_the_mailbox:,} messages stored in {self.seconds:.1f} s, {self.bad} bad",
            f"the watermark was seen at {len(self.watermarks)} places, from {first} to {last}",
            f"{_count(self.found)} for {QUERY}, the newest:",
            *(f"  {mail['date'][:10]}  {mail['subject']}" for mail in self.newest[:3]),
        )


async def archive_the_mailbox(scene: Scene) -> Archived:
    await _know_the_doctor(scene)
    clock = scene.app.clock
    begun = clock.monotonic()
    gmail = scene.outside.gmail
    grant = StaticGrant(email=gmail.email, api_base=gmail.url, access_token=gmail.token)
    account, _ = await scene.app.take_in(grant, scene.who)
    seen: list[int] = []

    async def is_synced() -> SyncStatus | None:
        status = await scene.read(lambda tx: status_of(tx, account, clock.now()))
        if status.watermark and (not seen or status.watermark > seen[-1]):
            seen.append(status.watermark)
        return status if status.phase == UP_TO_DATE else None

    status = await scene.until(is_synced, "the first sync")
    took = clock.monotonic() - begun
    found = await scene.ask("search_archive", query=QUERY, limit=100)
    total = gmail.control.state().messages
    stored, hits = status.counters.get("stored", 0), found["messages"]
    return Archived(total, stored, status.bad, tuple(seen), took, len(hits), tuple(hits[:3]))


async def _know_the_doctor(scene: Scene) -> None:
    """Before the mailbox: who is known decides what is urgent."""
    [doctor] = parse_addresses(DOCTOR)
    entry = BookEntry(doctor.canonical, doctor.display_name)
    now = scene.app.clock.now()
    await scene.write(lambda tx: contacts.import_entries(tx, [entry], ContactSource.MANUAL, now))
    await scene.write(lambda tx: contacts.export(tx, now))


def _day(moment: int) -> str:
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d}"


def _count(found: int) -> str:
    return f"{found} found" if found < 100 else "100 or more found"
