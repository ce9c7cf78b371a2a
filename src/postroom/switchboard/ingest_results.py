"""What becomes of an envelope: taken in, refused for now, or rejected; and how that is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from postroom.domain.errors import PostroomError
from postroom.domain.refusals import to_wire
from postroom.switchboard.backfill.admission import Admission
from postroom.switchboard.instruments import Outcome


@dataclass(frozen=True, slots=True)
class Accepted:
    request_id: str
    duplicate: bool
    account_id: str | None = None
    """Told with what is new, for a connector's metrics: they name no mailbox by its address."""

    def answer(self) -> dict[str, Any]:
        account = {} if self.account_id is None else {"account_id": self.account_id}
        return {"request_id": self.request_id, "status": "accepted", "duplicate": self.duplicate, **account}


@dataclass(frozen=True, slots=True)
class Refused:
    """Right, but not now: the job that brings it may bring no more, for a while or at all."""

    admission: Admission

    def answer(self) -> dict[str, Any]:
        said = self.admission
        why = {"reason": said.verdict, "message": said.reason, "retry_after": said.retry_after}
        return {"request_id": None, "status": "refused", "duplicate": False, "job_status": said.status, **why}


@dataclass(frozen=True, slots=True)
class Rejected:
    error: PostroomError

    def answer(self) -> dict[str, Any]:
        return {"request_id": None, "status": "rejected", "duplicate": False, **to_wire(self.error)}


Result = Accepted | Refused | Rejected


def outcome_of(result: Result) -> Outcome:
    match result:
        case Accepted(duplicate=True):
            return Outcome.DUPLICATE
        case Accepted():
            return Outcome.ACCEPTED
        case Refused():
            return Outcome.REFUSED
        case Rejected():
            return Outcome.REJECTED
