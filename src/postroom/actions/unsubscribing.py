"""Unsubscribing from a list: the one-click request (RFC 8058), and the record of lists that the owner left.

The request is recorded before it is sent, and sent at most once: after a crash in between it is not known whether it
arrived, and the action then fails and says so. Only a person sends it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol
from urllib.parse import urlsplit

from sqlalchemy import Row, delete, select

from postroom import audit
from postroom.accounts.account import Account
from postroom.actions import running
from postroom.actions.label_changes import irreversible
from postroom.actions.lifecycle import Action, save_pre_image
from postroom.actions.outbound.sending import Originals
from postroom.audit import SYSTEM, Actor
from postroom.db import Tx
from postroom.db.database import insert
from postroom.db.tables.mail import messages, unsubscriptions
from postroom.domain.actions import ActionStatus as S
from postroom.domain.errors import Fatal, NotFound, PostroomError
from postroom.mail.addresses import canonical_address, parse_addresses
from postroom.mail.headers import Headers
from postroom.mail.unsubscribing import ONE_CLICK_FORM, UnsubscribeWay, unsubscribe_offer
from postroom.mailboxes.protocol import Mailbox
from postroom.queue import JobContext
from postroom.queue.job import Json
from postroom.reading.mail import read_headers

_TABLE = unsubscriptions.c


@dataclass(frozen=True, slots=True)
class Unsubscription:
    """A list that the owner left, or tried to leave."""

    mailbox: str
    sender: str
    way: UnsubscribeWay
    asked_at: datetime
    asked_by: str
    action_id: str | None = None


def record_unsubscription(tx: Tx, left: Unsubscription) -> None:
    """The latest one of a sender counts."""
    values = {"way": left.way, "asked_at": left.asked_at, "asked_by": left.asked_by, "action_id": left.action_id}
    row = insert(tx, unsubscriptions).values(mailbox=left.mailbox, sender=left.sender, **values)
    tx.execute(row.on_conflict_do_update(index_elements=[_TABLE.mailbox, _TABLE.sender], set_=values))


def list_unsubscriptions(tx: Tx, mailbox: str | None, most: int) -> list[Unsubscription]:
    """Newest first."""
    query = select(unsubscriptions).order_by(_TABLE.asked_at.desc(), _TABLE.sender).limit(most)
    query = query if mailbox is None else query.where(_TABLE.mailbox == mailbox)
    return [_unsubscription(row) for row in tx.execute(query).all()]


def find_unsubscription(tx: Tx, mailbox: str, sender: str) -> Unsubscription | None:
    mine = (_TABLE.mailbox == mailbox, _TABLE.sender == canonical_address(sender))
    row = tx.execute(select(unsubscriptions).where(*mine)).one_or_none()
    return None if row is None else _unsubscription(row)


def forget_unsubscription(tx: Tx, mailbox: str, sender: str, who: Actor, now: datetime) -> Unsubscription:
    """No longer watch whether mail still comes."""
    found = find_unsubscription(tx, mailbox, sender)
    if found is None:
        raise NotFound("sender", f"{mailbox} did not unsubscribe from {sender[:100]}")
    tx.execute(delete(unsubscriptions).where(_TABLE.mailbox == found.mailbox, _TABLE.sender == found.sender))
    before = {"way": str(found.way), "asked_at": found.asked_at.isoformat()}
    audit.record(tx, who, "unsubscribe.forget", ("sender", found.sender), now, before=before)
    return found


def _unsubscription(row: Row[*tuple[Any, ...]]) -> Unsubscription:
    values = dict(row._mapping)
    return Unsubscription(**{**values, "way": UnsubscribeWay(values["way"])})


class Unreached(Fatal):
    """The list's server got no request."""


class FormPoster(Protocol):
    async def __call__(self, url: str, form: bytes) -> int:
        """Send a form once, to a public address; the status of the answer. Raises `Unreached` where the request was
        certainly not received, and another of our errors where that is not known."""


@dataclass(frozen=True, slots=True)
class OneClick:
    """What is to be sent, and for whom."""

    link: str
    sender: str

    @property
    def host(self) -> str:
        return urlsplit(self.link).hostname or ""


class Unsubscriber:
    def __init__(self, originals: Originals, post: FormPoster, servers: Collection[str]) -> None:
        self._originals = originals
        self._post = post
        self._servers = servers

    async def __call__(self, context: JobContext, action: Action, account: Account, mailbox: Mailbox) -> None:
        """Do the action; Fatal says what happened where it was not completed."""
        if action.pre_image is not None:
            raise Fatal(_unclear(str(action.pre_image.get("host", "the list"))))
        key = await context.queue.database.read(lambda tx: _archive_key(tx, action))
        raw = await self._originals.raw(mailbox, account.email, action.gmail_id, key)
        wanted = one_click(await asyncio.to_thread(read_headers, raw), self._servers)
        image = {"host": wanted.host, "asked_at": context.queue.clock.now().isoformat()}
        action = await context.write(lambda tx: save_pre_image(tx, action, image, context.queue.clock.now()))
        async with context.step("unsubscribe") as step:
            step.result = {"host": wanted.host, "status": await self._ask(wanted)}
        await context.complete(lambda tx: _complete(tx, context, action, account, wanted))

    async def _ask(self, wanted: OneClick) -> int:
        try:
            status = await self._post(wanted.link, ONE_CLICK_FORM)
        except Unreached as error:
            raise Fatal(f"You are still subscribed: {error.message}. Nothing was sent; retry it later.") from error
        except PostroomError as error:
            raise Fatal(f"{_unclear(wanted.host)} ({error.message})") from error
        if not 200 <= status < 300:
            raise Fatal(
                f"{wanted.host} did not accept the request (status {status}). Open the unsubscribe link of the message "
                "in a browser instead."
            )
        return status


def one_click(headers: Headers, servers: Collection[str]) -> OneClick:
    """The request that a message offers; Fatal says why there is none."""
    offer = unsubscribe_offer(headers, servers)
    if offer is None:
        raise Fatal("The message has no List-Unsubscribe header that can be used.")
    if offer.way is not UnsubscribeWay.ONE_CLICK or offer.link is None:
        reason = offer.obstacle or "the list does not offer it"
        raise Fatal(f"The message cannot be unsubscribed with one click: {reason}.")
    return OneClick(offer.link, sender_of(headers))


def sender_of(headers: Headers) -> str:
    """The one sender, in its compared form; of several the first, and empty if there is none."""
    senders = parse_addresses(*headers.get_all("From"))
    return senders[0].canonical if senders else ""


def _unclear(host: str) -> str:
    return (
        f"It is not known whether {host} received the request to unsubscribe you. It was not repeated. See whether "
        "mail still comes; to ask again, retry it."
    )


def _archive_key(tx: Tx, action: Action) -> str | None:
    return tx.execute(select(messages.c.archive_key).where(messages.c.id == action.message_id)).scalar()


def _complete(tx: Tx, context: JobContext, action: Action, account: Account, wanted: OneClick) -> Json:
    now = context.queue.clock.now()
    hint = irreversible(action.type, host=wanted.host)
    if not running.finish(tx, context.queue, action, S.COMPLETED, now, undo_hint=hint, error=None):
        return {"outcome": "it was ended by another process meanwhile"}
    by = action.answered_by or action.wanted_by
    way = UnsubscribeWay.ONE_CLICK
    record_unsubscription(tx, Unsubscription(account.email, wanted.sender, way, now, by, action.id))
    after = {"host": wanted.host, "sender": wanted.sender}
    audit.record(tx, SYSTEM, "unsubscribe.done", ("action", action.id), now, after=after)
    return {"outcome": "completed"}
