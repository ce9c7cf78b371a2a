"""Optional push: when to renew a watch, and what a notification from Google Cloud says once it has proved genuine.

A notification is a hint that may be late, doubled or lost; polling stays. This knows no web framework: whoever serves
the webhook hands over headers and body, and answers with `status`.
"""

from __future__ import annotations

import binascii
import json
import re
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from postroom.domain.clock import Clock
from postroom.domain.errors import BadInput, Retryable
from postroom.gmail.client import GmailClient
from postroom.gmail.grants import normal_email
from postroom.gmail.id_token import Forged, IdTokenVerifier
from postroom.telemetry import logs

log = logs.get(__name__)

LARGEST_BODY = 64 * 1024

_RENEW_EVERY = timedelta(days=1)
_HISTORY_ID = re.compile("[0-9]{1,40}")


@dataclass(frozen=True, slots=True)
class Watch:
    """A standing order for notifications, as `users.watch` gave it. Google ends it after seven days."""

    history_id: str
    renewed_at: datetime
    expires_at: datetime


async def renew(client: GmailClient, topic: str, clock: Clock) -> Watch:
    """Order notifications for the client's mailbox anew; doing it twice does no harm."""
    answer = await client.watch(topic)
    expires_at = datetime.fromtimestamp(answer.expires_ms / 1_000, UTC)
    return Watch(answer.history_id, clock.now(), expires_at)


def renewal_due(watch: Watch | None, now: datetime) -> bool:
    """Daily, as Google advises; also near the end, and when the clock was set back and the record cannot be true."""
    if watch is None or watch.renewed_at > now:
        return True
    return now - watch.renewed_at >= _RENEW_EVERY or watch.expires_at - now <= _RENEW_EVERY


@dataclass(frozen=True, slots=True)
class Notification:
    """Something changed in this mailbox, up to this point of its history."""

    email: str
    history_id: str
    status: int = 204


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request was turned away: `status` is for the caller, `reason` for our log. Neither repeats the request."""

    status: int
    reason: str


async def receive(headers: Mapping[str, str], body: bytes, verifier: IdTokenVerifier) -> Notification | Refusal:
    """Judge one request to the webhook."""
    outcome = await _receive(headers, body, verifier)
    if isinstance(outcome, Refusal):
        log.warning("push.refused", status=outcome.status, reason=outcome.reason)
    return outcome


async def _receive(headers: Mapping[str, str], body: bytes, verifier: IdTokenVerifier) -> Notification | Refusal:
    if len(body) > LARGEST_BODY:
        return Refusal(413, "the body is too large for a notification")
    try:
        await verifier.verify(_bearer(headers))
    except Forged as error:
        return Refusal(401, str(error))
    except Retryable as error:
        return Refusal(503, error.message)  # Google will send it again
    try:
        return parse_notification(body)
    except BadInput as error:
        return Refusal(400, f"the notification is not one of Gmail's: {error.field}")


def _bearer(headers: Mapping[str, str]) -> str:
    values = [value for name, value in headers.items() if name.lower() == "authorization"]
    scheme, _, token = (values[0] if len(values) == 1 else "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise Forged("there is no bearer token")
    return token


def parse_notification(body: bytes) -> Notification:
    """The envelope of Pub/Sub around Gmail's own message, both as documented."""
    message = _field(_object(body, "body"), "message")
    data = message.get("data") if isinstance(message, dict) else None
    if not isinstance(data, str):
        raise BadInput("message.data", "is missing")
    try:
        decoded = b64decode(data.replace("-", "+").replace("_", "/"), validate=True)
    except (binascii.Error, ValueError):
        raise BadInput("message.data", "is not base64") from None
    content = _object(decoded, "message.data")
    email, history_id = _field(content, "emailAddress"), _field(content, "historyId")
    if isinstance(history_id, int) and not isinstance(history_id, bool) and 0 <= history_id < 10**40:
        history_id = str(history_id)
    if not isinstance(history_id, str) or not _HISTORY_ID.fullmatch(history_id):
        raise BadInput("historyId", "is not a number")
    if not isinstance(email, str):
        raise BadInput("emailAddress", "is not text")
    return Notification(normal_email(email, "emailAddress"), history_id)


def _object(text: bytes, field: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise BadInput(field, "is not JSON") from None
    if not isinstance(value, dict):
        raise BadInput(field, "is not an object")
    return value


def _field(content: Mapping[str, object], name: str) -> object:
    if name not in content:
        raise BadInput(name, "is missing")
    return content[name]
