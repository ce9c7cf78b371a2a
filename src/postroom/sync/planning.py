"""Before a walk: how full the mailbox is, how far back it goes, and the slices that follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from postroom.gmail.client import GmailClient
from postroom.gmail.resources import Profile
from postroom.settings import SyncSettings
from postroom.sync.slices import DAY_S, EARLIEST_CUT, Granularity, Slice, granularity_for, plan

_CLOSE_ENOUGH_S = 60 * DAY_S


@dataclass(frozen=True, slots=True)
class WalkPlan:
    profile: Profile
    """Read before anything was listed: what changes after its history id is told by the history."""
    granularity: Granularity
    until: int
    slices: Sequence[Slice]


async def plan_walk(client: GmailClient, settings: SyncSettings, now: datetime) -> WalkPlan:
    profile = await client.get_profile()
    until = newest_end(settings, now)
    granularity = (
        granularity_for(profile.messages_total) if settings.granularity == "auto" else Granularity(settings.granularity)
    )
    return WalkPlan(profile, granularity, until, plan(await oldest_mail(client, until), until, granularity))


def newest_end(settings: SyncSettings, now: datetime) -> int:
    """Where the newest slice ends: mail younger than that may still be on its way into the listing."""
    return max(int(now.timestamp() - settings.settle_s), 1)


async def oldest_mail(client: GmailClient, until: int) -> int:
    """A time before which there is no mail, at most two months before the first: twenty empty years are one slice.

    Found by bisection with lists of one result. A mistake here costs calls and never mail: the first slice begins at
    zero all the same.
    """
    empty, full = 0, until
    if not await _has_mail_before(client, until):
        return until
    while full - empty > _CLOSE_ENOUGH_S and (middle := (empty + full) // 2) >= EARLIEST_CUT:
        if await _has_mail_before(client, middle):
            full = middle
        else:
            empty = middle
    return empty


async def _has_mail_before(client: GmailClient, instant: int) -> bool:
    async for page in client.list_messages(f"before:{instant}", include_spam_trash=True, page_size=1):
        if page.messages:
            return True
    return False
