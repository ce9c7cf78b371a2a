"""Estimates a sync before anything is fetched: messages, quota units, hours, disk. Every figure names its basis.

Gmail's count includes messages that it may not list; imported mail counts as stored; sizes are those of stored mail,
or of a small sample.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from postroom.accounts.account import Account
from postroom.archive.backend import ArchiveBackend
from postroom.db import Database
from postroom.mailboxes.gmail.quota import MINUTE_S, PROFILES, GmailMethod, ProfileName, QuotaProfile
from postroom.mailboxes.pace import Reserve
from postroom.mailboxes.protocol import Detail, Got, Mailbox, Span
from postroom.settings import SyncSettings
from postroom.sync.slices import Granularity, Slice, WalkPlan, plan_walk
from postroom.sync.state import bad_of, find_state

_SAMPLED_SLICES = 6
_SAMPLED_EACH = 4
_TYPICAL_BYTES = 50_000
"""Where nothing can be looked at."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes on disk that a message takes on average, and how many messages that rests on."""

    bytes_each: float
    messages: int
    basis: str


@dataclass(frozen=True, slots=True)
class SyncEstimate:
    account: str
    messages: int
    """At the source, as Gmail counts them."""
    stored: int
    """In the archive with a Gmail id, and not deleted at the source."""
    bad: int
    to_fetch: int
    watermark: int
    granularity: Granularity
    slices: int
    profile: ProfileName
    is_profile_assumed: bool
    list_units: int
    get_units: int
    units_per_minute: int
    """What is left of the allowance while live mail is quiet."""
    seconds: float
    seconds_when_busy: float
    """While live mail and user actions use all of the share that is kept for them."""
    sizes: Sizes
    disk_bytes: int
    free_bytes: int | None
    """None: the disk is another host's."""

    @property
    def units(self) -> int:
        return self.list_units + self.get_units

    @property
    def fits(self) -> bool:
        return self.free_bytes is None or self.disk_bytes < self.free_bytes


async def estimate(
    database: Database,
    account: Account,
    mailbox: Mailbox,
    settings: SyncSettings,
    archive: ArchiveBackend,
    now: datetime,
) -> SyncEstimate:
    walk = await plan_walk(mailbox, settings, now)
    state, bad = await database.read(lambda tx: (find_state(tx, account.id), len(bad_of(tx, account.id))))
    stored, sizes = await asyncio.to_thread(_in_archive, archive, account.email)
    profile = PROFILES[account.quota or ProfileName.MAY_2026]
    to_fetch = max(walk.identity.messages_total - stored - bad, 0)
    listing, getting = _units(profile, walk, to_fetch, settings.page_size)
    sizes = sizes or await _sampled(mailbox, walk.slices)
    quiet, busy = (_per_minute(profile, Reserve(), busy=is_busy) for is_busy in (False, True))
    return SyncEstimate(
        account=account.email,
        messages=walk.identity.messages_total,
        stored=stored,
        bad=bad,
        to_fetch=to_fetch,
        watermark=0 if state is None else state.watermark,
        granularity=walk.granularity,
        slices=len(walk.slices),
        profile=profile.name,
        is_profile_assumed=account.quota is None,
        list_units=listing,
        get_units=getting,
        units_per_minute=quiet,
        seconds=(listing + getting) / quiet * MINUTE_S,
        seconds_when_busy=(listing + getting) / busy * MINUTE_S,
        sizes=sizes,
        disk_bytes=math.ceil(to_fetch * sizes.bytes_each),
        free_bytes=archive.free_bytes(),
    )


def _units(profile: QuotaProfile, walk: WalkPlan, to_fetch: int, page_size: int) -> tuple[int, int]:
    """Every slice takes a page, and full pages come on top; every message to be fetched is one get."""
    pages = len(walk.slices) + walk.identity.messages_total // page_size
    return pages * profile.cost(GmailMethod.MESSAGES_LIST), to_fetch * profile.cost(GmailMethod.MESSAGES_GET)


def _per_minute(profile: QuotaProfile, reserve: Reserve, *, busy: bool) -> int:
    used = profile.units_per_minute if busy else 0
    return profile.units_per_minute - reserve.kept(profile.units_per_minute, used)


def _in_archive(archive: ArchiveBackend, email: str) -> tuple[int, Sizes | None]:
    """How much of the mailbox is there already, and what a message takes on disk, index and all."""
    with archive.reader() as reader:
        held = reader.holding(email)
    if held.messages < _SAMPLED_SLICES * _SAMPLED_EACH:
        return held.at_source, None
    sizes = Sizes(held.bytes / held.messages, held.messages, "what is stored already, with its index")
    return held.at_source, sizes


async def _sampled(mailbox: Mailbox, slices: Sequence[Slice]) -> Sizes:
    """The sizes of a few messages from all over the mailbox; asked for without their bodies."""
    dice = random.Random(0)  # noqa: S311 - the same sample for the same mailbox
    ids: list[str] = []
    for part in dice.sample(list(slices), min(_SAMPLED_SLICES, len(slices))):
        ids += await _some(mailbox, part, _SAMPLED_EACH)
    if not ids:  # a mailbox with little mail in many months
        ids = await _some(mailbox, None, _SAMPLED_SLICES * _SAMPLED_EACH)
    found = await mailbox.fetch(ids, Detail.FLAGS)
    sizes = [each.message.size for each in found if isinstance(each, Got) and each.message.size]
    if not sizes:
        return Sizes(_TYPICAL_BYTES, 0, "a guess: there was nothing to look at")
    return Sizes(sum(sizes) / len(sizes), len(sizes), "looked at; packed they take less, their index more")


async def _some(mailbox: Mailbox, span: Span | None, count: int) -> list[str]:
    async for page in mailbox.list(span, page_size=count):
        return [*page.ids]
    return []
