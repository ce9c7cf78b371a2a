"""Archived mail as a list: the hits of a search within a view, with the tier that each message got on arrival.

Search stops at the end of the page, so its first page costs the same in a small archive and in a large one. Labels are
shown, and asked for, as they are once actions under way are done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from itertools import groupby
from types import MappingProxyType

from pydantic import Field
from sqlalchemy import select

from postroom.actions.lifecycle import Action
from postroom.app.serving import SharedServices
from postroom.archive.layout import account_name
from postroom.archive.messages import ArchivedMessage
from postroom.archive.search import Search, SearchHit, SearchPage, ShardProblem
from postroom.dashboard.mail.current import MailboxId, changes_under_way, labels_after, still_matches
from postroom.dashboard.paging import BoundedCount, ListQuery
from postroom.db import Tx
from postroom.db.tables.mail import messages
from postroom.domain.errors import BadInput
from postroom.domain.tiers import Tier
from postroom.mail.addresses import Address, parse_addresses
from postroom.mail.query import parse

LONGEST_QUERY = 1_000
GMAIL = "gmail"
UNREAD = "UNREAD"
STARRED = "STARRED"
_MOST_HITS = 1_000
_COUNTED_IN_S = 0.04
_MOST_ROUNDS = 4
"""Further searches for a page from which actions under way have taken messages away."""


class MailView(StrEnum):
    INBOX = "inbox"
    UNREAD = "unread"
    STARRED = "starred"
    ALL = "all"
    SENT = "sent"
    DRAFTS = "drafts"
    SPAM = "spam"
    TRASH = "trash"


VIEWS: Mapping[MailView, str] = MappingProxyType(
    {
        MailView.INBOX: "in:inbox",
        MailView.UNREAD: "in:inbox is:unread",
        MailView.STARRED: "is:starred",
        MailView.ALL: "",
        MailView.SENT: "in:sent",
        MailView.DRAFTS: "in:drafts",
        MailView.SPAM: "in:spam",
        MailView.TRASH: "in:trash",
    }
)
"""Each as a search."""


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
    is_starred: bool
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
    previous: str | None
    """The `before` of the page before; null on the first."""
    problems: tuple[ShardProblem, ...]
    """Archive files that could not be read, so that their mail is missing here."""
    accounts: Sequence[str]
    """The mailboxes that can be searched."""


@dataclass(frozen=True, slots=True)
class TieredHit:
    """A hit, with labels as they are once actions under way are done."""

    hit: SearchHit
    tier: Tier | None

    @property
    def message(self) -> ArchivedMessage:
        return self.hit.message


@dataclass(frozen=True, slots=True)
class FoundMail:
    """A page of hits, before they are shown as messages or as conversations."""

    hits: Sequence[TieredHit]
    next: str | None
    previous: str | None
    problems: tuple[ShardProblem, ...]
    accounts: Sequence[str]


class MailQuery(ListQuery):
    query: str = Field(
        "",
        max_length=LONGEST_QUERY,
        description="as in Gmail: words, from:, to:, subject:, after:2026/01/31, has:attachment, OR, -; empty: all",
    )
    account: str | None = Field(None, max_length=320, description="only this mailbox")
    view: MailView | None = Field(None, description="only mail in this place; unset: everything but spam and trash")
    tier: Tier | None = Field(None, description="only mail that got this tier on arrival; without query and view")
    before: str | None = Field(None, max_length=600, description="`previous` of a page; in place of `after`")

    @property
    def is_first_page(self) -> bool:
        return self.after is None and self.before is None

    @property
    def whole_query(self) -> str:
        """With that of the view."""
        place = VIEWS[self.view] if self.view is not None else ""
        return f"({self.query}) {place}" if self.query and place else self.query or place


def mail_list(found: FoundMail) -> MailList:
    rows = [row_of(each.hit, each.tier) for each in found.hits]
    return MailList(rows, found.next, found.previous, found.problems, found.accounts)


async def find_mail(shared: SharedServices, wanted: MailQuery) -> FoundMail:
    """Newest first. Spam and trash are left out unless the query or the view names them."""
    now = shared.app.clock.now()
    parse(wanted.query, int(now.timestamp() * 1_000), strict=True)  # alone, so that a mistake is found where it stands
    accounts, page = await asyncio.to_thread(_find, shared.search, wanted)
    first, hits, problems = page, await _current(shared, page.hits, wanted, now), page.problems
    for _ in range(_MOST_ROUNDS):
        if page.next is None or len(hits) >= wanted.limit or wanted.before is not None:
            break
        more = wanted.model_copy(update={"after": page.next, "limit": wanted.limit - len(hits)})
        _, page = await asyncio.to_thread(_find, shared.search, more)
        hits += await _current(shared, page.hits, wanted, now)
        problems = (*problems, *(each for each in page.problems if each not in problems))
    return FoundMail(hits, page.next, first.previous, problems, accounts)


async def _current(
    shared: SharedServices, hits: Sequence[SearchHit], wanted: MailQuery, now: datetime
) -> list[TieredHit]:
    """Without those that leave the list once what is under way is done."""
    found = [hit.message for hit in hits]

    def read(tx: Tx) -> tuple[dict[tuple[str, str], Tier], dict[MailboxId, list[Action]]]:
        return tiers_of(tx, found), changes_under_way(tx, found, now)

    tiers, changes = await shared.app.database.read(read)
    listed: list[TieredHit] = []
    for hit in hits:
        message = hit.message
        mine = changes.get((message.account, message.gmail_id or ""), ())
        labels = labels_after(message.labels, mine)
        if not mine or still_matches(wanted.whole_query, labels, now):
            shown = SearchHit(replace(message, labels=labels), hit.snippet)
            listed.append(TieredHit(shown, tiers.get((message.account, message.key))))
    return listed


async def count_hits(shared: SharedServices, wanted: MailQuery) -> BoundedCount | None:
    """How many messages match; None if that takes too long to know. Actions under way are not counted."""

    def count() -> BoundedCount:
        accounts = None if wanted.account is None else [require_account(wanted.account, shared.search.accounts())]
        found = shared.search.count(wanted.whole_query, accounts=accounts, limit=_MOST_HITS, patience_s=_COUNTED_IN_S)
        return BoundedCount(found.messages, not found.is_exact)

    try:
        return await asyncio.to_thread(count)
    except BadInput:
        return None


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
        labels=tuple(label for label in message.labels if label not in (UNREAD, STARRED)),
        has_attachment=message.has_attachment,
        is_unread=UNREAD in message.labels,
        is_starred=STARRED in message.labels,
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
    page = search.search(
        wanted.whole_query, accounts=accounts, limit=wanted.limit, after=wanted.after, before=wanted.before
    )
    return known, page


def _account(message: ArchivedMessage) -> str:
    return message.account
