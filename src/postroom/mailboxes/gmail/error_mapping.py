"""Maps Gmail's error answers and failed connections to `mailboxes.errors`, including how long to wait before a retry.
The only place where this mapping is made. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

import httpx2

from postroom.domain.errors import PostroomError
from postroom.mailboxes import errors
from postroom.mailboxes.gmail.methods import GmailMethod, least_scope, login_command
from postroom.mailboxes.reachability import explain
from postroom.telemetry import logs

LONGEST_RETRY_AFTER = timedelta(days=1)
_SECONDS = re.compile(r"\s*([0-9]{1,9})(?:\.[0-9]+)?\s*")
_IN_TEXT = re.compile(r"retry after\s+(\S+)", re.IGNORECASE)


def retry_after(headers: Mapping[str, str], message: str, now: datetime) -> timedelta | None:
    """How long to wait before a retry; None if the answer does not say.

    Times are compared with the answer's own `Date`, because our clock may be wrong.
    """
    server_now = _http_date(headers.get("date", "")) or now
    found = [_from_header(headers.get("retry-after", ""), server_now), _from_text(message, server_now)]
    waits = [wait for wait in found if wait is not None]
    return min(max(max(waits), timedelta()), LONGEST_RETRY_AFTER) if waits else None


def _from_header(value: str, now: datetime) -> timedelta | None:
    if seconds := _SECONDS.fullmatch(value):
        return timedelta(seconds=int(seconds[1]))
    at = _http_date(value)
    return None if at is None else at - now


def _from_text(message: str, now: datetime) -> timedelta | None:
    found = _IN_TEXT.search(message)
    if found is None:
        return None
    try:
        at = datetime.fromisoformat(found[1].rstrip(".,;)"))
    except ValueError:
        return _from_header(found[1].rstrip("s.,;)"), now)
    return (at.replace(tzinfo=UTC) if at.tzinfo is None else at) - now


def _http_date(value: str) -> datetime | None:
    if not value or len(value) > 60:
        return None
    try:
        at = parsedate_to_datetime(value)
    except (ValueError, TypeError, IndexError):
        return None
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at


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
class GmailAnswer:
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
class CallDescription:
    """What an error needs to know about its call."""

    method: GmailMethod
    what: str = ""
    """What the call is about, for people: `message 18c0...`; never content."""
    changes: bool = False
    """Whether doing it twice could matter."""


def error_of(answer: GmailAnswer, asked: CallDescription, now: datetime) -> PostroomError:
    """The mapping from an error answer to our error."""
    said = _google_error(answer)
    wait = retry_after(answer.headers, said.message if said else "", now)
    if answer.status == 429 or (said and answer.status == 403 and said.reason in _RATE_REASONS):
        return _throttled(said, wait)
    if answer.status >= 500 or answer.status == 408:
        problem = f"Gmail could not answer {asked.method} (status {answer.status}{_quoted(said)})"
        return errors.MailboxUnavailable(problem, retry_after=wait, may_have_happened=asked.changes)
    if said is None:
        return _not_gmail(answer)
    match answer.status:
        case 401:
            return errors.LoginNeeded()
        case 403:
            return _not_permitted(said, asked)
        case 404 | 410:
            return _not_found(asked)
        case status:
            problem = f"Gmail refused {asked.method}{_about(asked)} (status {status}{_quoted(said)})"
            return errors.CallRefused(problem, status=status, reason=said.reason)


@dataclass(frozen=True, slots=True)
class _GoogleError:
    """What Google's error body says."""

    reason: str
    message: str


def _google_error(answer: GmailAnswer) -> _GoogleError | None:
    """None if this is not an error in Google's format."""
    try:
        error = json.loads(answer.body)["error"]
        details = error.get("errors") or [{}]
        reason = details[0].get("reason") or _detailed_reason(error) or error.get("status") or ""
        return _GoogleError(str(reason)[:80], str(error.get("message", ""))[:2_000])
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        return None


def _detailed_reason(error: Mapping[str, object]) -> str | None:
    """The newer shape of Google's errors carries its reason in `details`."""
    details = error.get("details")
    found = [each.get("reason") for each in details if isinstance(each, dict)] if isinstance(details, list) else []
    return next((reason for reason in found if isinstance(reason, str)), None)


def _throttled(said: _GoogleError | None, wait: timedelta | None) -> errors.MailboxThrottled:
    if said and said.reason == "dailyLimitExceeded" and wait is None:
        wait = _DAILY_PAUSE
    when = "" if wait is None else f"; trying again in {wait.total_seconds():.0f} s"
    return errors.MailboxThrottled(
        f"Gmail asks for fewer calls ({said.reason if said else 'status 429'}){when}", retry_after=wait
    )


def _not_permitted(said: _GoogleError, asked: CallDescription) -> errors.PermissionMissing:
    if said.reason in _SCOPE_REASONS:
        scope = least_scope(asked.method)
        problem = (
            f"{asked.method} needs the permission {scope}, which this login does not have. Log in again and grant it: "
            f"{login_command('ADDRESS', frozenset({scope}))}."
        )
        return errors.PermissionMissing(problem, reason=said.reason, scope=scope)
    remedy = {
        "domainPolicy": "The administrator of this Google Workspace forbids it; ask them to allow Postroom.",
        "accessNotConfigured": "Enable the Gmail API in your Google Cloud project, wait a minute, and try again.",
        "SERVICE_DISABLED": "Enable the Gmail API in your Google Cloud project, wait a minute, and try again.",
        "forbidden": "This login may not use that mailbox; check the account's address.",
    }.get(said.reason, "Check the account with `postroom account check`.")
    return errors.PermissionMissing(
        f"Google does not permit {asked.method}{_quoted(said)}. {remedy}", reason=said.reason
    )


def _not_found(asked: CallDescription) -> errors.Gone | errors.HistoryExpired:
    if asked.method is GmailMethod.HISTORY_LIST:
        return errors.HistoryExpired("history_id", "Gmail no longer knows it; the mailbox has to be compared again")
    return errors.Gone("id", f"{asked.what or asked.method} is not in the mailbox")


def _not_gmail(answer: GmailAnswer) -> errors.NotGmail:
    kind = answer.headers.get("content-type", "").partition(";")[0].strip()[:60] or "nothing"
    if 300 <= answer.status < 400:
        kind = "a redirection"
    return not_gmail(f"status {answer.status}, {kind}")


def not_gmail(found: str) -> errors.NotGmail:
    return errors.NotGmail(
        f"What answers at the API address is not the Gmail API ({found}). Check the account's API address; "
        "without one, Google's own is used. A proxy or a login page of the network can also be in the way."
    )


def _about(asked: CallDescription) -> str:
    return f" of {asked.what}" if asked.what else ""


def _quoted(said: _GoogleError | None) -> str:
    """Google's own words, which help most; cleared of anything secret that they might repeat."""
    return f", {said.reason}: {logs.clean(said.message)[:_MAX_TEXT]}" if said else ""


def failure_of(error: httpx2.HTTPError | TimeoutError, asked: CallDescription, host: str) -> PostroomError:
    """The mapping from a failed exchange to our error. A request that was never sent cannot have had an effect; any
    other may have."""
    if isinstance(error, httpx2.ConnectError | httpx2.ProxyError):
        return errors.MailboxUnreachable(" ".join(explain(error, host)[1:]))
    if isinstance(error, httpx2.ConnectTimeout | httpx2.PoolTimeout):
        return errors.MailboxUnreachable(
            f"{host} did not take the connection in time. The network may be down or very slow."
        )
    if isinstance(error, httpx2.UnsupportedProtocol):
        return not_gmail("its address does not begin with https://")
    return errors.MailboxUnavailable(f"{_what_happened(error)} during {asked.method}", may_have_happened=asked.changes)


def _what_happened(error: Exception) -> str:
    match error:
        case TimeoutError() | httpx2.TimeoutException():
            return "Gmail did not answer in time"
        case httpx2.RemoteProtocolError():
            return "The connection to Gmail ended before the answer was complete"
        case httpx2.DecodingError():
            return "Gmail's answer could not be unpacked"
        case httpx2.NetworkError():
            return "The connection to Gmail was lost"
        case _:
            return f"The exchange with Gmail failed ({type(error).__name__})"
