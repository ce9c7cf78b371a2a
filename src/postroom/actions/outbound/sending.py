"""The job `outbound.send`: mail in the owner's name, sent exactly once, or left for a person to look at.

    composing ──► drafted ──► sending ──► sent
        │                        └──────► unclear    the draft is gone, and no sent message was found
        └► given_up                                  refused before there was a draft

A draft can be sent only once, so it is enough that at most one draft of an action is ever sent: its id is
committed first, under the job's fence. A draft that still exists was not sent; one that is gone is looked for
among sent mail. No step starts over from the beginning.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

from sqlalchemy import select

from postroom.accounts.account import Account, list_accounts
from postroom.accounts.account_jobs import account_of
from postroom.actions import lifecycle
from postroom.actions.lifecycle import Action
from postroom.actions.outbound import letters, record
from postroom.actions.outbound import record as ending
from postroom.actions.outbound.loop_guard import ACTION_HEADER
from postroom.actions.outbound.record import Outbound, SendStage
from postroom.archive.backend import ArchiveBackend
from postroom.db import Tx
from postroom.db.tables.mail import messages
from postroom.domain.actions import ActionStatus, Origin
from postroom.domain.errors import BadInput, Fatal, PostroomError, Retryable
from postroom.mail.composing import OutgoingMail
from postroom.mailboxes.errors import Gone, LoginNeeded, MailboxUnavailable
from postroom.mailboxes.protocol import HeaderMark, Mailbox, MailDraft, Outbox
from postroom.queue import JobContext
from postroom.queue.context import LeaseLost
from postroom.queue.job import Json
from postroom.telemetry import logs

log = logs.get(__name__)


class Originals:
    def __init__(self, archive: ArchiveBackend | None) -> None:
        self._archive = archive

    async def raw(self, mailbox: Mailbox, email: str, message_id: str, key: str | None) -> bytes:
        """The exact bytes; Fatal where neither has them any more."""
        stored = await asyncio.to_thread(self._stored, email, key or message_id)
        if stored is not None:
            return stored
        try:
            return (await mailbox.get(message_id)).raw or b""
        except Gone:
            raise Fatal("The message is no longer in the mailbox, and the archive does not have it.") from None

    def _stored(self, email: str, key: str) -> bytes | None:
        """An archive that cannot be read, or is on another host, is no reason not to ask the mailbox."""
        if self._archive is None:
            return None
        try:
            with self._archive.reader() as archive:
                return archive.raw(email, key)
        except PostroomError as error:
            log.warning("outbound.archive_not_read", error=error.message)
            return None


_NOT_FOUND_YET = "The draft is gone from the mailbox, and what was sent does not show it (yet)."
_WITHOUT_DRAFT = frozenset({SendStage.COMPOSING, SendStage.GIVEN_UP})


@dataclass(frozen=True, slots=True)
class _Task:
    """Everything about one sending."""

    context: JobContext
    request: letters.SendRequest
    account: Account
    action: Action
    own_addresses: tuple[str, ...]
    labels: tuple[str, ...]
    key: str | None
    """In the archive."""
    thread_id: str | None
    """In which a reply goes; None for what begins a conversation."""

    @property
    def is_from_person(self) -> bool:
        return self.action.origin is Origin.PERSON

    @property
    def mark(self) -> HeaderMark:
        return HeaderMark(ACTION_HEADER, self.action.id)


class SendingMailboxes(Protocol):
    """What accounts send with (`accounts.access.AccountMailboxes`)."""

    async def of(self, account: Account) -> Mailbox:
        """Connected, and shared with others."""

    async def outbox(self, account: Account) -> Outbox:
        """The same."""


class MailSender:
    def __init__(self, mailboxes: SendingMailboxes, originals: Originals) -> None:
        self._mailboxes = mailboxes
        self._originals = originals

    async def __call__(self, context: JobContext) -> Json:
        try:
            task = await _task_of(context)
        except BadInput as error:
            await ending.fail_named(context, error.message)
            raise
        if task.action.status is not ActionStatus.EXECUTING:
            return await ending.nothing_to_do(context, task.action)
        try:
            await self._send(task, await self._mailboxes.outbox(task.account))
        except (LeaseLost, LoginNeeded):  # a job waits for a new login, and its action with it
            raise
        except Exception as error:
            await ending.fail_if_final(context, task.action, error)
            raise
        return None

    async def _send(self, task: _Task, outbox: Outbox) -> None:
        context, action_id = task.context, task.action.id
        known = await context.queue.database.read(lambda tx: record.find_record(tx, action_id))
        if known is None and (found := await _sent_in_another_life(task, outbox)):
            await ending.end_sent(context, task.action, found)
            return
        if known is None or known.stage in _WITHOUT_DRAFT:
            async with context.step("draft") as step:
                drafted = await self._draft(task, outbox, is_first=known is None)
                step.result = (
                    drafted.reason if isinstance(drafted, letters.SendRefused) else {"draft_id": drafted.draft_id}
                )
            if isinstance(drafted, letters.SendRefused):
                await ending.end_refused(context, task.action, drafted.reason, is_routine=drafted.is_routine)
                return
            known = drafted
        if known.stage is SendStage.SENT and known.sent_message_id:
            await ending.end_sent(context, task.action, known.sent_message_id)
            return
        async with context.step("send") as step:
            step.result = {"sent_message_id": await self._deliver(task, outbox, known)}
        if step.result["sent_message_id"] is None:
            await ending.end_unclear(context, task.action)
        else:
            await ending.end_sent(context, task.action, step.result["sent_message_id"])

    async def _draft(self, task: _Task, outbox: Outbox, *, is_first: bool) -> Outbound | letters.SendRefused:
        """Have one draft of this action in the mailbox and on record."""
        letter = await self._letter(task)
        if isinstance(letter, letters.SendRefused):
            return letter
        refused = await task.context.write(lambda tx: _begin(tx, task, letter))
        if refused is not None:
            return refused
        left_behind = [] if is_first else await outbox.find_drafts(task.mark, task.thread_id)
        for draft in left_behind[1:]:
            await _remove(outbox, draft)
        draft = left_behind[0] if left_behind else await _create(outbox, letter, task.thread_id)
        return await task.context.write(lambda tx: _put_on_record(tx, task, draft))

    async def _letter(self, task: _Task) -> OutgoingMail | letters.SendRefused:
        action, email = task.action, task.account.email
        raw = await self._originals.raw(await self._mailboxes.of(task.account), email, action.gmail_id, task.key)
        parameters = action.wanted.parameters
        files = await task.context.queue.database.read(lambda tx: lifecycle.files_of(tx, action.id))
        author = letters.Author(
            email,
            task.own_addresses,
            task.account.display_name or "",
            is_person=task.is_from_person,
            is_attended=task.is_from_person or action.answered_by is not None,
        )
        # 25 MB take seconds to take apart and to write anew: others go on meanwhile.
        return await asyncio.to_thread(
            lambda: letters.compose(task.request, parameters, files, letters.Original.of(raw, task.labels), author)
        )

    async def _deliver(self, task: _Task, outbox: Outbox, known: Outbound) -> str | None:
        """Send the draft on record; the sent message's id, or None if its fate is unknown."""
        context, action_id = task.context, task.action.id
        draft_id = known.draft_id or ""
        await context.write(lambda tx: record.mark_sending(tx, action_id, context.queue.clock.now()))
        try:
            return await outbox.send_draft(draft_id)
        except Gone:
            return await _sent_before(task, outbox, known)
        except MailboxUnavailable as error:
            if not (error.may_have_happened and context.job.is_last_attempt):
                raise
            found = await outbox.find_sent(task.mark, known.thread_id, known.created_at)
            if found is None:
                raise
            return found


async def _sent_in_another_life(task: _Task, outbox: Outbox) -> str | None:
    """After the restore of a backup, the mailbox may know of mail that the database does not."""
    return await outbox.find_sent(task.mark, task.thread_id, task.action.created_at)


async def _sent_before(task: _Task, outbox: Outbox, known: Outbound) -> str | None:
    found = await outbox.find_sent(task.mark, known.thread_id, known.created_at)
    if found is None and not task.context.job.is_last_attempt:
        raise Retryable(_NOT_FOUND_YET)
    return found


async def _create(outbox: Outbox, letter: OutgoingMail, thread_id: str | None) -> MailDraft:
    return await outbox.create_draft(await asyncio.to_thread(letter.to_bytes), thread_id)


async def _remove(outbox: Outbox, draft: MailDraft) -> None:
    try:
        await outbox.delete_draft(draft.id)
    except Gone:
        return


def _begin(tx: Tx, task: _Task, letter: OutgoingMail) -> letters.SendRefused | None:
    now, action = task.context.queue.clock.now(), task.action
    if task.request.message_type is letters.MessageType.REPLY and not task.is_from_person:
        addressed = [address.address for address in (*letter.to, *letter.cc)]
        answered = record.take_reply_turn(tx, action.account_id, action.id, addressed, now)
        if answered is not None:
            reason = f"not answered: {answered} got an automatic answer within the last 24 hours"
            return letters.SendRefused(reason, is_routine=True)
    record.begin_record(tx, action.id, now)
    return None


def _put_on_record(tx: Tx, task: _Task, draft: MailDraft) -> Outbound:
    record.mark_drafted(tx, task.action.id, draft, task.context.queue.clock.now())
    known = record.find_record(tx, task.action.id)
    if known is None:
        raise BadInput("action_id", "the action was removed while its mail was written")
    return known


async def _task_of(context: JobContext) -> _Task:
    request = letters.parse_request(context.job.payload)
    account = await account_of(context)
    return await context.queue.database.read(lambda tx: _load(tx, context, request, account))


def _load(tx: Tx, context: JobContext, request: letters.SendRequest, account: Account) -> _Task:
    action = lifecycle.get_action(tx, request.action_id)
    _check(request, account, action)
    query = select(messages).where(messages.c.id == action.message_id)
    row = tx.execute(query).one_or_none() if action.message_id else None
    thread_id = request.thread_id or action.thread_id or (row.external_thread_id if row else None)
    return _Task(
        context=context,
        request=request,
        account=account,
        action=action,
        own_addresses=tuple(each.email for each in list_accounts(tx, with_removed=True)),
        labels=tuple(row.labels or ()) if row else (),
        key=row.archive_key if row else None,
        thread_id=thread_id if request.message_type is letters.MessageType.REPLY else None,
    )


def _check(request: letters.SendRequest, account: Account, action: Action) -> None:
    """Refuse a job whose account and action do not belong together."""
    if action.account_id != account.id:
        raise BadInput("account_id", f"action {action.id} belongs to another account")
    own = letters.outbound_job(
        account_id=account.id, action_id=action.id, action_type=action.type, message_id=None, thread_id=None
    )
    if own.payload["message_type"] != request.message_type:
        raise BadInput("message_type", f"action {action.id} is a {action.type}, not a {request.message_type}")
    if request.original_message_id not in (None, action.message_id):
        raise BadInput("original_message_id", f"action {action.id} is about another message")
