"""A web source: what it published is found, fetched politely, kept as evidence, and can be searched."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, select

from postroom.db import Tx
from postroom.db.tables.web import evidence_texts
from postroom.demo.furnish import SOURCE
from postroom.demo.scene import Scene
from postroom.websources.config import Mode
from postroom.websources.run_model import NewRun, Run, Status
from postroom.websources.search import search

QUERY = "porezu"
_CAP = 15


@dataclass(frozen=True)
class Followed:
    run: Run
    published: int
    kept: int
    found: int

    @property
    def lines(self) -> tuple[str, ...]:
        run = self.run
        return (
            f"the site published {self.published} documents; this run may take {run.max_urls}",
            f"{run.discovered_count} found in its sitemap, {self.kept} fetched and kept as evidence",
            f"{self.found} of them found for {QUERY!r} ('tax')",
        )


async def follow_a_web_source(scene: Scene) -> Followed:
    web = scene.app.web
    begun = await web.hand_over(scene.who, NewRun(sources=[SOURCE], mode=Mode.SITEMAP, max_urls=_CAP))

    async def has_ended() -> Run | None:
        run = await web.show(begun.id)
        return run if run.status in (Status.COMPLETED, Status.FAILED) else None

    run = await scene.until(has_ended, "the web source to be walked")

    async def is_kept() -> int | None:
        kept = await scene.read(_readable)
        return kept if kept >= run.queued_count else None

    kept = await scene.until(is_kept, "the documents of the web source")
    hits = await scene.read(lambda tx: search(tx, QUERY, scene.app.clock.now(), limit=100))
    return Followed(run, len(scene.outside.site.site.gazette.documents), kept, len(hits))


def _readable(tx: Tx) -> int:
    return int(tx.execute(select(func.count()).select_from(evidence_texts)).scalar_one())
