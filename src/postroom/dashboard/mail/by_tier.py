"""Mail that got a tier on arrival, newest first: listed by the control database, shown as the archive has it.

No index leads from a tier to its mail, so that one page looks through a limited number of messages: of a rare tier a
page may be short and still have a next one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import Row, Select, func, select

from postroom.actions.lifecycle import Action
from postroom.app.serving import SharedServices
from postroom.archive.backend import MailReader
from postroom.archive.layout import account_name
from postroom.archive.messages import ArchivedMessage
from postroom.archive.search import SearchHit, Snippet
from postroom.dashboard.mail.current import MailboxId, changes_under_way, labels_after
from postroom.dashboard.mail.search import GMAIL, FoundMail, MailQuery, TieredHit, mail_accounts, require_account
from postroom.dashboard.paging import SortOrder, row_before
from postroom.db import Tx
from postroom.db.tables.mail import messages
from postroom.domain.errors import BadInput
from postroom.domain.tiers import Tier

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
    columns = (messages.c.id, messages.c.endpoint_identity, messages.c.external_event_id, messages.c.received_at, text)
    query = select(*columns).where(messages.c.provider == GMAIL, messages.c.policy_tier == tier)
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
        ids[account_name(row.endpoint_identity)][row.external_event_id] = row.id
    return {
        mine[key]: message
        for account, mine in ids.items()
        for key, message in reader.find_many(account, list(mine)).items()
    }


def _hit(row: Row[Any], message: ArchivedMessage, changes: Mapping[MailboxId, Sequence[Action]]) -> SearchHit:
    labels = labels_after(message.labels, changes.get((message.account, message.gmail_id or ""), ()))
    return SearchHit(replace(message, labels=labels), Snippet(" ".join((row.beginning or "").split())))
