"""Errors of a mailbox provider. `gmail.error_mapping` makes them from answers and failed connections.

    Retryable
    ├── MailboxThrottled        429, or 403 with a rate reason; knows when to retry if the provider said so
    └── MailboxUnavailable      5xx, timeout, dropped connection, truncated or unreadable answer
        └── MailboxUnreachable  no connection at all: DNS, network, refused, TLS
    Fatal
    ├── LoginNeeded             the grant was revoked, expired, or refused twice
    ├── LabelGone               the mailbox does not have this label
    ├── NotGmail                something else than the Gmail API answers at the address
    └── CallRefused             400 and the like: the provider understood the call and rejects it
    NotAllowed
    └── PermissionMissing       403 with a permission reason; names the scope or the policy
    NotFound
    ├── Gone                    404: the message, thread, label or draft no longer exists
    └── HistoryExpired          404 for a history id: too old, the mailbox has to be compared again

No error holds a token, a URL with its query, or any part of a message.
"""

from __future__ import annotations

from datetime import timedelta

from postroom.domain.errors import Fatal, NotAllowed, NotFound, PostroomError, Retryable


class MailboxError(PostroomError):
    """The base of all errors here."""

    may_have_happened: bool = False
    """True if the call may have changed something: look before repeating it."""


class MailboxThrottled(Retryable, MailboxError):
    """The mailbox asks for fewer calls."""


class MailboxUnavailable(Retryable, MailboxError):
    """The mailbox could not answer now."""

    def __init__(
        self, message: str | None = None, *, retry_after: timedelta | None = None, may_have_happened: bool = False
    ) -> None:
        super().__init__(message, retry_after=retry_after)
        self.may_have_happened = may_have_happened


class MailboxUnreachable(MailboxUnavailable):
    """The mailbox could not be reached."""


class LoginNeeded(Fatal, MailboxError):
    """Google no longer accepts this account's login. Log in again with `postroom account add gmail --email ...`."""


class NotGmail(Fatal, MailboxError):
    """What answers at this address is not the Gmail API. Check the account's API address."""


class CallRefused(Fatal, MailboxError):
    """The mailbox refused the call."""

    def __init__(self, message: str, *, status: int, reason: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class LabelGone(Fatal, MailboxError):
    """The mailbox no longer has this label."""


class PermissionMissing(NotAllowed, MailboxError):
    """The provider does not permit this for the account."""

    def __init__(self, message: str, *, reason: str, scope: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.scope = scope


class Gone(NotFound, MailboxError):
    """It is no longer in the mailbox."""


class HistoryExpired(NotFound, MailboxError):
    """The mailbox no longer knows what changed since this cursor."""
