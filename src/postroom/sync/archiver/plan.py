"""What the archiver would do, from the archive alone: nothing is asked of the source, and nothing is changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import datetime

from postroom.archive.certificates import Removal, Result
from postroom.archive.model import ArchivedMessage
from postroom.archive.place import ArchivePlace
from postroom.sync.archiver.candidates import Doubt, read_back
from postroom.sync.archiver.selection import Grounds, Policy, Stays, why_it_stays


@dataclass(slots=True)
class ArchivePlan:
    account: str
    removal: Removal
    watermark: int
    messages: int = 0
    """Those that would be removed."""
    bytes: int = 0
    oldest: datetime | None = None
    newest: datetime | None = None
    to_compare: int = 0
    """How many of them came from a Takeout or an import, and are compared with the source first."""
    interrupted: int = 0
    """Removals of an earlier run whose outcome is not known; a run asks the source about them first."""
    stays: Counter[Stays] = field(default_factory=Counter)
    damaged: list[str] = field(default_factory=list)

    def add(self, message: ArchivedMessage) -> None:
        self.messages += 1
        self.bytes += message.size
        self.oldest = min(self.oldest or message.date, message.date)
        self.newest = max(self.newest or message.date, message.date)


def make_plan(
    archive: ArchivePlace,
    email: str,
    policy: Policy,
    watermark: int,
    bad: Collection[str],
    *,
    verify: bool = False,
    progress: Callable[[int], None] = lambda done: None,
) -> ArchivePlan:
    """Look at every message; `verify` reads the bytes too, as a run would, and takes as long as that."""
    plan = ArchivePlan(email, policy.removal, watermark)
    ledger = archive.ledger(email)
    plan.interrupted = ledger.counts().get(Result.INTENDED, 0)
    for portion in archive.portions(email):
        ids = [message.gmail_id for message in portion if message.gmail_id]
        grounds = Grounds(watermark, bad, ledger.removed_among(policy.removal, ids))
        for message in portion:
            _consider(plan, message, policy, grounds, archive if verify else None)
        progress(len(portion))
    return plan


def _consider(
    plan: ArchivePlan, message: ArchivedMessage, policy: Policy, grounds: Grounds, archive: ArchivePlace | None
) -> None:
    reason = why_it_stays(message, policy, grounds)
    if reason in (None, Stays.NOT_COMPARED) and archive is not None and not _is_sound(archive, message):
        plan.damaged.append(message.key)
        reason = Stays.DAMAGED
    if reason is Stays.NOT_COMPARED:
        plan.to_compare += 1
        reason = None
    if reason is None:
        plan.add(message)
    else:
        plan.stays[reason] += 1


def _is_sound(archive: ArchivePlace, message: ArchivedMessage) -> bool:
    try:
        read_back(archive, [message])
    except Doubt:
        return False
    return True
