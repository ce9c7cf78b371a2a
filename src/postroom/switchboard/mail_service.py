"""The archive and the history cursor as connectors use them: store, look up, walk a range, report changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any

from sqlalchemy import select

from postroom.accounts import history, troubled
from postroom.accounts.account import find_account, find_mailbox, get_account, mailbox_id
from postroom.accounts.mailbox_state import record_deleted, record_labels
from postroom.accounts.observers import MailboxObserver, NoObserver
from postroom.archive.backend import MailReader
from postroom.archive.messages import ArchivedMessage, IncomingMail, StoredMessage, account_name
from postroom.archive.service import ArchiveService
from postroom.contract import mail as contract
from postroom.db import Database, Tx
from postroom.db.database import insert
from postroom.db.tables.mail import sent_messages
from postroom.domain.clock import Clock
from postroom.domain.errors import BadInput
from postroom.mail.headers import Headers

_LONGEST_HEADER = 4_000
_OF_CONNECTORS = (troubled.TroubleKind.FETCH, troubled.TroubleKind.INTAKE)


class MailService:
    def __init__(
        self,
        database: Database,
        archive: ArchiveService,
        clock: Clock,
        watch: MailboxObserver = NoObserver(),  # noqa: B008 - holds nothing
    ) -> None:
        self._database = database
        self._archive = archive
        self._clock = clock
        self._watch = watch

    async def store(
        self,
        identity: str,
        mails: Sequence[IncomingMail],
        lane: troubled.ArrivalLane = troubled.ArrivalLane.LIVE,
        *,
        with_headers: bool = False,
    ) -> list[contract.StoredMail]:
        """Each message is on disk when this returns, also one that cannot be parsed, which is listed as troubled."""
        stored = await self._archive.of(_mailbox(identity)).store(mails)
        self._archive.recent.add(stored)
        await self._note(identity, lane, stored)
        return [_described(proof, with_headers=with_headers) for proof in stored]

    async def report_trouble(
        self,
        identity: str,
        lane: troubled.ArrivalLane,
        troubles: Sequence[troubled.MessageTrouble],
        settled: Sequence[str],
    ) -> None:
        """Record what a connector could not fetch or ingest, and what succeeded after all."""

        def record(tx: Tx) -> None:
            account_id = _account_id(tx, identity)
            troubled.forget_trouble(tx, account_id, settled, _OF_CONNECTORS)
            troubled.record_trouble(tx, account_id, lane, troubles, self._clock.now())

        await self._database.write(record)

    async def _note(self, identity: str, lane: troubled.ArrivalLane, stored: Sequence[StoredMessage]) -> None:
        """List messages that could not be parsed; settle those that were listed because they could not be fetched."""
        unread = [
            troubled.MessageTrouble(proof.key, troubled.TroubleKind.READ, proof.trouble)
            for proof in stored
            if proof.trouble
        ]
        fine = [proof.key for proof in stored if not proof.trouble]

        def listed(tx: Tx) -> bool:
            known = find_mailbox(tx, identity)
            return bool(unread) or (known is not None and troubled.are_listed(tx, known.id, fine))

        def record(tx: Tx) -> None:
            now = self._clock.now()
            owner = mailbox_id(tx, identity, now)
            troubled.forget_trouble(tx, owner, fine, [troubled.TroubleKind.FETCH, troubled.TroubleKind.READ])
            troubled.record_trouble(tx, owner, lane, unread, now)

        if await self._database.read(listed):
            await self._database.write(record)

    async def lookup(self, identity: str, gmail_ids: Sequence[str]) -> dict[str, contract.ArchivedRef]:
        account = _mailbox(identity)
        found = await self._archive.read(lambda archive: archive.find_many(account, gmail_ids))
        return {key: contract.ArchivedRef(key=key, sha256=message.sha256) for key, message in found.items()}

    async def walk(
        self, identity: str, days: tuple[date, date], cursor: str | None, limit: int, headers: Sequence[str]
    ) -> contract.RangeReply:
        account = _mailbox(identity)
        complete = await self._database.read(lambda tx: _is_complete(tx, identity, days[1]))

        def read(archive: MailReader) -> contract.RangeReply:
            found, following = archive.walk(account, *days, cursor, limit)
            walked = [_walked(message, archive.headers_of(message), headers) for message in found]
            return contract.RangeReply(messages=walked, cursor=following, complete=complete)

        return await self._archive.read_apart(read)

    async def change(self, identity: str, labels: Mapping[str, frozenset[str]], deleted: Sequence[str]) -> set[str]:
        """Record what changed at the source; answers with the ids that the archive does not have.

        First in the archive, then in the control database: a call that is cut off is made again, and repeats both.
        """
        mailbox = _mailbox(identity)
        store = self._archive.of(mailbox)
        unknown = await store.set_labels(labels) if labels else set()
        if deleted:
            unknown |= await store.mark_deleted(deleted, self._clock.now())
        await self._database.write(lambda tx: self._record(tx, mailbox, labels, deleted))
        return unknown

    def _record(self, tx: Tx, mailbox: str, labels: Mapping[str, frozenset[str]], deleted: Sequence[str]) -> None:
        record_labels(tx, mailbox, labels)
        record_deleted(tx, mailbox, deleted, self._clock.now())
        if (account := find_account(tx, mailbox)) is not None:
            self._watch.changed(tx, account.id, labels, deleted)

    async def claim_history(self, identity: str, instance: str) -> contract.HistoryClaim:
        """Take the lease on this account's history cursor."""

        def claim(tx: Tx) -> tuple[history.HistoryLease, history.OpenGap | None]:
            account_id = _account_id(tx, identity)
            reader = history.claim_reader(tx, account_id, f"connector {instance}", self._clock.now())
            return reader, history.open_gap(tx, account_id)

        reader, gap = await self._database.write(claim)
        return contract.HistoryClaim(
            history_id=reader.history_id, fence=reader.fence, lease_s=history.LEASE.total_seconds(), gap=_owed(gap)
        )

    async def commit_history(
        self,
        identity: str,
        fence: int,
        history_id: str | None,
        *,
        release: bool,
        gap: contract.GapArgument | None = None,
    ) -> None:
        """Everything up to this history id has been taken in, or is owed as a gap. Without one, the lease is only
        renewed."""

        def commit(tx: Tx) -> None:
            now = self._clock.now()
            reader = history.HistoryLease(_account_id(tx, identity), "", fence, None)
            if history_id is None and (gap is not None or not release):
                history.renew_reader(tx, reader, now)
            elif history_id is not None and (gap is None or gap.only_older):
                history.move_cursor(tx, reader, history_id, now, is_end=release)
            elif history_id is not None and gap is not None:
                history.pass_gap(tx, reader, history_id, now, gap.since)
            if gap is not None and gap.only_older:
                _owe_older(tx, reader.account_id, gap.since, now)
            if release:
                history.release_reader(tx, reader, now)

        await self._database.write(commit)

    async def walk_gap(
        self, identity: str, step: int | None, reached: history.GapPosition | None
    ) -> contract.OwedGap | None:
        """Record a step of comparing what lies in the gap, and answer what is owed now. Without a step, only answer."""

        def record(tx: Tx) -> history.OpenGap | None:
            account_id = _account_id(tx, identity)
            return (
                history.open_gap(tx, account_id) if step is None else history.record_step(tx, account_id, step, reached)
            )

        return _owed(await (self._database.read(record) if step is None else self._database.write(record)))

    async def add_sent(self, identity: str, sent: Mapping[str, datetime | None]) -> int:
        """Messages that the owner sent, by Message-ID; answers how many were new."""

        def add(tx: Tx) -> int:
            account_id, now = _account_id(tx, identity), self._clock.now()
            statement = insert(tx, sent_messages).on_conflict_do_nothing().returning(sent_messages.c.message_id_header)
            rows = [
                {"account_id": account_id, "message_id_header": _bare(header), "sent_at": at, "added_at": now}
                for header, at in sorted(sent.items())
            ]
            return len(tx.execute(statement, rows).all()) if rows else 0

        return await self._database.write(add)

    async def lookup_sent(self, identity: str, message_ids: Sequence[str]) -> list[str]:
        """Those of the Message-IDs that the owner sent, as they were given."""
        bare = {_bare(header): header for header in message_ids}

        def look(tx: Tx) -> list[str]:
            account_id = _account_id(tx, identity)
            column = sent_messages.c.message_id_header
            query = select(column).where(sent_messages.c.account_id == account_id, column.in_(sorted(bare)))
            return [bare[row[0]] for row in tx.execute(query)]

        return sorted(await self._database.read(look))


def _owed(gap: history.OpenGap | None) -> contract.OwedGap | None:
    if gap is None:
        return None
    at = gap.position
    return contract.OwedGap(
        step=gap.step, since=gap.since, opened_at=gap.opened_at, stage=at.stage.value, before=at.before, mark=at.mark
    )


def _owe_older(tx: Tx, account_id: str, before: int | None, now: datetime) -> None:
    """What a connector of an earlier version still had to compare, unless a gap is owed that includes it."""
    if before is not None and history.open_gap(tx, account_id) is None:
        history.owe_gap(tx, account_id, before, now, history.GapPosition(history.GapStage.OLDER, before))


def _described(proof: StoredMessage, *, with_headers: bool) -> contract.StoredMail:
    more: dict[str, Any] = {"trouble": proof.trouble} if proof.trouble else {}
    if with_headers:
        more["headers"] = [contract.HeaderLine(name=name, value=value) for name, value in proof.headers or ()]
    return contract.StoredMail(key=proof.key, sha256=proof.sha256, outcome=proof.outcome.value, **more)


def _account_id(tx: Tx, identity: str) -> str:
    try:
        return get_account(tx, identity).id
    except BadInput as error:
        raise type(error)("endpoint_identity", error.problem) from None


def _is_complete(tx: Tx, identity: str, last_day: date) -> bool:
    try:
        account = find_account(tx, identity)
    except BadInput:
        return False
    return account is not None and history.is_held(tx, account.id, last_day)


def _bare(message_id: str) -> str:
    return message_id.strip().removeprefix("<").removesuffix(">")


def _mailbox(identity: str) -> str:
    try:
        return account_name(identity)
    except BadInput as error:
        raise BadInput("endpoint_identity", error.problem) from None


def _walked(message: ArchivedMessage, headers: Headers, names: Sequence[str]) -> contract.ArchivedMail:
    wanted = {name.lower() for name in names}
    return contract.ArchivedMail(
        gmail_id=message.gmail_id,
        thread_id=message.thread_id,
        key=message.key,
        sha256=message.sha256,
        size=message.size,
        internal_date=round(message.date.timestamp() * 1_000),
        labels=list(message.labels),
        deleted_at_source=message.deleted_at_source is not None,
        headers=[
            contract.HeaderLine(name=name, value=value[:_LONGEST_HEADER])
            for name, value in headers
            if name.lower() in wanted
        ],
    )
