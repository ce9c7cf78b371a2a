"""The job `digest.send`: the owner's digest of the last day or week, sent from his mailbox to itself exactly once.

    composing ──► drafted ──► sending ──► sent
        │                        └──────► unclear    the draft is gone, and no sent message was found
        └► given_up                                  its mailbox is no longer connected

A draft can be sent only once, and its id is committed before it is sent. A run that was cut off goes on where it was,
also when the next day has begun meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from sqlalchemy import Row, select, update

from postroom import audit
from postroom.accounts.account import Account, AccountStatus, account_with_id, list_accounts
from postroom.actions.outbound.record import SendStage
from postroom.actions.outbound.sending import SendingMailboxes
from postroom.app.auditing import unchanged_database
from postroom.app.digest.content import DigestKind, DigestPeriod, count_digest, digest_mail, kind_of, zone_of
from postroom.db import Tx
from postroom.db.tables.accounts import accounts
from postroom.db.tables.reports import digests
from postroom.domain.checkups import Check, CheckVerdict, Finding
from postroom.domain.clock import Clock
from postroom.domain.errors import PostroomError, Retryable
from postroom.mail.composing import REPORT_HEADER
from postroom.mailboxes.errors import Gone
from postroom.mailboxes.protocol import HeaderMark, MailDraft, Outbox
from postroom.queue import JobContext
from postroom.queue.job import Json
from postroom.settings import Settings
from postroom.vault import Vault

WHERE_TO_LOOK = "Look for it in your sent mail; it is not sent again."
_SHOWN_FOR = timedelta(days=14)
_OPEN = (SendStage.COMPOSING, SendStage.DRAFTED, SendStage.SENDING)


@dataclass(frozen=True, slots=True)
class StoredDigest:
    kind: DigestKind
    first_day: date
    account_id: str
    draft_id: str | None

    @property
    def mark(self) -> HeaderMark:
        return HeaderMark(REPORT_HEADER, f"{self.kind}-{self.first_day}")


@dataclass(frozen=True, slots=True)
class UnclearDigest:
    """One that may have been sent or not. It is never sent again, since it may have arrived."""

    period: DigestPeriod
    account: str
    """The address that it was to go to."""

    @property
    def message(self) -> str:
        return f"The digest of {self.period.title} may not have been sent to {self.account}"

    @property
    def path(self) -> str:
        """Of the page that shows the same."""
        return f"/digest?period={self.period.kind}&day={self.period.first}"


def unclear_digests(tx: Tx, zone: ZoneInfo, now: datetime) -> list[UnclearDigest]:
    """The newest first. One is forgotten when a later one of its kind was sent, and after two weeks."""
    later = digests.alias("later")
    was_sent = select(later.c.kind).where(
        later.c.kind == digests.c.kind, later.c.first_day > digests.c.first_day, later.c.state == SendStage.SENT
    )
    query = select(digests, accounts.c.email).where(
        digests.c.state == SendStage.UNCLEAR,
        digests.c.account_id == accounts.c.id,
        digests.c.updated_at > now - _SHOWN_FOR,
        ~was_sent.exists(),
    )
    rows = tx.execute(query.order_by(digests.c.first_day.desc(), digests.c.kind)).all()
    return [UnclearDigest(DigestPeriod(DigestKind(row.kind), row.first_day, zone), row.email) for row in rows]


async def examine_digests(settings: Settings, vault: Vault, clock: Clock) -> list[Finding]:
    """For the doctor; nothing to say while every digest is known to be sent."""
    zone, now = zone_of(settings), clock.now()
    try:
        async with unchanged_database(settings) as database:
            found = [] if database is None else await database.read(lambda tx: unclear_digests(tx, zone, now))
    except PostroomError as error:
        return [_found(f"Digests were not checked: {error.message}", "")]
    return [_found(f"{each.message}.", f"{WHERE_TO_LOOK} The page {each.path} has the same.") for each in found]


def _found(message: str, remedy: str) -> Finding:
    return Finding(Check.DIGEST, CheckVerdict.WARNING, "digest", message, remedy)


@dataclass(frozen=True)
class DigestSender:
    settings: Settings
    mailboxes: SendingMailboxes

    async def __call__(self, context: JobContext) -> Json:
        wanted = self._wanted(context.queue.clock.now())
        due = await context.write(lambda tx: _due(tx, wanted, context.queue.clock.now()))
        outcome: dict[str, Json] = {}
        for each in due:
            async with context.step(each.mark.value) as step:
                step.result = outcome[each.mark.value] = await self._send(context, each)
        return outcome or {"skipped": "it was sent already, or no mailbox is connected"}

    def _wanted(self, now: datetime) -> DigestPeriod | None:
        kind = kind_of(self.settings)
        return None if kind is None else DigestPeriod.current(kind, now, zone_of(self.settings)).before()

    async def _send(self, context: JobContext, digest: StoredDigest) -> str:
        account = await context.queue.database.read(lambda tx: account_with_id(tx, digest.account_id))
        if account is None or account.status is AccountStatus.REMOVED:
            await _move(context, digest, SendStage.GIVEN_UP, reason="its mailbox is no longer connected")
            return "not sent: its mailbox is no longer connected"
        outbox = await self.mailboxes.outbox(account)
        period = DigestPeriod(digest.kind, digest.first_day, zone_of(self.settings))
        draft_id = digest.draft_id
        if draft_id is None:
            # After the restore of a backup, the mailbox may know of a digest that the database does not.
            if (found := await outbox.find_sent(digest.mark, None, period.since)) is not None:
                return await _sent(context, digest, found)
            draft_id = (await self._draft(context, digest, period, account, outbox)).id
            await _move(context, digest, SendStage.DRAFTED, draft_id=draft_id)
        return await _deliver(context, digest, period, outbox, draft_id)

    async def _draft(
        self, context: JobContext, digest: StoredDigest, period: DigestPeriod, account: Account, outbox: Outbox
    ) -> MailDraft:
        """One that an earlier run left behind, or a new one."""
        left = await outbox.find_drafts(digest.mark, None)
        for more in left[1:]:
            await outbox.delete_draft(more.id)
        if left:
            return left[0]
        counts = await context.queue.database.read(lambda tx: count_digest(tx, period))
        mail = digest_mail(counts, account.email, digest.mark.value, self.settings.dashboard.url)
        return await outbox.create_draft(mail.to_bytes())


async def _deliver(
    context: JobContext, digest: StoredDigest, period: DigestPeriod, outbox: Outbox, draft_id: str
) -> str:
    await _move(context, digest, SendStage.SENDING)
    try:
        sent = await outbox.send_draft(draft_id)
    except Gone:
        found = await outbox.find_sent(digest.mark, None, period.since)
        if found is None and not context.job.is_last_attempt:
            raise Retryable("The draft of the digest is gone, and sent mail does not show it (yet).") from None
        if found is None:
            reason = "its draft is gone, and no sent message was found"
            await _move(context, digest, SendStage.UNCLEAR, reason=reason)
            return f"not known to be sent: {reason}"
        sent = found
    return await _sent(context, digest, sent)


async def _sent(context: JobContext, digest: StoredDigest, message_id: str) -> str:
    await _move(context, digest, SendStage.SENT, sent_message_id=message_id)
    return message_id


async def _move(context: JobContext, digest: StoredDigest, to: SendStage, **values: str) -> None:
    now = context.queue.clock.now()

    def move(tx: Tx) -> None:
        here = (digests.c.kind == digest.kind, digests.c.first_day == digest.first_day, digests.c.state.in_(_OPEN))
        tx.execute(update(digests).where(*here).values(state=to, updated_at=now, **values))
        if to is SendStage.SENT:
            audit.record(tx, audit.SYSTEM, "digest.send", ("digest", digest.mark.value), now, after={"state": to})

    await context.write(move)


def _due(tx: Tx, wanted: DigestPeriod | None, now: datetime) -> list[StoredDigest]:
    """What was begun and not finished, oldest first, and with it the wanted one unless it was begun before."""
    if wanted is not None:
        _begin(tx, wanted, now)
    query = select(digests).where(digests.c.state.in_(_OPEN)).order_by(digests.c.first_day, digests.c.kind)
    return [_stored(row) for row in tx.execute(query)]


def _begin(tx: Tx, wanted: DigestPeriod, now: datetime) -> None:
    """Not where no mailbox can send it."""
    account = next((each for each in list_accounts(tx) if each.status is AccountStatus.ACTIVE), None)
    if account is None:
        return
    row = {"kind": wanted.kind, "first_day": wanted.first, "account_id": account.id, "state": SendStage.COMPOSING}
    tx.insert_missing(digests, {**row, "created_at": now, "updated_at": now})


def _stored(row: Row[Any]) -> StoredDigest:
    return StoredDigest(DigestKind(row.kind), row.first_day, row.account_id, row.draft_id)
