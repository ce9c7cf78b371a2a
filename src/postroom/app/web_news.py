"""The job `web.notify`: tells the owner what is new at a web source, in Discord, by e-mail to himself, or both.

It may run any number of times; what was reported is not reported again. Titles and addresses come from strangers, so
in Discord they are inert text and in mail plain text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from postroom.accounts.account import Account, AccountStatus, list_accounts
from postroom.actions.discord.client import DiscordChannel
from postroom.actions.discord.notices import inert, said_plainly
from postroom.actions.outbound.sending import SendingMailboxes
from postroom.db import Tx
from postroom.mail.addresses import Address
from postroom.mail.composing import OutgoingMail
from postroom.mailboxes.protocol import HeaderMark
from postroom.queue import JobContext
from postroom.queue.job import Json
from postroom.web import source_store
from postroom.web.source_store import SourceNews
from postroom.web.sources import NoticeWay
from postroom.web.web_service import WebService

MARK = "X-Postroom-News"
_MOST_IN_DISCORD = 8
_FIRST_NEWS = timedelta(days=1)
"""How far back the first notice of a source reaches."""


@dataclass(frozen=True)
class WebNotifier:
    web: WebService
    channel: DiscordChannel | None
    mailboxes: SendingMailboxes

    async def __call__(self, context: JobContext) -> Json:
        slug, database, now = str(context.job.payload.get("source")), context.queue.database, context.queue.clock.now()
        source = (await self.web.sources()).by_slug.get(slug)
        if source is None:
            return {"skipped": f"the source {slug} is no longer followed"}
        since = await context.write(lambda tx: _reported_until(tx, slug, now))
        news = await database.read(lambda tx: source_store.news_of(tx, source, since))
        if not news.pages:
            return {"skipped": "nothing new"}
        # Mail first: a repeated run finds what was sent, but Discord knows a repetition for some minutes only.
        ways: dict[NoticeWay, Callable[[SourceNews, str], Awaitable[str]]] = {
            NoticeWay.EMAIL: lambda news, nonce: self._mail(context, news, nonce),
            NoticeWay.DISCORD: self._post,
        }
        outcome: dict[str, Json] = {"new": news.new, "changed": news.changed}
        for way, tell in ways.items():
            if way in source.notify:
                async with context.step(way) as step:
                    step.result = outcome[way] = await tell(news, _nonce(slug, since))
        await context.write(lambda tx: source_store.set_reported_until(tx, slug, news.until or now))
        return outcome

    async def _post(self, news: SourceNews, nonce: str) -> str:
        if self.channel is None:
            return "not sent: Discord is not set up"
        return await self.channel.post(said_plainly(discord_text(news)), nonce)

    async def _mail(self, context: JobContext, news: SourceNews, nonce: str) -> str:
        """From the first mailbox to itself. A repeated run finds what it has sent, or the draft that it left."""
        accounts = await context.queue.database.read(list_accounts)
        account = next((each for each in accounts if each.status is AccountStatus.ACTIVE), None)
        if account is None:
            return "not sent: no mailbox is connected"
        outbox, mark = await self.mailboxes.outbox(account), HeaderMark(MARK, nonce)
        since = context.queue.clock.now() - _FIRST_NEWS
        if (sent := await outbox.find_sent(mark, None, since)) is not None:
            return sent
        left = await outbox.find_drafts(mark, None)
        draft = left[0] if left else await outbox.create_draft(letter(account, news, nonce).to_bytes())
        return await outbox.send_draft(draft.id)


def _reported_until(tx: Tx, slug: str, now: datetime) -> datetime:
    """Written down the first time: each attempt is to tell the same news, however late it comes."""
    if (known := source_store.reported_until(tx, slug)) is not None:
        return known
    source_store.set_reported_until(tx, slug, now - _FIRST_NEWS)
    return now - _FIRST_NEWS


def discord_text(news: SourceNews) -> str:
    shown = news.pages[:_MOST_IN_DISCORD]
    lines = [f"**Postroom**: {inert(news.name)}: {news.summary}"]
    lines += [f"{page.what}: {inert(page.title or page.url)} {inert(page.url)}" for page in shown]
    if rest := news.total - len(shown):
        lines.append(f"and {rest:,} more; {_where(news)}")
    return "\n".join(lines)


def letter(account: Account, news: SourceNews, nonce: str) -> OutgoingMail:
    """Plain text; marked as automatic, so that nothing answers it."""
    pages = "\n\n".join(f"{page.what}: {_line(page.title or page.url)}\n{_line(page.url)}" for page in news.pages)
    if rest := news.total - len(news.pages):
        pages += f"\n\nand {rest:,} more; {_where(news)}"
    address = Address(account.email)
    return OutgoingMail(
        from_=address,
        to=(address,),
        subject=_line(f"{news.name}: {news.summary}"),
        text=f"{_line(news.name)}: {news.summary}\n\n{pages}\n",
        extra_headers=((MARK, nonce),),
        auto_submitted="auto-generated",
    )


def _where(news: SourceNews) -> str:
    return f"`postroom web evidence label:{news.slug}`"


def _line(text: str) -> str:
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def _nonce(slug: str, since: datetime) -> str:
    """The same for every attempt to tell the same news; Discord takes 25 characters."""
    return hashlib.sha256(f"{slug} {since.isoformat()}".encode()).hexdigest()[:24]
