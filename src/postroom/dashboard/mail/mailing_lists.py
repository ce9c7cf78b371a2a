"""Mailing lists: their senders by how much mail comes and how little is read, and the lists that the owner left.

Senders of lists are counted among the newest mail that was taken in, so that the page takes no longer as mail grows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import Row, Text, literal, select

from postroom.actions.unsubscribing import Unsubscription, find_unsubscription, list_unsubscriptions
from postroom.app.serving import SharedServices
from postroom.archive.backend import MailReader
from postroom.dashboard.mail.message import MessageDetail
from postroom.db import Tx
from postroom.db.tables.mail import messages
from postroom.mail.addresses import canonical_address
from postroom.mail.unsubscribing import UnsubscribeOffer, UnsubscribeWay, unsubscribe_offer

WINDOW = timedelta(days=90)
MOST_COUNTED = 5_000
MOST_LEFT = 200
GRACE = timedelta(days=10)
"""A list that was asked to stop has so long to do it."""


def left_list(tx: Tx, letter: MessageDetail) -> Unsubscription | None:
    """Whether the owner left the list that sent this message."""
    if letter.unsubscribe is None or not letter.sender.shown:
        return None
    return find_unsubscription(tx, letter.account, letter.sender.shown[0].address)


class SendersBy(StrEnum):
    MESSAGES = "messages"
    UNREAD = "unread"


@dataclass(frozen=True, slots=True)
class ListSender:
    """A sender of mail that can be unsubscribed from."""

    mailbox: str
    sender: str
    name: str | None
    messages: int
    unread: int
    newest_at: datetime
    key: str
    """Of its newest message."""
    offer: UnsubscribeOffer | None
    """How to unsubscribe; null where the archive does not have the newest message."""


class LeftState(StrEnum):
    WAITING = "waiting"
    """The list may still send for a few days."""
    STOPPED = "stopped"
    STILL_SENDING = "still_sending"


@dataclass(frozen=True, slots=True)
class LeftList:
    """A list that the owner left, and whether it stopped."""

    mailbox: str
    sender: str
    way: UnsubscribeWay
    asked_at: datetime
    action_id: str | None
    state: LeftState
    since: int
    """Messages that came later than the list had time to stop."""
    newest_key: str | None


@dataclass(frozen=True, slots=True)
class MailingLists:
    senders: Sequence[ListSender]
    left: Sequence[LeftList]
    """Newest first."""
    counted: int
    """Messages that were looked at, the newest ones."""
    since: datetime
    """Nothing older was looked at."""
    is_cut: bool
    """There is more mail in that time than is counted."""


@dataclass(frozen=True, slots=True)
class _Received:
    mailbox: str
    sender: str
    name: str | None
    key: str
    at: datetime
    is_unread: bool


async def mailing_lists(
    shared: SharedServices, mailbox: str | None, by: SendersBy, limit: int, now: datetime
) -> MailingLists:
    def read(tx: Tx) -> tuple[tuple[list[_Received], int], list[Unsubscription]]:
        return _received(tx, mailbox, now - WINDOW), list_unsubscriptions(tx, mailbox, MOST_LEFT)

    (mail, counted), left = await shared.app.database.read(read)
    by_sender = _by_sender(mail)
    gone = {(each.mailbox, each.sender) for each in left}
    ranked = _ranked([group for sender, group in by_sender.items() if sender not in gone], by)[:limit]
    servers = shared.app.settings.connector.believed_servers
    offers = await shared.archive.read_apart(lambda archive: _offers(archive, ranked, servers))
    return MailingLists(
        senders=[_sender(group, offers.get((group[0].mailbox, group[0].key))) for group in ranked],
        left=[_left(each, by_sender.get((each.mailbox, each.sender), ()), now) for each in left],
        counted=counted,
        since=now - WINDOW,
        is_cut=counted >= MOST_COUNTED,
    )


def _received(tx: Tx, mailbox: str | None, since: datetime) -> tuple[list[_Received], int]:
    """List mail among the newest messages, newest first, and how many messages those were."""
    columns = messages.c
    header = columns.headers.op("->>", return_type=Text())(literal("list-unsubscribe", Text()))
    query = (
        select(
            columns.endpoint_identity,
            columns.sender_identity,
            columns.sender_name,
            columns.external_event_id,
            columns.archive_key,
            columns.received_at,
            columns.labels,
            header.is_not(None).label("is_list"),
        )
        .where(columns.received_at >= since)
        .order_by(columns.received_at.desc(), columns.id.desc())
        .limit(MOST_COUNTED)
    )
    query = query if mailbox is None else query.where(columns.endpoint_identity == mailbox)
    rows = tx.execute(query).all()
    return [_of_row(row) for row in rows if row.is_list], len(rows)


def _of_row(row: Row[*tuple[Any, ...]]) -> _Received:
    return _Received(
        row.endpoint_identity,
        canonical_address(row.sender_identity),
        row.sender_name,
        row.archive_key or row.external_event_id,
        row.received_at,
        "UNREAD" in (row.labels or ()),
    )


def _by_sender(mail: Sequence[_Received]) -> dict[tuple[str, str], list[_Received]]:
    groups: dict[tuple[str, str], list[_Received]] = {}
    for each in mail:
        groups.setdefault((each.mailbox, each.sender), []).append(each)
    return groups


def _ranked(groups: Sequence[list[_Received]], by: SendersBy) -> list[list[_Received]]:
    """Those with the most mail, or the most unread mail, first."""

    def rank(group: list[_Received]) -> tuple[int, int, str]:
        unread = sum(each.is_unread for each in group)
        first, second = (unread, len(group)) if by is SendersBy.UNREAD else (len(group), unread)
        return -first, -second, group[0].sender

    return sorted(groups, key=rank)


def _offers(
    archive: MailReader, groups: Sequence[Sequence[_Received]], servers: Collection[str]
) -> Mapping[tuple[str, str], UnsubscribeOffer]:
    found = {}
    for newest, *_ in groups:
        message = archive.message(newest.mailbox, newest.key)
        offer = None if message is None else unsubscribe_offer(archive.headers_of(message), servers)
        if offer is not None:
            found[newest.mailbox, newest.key] = offer
    return found


def _sender(group: Sequence[_Received], offer: UnsubscribeOffer | None) -> ListSender:
    newest = group[0]
    unread = sum(each.is_unread for each in group)
    return ListSender(newest.mailbox, newest.sender, newest.name, len(group), unread, newest.at, newest.key, offer)


def _left(left: Unsubscription, mail: Sequence[_Received], now: datetime) -> LeftList:
    """`mail` is the list's own, newest first."""
    due = left.asked_at + GRACE
    late = [each for each in mail if each.at > due]
    state = LeftState.STILL_SENDING if late else LeftState.WAITING if now <= due else LeftState.STOPPED
    newest = late[0].key if late else None
    return LeftList(left.mailbox, left.sender, left.way, left.asked_at, left.action_id, state, len(late), newest)
