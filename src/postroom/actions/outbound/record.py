"""How far the sending of an action's mail has come, in the control database, and whom a mailbox answered of late."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from sqlalchemy import delete, select, update

from postroom.actions.outbound.loop_guard import folded
from postroom.db import Tx
from postroom.db.tables.actions import auto_replies, outbound
from postroom.gmail.resources import Draft

ONE_REPLY_IN = timedelta(hours=24)


class Stage(StrEnum):
    COMPOSING = "composing"
    """A draft may be there, but none is on record: nothing can have been sent."""
    DRAFTED = "drafted"
    SENDING = "sending"
    """From here on it may have been sent."""
    SENT = "sent"
    UNCLEAR = "unclear"
    """The draft is gone and no sent message was found: a person has to look."""
    GIVEN_UP = "given_up"
    """Refused before there was a draft."""


@dataclass(frozen=True, slots=True)
class Outbound:
    action_id: str
    stage: Stage
    draft_id: str | None
    thread_id: str | None
    """Of the draft, in which its sent message will be."""
    sent_message_id: str | None
    created_at: datetime


def find(tx: Tx, action_id: str) -> Outbound | None:
    row = tx.execute(select(outbound).where(outbound.c.action_id == action_id)).one_or_none()
    if row is None:
        return None
    return Outbound(
        row.action_id, Stage(row.state), row.draft_id, row.draft_thread_id, row.sent_message_id, row.created_at
    )


def begin(tx: Tx, action_id: str, now: datetime) -> None:
    """Before the first call: from here on a draft of this action may exist."""
    row = {"action_id": action_id, "state": Stage.COMPOSING, "created_at": now, "updated_at": now}
    tx.insert_missing(outbound, row)
    _advance(tx, action_id, {Stage.GIVEN_UP, Stage.COMPOSING}, Stage.COMPOSING, now)


def drafted(tx: Tx, action_id: str, draft: Draft, now: datetime) -> bool:
    """This draft, and no other, will be sent."""
    values = {
        "draft_id": draft.id,
        "draft_message_id": draft.message.id,
        "draft_thread_id": draft.message.thread_id or None,
    }
    return _advance(tx, action_id, {Stage.COMPOSING}, Stage.DRAFTED, now, **values)


def sending(tx: Tx, action_id: str, now: datetime) -> bool:
    return _advance(tx, action_id, {Stage.DRAFTED, Stage.SENDING, Stage.UNCLEAR}, Stage.SENDING, now)


def sent(tx: Tx, action_id: str, sent_message_id: str, now: datetime) -> None:
    open_stages = {Stage.DRAFTED, Stage.SENDING, Stage.UNCLEAR}
    _advance(tx, action_id, open_stages, Stage.SENT, now, sent_message_id=sent_message_id)


def unclear(tx: Tx, action_id: str, now: datetime) -> None:
    _advance(tx, action_id, {Stage.DRAFTED, Stage.SENDING, Stage.UNCLEAR}, Stage.UNCLEAR, now)


def give_up(tx: Tx, action_id: str, now: datetime) -> None:
    """Where there is no draft yet, it ends here, and whoever would have been answered may be answered later."""
    if _advance(tx, action_id, {Stage.COMPOSING}, Stage.GIVEN_UP, now):
        tx.execute(delete(auto_replies).where(auto_replies.c.action_id == action_id))


def _advance(tx: Tx, action_id: str, from_: Collection[Stage], to: Stage, now: datetime, **values: str | None) -> bool:
    here = (outbound.c.action_id == action_id) & outbound.c.state.in_(sorted(from_))
    return tx.execute(update(outbound).where(here).values(state=to, updated_at=now, **values)).rowcount == 1


def take_turn(tx: Tx, account_id: str, action_id: str, addresses: Collection[str], now: datetime) -> str | None:
    """Note that this action answers these addresses; the one that was answered within a day already, if any.

    The note comes before the reply, so that two actions at once cannot both be first.
    """
    keys = sorted({folded(each) for each in addresses})
    mine = {"account_id": account_id, "action_id": action_id, "replied_at": now}
    tx.insert_missing(auto_replies, *({**mine, "address": key} for key in keys))
    here = (auto_replies.c.account_id == account_id) & auto_replies.c.address.in_(keys)
    for row in tx.execute(tx.locking(select(auto_replies).where(here).order_by(auto_replies.c.address))).all():
        if row.action_id != action_id and row.replied_at > now - ONE_REPLY_IN:
            tx.execute(delete(auto_replies).where(auto_replies.c.action_id == action_id))
            return str(row.address)
    tx.execute(update(auto_replies).where(here).values(action_id=action_id, replied_at=now))
    return None
