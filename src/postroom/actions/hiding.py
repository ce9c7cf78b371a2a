"""What may be done without a person, decided in the transaction that begins the work, so that no two can pass together.

Mail that anything but the owner's rules takes out of sight is counted by account over the last hour, live mail and
mail of a backfill apart. It counts when its execution begins: undoing it, or its failure, gives nothing back within
the hour. Over the cap a person is asked. While the model is switched off, whatever it wanted asks too.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import delete, func, select

from postroom import kill_switch
from postroom.actions.store import Action
from postroom.db import Tx
from postroom.db.tables.actions import hides
from postroom.db.tables.mail import messages
from postroom.db.upsert import insert
from postroom.domain.actions import CONSEQUENCES, Consequence, Origin, consequence_of
from postroom.domain.errors import BadInput
from postroom.settings import SafetySettings

HOUR = timedelta(hours=1)
LIVE, BACKFILL = "live", "backfill"
_KEPT = timedelta(days=1)
_OF_THE_OWNER = frozenset({Origin.RULE, Origin.PERSON, Origin.UNDO})


def reason_to_ask(tx: Tx, action: Action, safety: SafetySettings, now: datetime) -> str | None:
    """Why a person has to be asked before this action begins; None: it may begin, and counts from now on."""
    if action.origin in _OF_THE_OWNER or action.answered_by is not None:
        return None
    switch = kill_switch.model_switch(tx)
    if action.origin is Origin.MODEL and not switch.on:
        return f"the model is {switch.reason}, so nothing that it wanted is done unasked"
    if not hides_mail(action):
        return None
    return _count(tx, action, safety, now)


def hides_mail(action: Action) -> bool:
    """Whether it takes mail out of sight; what throws mail away does so all the more."""
    try:
        reach = consequence_of(action.wanted)
    except BadInput:
        reach = CONSEQUENCES[action.type]
    return reach in (Consequence.HIDES, Consequence.DESTROYS)


def hidden_since(tx: Tx, account_id: str, lane: str, since: datetime) -> int:
    counted = select(func.count()).select_from(hides)
    counted = counted.where(hides.c.account_id == account_id, hides.c.lane == lane, hides.c.at > since)
    return int(tx.execute(counted).scalar_one())


def _count(tx: Tx, action: Action, safety: SafetySettings, now: datetime) -> str | None:
    lane = _lane(tx, action)
    most = safety.hides_per_hour if lane == LIVE else safety.backfill_hides_per_hour
    if hidden_since(tx, action.account_id, lane, now - HOUR) >= most:
        return _too_many(lane, most)
    tx.lock_table(hides)
    if hidden_since(tx, action.account_id, lane, now - HOUR) >= most:
        return _too_many(lane, most)
    row = {"account_id": action.account_id, "lane": lane, "at": now}
    written = insert(tx, hides).values(action_id=action.id, **row)
    tx.execute(written.on_conflict_do_update(index_elements=[hides.c.action_id], set_=row))
    tx.execute(delete(hides).where(hides.c.account_id == action.account_id, hides.c.at <= now - _KEPT))
    return None


def _lane(tx: Tx, action: Action) -> str:
    job = tx.execute(select(messages.c.backfill_job_id).where(messages.c.id == action.message_id)).scalar()
    return LIVE if job is None else BACKFILL


def _too_many(lane: str, most: int) -> str:
    which, setting = ("", "hides_per_hour") if lane == LIVE else (" from a backfill", "backfill_hides_per_hour")
    messages_were = "1 message was" if most == 1 else f"{most} messages were"
    return (
        f"{messages_were} hidden{which} without a person in the last hour, and that is the limit (safety.{setting})"
        if most
        else f"no message{which} is hidden without a person (safety.{setting} is 0)"
    )
