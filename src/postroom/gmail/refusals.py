"""From an answer that is not a success to the error that says so: status, reason and headers in, an error out. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from postroom.domain.errors import PostroomError
from postroom.gmail.errors import (
    Gone,
    HistoryExpired,
    LoginNeeded,
    NotGmail,
    PermissionMissing,
    Refused,
    Throttled,
    Unavailable,
)
from postroom.gmail.permissions import least_scope
from postroom.gmail.quota import Method
from postroom.gmail.retry_after import retry_after
from postroom.telemetry import logs

_RATE_REASONS = frozenset(
    {
        "rateLimitExceeded",
        "userRateLimitExceeded",
        "quotaExceeded",
        "dailyLimitExceeded",
        "limitExceeded",
        "concurrentLimitExceeded",
        "RATE_LIMIT_EXCEEDED",
        "RESOURCE_EXHAUSTED",
    }
)
_SCOPE_REASONS = frozenset({"insufficientPermissions", "ACCESS_TOKEN_SCOPE_INSUFFICIENT"})
_DAILY_PAUSE = timedelta(hours=1)
_MAX_TEXT = 300


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: of a whole request, or of one part of a batch."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes
    answered_at: float | None = None
    """When its first byte came, on the monotonic clock: the service's time, without that of the line."""

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    @property
    def is_json(self) -> bool:
        return "json" in self.headers.get("content-type", "").lower()


@dataclass(frozen=True, slots=True)
class Asked:
    """What an error has to know of the call that it answers."""

    method: Method
    what: str = ""
    """What the call is about, for people: `message 18c0...`; never content."""
    changes: bool = False
    """Whether doing it twice could matter."""


def error_of(answer: Answer, asked: Asked, now: datetime) -> PostroomError:
    """The one table of refusals."""
    told = _told(answer)
    wait = retry_after(answer.headers, told.message if told else "", now)
    if answer.status == 429 or (told and answer.status == 403 and told.reason in _RATE_REASONS):
        return _throttled(told, wait)
    if answer.status >= 500 or answer.status == 408:
        problem = f"Gmail could not answer {asked.method} (status {answer.status}{_quoted(told)})"
        return Unavailable(problem, retry_after=wait, may_have_happened=asked.changes)
    if told is None:
        return _not_gmail(answer)
    match answer.status:
        case 401:
            return LoginNeeded()
        case 403:
            return _not_permitted(told, asked)
        case 404 | 410:
            return _not_found(asked)
        case status:
            problem = f"Gmail refused {asked.method}{_about(asked)} (status {status}{_quoted(told)})"
            return Refused(problem, status=status, reason=told.reason)


@dataclass(frozen=True, slots=True)
class _Told:
    """What Google's error body says."""

    reason: str
    message: str


def _told(answer: Answer) -> _Told | None:
    """None if this is not an error as Google writes them."""
    try:
        error = json.loads(answer.body)["error"]
        details = error.get("errors") or [{}]
        reason = details[0].get("reason") or _detailed_reason(error) or error.get("status") or ""
        return _Told(str(reason)[:80], str(error.get("message", ""))[:2_000])
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        return None


def _detailed_reason(error: Mapping[str, object]) -> str | None:
    """The newer shape of Google's errors carries its reason in `details`."""
    details = error.get("details")
    found = [each.get("reason") for each in details if isinstance(each, dict)] if isinstance(details, list) else []
    return next((reason for reason in found if isinstance(reason, str)), None)


def _throttled(told: _Told | None, wait: timedelta | None) -> Throttled:
    if told and told.reason == "dailyLimitExceeded" and wait is None:
        wait = _DAILY_PAUSE
    when = "" if wait is None else f"; trying again in {wait.total_seconds():.0f} s"
    return Throttled(f"Gmail asks for fewer calls ({told.reason if told else 'status 429'}){when}", retry_after=wait)


def _not_permitted(told: _Told, asked: Asked) -> PermissionMissing:
    if told.reason in _SCOPE_REASONS:
        scope = least_scope(asked.method)
        problem = (
            f"{asked.method} needs the permission {scope}, which this login does not have. "
            "Log in again and grant it: `postroom account add gmail --email ...`"
        )
        return PermissionMissing(problem, reason=told.reason, scope=scope)
    remedy = {
        "domainPolicy": "The administrator of this Google Workspace forbids it; ask them to allow Postroom.",
        "accessNotConfigured": "Enable the Gmail API in your Google Cloud project, wait a minute, and try again.",
        "SERVICE_DISABLED": "Enable the Gmail API in your Google Cloud project, wait a minute, and try again.",
        "forbidden": "This login may not use that mailbox; check the account's address.",
    }.get(told.reason, "Check the account with `postroom account check`.")
    return PermissionMissing(f"Google does not permit {asked.method}{_quoted(told)}. {remedy}", reason=told.reason)


def _not_found(asked: Asked) -> Gone | HistoryExpired:
    if asked.method is Method.HISTORY_LIST:
        return HistoryExpired("history_id", "Gmail no longer knows it; the mailbox has to be compared again")
    return Gone("id", f"{asked.what or asked.method} is not in the mailbox")


def _not_gmail(answer: Answer) -> NotGmail:
    kind = answer.headers.get("content-type", "").partition(";")[0].strip()[:60] or "nothing"
    if 300 <= answer.status < 400:
        kind = "a redirection"
    return not_gmail(f"status {answer.status}, {kind}")


def not_gmail(found: str) -> NotGmail:
    return NotGmail(
        f"What answers at the API address is not the Gmail API ({found}). Check the account's API address; "
        "without one, Google's own is used. A proxy or a login page of the network can also be in the way."
    )


def _about(asked: Asked) -> str:
    return f" of {asked.what}" if asked.what else ""


def _quoted(told: _Told | None) -> str:
    """Google's own words, which help most; cleared of anything secret that they might repeat."""
    return f", {told.reason}: {logs.clean(told.message)[:_MAX_TEXT]}" if told else ""
