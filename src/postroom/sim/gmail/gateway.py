"""Handles one API call (token, scope, fault, quota, handler), has the table of methods with paths and prices, and
charges each call in quota units over a sliding minute.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from datetime import timedelta
from urllib.parse import unquote

from postroom.domain.clock import Clock
from postroom.mailboxes.gmail.methods import MINUTE_S, GmailMethod, QuotaProfile
from postroom.sim.gmail import api_errors, oauth
from postroom.sim.gmail.call import ApiCall, ApiRoute, Handler, Json, MailboxState
from postroom.sim.gmail.faults import Faults, FaultsOfCall, GmailFault
from postroom.sim.gmail.methods import account, messages
from postroom.sim.gmail.methods import account as labels
from postroom.sim.gmail.methods import messages as drafts
from postroom.sim.gmail.methods import messages as threads
from postroom.sim.gmail.oauth import Grants
from postroom.sim.serving import SimReply, SimRequest, json_reply


@dataclass(frozen=True)
class QuotaLimits:
    """What an account may use. The default is no limit at all, for measuring clients and not the service."""

    profile: QuotaProfile | None = None
    requests_in_flight: int | None = None
    batch_parts_at_once: int | None = None
    """The parts of a batch run together; those beyond this many are refused one by one."""
    service_time_s: float = 0.0
    """How long every request takes. Without it answers are instant, and requests hardly ever meet in flight."""


@dataclass
class QuotaTally:
    """What the stand-in saw since it started, or since the counters were set back."""

    calls: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    requests: int = 0
    batches: int = 0
    units: int = 0
    throttled: int = 0
    max_in_flight: int = 0
    most_units_in_a_minute: int = 0


class QuotaMeter:
    def __init__(self, limits: QuotaLimits, clock: Clock) -> None:
        self.limits = limits
        self.tally = QuotaTally()
        self._clock = clock
        self._spent: deque[tuple[float, int]] = deque()
        self._in_window = 0
        self._in_flight = 0

    @property
    def in_flight(self) -> int:
        return self._in_flight

    def enter(self) -> None:
        """A request begins. Every enter is followed by one leave, also where this refuses."""
        self._in_flight += 1
        self.tally.requests += 1
        self.tally.max_in_flight = max(self.tally.max_in_flight, self._in_flight)

    def leave(self) -> None:
        self._in_flight -= 1

    def check_in_flight(self) -> None:
        if self.limits.requests_in_flight is not None and self._in_flight > self.limits.requests_in_flight:
            self.tally.throttled += 1
            raise api_errors.too_many_in_flight()

    def check_batch_part(self, number: int) -> None:
        if self.limits.batch_parts_at_once is not None and number >= self.limits.batch_parts_at_once:
            self.tally.throttled += 1
            raise api_errors.too_many_in_flight()

    def charge(self, method: GmailMethod) -> None:
        """Take the units of one call, or refuse it; a refused call takes none."""
        profile = self.limits.profile
        if profile is None:
            return
        now, cost = self._clock.monotonic(), profile.cost(method)
        while self._spent and self._spent[0][0] <= now - MINUTE_S:
            self._in_window -= self._spent.popleft()[1]
        if self._in_window + cost > profile.units_per_minute:
            self.tally.throttled += 1
            raise api_errors.over_quota(self._time_with_room_for(cost, profile.units_per_minute, now))
        self._spent.append((now, cost))
        self._in_window += cost
        self.tally.units += cost
        self.tally.most_units_in_a_minute = max(self.tally.most_units_in_a_minute, self._in_window)

    def _time_with_room_for(self, cost: int, allowed: int, now: float) -> str:
        free, wait = allowed - self._in_window, 0.0
        for spent_at, units in self._spent:
            if free >= cost:
                break
            free, wait = free + units, spent_at + MINUTE_S - now
        return (self._clock.now() + timedelta(seconds=wait)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _route(
    verb: str, template: str, allowed: frozenset[str], method: GmailMethod, handler: Handler, name: str = ""
) -> ApiRoute:
    return ApiRoute(name or str(method), verb, template, allowed, method, handler)


def _thread_route(verb: str, template: str, allowed: frozenset[str], name: str, handler: Handler) -> ApiRoute:
    """The price list has no line for changes to threads; they are charged like reading one."""
    return _route(verb, template, allowed, GmailMethod.THREADS_GET, handler, name)


ROUTES = (
    _route("GET", "profile", oauth.TO_SEE_PROFILE, GmailMethod.GET_PROFILE, account.get_profile),
    _route("POST", "watch", oauth.TO_READ, GmailMethod.WATCH, account.watch),
    _route("POST", "stop", oauth.TO_READ, GmailMethod.STOP, account.stop),
    _route("GET", "history", oauth.TO_READ, GmailMethod.HISTORY_LIST, account.list_history),
    _route("GET", "messages", oauth.TO_READ, GmailMethod.MESSAGES_LIST, messages.list_messages),
    _route("POST", "messages", oauth.TO_INSERT, GmailMethod.MESSAGES_INSERT, messages.insert_message),
    _route("POST", "messages/import", oauth.TO_INSERT, GmailMethod.MESSAGES_IMPORT, messages.import_message),
    _route("POST", "messages/send", oauth.TO_SEND, GmailMethod.MESSAGES_SEND, messages.send_message),
    _route("POST", "messages/batchModify", oauth.TO_CHANGE, GmailMethod.MESSAGES_BATCH_MODIFY, messages.batch_modify),
    _route("POST", "messages/batchDelete", oauth.TO_ERASE, GmailMethod.MESSAGES_BATCH_DELETE, messages.batch_delete),
    _route("GET", "messages/*", oauth.TO_READ, GmailMethod.MESSAGES_GET, messages.get_message),
    _route("DELETE", "messages/*", oauth.TO_ERASE, GmailMethod.MESSAGES_DELETE, messages.delete_message),
    _route("POST", "messages/*/modify", oauth.TO_CHANGE, GmailMethod.MESSAGES_MODIFY, messages.modify_message),
    _route("POST", "messages/*/trash", oauth.TO_CHANGE, GmailMethod.MESSAGES_TRASH, messages.trash_message),
    _route("POST", "messages/*/untrash", oauth.TO_CHANGE, GmailMethod.MESSAGES_UNTRASH, messages.untrash_message),
    _route(
        "GET", "messages/*/attachments/*", oauth.TO_READ_BODIES, GmailMethod.ATTACHMENTS_GET, messages.get_attachment
    ),
    _route("GET", "threads", oauth.TO_READ, GmailMethod.THREADS_LIST, threads.list_threads),
    _route("GET", "threads/*", oauth.TO_READ, GmailMethod.THREADS_GET, threads.get_thread),
    _thread_route("POST", "threads/*/modify", oauth.TO_CHANGE, "threads.modify", threads.modify_thread),
    _thread_route("POST", "threads/*/trash", oauth.TO_CHANGE, "threads.trash", threads.trash_thread),
    _thread_route("POST", "threads/*/untrash", oauth.TO_CHANGE, "threads.untrash", threads.untrash_thread),
    _thread_route("DELETE", "threads/*", oauth.TO_ERASE, "threads.delete", threads.delete_thread),
    _route("GET", "labels", oauth.TO_SEE_LABELS, GmailMethod.LABELS_LIST, labels.list_labels),
    _route("POST", "labels", oauth.TO_CHANGE_LABELS, GmailMethod.LABELS_CREATE, labels.create_label),
    _route("GET", "labels/*", oauth.TO_SEE_LABELS, GmailMethod.LABELS_GET, labels.get_label),
    _route("PUT", "labels/*", oauth.TO_CHANGE_LABELS, GmailMethod.LABELS_UPDATE, labels.update_label),
    _route("PATCH", "labels/*", oauth.TO_CHANGE_LABELS, GmailMethod.LABELS_PATCH, labels.patch_label),
    _route("DELETE", "labels/*", oauth.TO_CHANGE_LABELS, GmailMethod.LABELS_DELETE, labels.delete_label),
    _route("GET", "drafts", oauth.TO_SEE_DRAFTS, GmailMethod.DRAFTS_LIST, drafts.list_drafts),
    _route("POST", "drafts", oauth.TO_COMPOSE, GmailMethod.DRAFTS_CREATE, drafts.create_draft),
    _route("POST", "drafts/send", oauth.TO_COMPOSE, GmailMethod.DRAFTS_SEND, drafts.send_draft),
    _route("GET", "drafts/*", oauth.TO_SEE_DRAFTS, GmailMethod.DRAFTS_GET, drafts.get_draft),
    _route("PUT", "drafts/*", oauth.TO_COMPOSE, GmailMethod.DRAFTS_UPDATE, drafts.update_draft),
    _route("DELETE", "drafts/*", oauth.TO_COMPOSE, GmailMethod.DRAFTS_DELETE, drafts.delete_draft),
)


def _table() -> dict[tuple[str, int], list[tuple[tuple[str, ...], ApiRoute]]]:
    table: defaultdict[tuple[str, int], list[tuple[tuple[str, ...], ApiRoute]]] = defaultdict(list)
    for route in ROUTES:
        parts = tuple(route.template.split("/"))
        table[route.verb, len(parts)].append((parts, route))
    for candidates in table.values():
        candidates.sort(key=lambda candidate: "*" in candidate[0])
    return dict(table)


_TABLE = _table()


def find_route(verb: str, path: str) -> tuple[ApiRoute, tuple[str, ...]] | None:
    """The method for a path below `users/{userId}/`, and the ids in it."""
    parts = path.split("/")
    for template, route in _TABLE.get((verb, len(parts)), ()):
        if all(expected in ("*", given) for expected, given in zip(template, parts, strict=True)):
            return route, tuple(unquote(part) for part, kind in zip(parts, template, strict=True) if kind == "*")
    return None


_PREFIX = "/gmail/v1/users/"
_UPLOAD_PREFIX = "/upload"


class Gateway:
    def __init__(self, box: MailboxState, grants: Grants, meter: QuotaMeter, faults: Faults) -> None:
        self.box = box
        self.meter = meter
        self.faults = faults
        self._grants = grants

    def authenticate(self, request: SimRequest) -> frozenset[str]:
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer":
            raise api_errors.unauthenticated()
        return self._grants.check(token.strip()).scopes

    def admit(self, request: SimRequest) -> ApiCall:
        """The call that a request makes, if this caller may make it at all."""
        is_upload = request.path.startswith(_UPLOAD_PREFIX)
        user, _, path = request.path.removeprefix(_UPLOAD_PREFIX).removeprefix(_PREFIX).partition("/")
        found = find_route(request.verb, path)
        if found is None:
            raise api_errors.not_found(f"There is no method {request.verb} {request.path[:100]} here.")
        route, ids = found
        granted = self.authenticate(request)
        self._check_user(user)
        if not granted & route.scopes:
            raise api_errors.insufficient_scope()
        self.meter.tally.calls[route.name] += 1
        content_type = request.headers.get("content-type", "")
        return ApiCall(route, ids, request.query_string, request.body, content_type, granted, is_upload)

    def trouble_for(self, call: ApiCall, *, in_batch: bool = False) -> FaultsOfCall:
        return self.faults.strike(call.route.name, call.ids[0] if call.ids else None, in_batch=in_batch)

    def carry_out(self, call: ApiCall, fault: GmailFault | None = None) -> SimReply:
        """Charge the call, do it, and answer; a fault in the history shows in the answer."""
        self.meter.charge(call.route.charged_as)
        result = call.route.handler(self.box, call)
        if result is None:
            return SimReply(204)
        return json_reply(result if fault is None else _with_history_of(result, fault))

    def refuse(self, error: api_errors.ApiError) -> SimReply:
        self.meter.tally.errors[f"{error.code} {error.reason}"] += 1
        return refusal(error)

    def _check_user(self, user: str) -> None:
        if user != "me" and user.lower().replace("%40", "@") != self.box.store.email.lower():
            raise api_errors.ApiError(403, "forbidden", f"Delegation denied for {self.box.store.email}")


def refusal(error: api_errors.ApiError) -> SimReply:
    retry = () if error.retry_after_s is None else (("Retry-After", str(error.retry_after_s)),)
    return SimReply(error.code, error.body(), headers=retry)


def _with_history_of(result: Json, fault: GmailFault) -> Json:
    history = result.get("history")
    if not isinstance(history, list):
        return result
    if fault.kind == "duplicate_history":
        return result | {"history": [record for record in history for _ in range(2)]}
    return result | {"history": history[::-1]} if fault.kind == "reorder_history" else result
