"""Archived mail as a list: the hits of a search within a view, with the tier that each message got on arrival; or the
mail of one tier, newest first.

Search stops at the end of the page, so its first page costs the same in a small archive and in a large one. Labels are
shown, and asked for, as they are once actions under way are done. No index leads from a tier to its mail, so that one
page looks through a limited number of messages: of a rare tier a page may be short and still have a next one.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from itertools import groupby
from types import MappingProxyType
from typing import Any

from pydantic import Field
from sqlalchemy import Row, Select, func, select

from postroom.actions.lifecycle import Action
from postroom.app.serving import SharedServices
from postroom.archive.backend import MailReader
from postroom.archive.messages import ArchivedMessage, account_name
from postroom.archive.search import Search, SearchHit, SearchPage, ShardProblem, Snippet, Sort
from postroom.dashboard.mail.current import MailboxId, changes_under_way, labels_after, still_matches
from postroom.dashboard.paging import BoundedCount, ListQuery, SortOrder, row_before
from postroom.db import Tx
from postroom.db.tables.mail import messages
from postroom.domain.errors import BadInput
from postroom.domain.terms import Tier
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
    attachment: str | None
    """The name of the attachment that the snippet is from; null: the message itself."""
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
    sort: Sort | None = Field(
        None, description="of a search: date, the newest first, which is the default; rank; best, by words and meaning"
    )

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


async def suggested_query(shared: SharedServices, wanted: MailQuery, hits: BoundedCount | None) -> str | None:
    """What may have been meant by a search with so few hits, as a query without a view."""
    if hits is None:
        return None
    accounts = None if wanted.account is None else [wanted.account]
    return await asyncio.to_thread(shared.search.suggestion, wanted.whole_query, hits.number, accounts=accounts)


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
        attachment=hit.snippet.attachment,
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
        wanted.whole_query,
        accounts=accounts,
        limit=wanted.limit,
        sort=wanted.sort or Sort.DATE,
        after=wanted.after,
        before=wanted.before,
    )
    return known, page


def _account(message: ArchivedMessage) -> str:
    return message.account


_LOOKED_THROUGH = 5_000
_HIDDEN = frozenset({"TRASH", "SPAM"})
_SNIPPET = 240
_NEWEST_FIRST = SortOrder((messages.c.received_at, messages.c.id), falling=("received_at", "id"))


async def find_tier(shared: SharedServices, wanted: MailQuery, tier: Tier) -> FoundMail:
    if wanted.query or wanted.view is not None or wanted.before is not None:
        raise BadInput("tier", "is a list of its own; leave out the query, the view and `before`")
    accounts = await mail_accounts(shared)
    account = None if wanted.account is None else require_account(wanted.account, accounts)
    found, following = await shared.app.database.read(lambda tx: _page(tx, wanted, tier, account))
    archived = await shared.archive.read_apart(lambda reader: _archived(reader, found))
    now = shared.app.clock.now()
    changes = await shared.app.database.read(lambda tx: changes_under_way(tx, archived.values(), now))
    rows = [_hit(row, archived[row.id], changes) for row in found if row.id in archived]
    shown = [TieredHit(hit, tier) for hit in rows if _HIDDEN.isdisjoint(hit.message.labels)]
    return FoundMail(shown, following, None, (), accounts)


def recent(tier: Tier, account: str | None, since: datetime) -> Select[Any]:
    """To be counted."""
    whose = () if account is None else (messages.c.endpoint_identity == account,)
    return select(messages.c.id).where(messages.c.received_at >= since, messages.c.policy_tier == tier, *whose)


def _page(tx: Tx, wanted: MailQuery, tier: Tier, account: str | None) -> tuple[Sequence[Row[Any]], str | None]:
    start = row_before(tx, messages, wanted.after)
    place = select(messages.c.id, messages.c.received_at)
    end = tx.execute(_NEWEST_FIRST.apply(place, start).offset(_LOOKED_THROUGH).limit(1)).one_or_none()
    text = func.substr(messages.c.normalized_text, 1, _SNIPPET).label("beginning")
    columns = (messages.c.id, messages.c.provider, messages.c.endpoint_identity, messages.c.external_event_id, text)
    query = select(*columns).where(messages.c.policy_tier == tier)
    if account is not None:
        query = query.where(messages.c.endpoint_identity == account)
    if end is not None:
        query = query.where(messages.c.received_at >= end.received_at)
    found = tx.execute(_NEWEST_FIRST.apply(query, start).limit(wanted.limit + 1)).all()
    if len(found) > wanted.limit:
        return found[: wanted.limit], str(found[wanted.limit - 1].id)
    return found, None if end is None else str(end.id)


def _archived(reader: MailReader, found: Sequence[Row[Any]]) -> Mapping[str, ArchivedMessage]:
    """By the id of the message here; those that the archive lacks are left out."""
    ids: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for row in found:
        if row.provider != GMAIL:  # as a condition of the query it made SQLite read and sort all mail
            continue
        ids[account_name(row.endpoint_identity)][row.external_event_id] = row.id
    return {
        mine[key]: message
        for account, mine in ids.items()
        for key, message in reader.find_many(account, list(mine)).items()
    }


def _hit(row: Row[Any], message: ArchivedMessage, changes: Mapping[MailboxId, Sequence[Action]]) -> SearchHit:
    labels = labels_after(message.labels, changes.get((message.account, message.gmail_id or ""), ()))
    return SearchHit(replace(message, labels=labels), Snippet(" ".join((row.beginning or "").split())))
