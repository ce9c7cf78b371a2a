"""The rows of local triage: what each account has learned, its examples and labels, and its rights.

A label gets the next number of its account in the transaction that brings it. A process that knows labels up to a
number reads those after it, so that a correction counts for the next message in every process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cache
from typing import Any

from sqlalchemy import Row, bindparam, delete, func, select, update

from postroom.db import Dialect, Prepared, Tx
from postroom.db.database import insert_for
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


# Made once: to build a statement takes longer than to run it.
_STATE = [column for column in learners.c if column.name not in ("model", "calibration")]
_MINE = learners.c.account_id == bindparam("account")
_FIND = Prepared(select(*_STATE).where(_MINE))
_LOAD = Prepared(select(learners.c.model, learners.c.calibration, learners.c.fitted_seq).where(_MINE))
_NEXT_SEQ = Prepared(
    update(learners).where(_MINE).values(last_seq=learners.c.last_seq + 1).returning(learners.c.last_seq)
)
_COUNT_ASKED = Prepared(
    update(learners)
    .where(_MINE)
    .values(
        asked=learners.c.asked + 1,
        asked_microdollars=learners.c.asked_microdollars + bindparam("cost"),
    )
)
_EXAMPLES = learned_examples.c
_LABELS_AFTER = Prepared(
    select(_EXAMPLES.seq, _EXAMPLES.facts, _EXAMPLES.answer, _EXAMPLES.source)
    .where(_EXAMPLES.account_id == bindparam("account"), _EXAMPLES.seq > bindparam("after"))
    .order_by(_EXAMPLES.seq)
)
_OF_KIND = (
    select(_EXAMPLES.id)
    .where(_EXAMPLES.account_id == bindparam("account"), _EXAMPLES.kind == bindparam("the_kind"))
    .where(_EXAMPLES.answer == bindparam("the_answer"))
    .limit(bindparam("most"))
)
_COUNT_KIND = Prepared(select(func.count().label("number")).select_from(_OF_KIND.subquery()))
_LABEL = Prepared(update(learned_examples).where(_EXAMPLES.id == bindparam("the_example"), _EXAMPLES.teachable))
_RIGHT = (learned_rights.c.account_id == bindparam("account")) & (learned_rights.c.answer == bindparam("the_answer"))
_FIND_RIGHT = Prepared(select(learned_rights).where(_RIGHT))
_CHANGE_RIGHT = Prepared(update(learned_rights).where(_RIGHT))
_COUNT_DECIDED = Prepared(
    update(learned_rights)
    .where(_RIGHT)
    .values(
        decided=learned_rights.c.decided + 1,
        saved_microdollars=learned_rights.c.saved_microdollars + bindparam("saved"),
    )
)


@cache
def _add_learner(dialect: Dialect) -> Prepared:
    return Prepared(insert_for(dialect, learners).on_conflict_do_nothing(index_elements=["account_id"]))


@cache
def _add_example_once(dialect: Dialect) -> Prepared:
    once = insert_for(dialect, learned_examples).on_conflict_do_nothing(index_elements=["message_id"])
    return Prepared(once.returning(learned_examples.c.id))


@cache
def _add_right(dialect: Dialect) -> Prepared:
    return Prepared(insert_for(dialect, learned_rights).on_conflict_do_nothing(index_elements=["account_id", "answer"]))


def find_learner(tx: Tx, account_id: str) -> LearnerState | None:
    rows = tx.run(_FIND, {"account": account_id})
    return _state(rows[0]) if rows else None


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
    rows = tx.run(_LOAD, {"account": account_id})
    if not rows or rows[0].model is None:
        return Learned()
    [row] = rows
    return Learned(LinearModel.from_bytes(row.model), Calibration.from_json(row.calibration), row.fitted_seq)


def open_learner(tx: Tx, account_id: str, key_id: str, teacher: str | None, now: datetime) -> None:
    """Make the account's row if it has none. Under another key nothing that was learned can be recognised, and it is
    forgotten; with another teacher every right has to be earned anew."""
    row = {"account_id": account_id, "key_id": key_id, "teacher": teacher, "verdicts_until": new_id()}
    state = find_learner(tx, account_id)
    if state is None:
        tx.run(_add_learner(tx.dialect), row)
        state = find_learner(tx, account_id)
    if state is not None and state.key_id != key_id:
        forget(tx, account_id)
        tx.run(_add_learner(tx.dialect), row)
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
    rows = tx.run(_LABELS_AFTER, {"account": account_id, "after": seq})
    return [Label(row.seq, unpack(row.facts), row.answer, row.source == LabelSource.OWNER) for row in rows]


def count_kind(tx: Tx, account_id: str, kind: int | None, answer: str, most: int) -> int:
    """How often mail of this authenticated domain got this answer, counted up to `most`."""
    if kind is None:
        return 0
    which = {"account": account_id, "the_kind": kind, "the_answer": answer, "most": most}
    [row] = tx.run(_COUNT_KIND, which)
    return int(row.number)


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
    found = tx.run(_add_example_once(tx.dialect), row)
    return str(found[0].id) if found else None


def label_example(tx: Tx, account_id: str, example_id: str, answer: str, source: LabelSource) -> None:
    [row] = tx.run(_NEXT_SEQ, {"account": account_id})
    tx.run(_LABEL, {"the_example": example_id, "answer": answer, "source": source, "seq": row.last_seq})


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
    rows = tx.run(_FIND_RIGHT, {"account": account_id, "the_answer": answer})
    return Right(RightState(rows[0].state), rows[0].recent) if rows else Right()


def compare(tx: Tx, account_id: str, answer: str, agreed: bool, now: datetime) -> Right:
    """Count one held-out comparison, and give the right as it stands after it."""
    _ensure_right(tx, account_id, answer, now)
    mine = {"account": account_id, "the_answer": answer}
    [row] = tx.run(_FIND_RIGHT, mine, lock=True)
    before = Right(RightState(row.state), row.recent)
    after = before.after(agreed, hides=hides(answer))
    total, different = ("checked", "check_differed") if before.may_decide else ("compared", "differed")
    values: dict[str, Any] = {
        "state": after.state,
        "recent": after.recent,
        total: getattr(row, total) + 1,
        different: getattr(row, different) + (not agreed),
    }
    if after.state is not before.state:
        values["since"] = now
    tx.run(_CHANGE_RIGHT, mine | values)
    return after


def count_decided(tx: Tx, account_id: str, answer: str, saved: Micros, now: datetime) -> None:
    _ensure_right(tx, account_id, answer, now)
    tx.run(_COUNT_DECIDED, {"account": account_id, "the_answer": answer, "saved": saved})


def count_asked(tx: Tx, account_id: str, cost: Micros) -> None:
    tx.run(_COUNT_ASKED, {"account": account_id, "cost": cost})


def _ensure_right(tx: Tx, account_id: str, answer: str, now: datetime) -> None:
    row = {"account_id": account_id, "answer": answer, "state": RightState.SHADOW, "recent": "", "since": now}
    tx.run(_add_right(tx.dialect), row)


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
