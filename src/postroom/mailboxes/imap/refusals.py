"""What a server's refusal, its goodbye or a lost connection means: one of `mailboxes.errors`, with words for people."""

from __future__ import annotations

from postroom.domain.errors import PostroomError, Retryable
from postroom.mailboxes import errors
from postroom.mailboxes.imap.wire import ServerResponse, WireError
from postroom.mailboxes.reachability import explain
from postroom.telemetry import logs

_SHOWN = 200
_THROTTLING = frozenset({"LIMIT", "THROTTLED", "INUSE"})
_OUTAGES = frozenset({"UNAVAILABLE", "SERVERBUG", "CORRUPTION"})
_LOGIN_REFUSED = frozenset({"AUTHENTICATIONFAILED", "AUTHORIZATIONFAILED", "EXPIRED", "WEBALERT"})
_NO_FOLDER = frozenset({"NONEXISTENT", "TRYCREATE"})


def refusal_of(response: ServerResponse, host: str, *, is_login: bool = False) -> PostroomError:
    """The error for an answer that is not OK. One to a login that is no NO may repeat what was sent, so its words are
    left out."""
    code = "" if response.code is None else response.code.name
    text = "" if is_login and response.name != "NO" else shown(response.text)
    message = f"{host} says: {text or response.name}"
    if code in _THROTTLING or _is_too_many(text):
        return errors.MailboxThrottled(message)
    if code in _OUTAGES or "temporar" in text.lower():
        return errors.MailboxUnavailable(message)
    if code in _LOGIN_REFUSED or (is_login and response.name == "NO"):
        return errors.LoginNeeded(f"{host} refuses the login: {text or 'wrong name or password'}")
    if code in ("NOPERM", "PRIVACYREQUIRED", "CONTACTADMIN"):
        return errors.PermissionMissing(message, reason=code.lower())
    if code in _NO_FOLDER:
        return errors.LabelGone(message)
    if code == "EXPUNGEISSUED":
        return errors.Gone("message", message)
    return errors.CallRefused(message, status=0, reason=code.lower() or response.name.lower())


def after_adding(error: PostroomError) -> PostroomError:
    """What was raised once messages were in the mailbox."""
    if isinstance(error, errors.LoginNeeded | errors.MailboxThrottled):
        error.may_have_happened = True
        return error
    wait = error.retry_after if isinstance(error, Retryable) else None
    problem = f"The message was added, and then: {error.message}"
    return errors.MailboxUnavailable(problem, retry_after=wait, may_have_happened=True)


def _is_too_many(text: str) -> bool:
    lowered = text.lower()
    return "too many" in lowered or "rate limit" in lowered or "maximum number of connections" in lowered


def shown(text: str) -> str:
    """A server's words for a person: short, and without control characters."""
    plain = logs.clean("".join(each if each.isprintable() else " " for each in text[: 20 * _SHOWN]))
    return plain[:_SHOWN].strip()


def unreachable(error: Exception, host: str) -> errors.MailboxUnreachable:
    _, message, remedy = explain(error, host)
    return errors.MailboxUnreachable(f"{message} {remedy}")


def goodbye_of(response: ServerResponse, host: str, changes: bool) -> PostroomError:
    """The error for a BYE; `changes` says that it came in answer to a command that may have happened."""
    text = shown(response.text)
    message = f"{host} ended the connection: {text}" if text else f"{host} hung up"
    is_limit = (response.code is not None and response.code.name in _THROTTLING) or _is_too_many(text)
    error = errors.MailboxThrottled(message) if is_limit else errors.MailboxUnavailable(message)
    error.may_have_happened = changes
    return error


def failure_of(error: Exception, host: str, changes: bool) -> PostroomError:
    """The error for an exchange that broke off."""
    if isinstance(error, WireError):
        problem = f"{host} sent {error}; the connection was closed"
    elif isinstance(error, TimeoutError):
        problem = f"{host} did not answer in time"
    else:
        problem = f"The connection to {host} was lost"
    return errors.MailboxUnavailable(problem, may_have_happened=changes)
