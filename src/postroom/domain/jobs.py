"""Every job type: its name, how it is retried, timed and kept, and what recurs by itself.

Handlers and those who enqueue refer to these constants; `app/worker.py` says which handler serves which type, and
`app/schedules.py` adds the schedules whose cadence is a setting. To add a job type, declare it here, add it to
`CATALOGUE`, and give it a handler in `app/worker.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from random import Random
from typing import Any

from postroom.domain.clock import Backoff
from postroom.domain.errors import BadInput

LONGEST_POSTPONEMENT = timedelta(days=7)
_TYPE_NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*")


class JobState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"


class KeyUse(StrEnum):
    """What an idempotency key stands for once its job has finished."""

    ONCE = "once"  # the key stays spent, even after the job was pruned
    REPEATABLE = "repeatable"  # the finished job is armed again


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff. The defaults span about a quarter of an hour, so that an ordinary outage is outlived."""

    max_attempts: int = 5
    first_delay: timedelta = timedelta(seconds=10)
    factor: float = 4.0
    longest_delay: timedelta = timedelta(hours=1)
    jitter: float = 0.25

    def delay(self, attempt: int, random: Random, asked: timedelta | None = None) -> timedelta:
        """How long to wait after this attempt, counted from 1. Attempts are limited, so `asked` may shorten it."""
        backoff = Backoff(
            self.first_delay.total_seconds(),
            self.longest_delay.total_seconds(),
            self.factor,
            jitter=(1 - self.jitter, 1 + self.jitter),
            longest_asked_s=LONGEST_POSTPONEMENT.total_seconds(),
            asked_may_shorten=True,
        )
        return timedelta(seconds=backoff.delay_s(attempt, asked, random=random))


@dataclass(frozen=True, slots=True)
class JobType:
    name: str
    key_use: KeyUse = KeyUse.ONCE
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    time_limit: timedelta = timedelta(minutes=5)
    keep_completed: int | None = None  # keep at most so many, however young
    keep_failed: int | None = None
    in_history: bool = False
    """When a schedule starts it, it takes only slots that live mail and other work leave idle."""
    brief: bool = False
    """Its handler takes milliseconds, or says before it waits for something slow (`JobContext.take_slot`)."""

    def __post_init__(self) -> None:
        if not _TYPE_NAME.fullmatch(self.name):
            raise BadInput("type", f"{self.name!r} is not a job type; write lowercase words joined by dots")


class JobCatalogue:
    """A set of job types, by name."""

    def __init__(self, types: Iterable[JobType]) -> None:
        self._types: dict[str, JobType] = {}
        for job_type in types:
            if job_type.name in self._types:
                raise BadInput("type", f"{job_type.name} is declared twice")
            self._types[job_type.name] = job_type

    def __getitem__(self, name: str) -> JobType:
        try:
            return self._types[name]
        except KeyError:
            known = ", ".join(sorted(self._types)) or "none"
            raise BadInput("type", f"{name!r} is not a known job type (known: {known})") from None

    def __contains__(self, name: object) -> bool:
        return name in self._types

    def __iter__(self) -> Iterator[JobType]:
        return iter(self._types.values())


@dataclass(frozen=True, slots=True)
class Schedule:
    """A job to enqueue on a cadence such as `every 15m` or `daily 06:00 Europe/Zagreb`.

    While one run is waiting or at work, further ticks fall into it.
    """

    name: str
    job_type: str
    cadence: str
    payload: Mapping[str, Any] = field(default_factory=dict)
    key: str | None = None  # the job's idempotency key; by default the schedule's own name

    @property
    def job_key(self) -> str:
        return self.key or f"schedule:{self.name}"


_OVER_AN_OUTAGE = RetryPolicy(max_attempts=8)
"""About three hours."""
_OVER_A_DAY = RetryPolicy(max_attempts=30)
_OVER_WEEKS = RetryPolicy(max_attempts=20, first_delay=timedelta(minutes=1), longest_delay=timedelta(days=1))
_ONCE_MORE = RetryPolicy(max_attempts=2)
"""For jobs that a schedule starts again anyway."""
_WHOLE_MAILBOX = RetryPolicy(max_attempts=3)
_TWO_WEEKS = timedelta(days=14)
"""A first sync may take days; its lease tells whether it is alive."""
_PAGE = RetryPolicy(max_attempts=3, first_delay=timedelta(seconds=30), factor=2.0)

# Mailboxes

EACH_ACCOUNT = JobType("accounts.each", KeyUse.REPEATABLE)
"""Enqueue a job of one type for every account. Payload: {"type"}."""
SYNC = JobType("sync.gmail", KeyUse.REPEATABLE, _WHOLE_MAILBOX, _TWO_WEEKS, keep_completed=100)
SYNC_BAD = JobType("sync.bad.gmail", KeyUse.REPEATABLE, _WHOLE_MAILBOX, timedelta(hours=6), keep_completed=100)
ARCHIVE = JobType("archive.gmail", KeyUse.REPEATABLE, _WHOLE_MAILBOX, _TWO_WEEKS, keep_completed=100)
HISTORY_SYNC = JobType("history.sync.gmail", KeyUse.REPEATABLE, _ONCE_MORE, timedelta(hours=6), keep_completed=100)
INGEST = JobType("ingest.gmail", KeyUse.REPEATABLE, _OVER_WEEKS, timedelta(minutes=10), keep_completed=100)
"""Take in single messages that a live pass deferred. Payload: {"account_id", "message_ids"}."""
BACKFILL = JobType("backfill.gmail", KeyUse.REPEATABLE, _ONCE_MORE, timedelta(hours=6), keep_completed=100)
"""A backfill proper yields after some minutes; filling a gap takes as long as the mailbox is large."""
BACKFILL_UPKEEP = JobType("backfill.upkeep", KeyUse.REPEATABLE, time_limit=timedelta(minutes=1), keep_completed=1)
ON_DEMAND = JobType("ondemand.gmail", retry=_ONCE_MORE, time_limit=timedelta(minutes=2))
"""Search a mailbox and take in what is found. Payload: {"account_id", "query", "max_results"}."""
LABELS_SYNC = JobType("labels.sync.gmail", KeyUse.REPEATABLE, _ONCE_MORE, keep_completed=100)
"""Bring the list of a mailbox's labels up to date. Payload: {"account_id"}."""

# Decisions and actions. An action records what was done, so that a second run of its job finds it done.

CLASSIFY = JobType("classify", retry=_OVER_AN_OUTAGE, time_limit=timedelta(minutes=15), brief=True)
"""Decide what a message is and what to do about it. Payload: {"account_id", "message_id"}."""
ACTION = JobType("action.gmail", KeyUse.REPEATABLE, _OVER_AN_OUTAGE, brief=True)
"""Do one action. Payload: {"account_id", "action_id"}."""
ACTIONS_UPKEEP = JobType("actions.upkeep", KeyUse.REPEATABLE, _ONCE_MORE, keep_completed=20)
APPROVAL_NOTIFY = JobType("approval.notify", KeyUse.REPEATABLE, _OVER_AN_OUTAGE, timedelta(minutes=2))
"""Ask a person about one action. Payload: {"account_id", "action_id"}."""
APPROVALS_EXPIRE = JobType("approvals.expire", KeyUse.REPEATABLE, _ONCE_MORE, keep_completed=50)
LOGIN_NOTIFY = JobType("login.notify", KeyUse.REPEATABLE, _OVER_AN_OUTAGE, timedelta(minutes=2), keep_completed=20)
"""Say in Discord which logins have ended, and which are good again. Payload: none."""
UNSNOOZE = JobType("unsnooze.gmail", KeyUse.REPEATABLE, _OVER_A_DAY)
"""Bring a snoozed message back, even after a long outage.
Payload: {"account_id", "message_id", "action_id", "snooze_label_id"}."""
SNOOZE_CHECK = JobType("snooze.check.gmail", keep_completed=100)
"""See whether the owner brought a snoozed message back himself. Payload: {"account_id", "action_id"}."""
UNDO = JobType("undo.action", KeyUse.REPEATABLE, _OVER_AN_OUTAGE)
"""Take an action back. Payload: {"account_id", "original_action_id"}."""
UNDO_MANY = JobType("undo.span", KeyUse.REPEATABLE, keep_completed=100)
"""Take back all that the model or a rule did in a stretch of time. Payload: {"by", "since", "until", "who"}."""
RULES_APPLY = JobType("rules.apply", KeyUse.REPEATABLE, time_limit=timedelta(hours=12))
"""Apply a rule to past mail, from where it got to. Payload: {"application_id"}."""
RESTORE = JobType("restore", KeyUse.REPEATABLE, _OVER_A_DAY, _TWO_WEEKS, keep_completed=100)
"""Put archived mail back into a mailbox, or take that back, from where it got to. Payload: {"account_id", "run_id"}."""
LEARNING_FIT = JobType("learning.fit", KeyUse.REPEATABLE, _ONCE_MORE, timedelta(minutes=30), keep_completed=100)
"""Make the weights of local triage anew from its labels. Payload: {"account_id"}."""
LEARNING_VERDICTS = JobType("learning.verdicts", KeyUse.REPEATABLE, _ONCE_MORE, keep_completed=20)
"""Take what the owner said about decisions as labels."""
OUTBOUND_SEND = JobType(
    "outbound.send", KeyUse.REPEATABLE, RetryPolicy(max_attempts=6), timedelta(minutes=10), keep_completed=1_000
)
DIGEST_SEND = JobType("digest.send", KeyUse.REPEATABLE, _OVER_AN_OUTAGE, keep_completed=20)
"""Send the owner the digest of the last day or week, and finish what was begun before."""

# Web sources

WEB_FETCH = JobType("web.fetch", KeyUse.ONCE, _PAGE, timedelta(minutes=15), keep_completed=100, keep_failed=50)
WEB_VERIFY = JobType("web.verify", KeyUse.REPEATABLE, _PAGE, timedelta(minutes=15), keep_completed=100, keep_failed=50)
WEB_SENTINEL = JobType("web.sentinel", KeyUse.REPEATABLE, _ONCE_MORE, timedelta(hours=6), keep_completed=30)
"""Check web sources. Payload: {"sources"}; {"scheduled"} for those due at the sentinel's time; none: all."""
WEB_BACKFILL = JobType("web.backfill", KeyUse.REPEATABLE, RetryPolicy(max_attempts=3), timedelta(hours=24))
WEB_NOTIFY = JobType("web.notify", KeyUse.REPEATABLE, _OVER_AN_OUTAGE, keep_completed=100)
"""Tell the owner what is new at a web source. Payload: {"source"}."""
WEB_UPKEEP = JobType("web.upkeep", KeyUse.REPEATABLE, time_limit=timedelta(minutes=5), keep_completed=1)

# Housekeeping

QUEUE_PRUNE = JobType("queue.prune", KeyUse.REPEATABLE, time_limit=timedelta(hours=1))
RETENTION_PRUNE = JobType("retention.prune", KeyUse.REPEATABLE, time_limit=timedelta(hours=1))
CONTACTS_EXPORT = JobType("contacts.export", KeyUse.REPEATABLE)
ARCHIVE_INDEX = JobType(
    "archive.index", KeyUse.REPEATABLE, time_limit=timedelta(hours=1), keep_completed=20, in_history=True
)
"""Read attachments that wait and index their text, newest mail first; comes back until none waits. Payload: none."""
ARCHIVE_CONVERSATIONS = JobType(
    "archive.conversations", KeyUse.REPEATABLE, time_limit=timedelta(hours=1), keep_completed=5, in_history=True
)
"""Index which messages belong together; comes back until none waits. Payload: none."""
ARCHIVE_VECTORS = JobType(
    "archive.vectors", KeyUse.REPEATABLE, time_limit=timedelta(hours=1), keep_completed=20, in_history=True
)
"""Make the vectors that messages lack, newest mail first; comes back until none is lacking. Payload: none."""
ARCHIVE_STATISTICS = JobType("archive.statistics", KeyUse.REPEATABLE, time_limit=timedelta(hours=1), keep_completed=5)
SERIES_UPKEEP = JobType("series.upkeep", KeyUse.REPEATABLE, time_limit=timedelta(minutes=5), keep_completed=1)

OF_ACCOUNTS = (SYNC, SYNC_BAD, ARCHIVE, HISTORY_SYNC, BACKFILL, LABELS_SYNC, LEARNING_FIT)
"""Those that `EACH_ACCOUNT` may start."""
PASSES = (HISTORY_SYNC, INGEST, BACKFILL, ON_DEMAND)
"""Those that run a connector's passes."""
OF_WEB = (WEB_FETCH, WEB_VERIFY, WEB_SENTINEL, WEB_BACKFILL, WEB_NOTIFY, WEB_UPKEEP)

CATALOGUE = JobCatalogue(
    [
        QUEUE_PRUNE,
        RETENTION_PRUNE,
        SERIES_UPKEEP,
        ARCHIVE_STATISTICS,
        ARCHIVE_INDEX,
        ARCHIVE_CONVERSATIONS,
        ARCHIVE_VECTORS,
        BACKFILL_UPKEEP,
        CONTACTS_EXPORT,
        CLASSIFY,
        EACH_ACCOUNT,
        SYNC,
        SYNC_BAD,
        ARCHIVE,
        ACTION,
        UNSNOOZE,
        SNOOZE_CHECK,
        UNDO,
        UNDO_MANY,
        LABELS_SYNC,
        ACTIONS_UPKEEP,
        RULES_APPLY,
        RESTORE,
        OUTBOUND_SEND,
        DIGEST_SEND,
        LEARNING_FIT,
        LEARNING_VERDICTS,
        APPROVAL_NOTIFY,
        APPROVALS_EXPIRE,
        LOGIN_NOTIFY,
        *PASSES,
        *OF_WEB,
    ]
)

_CADENCES = {
    QUEUE_PRUNE: "daily 03:30",
    RETENTION_PRUNE: "daily 03:45",
    BACKFILL_UPKEEP: "every 1m",
    ACTIONS_UPKEEP: "every 1m",
    APPROVALS_EXPIRE: "every 1h",
    WEB_UPKEEP: "every 1m",
    SERIES_UPKEEP: "every 1m",
    CONTACTS_EXPORT: "every 15m",
    ARCHIVE_STATISTICS: "every 15m",
    ARCHIVE_INDEX: "every 10m",
    ARCHIVE_CONVERSATIONS: "every 2m",
    LEARNING_VERDICTS: "every 1m",
}
FIXED_SCHEDULES = tuple(Schedule(job_type.name, job_type.name, cadence) for job_type, cadence in _CADENCES.items())
"""What recurs in every installation, whatever its settings."""


VECTORS = Schedule(ARCHIVE_VECTORS.name, ARCHIVE_VECTORS.name, "every 10m")
"""Where the extra `meaning` is installed."""
LOGIN_NOTICES = Schedule(LOGIN_NOTIFY.name, LOGIN_NOTIFY.name, "every 1m")
"""Where Discord is set up."""


def digest_schedule(at: str, zone: str) -> Schedule:
    """Every day: a weekly digest that could not be sent on Monday is sent on the next day."""
    return Schedule(DIGEST_SEND.name, DIGEST_SEND.name, f"daily {at} {zone}")


def sentinel_schedule(cadence: str) -> Schedule:
    return Schedule(WEB_SENTINEL.name, WEB_SENTINEL.name, cadence, {"scheduled": True})
