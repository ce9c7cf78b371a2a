"""The rows of local triage: what each account has learned, its examples and labels, and its rights.

A label gets the next number of its account in the transaction that brings it. A process that knows labels up to a
number reads those after it, so that a correction counts for the next message in every process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import Row, delete, func, select, update

from postroom.db import Tx
from postroom.db.database import insert
from postroom.db.tables.learning import learned_examples, learned_rights, learners
from postroom.domain.ids import new_id
from postroom.domain.money import Micros
from postroom.triage.learning.features import Features, unpack
from postroom.triage.learning.learner import Calibration, Label, Learned, LinearModel
from postroom.triage.learning.rights import Right, RightState, hides

MOST_EXAMPLES = 20_000
"""Labels of an account that are kept; older ones are forgotten by the next fit."""
_UNLABELLED_KEPT = timedelta(days=90)


NOTHING_SPENT = Micros(0)


class LabelSource(StrEnum):
    MODEL = "model"
    OWNER = "owner"


@dataclass(frozen=True, slots=True)
class LearnerState:
    """The row of an account, without the weights."""

    key_id: str
    teacher: str | None
    last_seq: int = 0
    fitted_seq: int = 0
    fitted_at: datetime | None = None
    asked: int = 0
    asked_cost: Micros = NOTHING_SPENT
    verdicts_until: str | None = None

    @property
    def cost_of_asking(self) -> Micros:
        """What the model's decision about a message costs on average."""
        return Micros(self.asked_cost // self.asked) if self.asked else Micros(0)


@dataclass(frozen=True, slots=True)
class NewExample:
    account_id: str
    message_id: str
    features: Features
    kind: int | None
    is_teachable: bool
    guess: str | None
    confidence: float | None
    held_out: bool
    labels_then: Sequence[str]


_STATE = [column for column in learners.c if column.name not in ("model", "calibration")]


def find_learner(tx: Tx, account_id: str) -> LearnerState | None:
    row = tx.execute(select(*_STATE).where(learners.c.account_id == account_id)).one_or_none()
    return None if row is None else _state(row)


def all_learners(tx: Tx) -> dict[str, LearnerState]:
    return {row.account_id: _state(row) for row in tx.execute(select(*_STATE).order_by(learners.c.account_id))}


def _state(row: Row[Any]) -> LearnerState:
    return LearnerState(
        row.key_id,
        row.teacher,
        row.last_seq,
        row.fitted_seq,
        row.fitted_at,
        row.asked,
        Micros(row.asked_microdollars),
        row.verdicts_until,
    )


def load_learned(tx: Tx, account_id: str) -> Learned:
    """As it was last fitted."""
    query = select(learners.c.model, learners.c.calibration, learners.c.fitted_seq)
    row = tx.execute(query.where(learners.c.account_id == account_id)).one_or_none()
    if row is None or row.model is None:
        return Learned()
    return Learned(LinearModel.from_bytes(row.model), Calibration.from_json(row.calibration), row.fitted_seq)


def open_learner(tx: Tx, account_id: str, key_id: str, teacher: str | None, now: datetime) -> None:
    """Make the account's row if it has none. Under another key nothing that was learned can be recognised, and it is
    forgotten; with another teacher every right has to be earned anew."""
    row = {"account_id": account_id, "key_id": key_id, "teacher": teacher, "verdicts_until": new_id()}
    new = insert(tx, learners).values(row)
    tx.execute(new.on_conflict_do_nothing(index_elements=["account_id"]))
    state = find_learner(tx, account_id)
    if state is not None and state.key_id != key_id:
        forget(tx, account_id)
        tx.execute(new)
    elif state is not None and teacher is not None and state.teacher != teacher:
        tx.execute(update(learners).where(learners.c.account_id == account_id).values(teacher=teacher))
        back = {"state": RightState.SHADOW, "recent": "", "since": now}
        tx.execute(update(learned_rights).where(learned_rights.c.account_id == account_id).values(**back))


def forget(tx: Tx, account_id: str) -> None:
    """Everything that was learned for the account."""
    for table in (learned_examples, learned_rights, learners):
        tx.execute(delete(table).where(table.c.account_id == account_id))


def labels_after(tx: Tx, account_id: str, seq: int) -> list[Label]:
    """In the order in which they came."""
    columns = learned_examples.c
    query = select(columns.seq, columns.facts, columns.answer, columns.source)
    query = query.where(columns.account_id == account_id, columns.seq > seq).order_by(columns.seq)
    return [Label(row.seq, unpack(row.facts), row.answer, row.source == LabelSource.OWNER) for row in tx.execute(query)]


def count_kind(tx: Tx, account_id: str, kind: int | None, answer: str, most: int) -> int:
    """How often mail of this authenticated domain got this answer, counted up to `most`."""
    if kind is None:
        return 0
    columns = learned_examples.c
    some = select(columns.id).where(columns.account_id == account_id, columns.kind == kind, columns.answer == answer)
    return int(tx.execute(select(func.count()).select_from(some.limit(most).subquery())).scalar_one())


def add_example(tx: Tx, example: NewExample, now: datetime) -> str | None:
    """Its id; None if the message was considered before."""
    row = {
        "id": new_id(),
        "account_id": example.account_id,
        "message_id": example.message_id,
        "facts": example.features.pack(),
        "kind": example.kind,
        "teachable": example.is_teachable,
        "guess": example.guess,
        "confidence": example.confidence,
        "held_out": example.held_out,
        "labels_then": list(example.labels_then),
        "created_at": now,
    }
    written = insert(tx, learned_examples).values(row).on_conflict_do_nothing(index_elements=["message_id"])
    found = tx.execute(written.returning(learned_examples.c.id)).first()
    return None if found is None else str(found.id)


def label_example(tx: Tx, account_id: str, example_id: str, answer: str, source: LabelSource) -> None:
    seq = update(learners).where(learners.c.account_id == account_id).values(last_seq=learners.c.last_seq + 1)
    number = tx.execute(seq.returning(learners.c.last_seq)).scalar_one()
    change = update(learned_examples).where(learned_examples.c.id == example_id, learned_examples.c.teachable)
    tx.execute(change.values(answer=answer, source=source, seq=number))


def label_by_owner(tx: Tx, message_id: str, answer: str) -> bool:
    """What the owner wants done with a message. False if nothing may be learned from it, or it is known already."""
    columns = learned_examples.c
    query = select(columns.id, columns.account_id, columns.answer, columns.source, columns.teachable)
    row = tx.execute(tx.locking(query.where(columns.message_id == message_id))).one_or_none()
    if row is None or not row.teachable or (row.answer == answer and row.source == LabelSource.OWNER):
        return False
    label_example(tx, row.account_id, row.id, answer, LabelSource.OWNER)
    return True


def right_to(tx: Tx, account_id: str, answer: str) -> Right:
    mine = (learned_rights.c.account_id == account_id) & (learned_rights.c.answer == answer)
    row = tx.execute(select(learned_rights.c.state, learned_rights.c.recent).where(mine)).one_or_none()
    return Right() if row is None else Right(RightState(row.state), row.recent)


def compare(tx: Tx, account_id: str, answer: str, agreed: bool, now: datetime) -> Right:
    """Count one held-out comparison, and give the right as it stands after it."""
    _ensure_right(tx, account_id, answer, now)
    mine = (learned_rights.c.account_id == account_id) & (learned_rights.c.answer == answer)
    row = tx.execute(tx.locking(select(learned_rights).where(mine))).one()
    before = Right(RightState(row.state), row.recent)
    after = before.after(agreed, hides=hides(answer))
    total, different = ("checked", "check_differed") if before.may_decide else ("compared", "differed")
    values: dict[str, Any] = {
        "state": after.state,
        "recent": after.recent,
        total: row._mapping[total] + 1,
        different: row._mapping[different] + (not agreed),
    }
    if after.state is not before.state:
        values["since"] = now
    tx.execute(update(learned_rights).where(mine).values(**values))
    return after


def count_decided(tx: Tx, account_id: str, answer: str, saved: Micros, now: datetime) -> None:
    _ensure_right(tx, account_id, answer, now)
    mine = (learned_rights.c.account_id == account_id) & (learned_rights.c.answer == answer)
    more = {
        "decided": learned_rights.c.decided + 1,
        "saved_microdollars": learned_rights.c.saved_microdollars + saved,
    }
    tx.execute(update(learned_rights).where(mine).values(**more))


def count_asked(tx: Tx, account_id: str, cost: Micros) -> None:
    more = {"asked": learners.c.asked + 1, "asked_microdollars": learners.c.asked_microdollars + cost}
    tx.execute(update(learners).where(learners.c.account_id == account_id).values(**more))


def _ensure_right(tx: Tx, account_id: str, answer: str, now: datetime) -> None:
    row = {"account_id": account_id, "answer": answer, "state": RightState.SHADOW, "recent": "", "since": now}
    new = insert(tx, learned_rights).values(row)
    tx.execute(new.on_conflict_do_nothing(index_elements=["account_id", "answer"]))


def save_fit(tx: Tx, account_id: str, learned: Learned, now: datetime) -> None:
    """Replace the weights, and forget what is no longer needed. Labels that came meanwhile are read on top of it."""
    values = {
        "model": learned.model.to_bytes(),
        "calibration": learned.calibration.to_json(),
        "fitted_seq": learned.seq,
        "fitted_at": now,
    }
    tx.execute(update(learners).where(learners.c.account_id == account_id).values(**values))
    columns = learned_examples.c
    mine = columns.account_id == account_id
    newest = select(columns.seq).where(mine, columns.seq.is_not(None)).order_by(columns.seq.desc())
    oldest_kept = tx.execute(newest.offset(MOST_EXAMPLES - 1).limit(1)).scalar()
    if oldest_kept is not None:
        tx.execute(delete(learned_examples).where(mine, columns.seq < oldest_kept))
    old = columns.seq.is_(None) & (columns.created_at < now - _UNLABELLED_KEPT)
    tx.execute(delete(learned_examples).where(mine, old))
