"""The way of one API call: who calls, may he, does it go wrong on purpose, is there quota, what is the answer."""

from __future__ import annotations

from postroom.gmail.sim.call import Call, Json
from postroom.gmail.sim.errors import ApiError, insufficient_scope, not_found, unauthenticated
from postroom.gmail.sim.faults import Fault, Faults, Trouble
from postroom.gmail.sim.grants import Grants
from postroom.gmail.sim.http import Reply, Request, json_reply
from postroom.gmail.sim.mailbox_state import MailboxState
from postroom.gmail.sim.meter import Meter
from postroom.gmail.sim.routes import find_route

_PREFIX = "/gmail/v1/users/"
_UPLOAD_PREFIX = "/upload"


class Gateway:
    def __init__(self, box: MailboxState, grants: Grants, meter: Meter, faults: Faults) -> None:
        self.box = box
        self.meter = meter
        self.faults = faults
        self._grants = grants

    def authenticate(self, request: Request) -> frozenset[str]:
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer":
            raise unauthenticated()
        return self._grants.check(token.strip()).scopes

    def admit(self, request: Request) -> Call:
        """The call that a request makes, if this caller may make it at all."""
        is_upload = request.path.startswith(_UPLOAD_PREFIX)
        user, _, path = request.path.removeprefix(_UPLOAD_PREFIX).removeprefix(_PREFIX).partition("/")
        found = find_route(request.verb, path)
        if found is None:
            raise not_found(f"There is no method {request.verb} {request.path[:100]} here.")
        route, ids = found
        granted = self.authenticate(request)
        self._check_user(user)
        if not granted & route.scopes:
            raise insufficient_scope()
        self.meter.tally.calls[route.name] += 1
        content_type = request.headers.get("content-type", "")
        return Call(route, ids, request.query_string, request.body, content_type, granted, is_upload)

    def trouble_for(self, call: Call, *, in_batch: bool = False) -> Trouble:
        return self.faults.strike(call.route.name, call.ids[0] if call.ids else None, in_batch=in_batch)

    def carry_out(self, call: Call, fault: Fault | None = None) -> Reply:
        """Charge the call, do it, and answer; a fault in the history shows in the answer."""
        self.meter.charge(call.route.charged_as)
        result = call.route.handler(self.box, call)
        if result is None:
            return Reply(204)
        return json_reply(result if fault is None else _with_history_of(result, fault))

    def refuse(self, error: ApiError) -> Reply:
        self.meter.tally.errors[f"{error.code} {error.reason}"] += 1
        return refusal(error)

    def _check_user(self, user: str) -> None:
        if user != "me" and user.lower().replace("%40", "@") != self.box.store.email.lower():
            raise ApiError(403, "forbidden", f"Delegation denied for {self.box.store.email}")


def refusal(error: ApiError) -> Reply:
    retry = () if error.retry_after_s is None else (("Retry-After", str(error.retry_after_s)),)
    return Reply(error.code, error.body(), headers=retry)


def _with_history_of(result: Json, fault: Fault) -> Json:
    history = result.get("history")
    if not isinstance(history, list):
        return result
    if fault.kind == "duplicate_history":
        return result | {"history": [record for record in history for _ in range(2)]}
    return result | {"history": history[::-1]} if fault.kind == "reorder_history" else result
