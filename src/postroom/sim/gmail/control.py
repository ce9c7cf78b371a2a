"""What a test may do outside the API: make things fail, deliver mail, and read the true state.

The same operations are methods here for tests in the same process, and JSON under `/_sim/` for other processes.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from itertools import islice

from pydantic import BaseModel, ConfigDict

from postroom.sim.gmail import oauth, raw_mail
from postroom.sim.gmail.api_errors import ApiError, invalid, not_found
from postroom.sim.gmail.call import MailboxState, SimWatch
from postroom.sim.gmail.faults import FaultRule, Faults
from postroom.sim.gmail.gateway import QuotaMeter, QuotaTally
from postroom.sim.gmail.mailbox_store import ListPlace
from postroom.sim.gmail.oauth import Grants
from postroom.sim.gmail.sources import MailSummary
from postroom.sim.serving import SimReply, SimRequest, json_reply

TOKEN_HEADER = "x-sim-control"  # noqa: S105 - the name of a header, not a secret
Json = dict[str, object]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Deliver(_Body):
    raw: str
    label_ids: list[str] = ["INBOX", "UNREAD"]
    thread_id: str | None = None
    internal_date: int | None = None
    category: str = ""


class _Clear(_Body):
    rule: int | None = None


class _Token(_Body):
    scopes: list[str] = sorted(oauth.ALL_SCOPES)
    lifetime_s: float | None = None


class _WhichToken(_Body):
    token: str | None = None


class _Skew(_Body):
    seconds: float


class _Truth(_Body):
    cursor: tuple[int, int, int] | None = None
    limit: int = 5000
    hashes: bool = True


@dataclass(frozen=True)
class SimState:
    """What was called, used and refused since the counters were set back, and where the mailbox stands."""

    calls: dict[str, int]
    """By method name; `batch` and `token` count requests."""
    errors: dict[str, int]
    """By status and reason, as in `429 rateLimitExceeded`."""
    requests: int
    batches: int
    units: int
    throttled: int
    max_in_flight: int
    most_units_in_a_minute: int
    in_flight: int
    fault_hits: dict[str, int]
    """By the number of the rule."""
    messages: int
    threads: int
    history_id: str
    watch: SimWatch | None


class SimControl:
    def __init__(self, box: MailboxState, grants: Grants, meter: QuotaMeter, faults: Faults) -> None:
        self._box = box
        self._grants = grants
        self._meter = meter
        self._faults = faults
        self.skew = timedelta()
        self.on_release: Callable[[], None] = lambda: None

    def add_fault(self, rule: FaultRule) -> int:
        """Arm a rule; the number is for `clear_faults`."""
        return self._faults.add(rule)

    def clear_faults(self, number: int | None = None) -> None:
        self._faults.clear(number)

    def release(self) -> None:
        """Break off every call that hangs."""
        self.on_release()

    def deliver(
        self,
        raw: bytes,
        label_ids: frozenset[str] = frozenset({"INBOX", "UNREAD"}),
        *,
        thread_id: str | None = None,
        internal_date: int | None = None,
        category: str = "",
    ) -> str:
        """Deliver new mail; returns its id."""
        self._box.store.labels.require(sorted(label_ids))
        mail = self._box.store.insert(
            raw, label_ids, internal_date=internal_date, thread_id=thread_id, category=category
        )
        return mail.id

    def delete_label(self, label_id: str) -> None:
        self._box.store.delete_label(label_id)

    def expire_history(self) -> None:
        self._box.store.history.expire()

    def expire_tokens(self, token: str | None = None) -> None:
        self._grants.expire_access(token)

    def revoke(self, token: str | None = None) -> None:
        """Take one grant back, or all of them."""
        if token is None:
            self._grants.revoke_all()
        else:
            self._grants.revoke(token)

    def new_token(self, granted: frozenset[str] = oauth.ALL_SCOPES, lifetime_s: float | None = None) -> str:
        return self._grants.allow(granted, lifetime_s)

    def skew_clock(self, seconds: float) -> None:
        """From now on, the `Date` header of every answer is off by this much."""
        self.skew = timedelta(seconds=seconds)

    def reset_counters(self) -> None:
        self._meter.tally = QuotaTally()

    def state(self) -> SimState:
        tally, store, watch = self._meter.tally, self._box.store, self._box.watch
        return SimState(
            calls=dict(tally.calls),
            errors=dict(tally.errors),
            requests=tally.requests,
            batches=tally.batches,
            units=tally.units,
            throttled=tally.throttled,
            max_in_flight=tally.max_in_flight,
            most_units_in_a_minute=tally.most_units_in_a_minute,
            in_flight=self._meter.in_flight,
            fault_hits=self._faults.hits(),
            messages=store.count,
            threads=store.thread_count,
            history_id=str(store.history.current),
            watch=watch,
        )

    def changes(self) -> list[Json]:
        """Everything that happened to the mailbox, in order and with its time, since the last expiry of history."""
        return [
            {"kind": each.kind, "id": each.message_id, "labels": list(each.changed), "at_ms": each.at_ms}
            for each in self._box.store.history.all()
        ]

    def truth(self, *, hashes: bool = True) -> Iterator[Json]:
        """Every message as it truly is, in listing order."""
        return (self._shown(mail, hashes) for _, mail in self._box.store.walk(None, None, None))

    def labels_of(self, message_id: str) -> frozenset[str]:
        """The names of the labels of a message."""
        book = self._box.store.labels
        return frozenset(book.get(label_id).name for label_id in self._box.store.get(message_id).label_ids)

    def raw(self, message_id: str) -> bytes:
        return self._box.store.raw(message_id)

    def truth_page(self, after: ListPlace | None, limit: int, *, hashes: bool) -> Json:
        found = list(islice(self._box.store.walk(None, None, after), limit))
        cursor = None
        if len(found) == limit:
            last = found[-1][0]
            cursor = [last.block, last.bucket, last.mix]
        return {"messages": [self._shown(mail, hashes) for _, mail in found], "cursor": cursor}

    def _shown(self, mail: MailSummary, hashes: bool) -> Json:
        shown: Json = {
            "id": mail.id,
            "thread_id": mail.thread_id,
            "label_ids": sorted(mail.label_ids),
            "internal_date": mail.internal_date,
            "category": mail.category,
        }
        if hashes:
            shown["sha256"] = hashlib.sha256(self._box.store.raw(mail.id)).hexdigest()
        return shown


class ControlEndpoint:
    """`/_sim/` over HTTP: only from this machine, only with the control token."""

    def __init__(self, control: SimControl, token: str) -> None:
        self._control = control
        self._token = token
        self._actions: dict[str, Callable[[bytes], object]] = {
            "state": lambda body: asdict(control.state()),
            "truth": self._truth,
            "changes": lambda body: {"changes": control.changes()},
            "faults": lambda body: {"rule": control.add_fault(FaultRule.model_validate_json(body))},
            "faults/clear": lambda body: control.clear_faults(_Clear.model_validate_json(body).rule),
            "release": lambda body: control.release(),
            "deliver": self._deliver,
            "history/expire": lambda body: control.expire_history(),
            "tokens": self._new_token,
            "tokens/expire": lambda body: control.expire_tokens(_WhichToken.model_validate_json(body).token),
            "tokens/revoke": lambda body: control.revoke(_WhichToken.model_validate_json(body).token),
            "skew": self._skew,
            "counters/reset": lambda body: control.reset_counters(),
        }

    def answer(self, request: SimRequest, caller: str) -> SimReply:
        if caller not in ("127.0.0.1", "::1"):
            raise ApiError(403, "forbidden", "The control endpoint answers on this machine only.")
        if not hmac.compare_digest(request.headers.get(TOKEN_HEADER, "").encode(), self._token.encode()):
            raise ApiError(401, "authError", f"The control endpoint needs its token in {TOKEN_HEADER}.")
        action = self._actions.get(request.path.removeprefix("/_sim/"))
        if action is None:
            raise not_found(f"There is nothing at {request.path[:100]}; known are {', '.join(self._actions)}.")
        try:
            return json_reply(action(request.body or b"{}") or {})
        except ValueError as error:
            raise invalid(str(error)) from None

    def _truth(self, body: bytes) -> Json:
        wanted = _Truth.model_validate_json(body)
        after = None if wanted.cursor is None else ListPlace(*wanted.cursor)
        return self._control.truth_page(after, max(1, wanted.limit), hashes=wanted.hashes)

    def _deliver(self, body: bytes) -> Json:
        mail = _Deliver.model_validate_json(body)
        message_id = self._control.deliver(
            raw_mail.decode_base64url(mail.raw),
            frozenset(mail.label_ids),
            thread_id=mail.thread_id,
            internal_date=mail.internal_date,
            category=mail.category,
        )
        return {"id": message_id}

    def _new_token(self, body: bytes) -> Json:
        wanted = _Token.model_validate_json(body)
        return {"token": self._control.new_token(frozenset(wanted.scopes), wanted.lifetime_s)}

    def _skew(self, body: bytes) -> None:
        self._control.skew_clock(_Skew.model_validate_json(body).seconds)
