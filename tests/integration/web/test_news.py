"""What is new at a source is reported where its owner wants it: once, and whatever strangers write."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from postroom.accounts.account import Account
from postroom.actions.discord.client import open_channel
from postroom.app.web_news import MARK, WebNotifier
from postroom.db import Database, Tx
from postroom.db.tables.accounts import accounts
from postroom.domain.clock import ManualClock
from postroom.domain.errors import Retryable
from postroom.domain.ids import new_id
from postroom.mail.parsing import parse_mail
from postroom.mailboxes.protocol import HeaderMark, MailDraft
from postroom.queue import Handler
from postroom.settings import DiscordSettings
from postroom.sim.discord import DiscordSim, running_discord
from postroom.web import source_store
from postroom.web.probing import NewSource
from postroom.web.sources import NoticeWay
from postroom.web.web_service import WebService, handlers
from tests.support.queues import run_until_idle
from tests.support.web_fetching import ReaderHere
from tests.support.web_servers import Page, TinySite
from tests.support.web_sources import ME, backfilled, make_web, sources_file, with_sitemap, write_sources

HOSTILE = "<title>`@everyone` [x](http://evil.example)\x07</title><p>one</p>"


@dataclass
class Outbox:
    """Drafts and what was sent of them."""

    drafts: dict[str, bytes] = field(default_factory=dict)
    sent: list[bytes] = field(default_factory=list)
    lost_answers: int = 0
    """So many sendings succeed without saying so."""

    async def outbox(self, account: Account) -> Outbox:
        return self

    async def find_sent(self, mark: HeaderMark, thread_id: str | None, since: datetime) -> str | None:
        return next((str(n) for n, raw in enumerate(self.sent) if mark.value.encode() in raw), None)

    async def find_drafts(self, mark: HeaderMark, thread_id: str | None) -> list[MailDraft]:
        return [MailDraft(key, key, "") for key, raw in self.drafts.items() if mark.value.encode() in raw]

    async def create_draft(self, raw: bytes, thread_id: str | None = None) -> MailDraft:
        key = new_id()
        self.drafts[key] = raw
        return MailDraft(key, key, "")

    async def send_draft(self, draft_id: str) -> str:
        self.sent.append(self.drafts.pop(draft_id))
        if self.lost_answers:
            self.lost_answers -= 1
            raise Retryable("the answer was lost", retry_after=timedelta(minutes=30))
        return str(len(self.sent) - 1)


@dataclass
class NewsScene:
    web: WebService
    clock: ManualClock
    site: TinySite
    discord: DiscordSim
    outbox: Outbox
    work: dict[str, Handler]

    @property
    def posted(self) -> list[str]:
        return [message["content"] for message in self.discord.board.messages.values()]

    async def morning(self) -> None:
        await self.web.look()
        await run_until_idle(self.web.queue, self.work)
        self.clock.advance(3_600)
        await run_until_idle(self.web.queue, self.work)
        self.clock.advance(86_400)


@pytest.fixture
async def scene(database: Database, tmp_path: Path, site: TinySite) -> AsyncIterator[NewsScene]:
    clock = ManualClock(datetime(2026, 3, 10, 6, tzinfo=UTC))
    web, outbox = make_web(database, tmp_path, clock), Outbox()
    await database.write(lambda tx: _add_account(tx, clock.now()))
    async with running_discord() as sim, open_channel(DiscordSettings(**sim.settings("42"))) as channel:
        notify = WebNotifier(web, channel, cast(Any, outbox))
        yield NewsScene(web, clock, site, sim, outbox, {**handlers(web, ReaderHere()), "web.notify": notify})


def _add_account(tx: Tx, now: datetime) -> None:
    values = {"id": new_id(), "provider": "gmail", "email": "me@example.com", "api_base": "https://gmail.example"}
    tx.execute(accounts.insert().values(**values, scopes="", status="active", created_at=now, updated_at=now))


async def test_new_and_changed_pages_are_reported_once_in_discord_and_by_mail(scene: NewsScene) -> None:
    site, ways = scene.site, [NoticeWay.DISCORD, NoticeWay.EMAIL]
    site.feed("/feed", {"/1": "2026-03-10T00:00:00Z", "/2": "2026-03-10T00:00:00Z"})
    site.pages["/1"], site.pages["/2"] = Page(HOSTILE.encode()), Page(b"two", "text/plain")
    await scene.web.add(ME, NewSource(f"{site.url}/feed", slug="news", notify=ways, allow_private=True))
    await scene.morning()
    assert len(scene.posted) == len(scene.outbox.sent) == 1
    assert scene.posted[0].startswith("**Postroom**: `News`: 2 new pages\n")
    assert "`\N{MODIFIER LETTER GRAVE ACCENT}@everyone" in scene.posted[0]
    mail = parse_mail(scene.outbox.sent[0])
    assert mail.subject == "News: 2 new pages"
    assert f"{site.url}/2" in mail.best_text
    assert [(name, value) for name, value in mail.headers if name.lower() == "auto-submitted"] == [
        ("Auto-Submitted", "auto-generated")
    ]
    assert any(name == MARK for name, _ in mail.headers)

    await scene.morning()
    assert len(scene.posted) == len(scene.outbox.sent) == 1
    site.pages["/2"] = Page(b"two, amended", "text/plain")
    for _ in range(4):
        await scene.morning()
    assert len(scene.posted) == len(scene.outbox.sent) == 2
    assert scene.posted[1].startswith("**Postroom**: `News`: 1 changed page\n")


@pytest.mark.parametrize("pause_s", [1_800, 172_800])
async def test_a_notice_that_is_cut_off_is_completed_later_and_repeated_by_no_way(
    scene: NewsScene, pause_s: int
) -> None:
    site, ways = scene.site, [NoticeWay.DISCORD, NoticeWay.EMAIL]
    site.feed("/feed", {"/1": "2026-03-10T00:00:00Z"})
    site.pages["/1"] = Page(b"one", "text/plain")
    scene.outbox.lost_answers = 1
    await scene.web.add(ME, NewSource(f"{site.url}/feed", slug="news", notify=ways, allow_private=True))
    await scene.web.look()
    for pause in (0, 3_600, pause_s):
        scene.clock.advance(pause)
        await run_until_idle(scene.web.queue, scene.work)
    assert scene.outbox.lost_answers == 0
    assert (len(scene.posted), len(scene.outbox.sent)) == (1, 1)


async def test_news_beyond_what_a_message_lists_are_counted_and_reported_once(scene: NewsScene, tmp_path: Path) -> None:
    write_sources(tmp_path, sources_file(scene.site.url, more='notify = ["discord", "email"]'))
    with_sitemap(scene.site, source_store.MOST_NEWS + 20)
    scene.site.pages["*"] = Page(b"a page", "text/plain")
    for _ in range(2):
        await scene.morning()
    [posted], [sent] = scene.posted, scene.outbox.sent
    assert posted.startswith("**Postroom**: `tiny`: 120 new pages\n")
    assert "and 112 more; `postroom web evidence label:tiny`" in posted
    assert "and 20 more; `postroom web evidence label:tiny`" in parse_mail(sent).best_text
    source, since = (await scene.web.sources())["tiny"], datetime(2026, 3, 1, tzinfo=UTC)
    shown = await scene.web.queue.database.read(lambda tx: source_store.news_of(tx, source, since, 5))
    assert (len(shown.pages), shown.summary) == (5, "120 new pages")


async def test_what_a_backfill_brings_is_no_news_and_the_overview_alone_sends_nothing(
    scene: NewsScene, tmp_path: Path
) -> None:
    loud = 'notify = ["discord", "email"]'
    write_sources(tmp_path, sources_file(scene.site.url, "tiny", more=loud) + sources_file(scene.site.url, "quiet"))
    with_sitemap(scene.site, 2)
    with_sitemap(scene.site, 2, "quiet")
    scene.site.pages["*"] = Page(b"a page", "text/plain")
    await backfilled(scene.web)
    for _ in range(3):
        await scene.morning()
    assert (scene.posted, scene.outbox.sent) == ([], [])
    since = datetime(2026, 3, 1, tzinfo=UTC)
    sources = await scene.web.sources()
    read = scene.web.queue.database.read
    assert (await read(lambda tx: source_store.news_of(tx, sources["tiny"], since))).pages == []
    assert (await read(lambda tx: source_store.news_of(tx, sources["quiet"], since))).summary == "2 new pages"
