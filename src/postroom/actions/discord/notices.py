"""The jobs that write in Discord: `approval.notify` posts a question and removes its buttons once it is answered;
`login.notify` says that a login has ended and what mends it, and later that it is mended.

Both may run any number of times. Of a message only sender and subject are shown, and of the mail that would be sent its
recipients and the beginning of its text, as inert text: no mention, link or markup in it has an effect.
"""

from __future__ import annotations

import base64
import hashlib
import re
import unicodedata
import uuid
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import quote

from sqlalchemy import select, update

from postroom.accounts.account import AccountStatus, LoginNotice, due_login_notices, keep_login_notice
from postroom.accounts.enrolment import login_command_of
from postroom.actions import approvals, lifecycle
from postroom.actions.approvals import ApprovalQuestion, ApprovalVerdict, NoticeState, standing
from postroom.actions.discord.client import DiscordChannel, MessageGone
from postroom.actions.wording import LetterPreview, deed
from postroom.db import Tx
from postroom.db.tables.triage import approval_notices
from postroom.domain.actions import ActionStatus
from postroom.domain.errors import BadInput, Retryable
from postroom.domain.ids import parse_id
from postroom.queue import JobContext
from postroom.queue.job import Json

DiscordJson = dict[str, Any]

MOST_SAID = 2_000
_MOST_OF_A_FIELD = 150
_MOST_REASONS = 5
_MOST_OF_A_LETTER = 600
_SUPPRESS_EMBEDS = 1 << 2
_PREFIX = "postroom"
_CUSTOM_ID = re.compile(
    rf"{_PREFIX}:(approve|reject):([0-9a-f]{{8}}-[0-9a-f]{{4}}-[0-9a-f]{{4}}-[0-9a-f]{{4}}-[0-9a-f]{{12}})"
)
_SPACE = re.compile(r"\s+")


def asking(question: ApprovalQuestion) -> DiscordJson:
    """The question, with its two buttons."""
    return _message(question, "needs your approval", [_buttons(question.action.id)])


def answered(question: ApprovalQuestion) -> DiscordJson:
    """The same once it is answered or over: no button is left."""
    return _message(question, inert(standing(question.action)), [])


def nonce_of(action_id: str) -> str:
    """Of 22 characters; Discord takes 25."""
    return base64.urlsafe_b64encode(uuid.UUID(action_id).bytes).rstrip(b"=").decode("ascii")


def custom_id(verdict: ApprovalVerdict, action_id: str) -> str:
    return f"{_PREFIX}:{verdict}:{action_id}"


def parse_custom_id(text: object) -> tuple[ApprovalVerdict, str] | None:
    """What a button means; None if it is not ours."""
    found = _CUSTOM_ID.fullmatch(text) if isinstance(text, str) else None
    return None if found is None else (ApprovalVerdict(found[1]), found[2])


def inert(text: str | None, most: int = _MOST_OF_A_FIELD) -> str:
    """Foreign text in a code span, on one line and truncated; nothing in it can end the span."""
    whole = _SPACE.sub(" ", text or "").strip()
    plain = "".join(char for char in whole if char == " " or not unicodedata.category(char).startswith(("C", "Z")))
    plain = plain.replace("`", "\N{MODIFIER LETTER GRAVE ACCENT}")
    if len(plain) > most:
        plain = plain[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"
    return f"`{plain}`" if plain else "(none)"


def _message(question: ApprovalQuestion, state: str, components: list[DiscordJson]) -> DiscordJson:
    action = question.action
    lines = [
        f"**Postroom**: {state}",
        f"From: {inert(question.sender)}",
        f"Subject: {inert(question.subject)}",
        f"Would: {inert(deed(action))}",
        *(_letter_lines(question.letter) if question.letter else ()),
        f"Requested by: {inert(action.wanted_by)}",
        *([f"It says: {inert(question.why)}"] if question.why else []),
        *(f"Because: {inert(reason)}" for reason in action.reasons[:_MOST_REASONS]),
        f"`postroom approvals show {action.id}`",
    ]
    return {**said_plainly("\n".join(lines)), "components": components}


def said_plainly(text: str) -> DiscordJson:
    """A message that mentions no one and shows no preview of a link."""
    return {"content": text[:MOST_SAID], "allowed_mentions": {"parse": []}, "flags": _SUPPRESS_EMBEDS}


def _letter_lines(letter: LetterPreview) -> list[str]:
    """Whom it goes to and what it says, from the beginning on."""
    lines = [f"To: {inert(', '.join(letter.to))}"]
    lines += [f"Cc: {inert(', '.join(letter.cc))}"] if letter.cc else []
    lines += [f"Its subject: {inert(letter.subject)}"]
    lines += [f"Attached: {inert(', '.join(letter.attachments))}"] if letter.attachments else []
    said = letter.text or letter.html
    return [*lines, f"Text: {inert(said, _MOST_OF_A_LETTER)}"] if said else lines


def _buttons(action_id: str) -> DiscordJson:
    approve = {"type": 2, "style": 3, "label": "Approve", "custom_id": custom_id(ApprovalVerdict.APPROVE, action_id)}
    reject = {"type": 2, "style": 4, "label": "Reject", "custom_id": custom_id(ApprovalVerdict.REJECT, action_id)}
    return {"type": 1, "components": [approve, reject]}


CHANNEL = "discord"


@dataclass(frozen=True, slots=True)
class _Notice:
    message_id: str | None
    state: NoticeState


class ApprovalNotifier:
    def __init__(self, channel: DiscordChannel | None) -> None:
        self._channel = channel

    async def __call__(self, context: JobContext) -> Json:
        if self._channel is None:
            return {"outcome": "no channel to post in"}
        question, notice = await _situation(context)
        if question.is_open and (notice is None or notice.message_id is None):
            notice = await self._ask(context, self._channel, question)
            question, _ = await _situation(context)
        if question.is_open:
            await self._ask_again(context, self._channel, question, notice)
            return await _finish(context, question, "asked")
        if notice is None or notice.state == NoticeState.CLOSED:
            return {"outcome": "nothing to ask"}
        if notice.message_id is not None:
            async with context.step("close"):
                await self._close(self._channel, notice.message_id, question)
        return await _finish(context, question, NoticeState.CLOSED)

    async def _ask(self, context: JobContext, channel: DiscordChannel, question: ApprovalQuestion) -> _Notice:
        """Record before and after posting. A message that was posted and not recorded has the same nonce, so it is not
        posted twice."""
        action_id = question.action.id
        await context.write(lambda tx: _begin(tx, context, action_id))
        async with context.step("ask") as step:
            message_id = await channel.post(asking(question), nonce_of(action_id))
            step.result = {"message_id": message_id}
        await context.write(lambda tx: _note(tx, context, action_id, NoticeState.SENT, message_id))
        return _Notice(message_id, NoticeState.SENT)

    async def _ask_again(
        self, context: JobContext, channel: DiscordChannel, question: ApprovalQuestion, notice: _Notice | None
    ) -> None:
        """An approval was taken back after its message had lost its buttons: they return."""
        if notice is None or notice.message_id is None or notice.state is not NoticeState.CLOSED:
            return
        try:
            await channel.edit(notice.message_id, asking(question))
        except MessageGone:
            return
        await context.write(lambda tx: _note(tx, context, question.action.id, NoticeState.SENT))

    async def _close(self, channel: DiscordChannel, message_id: str, question: ApprovalQuestion) -> None:
        try:
            await channel.edit(message_id, answered(question))
        except MessageGone:
            return


async def _situation(context: JobContext) -> tuple[ApprovalQuestion, _Notice | None]:
    payload = context.job.payload
    action_id = parse_id(str(payload.get("action_id")), "action_id")

    def read(tx: Tx) -> tuple[ApprovalQuestion, _Notice | None]:
        question = approvals.get_question(tx, action_id)
        if question.action.account_id != payload.get("account_id"):
            raise BadInput("account_id", f"action {action_id} belongs to another account")
        row = tx.execute(select(approval_notices).where(approval_notices.c.action_id == action_id)).one_or_none()
        return question, None if row is None else _Notice(row.external_message_id, NoticeState(row.state))

    return await context.queue.database.read(read)


async def _finish(context: JobContext, question: ApprovalQuestion, outcome: str) -> Json:
    """End the job only if what it posted still holds: an answer that came meanwhile enqueued no other job."""
    action_id = question.action.id

    def end(tx: Tx) -> Json:
        status = lifecycle.get_action(tx, action_id, lock=True).status
        if question.is_open is not (status is ActionStatus.APPROVED_PENDING):
            raise Retryable("The question was answered, or opened again, just now.", retry_after=timedelta(0))
        if outcome == NoticeState.CLOSED:
            _note(tx, context, action_id, NoticeState.CLOSED)
        return {"outcome": outcome}

    await context.complete(end)
    return None


def _begin(tx: Tx, context: JobContext, action_id: str) -> None:
    now = context.queue.clock.now()
    row = {
        "action_id": action_id,
        "channel": CHANNEL,
        "state": NoticeState.SENDING,
        "created_at": now,
        "updated_at": now,
    }
    tx.insert_missing(approval_notices, row)


def _note(tx: Tx, context: JobContext, action_id: str, state: NoticeState, message_id: str | None = None) -> None:
    values = {"state": state, "updated_at": context.queue.clock.now()}
    values |= {} if message_id is None else {"external_message_id": message_id}
    tx.execute(update(approval_notices).where(approval_notices.c.action_id == action_id).values(**values))


class LoginNotifier:
    def __init__(self, channel: DiscordChannel | None, dashboard_url: str | None) -> None:
        self._channel = channel
        self._dashboard_url = dashboard_url

    async def __call__(self, context: JobContext) -> Json:
        if self._channel is None:
            return {"outcome": "no channel to post in"}
        due = await context.queue.database.read(due_login_notices)
        for notice in due:
            if notice.message_id is None:
                await self._tell(context, self._channel, notice)
            else:
                await self._close(context, self._channel, notice, notice.message_id)
        return {"reported": len(due)}

    async def _tell(self, context: JobContext, channel: DiscordChannel, notice: LoginNotice) -> None:
        """A message that was posted and not recorded has the same nonce, so it is not posted twice."""
        account_id = notice.account.id
        nonce = hashlib.sha256(f"{account_id} {notice.ended_at}".encode()).hexdigest()[:24]
        async with context.step(f"tell {account_id}") as step:
            message_id = await channel.post(said_plainly(ended(notice, self._dashboard_url)), nonce)
            step.result = {"message_id": message_id}
        await context.write(lambda tx: keep_login_notice(tx, account_id, message_id))

    async def _close(self, context: JobContext, channel: DiscordChannel, notice: LoginNotice, message_id: str) -> None:
        account_id = notice.account.id
        async with context.step(f"close {account_id}"):
            with suppress(MessageGone):  # who deleted it has read it
                await channel.edit(message_id, said_plainly(over(notice)))
        await context.write(lambda tx: keep_login_notice(tx, account_id, None))


def ended(notice: LoginNotice, dashboard_url: str | None) -> str:
    account = notice.account
    lines = [
        f"**Postroom**: the login of {inert(account.email)} has ended, and its jobs wait.",
        f"Log in again: {login_command_of(account)}",
    ]
    if dashboard_url is not None:
        lines.append(f"or at <{dashboard_url.rstrip('/')}/settings/accounts/new?email={quote(account.email)}>")
    return "\n".join(lines)


def over(notice: LoginNotice) -> str:
    if notice.account.status is AccountStatus.REMOVED:
        return f"**Postroom**: {inert(notice.account.email)} was removed."
    return f"**Postroom**: the login of {inert(notice.account.email)} is good again, and its jobs go on."
