"""From answers and failures to errors: each kind by its type, with what a person can do about it."""

from __future__ import annotations

import errno
import json
import socket
import ssl
from datetime import UTC, datetime, timedelta

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.domain.errors import Fatal, NotAllowed, NotFound, PostroomError, Retryable
from postroom.mailboxes.errors import (
    CallRefused,
    Gone,
    HistoryExpired,
    LoginNeeded,
    MailboxThrottled,
    MailboxUnavailable,
    MailboxUnreachable,
    NotGmail,
    PermissionMissing,
)
from postroom.mailboxes.gmail.error_mapping import (
    LONGEST_RETRY_AFTER,
    CallDescription,
    GmailAnswer,
    error_of,
    failure_of,
    retry_after,
)
from postroom.mailboxes.gmail.methods import GmailMethod

NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
GET = CallDescription(GmailMethod.MESSAGES_GET, "message 18c0")


def answer(status: int, reason: str = "", message: str = "", **headers: str) -> GmailAnswer:
    error = {"code": status, "message": message, "errors": [{"reason": reason, "message": message}]}
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return GmailAnswer(status, {"content-type": "application/json"} | names, json.dumps({"error": error}).encode())


@pytest.mark.req("JB-7")
@pytest.mark.parametrize(
    ("status", "reason", "expected", "base"),
    [
        (429, "rateLimitExceeded", MailboxThrottled, Retryable),
        (429, "", MailboxThrottled, Retryable),
        (403, "rateLimitExceeded", MailboxThrottled, Retryable),
        (403, "userRateLimitExceeded", MailboxThrottled, Retryable),
        (403, "quotaExceeded", MailboxThrottled, Retryable),
        (403, "dailyLimitExceeded", MailboxThrottled, Retryable),
        (403, "insufficientPermissions", PermissionMissing, NotAllowed),
        (403, "domainPolicy", PermissionMissing, NotAllowed),
        (403, "accessNotConfigured", PermissionMissing, NotAllowed),
        (403, "somethingNew", PermissionMissing, NotAllowed),
        (401, "authError", LoginNeeded, Fatal),
        (404, "notFound", Gone, NotFound),
        (400, "invalidArgument", CallRefused, Fatal),
        (400, "failedPrecondition", CallRefused, Fatal),
        (409, "aborted", CallRefused, Fatal),
        (413, "uploadTooLarge", CallRefused, Fatal),
        (500, "backendError", MailboxUnavailable, Retryable),
        (503, "backendError", MailboxUnavailable, Retryable),
        (408, "", MailboxUnavailable, Retryable),
    ],
)
def test_every_refusal_has_its_type(
    status: int, reason: str, expected: type[PostroomError], base: type[PostroomError]
) -> None:
    error = error_of(answer(status, reason, "Words."), GET, NOW)
    assert type(error) is expected
    assert isinstance(error, base)


@pytest.mark.req("JB-7")
def test_a_missing_permission_is_named_with_its_remedy() -> None:
    error = error_of(answer(403, "insufficientPermissions"), CallDescription(GmailMethod.MESSAGES_DELETE), NOW)
    assert isinstance(error, PermissionMissing)
    assert error.scope == "https://mail.google.com/"
    assert "https://mail.google.com/" in error.message
    assert "postroom account add gmail --email ADDRESS --client-secrets FILE --full-access`" in error.message


def test_the_newer_shape_of_googles_errors_is_understood() -> None:
    error = {"code": 403, "status": "PERMISSION_DENIED", "details": [{"reason": "SERVICE_DISABLED"}], "message": "x"}
    refused = error_of(GmailAnswer(403, {}, json.dumps({"error": error}).encode()), GET, NOW)
    assert isinstance(refused, PermissionMissing)
    assert "Enable the Gmail API" in refused.message


def test_an_expired_history_id_is_not_a_missing_message() -> None:
    assert isinstance(error_of(answer(404, "notFound"), CallDescription(GmailMethod.HISTORY_LIST), NOW), HistoryExpired)


@pytest.mark.parametrize(
    ("status", "content_type", "body"),
    [
        (404, "text/html", b"<html>nginx</html>"),
        (403, "text/html", b"<html>forbidden</html>"),
        (401, "text/plain", b"who are you"),
        (404, "application/json", b'{"detail": "Not Found"}'),
        (302, "", b""),
        (400, "application/json", b'["error"]'),
        (400, "application/json", b'{"error": "invalid_request"}'),
    ],
)
def test_an_address_that_is_not_gmail_says_so(status: int, content_type: str, body: bytes) -> None:
    error = error_of(GmailAnswer(status, {"content-type": content_type}, body), GET, NOW)
    assert isinstance(error, NotGmail)
    assert "API address" in error.message


def test_a_front_end_that_fails_in_html_is_still_only_a_failure() -> None:
    error = error_of(GmailAnswer(502, {"content-type": "text/html"}, b"<html>Bad gateway</html>"), GET, NOW)
    assert type(error) is MailboxUnavailable


def test_only_calls_that_change_something_may_have_happened() -> None:
    changing = CallDescription(GmailMethod.MESSAGES_SEND, changes=True)
    sent, read = error_of(answer(503), changing, NOW), error_of(answer(503), GET, NOW)
    assert isinstance(sent, MailboxUnavailable)
    assert isinstance(read, MailboxUnavailable)
    assert (sent.may_have_happened, read.may_have_happened) == (True, False)


@pytest.mark.req("PL-6")
def test_a_token_that_google_repeats_is_not_passed_on() -> None:
    error = error_of(answer(400, "invalid", "Bearer ya29.secretsecret was odd"), GET, NOW)
    assert "secretsecret" not in error.message


@given(st.integers(300, 599), st.binary(max_size=200), st.text(max_size=30), st.text(max_size=30))
@settings(deadline=None, derandomize=True)
def test_no_answer_is_beyond_words(status: int, body: bytes, content_type: str, retry: str) -> None:
    headers = {"content-type": content_type, "retry-after": retry, "date": retry}
    assert error_of(GmailAnswer(status, headers, body), GET, NOW).message


@pytest.mark.req("SY-4")
@pytest.mark.parametrize(
    ("headers", "message", "seconds"),
    [
        ({"retry-after": "30"}, "", 30),
        ({"retry-after": "1.5"}, "", 1),
        ({"retry-after": "Sun, 15 Nov 2026 12:00:20 GMT"}, "", 20),
        ({"retry-after": "Sun, 15 Nov 2026 11:00:00 GMT"}, "", 0),
        ({}, "User-rate limit exceeded.  Retry after 2026-11-15T12:01:30.500Z", 90.5),
        ({}, "User-rate limit exceeded.  Retry after 2026-11-15T12:01:30.500Z (Mail sending)", 90.5),
        ({}, "Please retry after 12s.", 12),
        ({"retry-after": "5"}, "Retry after 2026-11-15T12:00:10Z", 10),
        ({"retry-after": "999999999"}, "", LONGEST_RETRY_AFTER.total_seconds()),
        ({"retry-after": "soon"}, "Retry after lunch", None),
        ({}, "", None),
    ],
)
def test_when_to_come_back(headers: dict[str, str], message: str, seconds: float | None) -> None:
    wait = retry_after(headers, message, NOW)
    assert (None if wait is None else wait.total_seconds()) == seconds


@pytest.mark.req("SY-4")
def test_a_clock_that_is_an_hour_off_does_not_matter() -> None:
    headers = {"date": "Sun, 15 Nov 2026 12:00:00 GMT"}
    wait = retry_after(headers, "Retry after 2026-11-15T12:00:30.000Z", NOW + timedelta(hours=1))
    assert wait == timedelta(seconds=30)


def connect_error(cause: Exception) -> httpx2.ConnectError:
    error = httpx2.ConnectError("failed")
    error.__cause__ = OSError("All connection attempts failed")
    error.__cause__.__cause__ = ExceptionGroup("several", [cause])
    return error


@pytest.mark.req("JB-7", "PL-8")
@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (connect_error(socket.gaierror(socket.EAI_NONAME, "unknown")), MailboxUnreachable, "DNS"),
        (connect_error(OSError(errno.ENETUNREACH, "no way")), MailboxUnreachable, "no route"),
        (connect_error(ConnectionRefusedError(errno.ECONNREFUSED, "no")), MailboxUnreachable, "refused the connection"),
        (connect_error(ssl.SSLCertVerificationError(1, "certificate has expired")), MailboxUnreachable, "certificate"),
        (httpx2.ConnectError("?"), MailboxUnreachable, "connection to gmail.example failed"),
        (httpx2.ConnectTimeout("slow"), MailboxUnreachable, "in time"),
        (httpx2.ReadTimeout("slow"), MailboxUnavailable, "did not answer in time"),
        (TimeoutError(), MailboxUnavailable, "did not answer in time"),
        (httpx2.RemoteProtocolError("cut"), MailboxUnavailable, "before the answer was complete"),
        (httpx2.ReadError("reset"), MailboxUnavailable, "was lost"),
        (httpx2.DecodingError("gzip"), MailboxUnavailable, "unpacked"),
        (httpx2.UnsupportedProtocol("ftp"), NotGmail, "https"),
    ],
)
def test_every_failure_says_what_happened(
    error: httpx2.HTTPError | TimeoutError, kind: type[PostroomError], words: str
) -> None:
    failure = failure_of(error, GET, "gmail.example")
    assert type(failure) is kind
    assert words in failure.message


def test_what_was_never_sent_cannot_have_happened() -> None:
    sending = CallDescription(GmailMethod.MESSAGES_SEND, changes=True)
    unsent, lost = failure_of(httpx2.ConnectTimeout(""), sending, "h"), failure_of(httpx2.ReadError(""), sending, "h")
    assert isinstance(unsent, MailboxUnavailable)
    assert isinstance(lost, MailboxUnavailable)
    assert (unsent.may_have_happened, lost.may_have_happened) == (False, True)
