"""Discovered items and their jobs: both lanes write what they find through here, an item for each new address and the
job that fetches it.

An existing item is never touched. Item and job are written in one transaction, so neither exists alone.
`overview` shows the sources beside what is known of them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import Row, false, func, select, union, update

from postroom.db import Tx
from postroom.db.tables.queue import job_tombstones, jobs, schedules
from postroom.db.tables.web import discovered_items, evidence, web_endpoints, web_lanes, web_older_pages
from postroom.domain.ids import new_id
from postroom.domain.jobs import WEB_FETCH, WEB_SENTINEL, WEB_VERIFY
from postroom.queue import JobQueue, NewJob, QueueName
from postroom.queue.job import FINISHED
from postroom.settings import OFF
from postroom.web.fetching.urls import backfill_job_id, url_hash
from postroom.web.sources import CheckCadence, ConfiguredSources, Endpoint, EndpointMode, WebSource, next_check
from postroom.web.strategies import FoundPage


class DiscoveryMethod(StrEnum):
    """The lane that found an item first."""

    SENTINEL = "SENTINEL"
    BACKFILL = "BACKFILL"


class ItemStatus(StrEnum):
    PENDING = "PENDING"
    FETCHED = "FETCHED"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"


def fetch_job(item_id: str, key: str, method: DiscoveryMethod) -> NewJob:
    """The job that fetches an item."""
    return NewJob(WEB_FETCH.name, {"item": item_id}, queue=_queue(method), key=key)


def verify_job(item_id: str, method: DiscoveryMethod = DiscoveryMethod.SENTINEL) -> NewJob:
    """The job that fetches an item's page again."""
    return NewJob(WEB_VERIFY.name, {"item": item_id}, queue=_queue(method), key=f"verify:{item_id}")


def _queue(method: DiscoveryMethod) -> QueueName:
    """Backfill uses the history queue, which gets the slots that others leave idle."""
    return QueueName.HISTORY if method is DiscoveryMethod.BACKFILL else QueueName.WORK


_LANE = "fetch"
_RECONCILED_AT_ONCE = 500
_NO_ENDPOINT = "00000000-0000-0000-0000-000000000000"


@dataclass(frozen=True, slots=True)
class Finder:
    """Through which endpoint and by which lane and run something was found."""

    source_slug: str
    endpoint_id: str
    method: DiscoveryMethod
    run_id: str | None = None


@dataclass(frozen=True, slots=True)
class Discovered:
    """How many items are new, each with a job; how many were known; and which got no job, with the problem."""

    queued: int
    skipped: int
    problems: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class RetriedItems:
    """An item whose page is fetched once more."""

    id: str
    source_slug: str
    url: str
    error: str | None
    method: DiscoveryMethod


def endpoint_row(tx: Tx, source: WebSource, endpoint: Endpoint, now: datetime) -> str:
    """The id of this endpoint's row, which is created at its first use."""
    where = (web_endpoints.c.source_slug == source.slug, web_endpoints.c.name == endpoint.name)
    values = {"mode": endpoint.mode, "url": endpoint.url}
    row = {"id": new_id(), "source_slug": source.slug, "name": endpoint.name, "created_at": now, **values}
    tx.insert_missing(web_endpoints, row)
    known = tx.execute(select(web_endpoints).where(*where)).one()
    if (known.mode, known.url) != (endpoint.mode, endpoint.url):
        tx.execute(update(web_endpoints).where(*where).values(**values))
    return str(known.id)


@dataclass(frozen=True, slots=True)
class FollowState:
    """How far the sentinel has followed an endpoint."""

    endpoint_id: str
    sentinel_at: datetime | None
    """When it last went through to the end."""
    follow_since: datetime | None = None
    listed_at: datetime | None = None
    behind_since: datetime | None = None

    def is_older(self, item: FoundPage) -> bool:
        """Whether a page was there before its source was followed, by the site's own date. Once all that was listed
        then is known, whatever is unknown is new."""
        if item.modified is None or self.follow_since is None or self.listed_at is not None:
            return False
        return item.modified.latest < self.follow_since


def read_state(tx: Tx, source: WebSource, endpoint: Endpoint, overlap: timedelta, now: datetime) -> FollowState:
    """The state as a look begins; the first look decides what counts as older. A feed lists nothing that is too old."""
    where = (web_endpoints.c.source_slug == source.slug, web_endpoints.c.name == endpoint.name)
    row = tx.execute(select(web_endpoints).where(*where)).one_or_none()
    first = now - overlap if endpoint.mode is EndpointMode.SITEMAP else None
    if row is None:
        return FollowState(_NO_ENDPOINT, None, first)
    if first is not None and row.sentinel_at is not None:
        first = row.sentinel_at - overlap
    return FollowState(row.id, row.sentinel_at, row.follow_since or first, row.listed_at, row.behind_since)


def begin_look(tx: Tx, source: WebSource, endpoint: Endpoint, overlap: timedelta, now: datetime) -> FollowState:
    endpoint_row(tx, source, endpoint, now)
    state = read_state(tx, source, endpoint, overlap, now)
    _set_state(tx, state.endpoint_id, follow_since=state.follow_since)
    return state


def end_look(tx: Tx, state: FollowState, began: datetime, *, complete: bool, behind_since: datetime | None) -> None:
    """Record that a look ended; `behind_since` is that of the first look whose caps kept it from the end."""
    ended = {"sentinel_at": began, "listed_at": state.listed_at or began} if complete else {}
    _set_state(tx, state.endpoint_id, looked_at=began, behind_since=behind_since, **ended)


def _set_state(tx: Tx, endpoint_id: str, **values: Any) -> None:
    tx.execute(update(web_endpoints).where(web_endpoints.c.id == endpoint_id).values(**values))


def note_older(tx: Tx, state: FollowState, items: Sequence[FoundPage]) -> None:
    """Remember what the first listing dates before its source was followed."""
    older = [item for item in items if state.is_older(item)]
    rows = [{"endpoint_id": state.endpoint_id, "url_hash": url_hash(item.url)} for item in older]
    tx.insert_missing(web_older_pages, *rows)


def older_urls(tx: Tx, state: FollowState, items: Sequence[FoundPage]) -> set[str]:
    """The urls of those that were listed before the source was followed."""
    hashes = {url_hash(item.url): item.url for item in items}
    query = select(web_older_pages.c.url_hash).where(
        web_older_pages.c.endpoint_id == state.endpoint_id, web_older_pages.c.url_hash.in_(hashes)
    )
    noted = {hashes[found] for found in tx.execute(query).scalars()}
    return noted | {item.url for item in items if state.is_older(item)}


def known_urls(tx: Tx, source_slug: str, endpoint_name: str, urls: Collection[str]) -> set[str]:
    """Which of these the endpoint has already; none if it has no row yet."""
    endpoint = select(web_endpoints.c.id).where(
        web_endpoints.c.source_slug == source_slug, web_endpoints.c.name == endpoint_name
    )
    query = select(discovered_items.c.url).where(
        discovered_items.c.endpoint_id == endpoint.scalar_subquery(), discovered_items.c.url.in_(urls)
    )
    return set(tx.execute(query).scalars())


def without_job(tx: Tx, source_slug: str, items: Sequence[FoundPage]) -> set[str]:
    """The urls of those that would get a job: not what is or was fetched for another endpoint of the source."""
    keys = {backfill_job_id(source_slug, item.url): item.url for item in items}
    living = select(jobs.c.idempotency_key).where(jobs.c.idempotency_key.in_(keys))
    pruned = select(job_tombstones.c.idempotency_key).where(job_tombstones.c.idempotency_key.in_(keys))
    return {keys[key] for key in keys.keys() - set(tx.execute(union(living, pruned)).scalars())}


def up_to(items: Sequence[FoundPage], fresh: Collection[str], room: int) -> list[FoundPage]:
    """The first of them, up to the one for which there is no room; those that are not fresh need none."""
    for place, item in enumerate(items):
        if item.url in fresh:
            if room <= 0:
                return list(items[:place])
            room -= 1
    return list(items)


def room_in_queue(tx: Tx, depth: int) -> int:
    """How many more fetch jobs backfill may add. Locked until the transaction ends, so that no two use the same room.

    An item waits exactly as long as its job does, and items that wait have an index.
    """
    tx.execute(tx.locking(select(web_lanes.c.name).where(web_lanes.c.name == _LANE))).one()
    waiting = (
        select(discovered_items.c.id)
        .where(
            discovered_items.c.status == ItemStatus.PENDING,
            discovered_items.c.discovery_method == DiscoveryMethod.BACKFILL,
        )
        .limit(depth)
    )
    return depth - int(tx.execute(select(func.count()).select_from(waiting.subquery())).scalar_one())


def add(tx: Tx, queue: JobQueue, finder: Finder, items: Sequence[FoundPage], now: datetime) -> Discovered:
    """Add the new items and their jobs."""
    rows = [_row(finder, item, now) for item in sorted(items, key=lambda item: item.url)]
    tx.insert_missing(discovered_items, *rows)
    ours = _inserted(tx, rows)
    new = [row for row in rows if row["id"] in ours]
    answers = queue.add(tx, *(fetch_job(row["id"], row["job_key"], finder.method) for row in new))
    twins = [row for row, answer in zip(new, answers, strict=True) if answer.duplicate]
    problems = tuple(problem for row in twins if (problem := _join_twin(tx, row, now)) is not None)
    return Discovered(len(new) - len(twins), len(rows) - len(new) + len(twins) - len(problems), problems)


def count_found_since(tx: Tx, endpoint_id: str, urls: Collection[str], moment: datetime) -> int:
    """How many of these the endpoint has only since then."""
    query = select(func.count()).where(
        discovered_items.c.endpoint_id == endpoint_id,
        discovered_items.c.url.in_(urls),
        discovered_items.c.discovered_at >= moment,
    )
    return int(tx.execute(query).scalar_one())


def last_found(tx: Tx) -> dict[str, datetime]:
    """When the sentinel last found something new, by source."""
    query = (
        select(web_endpoints.c.source_slug, func.max(discovered_items.c.discovered_at))
        .join(discovered_items, discovered_items.c.endpoint_id == web_endpoints.c.id)
        .where(discovered_items.c.discovery_method == DiscoveryMethod.SENTINEL)
        .group_by(web_endpoints.c.source_slug)
    )
    return {slug: at for slug, at in tx.execute(query)}


def changed_items(tx: Tx, endpoint_id: str, items: Sequence[FoundPage]) -> list[str]:
    """The pages that may have changed since they were last verified, according to the site. Most sites name only a day,
    so a page verified that morning may have changed in the evening."""
    claimed = {item.url: item.modified.latest for item in items if item.modified is not None}
    query = (
        select(discovered_items.c.id, discovered_items.c.url, evidence.c.last_verified_at)
        .join(evidence, evidence.c.id == discovered_items.c.evidence_id)
        .where(discovered_items.c.endpoint_id == endpoint_id, discovered_items.c.url.in_(claimed))
    )
    return [row.id for row in tx.execute(query) if claimed[row.url] > row.last_verified_at]


def verify_changed(
    tx: Tx, queue: JobQueue, endpoint_id: str, items: Sequence[FoundPage], most: int, now: datetime
) -> int:
    """Queue so many of the pages that have changed according to the site, and make the others due: there are sites that
    date all of their pages today, every day. Returns how many were queued."""
    changed = changed_items(tx, endpoint_id, items)
    queued, others = changed[: max(most, 0)], changed[max(most, 0) :]
    queue.add(tx, *(verify_job(item_id) for item_id in queued))
    later = (discovered_items.c.id.in_(others), discovered_items.c.check_at > now)
    tx.execute(update(discovered_items).where(*later).values(check_at=now))
    return len(queued)


def retry_failed(tx: Tx, queue: JobQueue, slugs: Collection[str], most: int, *, dry_run: bool) -> list[RetriedItems]:
    """Queue failed pages once more; those found by a backfill keep backfill's rules."""
    query = (
        select(discovered_items, web_endpoints.c.source_slug)
        .join(web_endpoints, web_endpoints.c.id == discovered_items.c.endpoint_id)
        .where(discovered_items.c.status == ItemStatus.FAILED, web_endpoints.c.source_slug.in_(slugs))
        .order_by(discovered_items.c.id)
        .limit(most)
    )
    retried = [
        RetriedItems(row.id, row.source_slug, row.url, row.error, DiscoveryMethod(row.discovery_method))
        for row in tx.execute(query)
    ]
    if not dry_run:
        queue.add(tx, *(verify_job(item.id, item.method) for item in retried))
    return retried


def reconcile(tx: Tx, now: datetime) -> int:
    """Settle items that still wait although their job has ended, for instance when its worker was killed."""
    ended = select(jobs.c.id).where(
        jobs.c.idempotency_key == discovered_items.c.job_key, jobs.c.state.in_(list(FINISHED))
    )
    pruned = select(job_tombstones.c.job_id).where(job_tombstones.c.idempotency_key == discovered_items.c.job_key)
    query = (
        select(discovered_items)
        .where(discovered_items.c.status == ItemStatus.PENDING, ended.exists() | pruned.exists())
        .order_by(discovered_items.c.id)
        .limit(_RECONCILED_AT_ONCE)
    )
    waiting = tx.execute(tx.locking(query, skip_locked=True)).all()
    for row in waiting:
        _settle_like_twin(tx, row._asdict(), now)
    return len(waiting)


def _row(finder: Finder, item: FoundPage, now: datetime) -> dict[str, Any]:
    return {
        "id": new_id(),
        "endpoint_id": finder.endpoint_id,
        "url": item.url,
        "fetch_url": item.fetch_url,
        "status": ItemStatus.PENDING,
        "discovery_method": finder.method,
        "run_id": finder.run_id,
        "job_key": backfill_job_id(finder.source_slug, item.url),
        "modified_at": None if item.modified is None else item.modified.earliest,
        "discovered_at": now,
        "updated_at": now,
    }


def _inserted(tx: Tx, rows: Sequence[dict[str, Any]]) -> set[str]:
    ids = [row["id"] for row in rows]
    return set(tx.execute(select(discovered_items.c.id).where(discovered_items.c.id.in_(ids))).scalars())


def _twin(tx: Tx, row: dict[str, Any]) -> Row[Any] | None:
    """The item of another endpoint for which the same job was enqueued first."""
    query = (
        select(discovered_items)
        .where(discovered_items.c.job_key == row["job_key"], discovered_items.c.id != row["id"])
        .order_by(discovered_items.c.discovered_at, discovered_items.c.id)
    )
    return tx.execute(query).first()


def _join_twin(tx: Tx, row: dict[str, Any], now: datetime) -> tuple[str, str] | None:
    """The page is, or was, fetched for another endpoint: what became of it holds here too.

    A job id has 48 bits of its address, so two addresses can share one: that is reported as an error.
    """
    twin = _twin(tx, row)
    if twin is not None and twin.url == row["url"]:
        _copy(tx, row, twin, now)
        return None
    other = "" if twin is None else f" of {twin.url}"
    problem = f"its job id {row['job_key']} is already that{other}"
    _settle(tx, row, ItemStatus.FAILED, now, error=problem)
    return row["url"], problem


def _settle_like_twin(tx: Tx, row: dict[str, Any], now: datetime) -> None:
    twin = _twin(tx, row)
    if twin is not None and twin.url == row["url"] and twin.status != ItemStatus.PENDING:
        _copy(tx, row, twin, now)
    else:
        _settle(tx, row, ItemStatus.FAILED, now, error="its job ended without a result")


def _copy(tx: Tx, row: dict[str, Any], twin: Row[Any], now: datetime) -> None:
    _settle(tx, row, ItemStatus(twin.status), now, evidence_id=twin.evidence_id, error=twin.error)


def _settle(tx: Tx, row: dict[str, Any], status: ItemStatus, now: datetime, **values: Any) -> None:
    changed = update(discovered_items).where(discovered_items.c.id == row["id"])
    tx.execute(changed.values(status=status, updated_at=now, **values))


@dataclass(frozen=True, slots=True)
class EndpointView:
    source: str
    endpoint: str
    mode: EndpointMode
    url: str
    watched: bool
    waiting: int
    fetched: int
    failed: int
    skipped: int
    looked_at: datetime | None
    """When the sentinel last looked."""
    behind_since: datetime | None
    """Since when looks have not reached the end; null if nothing is owed."""
    paused: bool
    origin: str
    """`file`, or `added`: by command, dashboard or tool."""
    changed: int
    unchanged: int
    """Of the known pages that were checked again since the last look began."""
    every: CheckCadence
    next_check: datetime | None
    """Null if it is not checked by itself."""


def last_checks(tx: Tx, sources: ConfiguredSources) -> dict[str, datetime | None]:
    """When each source that is checked by itself last was; None where an endpoint of it never was."""
    looked = {
        (row.source_slug, row.name): row.looked_at or row.sentinel_at for row in tx.execute(select(web_endpoints))
    }
    found: dict[str, datetime | None] = {}
    for source in sources:
        times = [looked.get((source.slug, each.name)) for each in source.endpoint if each.sentinel]
        if times and source.slug not in sources.paused:
            known = [time for time in times if time is not None]
            found[source.slug] = min(known) if len(known) == len(times) else None
    return found


def next_checks(tx: Tx, sources: ConfiguredSources, cadence: str, now: datetime) -> dict[str, datetime | None]:
    """When each source that is checked by itself will be, by the sentinel's cadence."""
    when = select(schedules.c.next_at).where(schedules.c.name == WEB_SENTINEL.name)
    tick = None if cadence == OFF else tx.execute(when).scalar()
    return {
        slug: next_check(sources[slug].every, looked_at, tick, cadence, now)
        for slug, looked_at in last_checks(tx, sources).items()
    }


def overview(tx: Tx, sources: ConfiguredSources, cadence: str, now: datetime) -> list[EndpointView]:
    """One line for each endpoint, in the order of the sources. `cadence` is the sentinel's."""
    next_at = next_checks(tx, sources, cadence, now)
    known = {(row.source_slug, row.name): row for row in tx.execute(select(web_endpoints))}
    counted = select(discovered_items.c.endpoint_id, discovered_items.c.status, func.count()).group_by(
        discovered_items.c.endpoint_id, discovered_items.c.status
    )
    counts = {(endpoint_id, status): count for endpoint_id, status, count in tx.execute(counted)}
    views = []
    for source in sources:
        for endpoint in source.endpoint:
            row = known.get((source.slug, endpoint.name))
            of = {status: 0 if row is None else counts.get((row.id, status), 0) for status in ItemStatus}
            views.append(
                EndpointView(
                    source.slug,
                    endpoint.name,
                    endpoint.mode,
                    endpoint.url,
                    endpoint.sentinel,
                    waiting=of[ItemStatus.PENDING],
                    fetched=of[ItemStatus.FETCHED],
                    failed=of[ItemStatus.FAILED],
                    skipped=of[ItemStatus.SKIPPED],
                    looked_at=None if row is None else row.looked_at or row.sentinel_at,
                    behind_since=None if row is None else row.behind_since,
                    paused=source.slug in sources.paused,
                    origin="added" if source.slug in sources.added else "file",
                    every=source.every,
                    next_check=next_at.get(source.slug) if endpoint.sentinel else None,
                    **_outcomes(tx, row),
                )
            )
    return views


def _outcomes(tx: Tx, row: Row[Any] | None) -> dict[str, int]:
    """What became of the pages that were known before the last look and checked since."""
    if row is None or row.looked_at is None:
        return {"changed": 0, "unchanged": 0}
    again = (
        discovered_items.c.endpoint_id == row.id,
        discovered_items.c.checked_at >= row.looked_at,
        discovered_items.c.discovered_at < row.looked_at,
    )
    changed = func.coalesce(discovered_items.c.changed_at >= row.looked_at, false())
    query = select(changed.label("changed"), func.count()).where(*again).group_by("changed")
    counts = {bool(was_changed): count for was_changed, count in tx.execute(query)}
    return {"changed": counts.get(True, 0), "unchanged": counts.get(False, 0)}
