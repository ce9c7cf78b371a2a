"""Archived mail as a list: the hits of a search, with the tier that each message got on arrival.

Search stops at the end of the page, so its first page costs the same in a small archive and in a large one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

from pydantic import Field
from sqlalchemy import select

from postroom.app.serving import SharedServices
from postroom.archive.layout import account_name
from postroom.archive.messages import ArchivedMessage
from postroom.archive.search import Search, SearchHit, SearchPage, ShardProblem
from postroom.dashboard.paging import ListQuery
from postroom.db import Tx
from postroom.db.tables.mail import messages
from postroom.domain.errors import BadInput
from postroom.domain.tiers import Tier
from postroom.mail.addresses import Address, parse_addresses

LONGEST_QUERY = 1_000
GMAIL = "gmail"
UNREAD = "UNREAD"


@dataclass(frozen=True, slots=True)
class NamedAddress:
    name: str
    address: str


@dataclass(frozen=True, slots=True)
class MailRow:
    account: str
    key: str
    date: datetime
    sender: NamedAddress
    subject: str
    snippet: str
    marks: tuple[tuple[int, int], ...]
    """Where the snippet matches the query: start and end."""
    labels: tuple[str, ...]
    has_attachment: bool
    is_unread: bool
    is_deleted_at_source: bool
    size: int
    tier: Tier | None
    """Its tier on arrival; null for mail that was only archived."""

    @property
    def pieces(self) -> list[tuple[str, bool]]:
        """The snippet cut at its marks; for each piece, whether it is marked."""
        found, place = list[tuple[str, bool]](), 0
        for start, end in self.marks:
            found += [(self.snippet[place:start], False), (self.snippet[start:end], True)]
            place = end
        return [piece for piece in [*found, (self.snippet[place:], False)] if piece[0]]


@dataclass(frozen=True, slots=True)
class MailList:
    items: Sequence[MailRow]
    next: str | None
    """The `after` of the next page; null on the last."""
    problems: tuple[ShardProblem, ...]
    """Archive files that could not be read, so that their mail is missing here."""
    accounts: Sequence[str]
    """The mailboxes that can be searched."""


class MailQuery(ListQuery):
    query: str = Field(
        "",
        max_length=LONGEST_QUERY,
        description="as in Gmail: words, from:, to:, subject:, after:2026/01/31, has:attachment, OR, -; empty: all",
    )
    account: str | None = Field(None, max_length=320, description="only this mailbox")


async def list_mail(shared: SharedServices, wanted: MailQuery) -> MailList:
    """Newest first. Spam and trash are left out unless the query names them."""
    accounts, page = await asyncio.to_thread(_find, shared.search, wanted)
    found = [hit.message for hit in page.hits]
    tiers = await shared.app.database.read(lambda tx: tiers_of(tx, found))
    rows = [row_of(hit, tiers.get((hit.message.account, hit.message.key))) for hit in page.hits]
    return MailList(rows, page.next, page.problems, accounts)


async def mail_accounts(shared: SharedServices) -> Sequence[str]:
    return await asyncio.to_thread(shared.search.accounts)


def tiers_of(tx: Tx, found: Sequence[ArchivedMessage]) -> dict[tuple[str, str], Tier]:
    """By account and key, with one query for each mailbox."""
    identity, event = messages.c.endpoint_identity, messages.c.external_event_id
    tiers: dict[tuple[str, str], Tier] = {}
    for account, of_account in groupby(sorted(found, key=_account), key=_account):
        here = (messages.c.provider == GMAIL, identity == account, event.in_([one.key for one in of_account]))
        rows = tx.execute(select(event, messages.c.policy_tier).where(*here))
        tiers |= {(account, key): Tier(tier) for key, tier in rows}
    return tiers


def row_of(hit: SearchHit, tier: Tier | None) -> MailRow:
    message = hit.message
    return MailRow(
        account=message.account,
        key=message.key,
        date=message.date,
        sender=sender_of(message.sender),
        subject=message.subject,
        snippet=hit.snippet.text,
        marks=hit.snippet.marks,
        labels=tuple(label for label in message.labels if label != UNREAD),
        has_attachment=message.has_attachment,
        is_unread=UNREAD in message.labels,
        is_deleted_at_source=message.deleted_at_source is not None,
        size=message.size,
        tier=tier,
    )


def sender_of(written: str) -> NamedAddress:
    """Name and address apart, because a name may look like another address."""
    first = next(iter(parse_addresses(written)), Address(written))
    return NamedAddress(first.display_name, first.address)


def require_account(account: str, known: Sequence[str]) -> str:
    name = account_name(account)
    if name not in known:
        others = f"it has {', '.join(known)}" if known else "it is empty"
        raise BadInput("account", f"{account} is not in the archive; {others}")
    return name


def _find(search: Search, wanted: MailQuery) -> tuple[list[str], SearchPage]:
    known = search.accounts()
    accounts = None if wanted.account is None else [require_account(wanted.account, known)]
    return known, search.search(wanted.query, accounts=accounts, limit=wanted.limit, after=wanted.after)


def _account(message: ArchivedMessage) -> str:
    return message.account
