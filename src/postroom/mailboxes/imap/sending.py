"""Sends mail of an IMAP account: through its provider's submission server (RFC 6409), from a draft in the mailbox.

SMTP cannot say later whether it has sent a message. So a draft bears a keyword from before it is handed in until it
lies among sent mail; one that still bears it after an interruption may have been sent, and is never sent again.
"""

from __future__ import annotations

import asyncio
import base64
import smtplib
import ssl
from collections.abc import Iterable
from datetime import datetime, timedelta
from email import message_from_bytes, policy
from email.utils import getaddresses

from postroom.domain.errors import NotAllowed, PostroomError
from postroom.mailboxes import errors, protocol
from postroom.mailboxes.imap.connection import ImapLogin, Security
from postroom.mailboxes.imap.mailbox import ImapMailbox
from postroom.mailboxes.imap.places import KEYWORD
from postroom.mailboxes.imap.providers import SubmissionServer, parse_submission, preset_at
from postroom.mailboxes.imap.wire import token_message
from postroom.mailboxes.reachability import explain
from postroom.mailboxes.reader import sort_results
from postroom.telemetry import logs
from postroom.tls import trusted

PENDING = f"{KEYWORD}$submitpending"
_TIMEOUT_S = 60.0
_SKEW = timedelta(minutes=10)
_MOST_LOOKED_AT = 50
_REFUSES_LOGIN = (530, 534, 535, 538)


class ImapOutbox:
    """Implements `protocol.Outbox`. A draft's id is its message's."""

    def __init__(self, mailbox: ImapMailbox, login: ImapLogin) -> None:
        self._mailbox = mailbox
        self._login = login

    async def create_draft(self, raw: bytes, thread_id: str | None = None) -> protocol.MailDraft:
        message_id = await self._mailbox.append(_crlf(raw), ["DRAFT"])
        return protocol.MailDraft(message_id, message_id, "")

    async def find_drafts(self, mark: protocol.HeaderMark, thread_id: str | None) -> list[protocol.MailDraft]:
        return [protocol.MailDraft(each, each, "") for each in await self._marked("DRAFT", mark, None)]

    async def delete_draft(self, draft_id: str) -> None:
        await self._require_draft(draft_id)
        await self._mailbox.modify([draft_id], protocol.MailboxChange(move=protocol.Move.TRASH))

    async def send_draft(self, draft_id: str) -> protocol.MessageId:
        """Raises Gone also for a draft that may have been sent before an interruption."""
        draft = await self._require_draft(draft_id)
        if PENDING in draft.label_ids:
            raise errors.Gone("draft", "it may have been sent before an interruption, and is not sent again")
        server = parse_submission(self._login.submission)
        if server is None or draft.raw is None:
            raise NotAllowed(not_set_up(self._login.email))
        marked = await self._mailbox.modify([draft_id], protocol.MailboxChange(add=frozenset({PENDING})))
        if PENDING not in marked.get(draft_id, frozenset()):
            raise NotAllowed(
                f"{self._login.address.host} keeps no keywords, so mail could be sent twice. The letter is among the "
                "drafts of the mailbox; send it from your mail program."
            )
        try:
            await self._hand_in(server, draft.raw)
        except PostroomError as error:
            if not (isinstance(error, errors.MailboxUnavailable) and error.may_have_happened):
                await self._mailbox.modify([draft_id], protocol.MailboxChange(remove=frozenset({PENDING})))
            raise
        sent = protocol.MailboxChange(add=frozenset({"SENT"}), remove=frozenset({"DRAFT", "UNREAD", PENDING}))
        await self._mailbox.modify([draft_id], sent)
        return draft_id

    async def find_sent(
        self, mark: protocol.HeaderMark, thread_id: str | None, since: datetime
    ) -> protocol.MessageId | None:
        found = await self._marked("SENT", mark, protocol.Span(int((since - _SKEW).timestamp())))
        return found[0] if found else None

    async def _require_draft(self, draft_id: str) -> protocol.RemoteMessage:
        draft = await self._mailbox.get(draft_id)
        if "DRAFT" not in draft.label_ids:
            raise errors.Gone("draft", "it is no longer among the drafts")
        return draft

    async def _marked(
        self, label: str, mark: protocol.HeaderMark, span: protocol.Span | None
    ) -> list[protocol.MessageId]:
        async for page in self._mailbox.list(span, label_id=label, page_size=_MOST_LOOKED_AT):
            results = sort_results(await self._mailbox.fetch(page.ids, protocol.Detail.HEADERS))
            return [each.id for each in results.got if _bears(each, mark)]
        return []

    async def _hand_in(self, server: SubmissionServer, raw: bytes) -> None:
        login = self._login
        token = None if login.tokens is None else await login.tokens.access_token()
        await asyncio.to_thread(submit, server, login.user, login.password, token, login.email, raw)


def submission_of(login: ImapLogin) -> str:
    """As it was given, else as the provider of its server is known; empty where neither names one."""
    preset = preset_at(login.address.host)
    return login.submission or ("" if preset is None else str(preset.submission))


def not_set_up(email: str) -> str:
    return (
        f"Mail cannot be sent from {email}: no server for sending is known. Add the mailbox again with --smtp-host to "
        "name it."
    )


def submit(server: SubmissionServer, user: str, password: str, token: str | None, sender: str, raw: bytes) -> None:
    """Hand in a message for everyone that it names. Blocks. Raises LoginNeeded, CallRefused, or MailboxUnavailable,
    which says whether the message may have been taken."""
    recipients, letter = _envelope(raw)
    handed_in = False
    try:
        smtp = _connected(server)
        try:
            _log_in(smtp, server, user, password, token)
            _named(smtp, sender, recipients)
            handed_in = True
            code, said = smtp.data(letter)
            if code != 250:
                raise smtplib.SMTPDataError(code, said)
        finally:
            smtp.close()  # a QUIT that goes wrong would say nothing about the letter
    except smtplib.SMTPResponseException as error:
        raise _refusal(server, error.smtp_code, error.smtp_error) from None
    except (smtplib.SMTPException, OSError) as error:
        _, message, remedy = explain(error, server.host)
        raise errors.MailboxUnavailable(f"{message} {remedy}", may_have_happened=handed_in) from None


def _connected(server: SubmissionServer) -> smtplib.SMTP:
    if server.security is Security.TLS:
        return smtplib.SMTP_SSL(server.host, server.port, timeout=_TIMEOUT_S, context=_context())
    smtp = smtplib.SMTP(server.host, server.port, timeout=_TIMEOUT_S)
    if server.security is Security.STARTTLS:
        try:
            smtp.starttls(context=_context())
        except BaseException:
            smtp.close()
            raise
    return smtp


def _context() -> ssl.SSLContext:
    return trusted()


def _log_in(smtp: smtplib.SMTP, server: SubmissionServer, user: str, password: str, token: str | None) -> None:
    smtp.ehlo_or_helo_if_needed()
    if token is None:
        if server.security is not Security.PLAIN or smtp.has_extn("auth"):
            smtp.login(user, password)
        return
    offered = frozenset(f"AUTH={each}" for each in smtp.esmtp_features.get("auth", "").upper().split())
    message = token_message(offered, user, token, server.host, server.port)
    if message is None:
        raise errors.PermissionMissing(f"{server.host} takes no login by browser.", reason="no_oauth")
    code, said = smtp.docmd("AUTH", f"{message[0]} {base64.b64encode(message[1].encode()).decode()}")
    if code == 334:
        code, said = smtp.docmd("" if message[0] == "XOAUTH2" else "AQ==")
    if code != 235:
        raise smtplib.SMTPAuthenticationError(code, said)


def _named(smtp: smtplib.SMTP, sender: str, recipients: Iterable[str]) -> None:
    """All recipients or none: a letter is not sent to some of them only."""
    for code, said in (smtp.mail(sender), *(smtp.rcpt(each) for each in recipients)):
        if code not in (250, 251):
            raise smtplib.SMTPResponseException(code, said)


def _refusal(server: SubmissionServer, code: int, said: bytes | str) -> PostroomError:
    text = said.decode("utf-8", "replace") if isinstance(said, bytes) else said
    message = f"{server.host} says: {logs.clean(text[:200])} ({code})"
    if code in _REFUSES_LOGIN:
        return errors.LoginNeeded(f"{server.host} refuses the login: {logs.clean(text[:200])}")
    if 400 <= code < 500:
        return errors.MailboxUnavailable(message)
    return errors.CallRefused(message, status=code, reason="smtp")


def _envelope(raw: bytes) -> tuple[list[str], bytes]:
    """Everyone that the letter names, and the letter without its Bcc."""
    parsed = message_from_bytes(raw, policy=policy.compat32)
    named = getaddresses([str(each) for name in ("to", "cc", "bcc") for each in parsed.get_all(name, [])])
    recipients = list(dict.fromkeys(address for _, address in named if "@" in address))
    if odd := next((each for each in recipients if not each.isascii() or set(each) & set(" <>\r\n")), None):
        raise errors.CallRefused(f"{logs.clean(odd[:100])} is no address to send to.", status=0, reason="recipient")
    if not recipients:
        raise errors.CallRefused("The letter names no one to send it to.", status=0, reason="no_recipients")
    head, separator, body = _crlf(raw).partition(b"\r\n\r\n")
    return recipients, _without_bcc(head) + separator + body


def _without_bcc(head: bytes) -> bytes:
    kept: list[bytes] = []
    dropping = False
    for line in head.split(b"\r\n"):
        dropping = line.lower().startswith(b"bcc:") or (dropping and line[:1] in (b" ", b"\t"))
        if not dropping:
            kept.append(line)
    return b"\r\n".join(kept)


def _crlf(raw: bytes) -> bytes:
    return raw.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")


def _bears(message: protocol.RemoteMessage, mark: protocol.HeaderMark) -> bool:
    return any(name.lower() == mark.name.lower() and value.strip() == mark.value for name, value in message.headers)
