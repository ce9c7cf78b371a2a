"""Sources that were added by command, dashboard or tool; which sources are paused; and what each has that is new.

A source of the file that was added as well counts as the file says; the page says where each comes from. What a source
brought stays when it is removed: items and evidence are the record of what was seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import delete, func, select, update

from postroom import audit
from postroom.audit import Actor
from postroom.db import Tx
from postroom.db.tables.web import discovered_items, evidence, evidence_texts, web_endpoints, web_sources
from postroom.db.types import Instant
from postroom.domain.errors import BadInput
from postroom.telemetry import logs
from postroom.web.sources import FILE_NAME, CheckCadence, ConfiguredSources, NoticeWay, WebSource, source_of

log = logs.get(__name__)

SUBJECT = "web_source"


def with_added(tx: Tx, of_file: ConfiguredSources) -> ConfiguredSources:
    """The sources of the file, and after them those that were added."""
    rows = tx.execute(select(web_sources).order_by(web_sources.c.created_at, web_sources.c.slug)).all()
    added: dict[str, WebSource] = {}
    for row in rows:
        if row.definition is not None and (source := _readable(row.definition)) is not None:
            added[row.slug] = source
    outranked = added.keys() & of_file.by_slug.keys()
    everything = of_file.by_slug | {slug: source for slug, source in added.items() if slug not in outranked}
    paused = frozenset(row.slug for row in rows if row.paused)
    return ConfiguredSources(everything, frozenset(added) - outranked, frozenset(outranked), paused)


def _readable(definition: dict[str, Any]) -> WebSource | None:
    """None for one that this version cannot read, for instance after a downgrade: it must not stop the others."""
    try:
        return source_of(definition)
    except BadInput as error:
        log.warning("web.source_unreadable", slug=definition.get("slug"), problem=error.message)
        return None


def add(tx: Tx, sources: ConfiguredSources, source: WebSource, who: Actor, now: datetime) -> None:
    if source.slug in sources.by_slug:
        where = "" if source.slug in sources.added else f" in {FILE_NAME}"
        raise BadInput("slug", f"there is a source {source.slug}{where} already; choose another name for this one")
    definition = source.model_dump(mode="json", exclude_defaults=True)
    values = {"definition": definition, "paused": False, "created_by": who.name, "updated_at": now}
    tx.insert_missing(web_sources, {"slug": source.slug, "created_at": now, "paused": False, "updated_at": now})
    tx.execute(update(web_sources).where(web_sources.c.slug == source.slug).values(**values))
    audit.record(tx, who, f"{SUBJECT}.add", (SUBJECT, source.slug), now, after=definition)


def remove(tx: Tx, sources: ConfiguredSources, slug: str, who: Actor, now: datetime) -> None:
    """Follow it no longer. A source of the file can only be removed there."""
    known = sources[slug]
    row = tx.execute(select(web_sources.c.definition).where(web_sources.c.slug == slug)).one_or_none()
    if row is None or row.definition is None:
        raise BadInput("source", f"{slug} is in {FILE_NAME}; remove it there, or pause it")
    tx.execute(delete(web_sources).where(web_sources.c.slug == slug))
    before = known.model_dump(mode="json", exclude_defaults=True)
    audit.record(tx, who, f"{SUBJECT}.remove", (SUBJECT, slug), now, before=before)


def pause(tx: Tx, sources: ConfiguredSources, slug: str, who: Actor, now: datetime, *, paused: bool) -> None:
    """Stop or continue looking for new pages and fetching those that wait. What is so already stays so."""
    sources[slug]
    if (slug in sources.paused) == paused:
        return
    tx.insert_missing(web_sources, {"slug": slug, "created_at": now, "paused": paused, "updated_at": now})
    tx.execute(update(web_sources).where(web_sources.c.slug == slug).values(paused=paused, updated_at=now))
    event = "pause" if paused else "unpause"
    audit.record(tx, who, f"{SUBJECT}.{event}", (SUBJECT, slug), now, after={"paused": paused})


def set_notify(tx: Tx, sources: ConfiguredSources, slug: str, ways: list[NoticeWay], who: Actor, now: datetime) -> None:
    """Where news of an added source is reported."""
    source = sources[slug]
    if slug not in sources.added:
        raise BadInput("source", f"{slug} is in {FILE_NAME}; write there: notify = {[str(way) for way in ways]}")
    definition = source.model_copy(update={"notify": ways}).model_dump(mode="json", exclude_defaults=True)
    definition["notify"] = [str(way) for way in ways]
    tx.execute(update(web_sources).where(web_sources.c.slug == slug).values(definition=definition, updated_at=now))
    before = {"notify": [str(way) for way in source.notify]}
    audit.record(tx, who, f"{SUBJECT}.notify", (SUBJECT, slug), now, before=before, after={"notify": ways})


def set_schedule(tx: Tx, sources: ConfiguredSources, slug: str, every: CheckCadence, who: Actor, now: datetime) -> None:
    """How often an added source is checked."""
    source = sources[slug]
    if slug not in sources.added:
        raise BadInput("source", f'{slug} is in {FILE_NAME}; write there: every = "{every}"')
    changed = source.model_copy(update={"every": every})
    definition = changed.model_dump(mode="json", exclude_defaults=True)
    tx.execute(update(web_sources).where(web_sources.c.slug == slug).values(definition=definition, updated_at=now))
    before, after = {"every": source.every}, {"every": every}
    audit.record(tx, who, f"{SUBJECT}.schedule", (SUBJECT, slug), now, before=before, after=after)


MOST_NEWS = 100


@dataclass(frozen=True, slots=True)
class NewsPage:
    evidence_id: str
    url: str
    title: str | None
    changed: bool
    """Known before, and changed; else it is new."""
    at: datetime

    @property
    def what(self) -> str:
        return "changed" if self.changed else "new"


@dataclass(frozen=True, slots=True)
class SourceNews:
    """New and changed pages of a source; what a backfill brought is no news."""

    slug: str
    name: str
    pages: list[NewsPage]
    """The newest, newest first; the counts are of all."""
    new: int
    changed: int
    until: datetime | None
    """When the newest became known."""

    @property
    def total(self) -> int:
        return self.new + self.changed

    @property
    def summary(self) -> str:
        counts = [f"{self.new} new" if self.new else "", f"{self.changed} changed" if self.changed else ""]
        pages = "page" if self.total == 1 else "pages"
        return " and ".join(count for count in counts if count) + f" {pages}"


def news_of(tx: Tx, source: WebSource, since: datetime, most: int = MOST_NEWS) -> SourceNews:
    """What became new or changed after that moment."""
    item, page = discovered_items.c, evidence.c
    is_new = (item.discovery_method == "SENTINEL") & item.changed_at.is_(None) & (page.fetched_at > since)
    at = func.coalesce(item.changed_at, page.fetched_at, type_=Instant)
    found = (
        select(page.id, item.url, evidence_texts.c.title, item.changed_at.is_not(None).label("changed"), at.label("at"))
        .join(web_endpoints, web_endpoints.c.id == item.endpoint_id)
        .join(evidence, page.id == item.evidence_id)
        .join(evidence_texts, evidence_texts.c.evidence_id == page.id, isouter=True)
        .where(web_endpoints.c.source_slug == source.slug, (item.changed_at > since) | is_new)
        .subquery()
    )
    newest = tx.execute(select(found).order_by(found.c.at.desc(), found.c.url).limit(most))
    pages = {row.url: NewsPage(row.id, row.url, row.title, bool(row.changed), row.at) for row in newest}
    columns = found.c.changed, func.count(found.c.url.distinct()), func.max(found.c.at)
    counted = {bool(row[0]): (int(row[1]), row[2]) for row in tx.execute(select(*columns).group_by(found.c.changed))}
    new, changed = (counted.get(was_changed, (0, None))[0] for was_changed in (False, True))
    until = max((moment for _, moment in counted.values()), default=None)
    return SourceNews(source.slug, source.name or source.slug, list(pages.values()), new, changed, until)


def reported_until(tx: Tx, slug: str) -> datetime | None:
    """Up to when the news of a source was reported."""
    return tx.execute(select(web_sources.c.notified_at).where(web_sources.c.slug == slug)).scalar_one_or_none()


def set_reported_until(tx: Tx, slug: str, moment: datetime) -> None:
    tx.insert_missing(web_sources, {"slug": slug, "created_at": moment, "updated_at": moment, "paused": False})
    tx.execute(update(web_sources).where(web_sources.c.slug == slug).values(notified_at=moment))
