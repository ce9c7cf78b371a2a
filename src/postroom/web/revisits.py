"""When known pages are looked at again: each by its own interval, which follows how often the page changes. Pages of
lists are remembered with what they said, so that the site is only asked whether they have changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Row, Text, cast, delete, exists, func, literal, select, update

from postroom.db import Database, Tx
from postroom.db.database import insert
from postroom.db.tables.queue import jobs
from postroom.db.tables.web import discovered_items, web_list_pages
from postroom.domain.clock import Clock
from postroom.queue.job import FINISHED
from postroom.settings import WebSettings
from postroom.web.discovery import DiscoveryMethod, ItemStatus
from postroom.web.fetching.interface import Fetched, Validators
from postroom.web.sources import EndpointMode
from postroom.web.strategies import ListReading
from postroom.web.walker import RememberedPage

_FOUND_BY_BACKFILL_H = 168
"""What is old already rarely changes."""


@dataclass(frozen=True, slots=True)
class Intervals:
    """Within which bounds, in hours, the interval of a page moves: halved by a change, doubled without one."""

    least_h: int
    most_h: int

    @classmethod
    def of(cls, settings: WebSettings) -> Intervals:
        return cls(settings.recheck_least_h, settings.recheck_most_h)

    def first(self, method: DiscoveryMethod) -> int:
        return self._within(_FOUND_BY_BACKFILL_H if method is DiscoveryMethod.BACKFILL else self.least_h)

    def next(self, hours: int, *, changed: bool) -> int:
        return self._within(hours // 2 if changed else max(hours, 1) * 2)

    def _within(self, hours: int) -> int:
        return min(max(hours, self.least_h), self.most_h)


def checked(
    intervals: Intervals,
    mode: EndpointMode,
    method: DiscoveryMethod,
    hours: int | None,
    *,
    changed: bool,
    now: datetime,
) -> dict[str, object]:
    """The columns of an item whose page was just fetched. A source that is one page is looked at every time."""
    if mode is EndpointMode.PAGE:
        hours = 0
    else:
        hours = intervals.first(method) if hours is None else intervals.next(hours, changed=changed)
    due = {"checked_at": now, "check_every_h": hours, "check_at": now + timedelta(hours=hours)}
    return due | ({"changed_at": now} if changed else {})


def failed_again(intervals: Intervals, hours: int | None, now: datetime) -> dict[str, object]:
    """The columns of an item that has never been fetched: a site that is down for an hour must not lose its page."""
    hours = intervals.first(DiscoveryMethod.SENTINEL) if hours is None else intervals.next(hours, changed=False)
    return {"check_every_h": hours, "check_at": now + timedelta(hours=hours)}


@dataclass(frozen=True, slots=True)
class DuePages:
    ids: list[str]
    left: int
    """Due as well, and left to the next look."""


def due_pages(tx: Tx, endpoint_id: str, now: datetime, most: int) -> DuePages:
    """The pages that are due to be fetched again, the longest overdue first. Those that are queued already are not."""
    key = literal("verify:").concat(cast(discovered_items.c.id, Text))
    queued = exists().where(jobs.c.idempotency_key == key, jobs.c.state.not_in(list(FINISHED)))
    due = (
        discovered_items.c.endpoint_id == endpoint_id,
        discovered_items.c.check_at <= now,
        discovered_items.c.status.in_((ItemStatus.FETCHED, ItemStatus.FAILED)),
        ~queued,
    )
    total = int(tx.execute(select(func.count()).select_from(discovered_items).where(*due)).scalar_one())
    ids = select(discovered_items.c.id).where(*due).order_by(discovered_items.c.check_at).limit(most)
    chosen = list(tx.execute(ids).scalars())
    return DuePages(chosen, total - len(chosen))


@dataclass(frozen=True)
class ListPages:
    """The `ListMemory` of one endpoint. What was read since `behind_since` needs no second reading while `skips`."""

    database: Database
    clock: Clock
    intervals: Intervals
    endpoint_id: str
    behind_since: datetime | None = None
    skips: Callable[[], bool] = lambda: True

    async def recall(self, url: str) -> RememberedPage | None:
        row = await self.database.read(lambda tx: _page(tx, self.endpoint_id, url))
        if row is None:
            return None
        is_done = self.behind_since is not None and row.checked_at >= self.behind_since and self.skips()
        return RememberedPage(Validators(row.etag, row.last_modified), tuple(row.following), is_done)

    async def keep(self, url: str, page: Fetched, reading: ListReading) -> None:
        await self.database.write(lambda tx: self._keep(tx, url, page, reading))

    async def postpone(self, url: str) -> None:
        """Leave a page that cannot be read now until its next turn."""

        def later(tx: Tx) -> None:
            if (row := _page(tx, self.endpoint_id, url)) is not None:
                _change(tx, row, check_at=self.clock.now() + timedelta(hours=row.check_every_h))

        await self.database.write(later)

    async def forget(self, url: str) -> None:
        gone = (web_list_pages.c.endpoint_id == self.endpoint_id) & (web_list_pages.c.url == url)
        await self.database.write(lambda tx: tx.execute(delete(web_list_pages).where(gone)))

    async def due(self, since: datetime, most: int) -> list[str]:
        """Pages that are due and were not read since then, the longest overdue first."""
        query = (
            select(web_list_pages.c.url)
            .where(
                web_list_pages.c.endpoint_id == self.endpoint_id,
                web_list_pages.c.check_at <= since,
                web_list_pages.c.checked_at < since,
            )
            .order_by(web_list_pages.c.check_at)
            .limit(most)
        )
        return list(await self.database.read(lambda tx: tx.execute(query).scalars().all()))

    def _keep(self, tx: Tx, url: str, page: Fetched, reading: ListReading) -> None:
        row, now = _page(tx, self.endpoint_id, url), self.clock.now()
        digest = row.digest if row is not None and page.not_modified else _digest(reading)
        changed = row is not None and row.digest != digest
        hours = self.intervals.least_h if row is None else self.intervals.next(row.check_every_h, changed=changed)
        values: dict[str, object] = {
            "digest": digest,
            "following": list(reading.following),
            "checked_at": now,
            "check_every_h": hours,
            "check_at": now + timedelta(hours=hours),
        }
        if not page.not_modified:
            values |= {"etag": page.validators.etag, "last_modified": page.validators.last_modified}
        if changed:
            values["changed_at"] = now
        new = insert(tx, web_list_pages).values(endpoint_id=self.endpoint_id, url=url, **values)
        tx.execute(new.on_conflict_do_update(index_elements=list(web_list_pages.primary_key), set_=values))


def _page(tx: Tx, endpoint_id: str, url: str) -> Row[tuple[object, ...]] | None:
    where = (web_list_pages.c.endpoint_id == endpoint_id, web_list_pages.c.url == url)
    return tx.execute(select(web_list_pages).where(*where)).one_or_none()


def _change(tx: Tx, row: Row[tuple[object, ...]], **values: object) -> None:
    where = (web_list_pages.c.endpoint_id == row.endpoint_id, web_list_pages.c.url == row.url)
    tx.execute(update(web_list_pages).where(*where).values(**values))


def _digest(reading: ListReading) -> str:
    """Of what a page lists; what else it says may change with every request."""
    listed = sorted((item.url, item.modified.encoded() if item.modified else ()) for item in reading.found)
    return hashlib.sha256(repr((listed, sorted(reading.following))).encode()).hexdigest()
