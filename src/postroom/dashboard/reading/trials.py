"""A rule tried over the archive before anybody relies on it: what it would have matched, and done. Changes nothing.

Bounded in messages and in time, one at a time, and off the event loop.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice, takewhile

from postroom.archive.place import MailReader
from postroom.dashboard.reading.mail import Sender, sender_of
from postroom.dashboard.reading.rules import Deed, deeds_of
from postroom.dashboard.visit import Visit
from postroom.triage.rules.model import RuleDraft
from postroom.triage.rules.replaying import Subject, mail_to_try, replay, subject_of
from postroom.triage.rules.trying import Hit, Trial

CHOICES = (1_000, 10_000, 100_000)
"""So many of the newest messages may be looked at."""
_LONGEST_S = 4.0
_SAMPLES = 20


@dataclass(frozen=True, slots=True)
class Sample:
    account: str
    key: str
    date: datetime
    sender: Sender
    subject: str


@dataclass(frozen=True, slots=True)
class TriedOut:
    looked_at: int
    own: int
    """Passed over, because the owner wrote them."""
    unreadable: int
    matched: int
    is_cut_short: bool
    """It took too long; there is mail that was not looked at."""
    samples: Sequence[Sample]
    """The newest that match."""
    deeds: Sequence[Deed]
    """What would be done with each; empty where the rule does not say yet."""


async def try_out(here: Visit, draft: RuleDraft, newest: int, *, says_what: bool = True) -> TriedOut:
    subject = await here.read(lambda tx: subject_of(tx, "tried", draft))
    async with here.desk.trials:
        trial, is_cut_short = await here.desk.house.archive.read_apart(
            lambda archive: _replayed(archive, subject, here.now, newest)
        )
    return TriedOut(
        looked_at=trial.looked_at,
        own=trial.own,
        unreadable=trial.unreadable,
        matched=trial.total,
        is_cut_short=is_cut_short,
        samples=[_sample(hit) for hit in trial.hits],
        deeds=deeds_of(draft, here.app.settings.safety) if says_what else [],
    )


def _replayed(archive: MailReader, subject: Subject, now: datetime, newest: int) -> tuple[Trial, bool]:
    trial, end = Trial(), time.monotonic() + _LONGEST_S
    in_time = takewhile(lambda _: time.monotonic() < end, archive.newest_first())  # spam takes its time too
    mail = islice(mail_to_try(in_time), newest)
    replay(subject, archive, mail, now, trial, keep=_SAMPLES)
    return trial, time.monotonic() >= end


def _sample(hit: Hit) -> Sample:
    mail = hit.message
    return Sample(mail.account, mail.key, mail.date, sender_of(mail.sender), mail.subject)
