"""The places of mail beside the list: mailboxes, inbox, saved searches, tiers, review, snoozed mail, labels; counted.

Counts end at 99, are kept for a few seconds, and never hold up a page: what does not fit into its time is counted for
the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

from sqlalchemy import Select, select

from postroom.actions import snoozes
from postroom.app.owner_tools.search_tools import list_searches
from postroom.app.serving import SharedServices
from postroom.archive.search import Search
from postroom.dashboard.mail.search import VIEWS, MailView, recent
from postroom.dashboard.paging import BoundedCount, bounded_counts
from postroom.db import Tx
from postroom.db.tables.triage import snoozes as snooze_rows
from postroom.domain.clock import Clock
from postroom.domain.errors import BadInput
from postroom.domain.terms import Tier
from postroom.mail.query.nodes import Labelled, format_query
from postroom.triage import review

MOST_COUNTED = 99
MOST_LABELS = 200
_LABELS_COUNTED = 30
_TIME_S = 0.03
"""All counts of one page together may take this long."""
_KEPT_S = 10.0
_KEPT_AFTER_GIVING_UP_S = 120.0
_RECENT = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class MailPlace:
    title: str
    href: str
    count: BoundedCount | None
    """Null where nothing is counted, or counting took too long."""
    counted: str | None
    """What the count says, in words."""


@dataclass(frozen=True, slots=True)
class MailPlaces:
    mailboxes: Sequence[MailPlace]
    """Empty if there is only one."""
    views: Sequence[MailPlace]
    searches: Sequence[MailPlace]
    """Saved ones, by name; not counted."""
    tiers: Sequence[MailPlace]
    labels: Sequence[MailPlace]


Counted = tuple[str, str | None]
"""A query, and the mailbox that it is asked of; None: all."""


class MailCounts:
    """Counts of searches, shared by all pages of a dashboard."""

    def __init__(self, time_s: float = _TIME_S) -> None:
        self.time_s = time_s
        self._known: dict[Counted, tuple[BoundedCount | None, float]] = {}

    def of(self, search: Search, clock: Clock, wanted: Sequence[Counted]) -> Mapping[Counted, BoundedCount | None]:
        """What is known, and what can be counted in time. Blocks that long at most."""
        start = clock.monotonic()
        for each in wanted:
            left = self.time_s - (clock.monotonic() - start)
            if self._known.get(each, (None, 0.0))[1] <= start and left > 0:
                self._known[each] = self._counted(search, clock, each, left)
        if len(self._known) > 1_000:
            self._known = {each: self._known[each] for each in wanted if each in self._known}
        return {each: self._known[each][0] for each in wanted if each in self._known}

    def _counted(self, search: Search, clock: Clock, asked: Counted, left: float) -> tuple[BoundedCount | None, float]:
        query, account = asked
        try:
            accounts = None if account is None else [account]
            found = search.count(query, accounts=accounts, limit=MOST_COUNTED, patience_s=left)
        except BadInput:  # it took too long
            return self._known.get(asked, (None, 0.0))[0], clock.monotonic() + _KEPT_AFTER_GIVING_UP_S
        return BoundedCount(found.messages, not found.is_exact), clock.monotonic() + _KEPT_S


async def mail_places(shared: SharedServices, counts: MailCounts, account: str | None = None) -> MailPlaces:
    """Of all mailboxes, or of one. `account` is one that the archive has."""
    clock, search = shared.app.clock, shared.search
    names = await asyncio.to_thread(search.labels, None if account is None else [account])
    labels = {name: format_query(Labelled(name)) for name in names[:MOST_LABELS]}
    mailboxes = await asyncio.to_thread(search.accounts)
    unread = f"{VIEWS[MailView.INBOX]} is:unread"
    asked: list[Counted] = [(unread, account)]
    asked += [(unread, each) for each in mailboxes] if len(mailboxes) > 1 else []
    asked += [(f"{query} is:unread", account) for query in list(labels.values())[:_LABELS_COUNTED]]
    known = await asyncio.to_thread(counts.of, search, clock, asked)
    waiting, tiers, saved = await shared.app.database.read(
        lambda tx: (*_counted_places(tx, account, clock), list_searches(tx))
    )

    def place(title: str, counted: str, **filters: str | None) -> MailPlace:
        return MailPlace(title, _path(**filters), known.get((counted, filters.get("account"))), "unread")

    return MailPlaces(
        mailboxes=[
            MailPlace("All mailboxes", _path(), known.get((unread, None)) if account is None else None, "unread"),
            *(place(each, unread, account=each) for each in mailboxes),
        ]
        if len(mailboxes) > 1
        else [],
        views=[place("Inbox", unread, account=account), *waiting, *_views(account)],
        searches=[
            MailPlace(each.name, _path(query=each.query, account=each.mailbox), None, None)
            for each in saved
            if account is None or each.mailbox in (None, account)
        ],
        tiers=tiers,
        labels=[place(name, f"{query} is:unread", query=query, account=account) for name, query in labels.items()],
    )


def _path(**filters: str | None) -> str:
    query = urlencode({name: value for name, value in filters.items() if value is not None})
    return f"/mail?{query}" if query else "/mail"


_TITLES = {
    MailView.UNREAD: "Unread",
    MailView.STARRED: "Starred",
    MailView.SENT: "Sent",
    MailView.DRAFTS: "Drafts",
    MailView.ALL: "All mail",
    MailView.SPAM: "Spam",
    MailView.TRASH: "Trash",
}


def _views(account: str | None) -> list[MailPlace]:
    return [MailPlace(title, _path(view=view, account=account), None, None) for view, title in _TITLES.items()]


def _counted_places(tx: Tx, account: str | None, clock: Clock) -> tuple[list[MailPlace], list[MailPlace]]:
    """Lists with pages of their own, and the tiers."""
    since = clock.now() - _RECENT
    snoozed = select(snooze_rows.c.action_id).where(snooze_rows.c.state == snoozes.SnoozeState.WAITING)
    queries: dict[str, Select[Any]] = {"review": review.open_items(account), "snoozed": snoozed}
    found = bounded_counts(tx, queries | {tier: recent(tier, account, since) for tier in Tier}, MOST_COUNTED)
    waiting = [
        MailPlace("Review", "/review", found["review"], "to review"),
        MailPlace("Snoozed", "/actions/snoozed", found["snoozed"], "snoozed"),
    ]
    tiers = [
        MailPlace(
            str(tier).replace("_", " ").capitalize(),
            _path(tier=tier, account=account),
            found[tier],
            "in the last 24 hours",
        )
        for tier in Tier
    ]
    return waiting, tiers
