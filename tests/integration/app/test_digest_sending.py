"""The digest by e-mail: one a period, whatever is cut off; only counts, and only to oneself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
from sqlalchemy import select, update

from postroom.accounts.account import Account, NewAccount, add_account
from postroom.app.digest.content import zone_of
from postroom.app.digest.sending import DigestSender, examine_digests, unclear_digests
from postroom.app.schedules import schedules
from postroom.audit import AuditFilter, list_entries
from postroom.connectors.source_mail import SourceMail
from postroom.dashboard.overview import needs
from postroom.db import Database, Tx
from postroom.db.tables.accounts import accounts
from postroom.db.tables.reports import digests
from postroom.domain.checkups import Check, CheckVerdict
from postroom.domain.clock import ManualClock
from postroom.domain.errors import Retryable
from postroom.domain.ids import new_id
from postroom.domain.jobs import CATALOGUE, DIGEST_SEND
from postroom.mail.parsing import parse_mail
from postroom.mailboxes.errors import Gone
from postroom.mailboxes.protocol import HeaderMark, MailDraft
from postroom.queue import JobQueue, NewJob
from postroom.settings import DatabaseSettings, DigestSettings, Settings
from postroom.vault import Vault
from tests.support.actions import make_message
from tests.support.databases import on_sqlite
from tests.support.mail import ME
from tests.support.queues import run_until_idle

pytestmark = pytest.mark.req("UX-3")

T = TypeVar("T")
MORNING = datetime(2026, 11, 17, 6, 0, tzinfo=UTC)
TIMES = {"created_at": MORNING, "updated_at": MORNING}
CALLS = ("find_sent", "find_drafts", "create_draft", "send_draft")


@dataclass
class MailboxThatFails:
    """Drafts and what was sent of them. One call is cut off, before or after its effect."""

    cut_off: str | None = None
    after_effect: bool = False
    hides_sent: int = 0
    """So many searches do not find sent mail yet."""
    drafts: dict[str, bytes] = field(default_factory=dict)
    sent: list[bytes] = field(default_factory=list)

    async def outbox(self, account: Account) -> MailboxThatFails:
        return self

    async def find_sent(self, mark: HeaderMark, thread_id: str | None, since: datetime) -> str | None:
        def search() -> str | None:
            if self.sent and self.hides_sent:
                self.hides_sent -= 1
                return None
            return next((str(n) for n, raw in enumerate(self.sent) if mark.value.encode() in raw), None)

        return self._called("find_sent", search)

    async def find_drafts(self, mark: HeaderMark, thread_id: str | None) -> list[MailDraft]:
        return self._called(
            "find_drafts",
            lambda: [MailDraft(key, key, "") for key, raw in self.drafts.items() if mark.value.encode() in raw],
        )

    async def create_draft(self, raw: bytes, thread_id: str | None = None) -> MailDraft:
        key = new_id()

        def create() -> MailDraft:
            self.drafts[key] = raw
            return MailDraft(key, key, "")

        return self._called("create_draft", create)

    async def send_draft(self, draft_id: str) -> str:
        def send() -> str:
            if draft_id not in self.drafts:
                raise Gone("draft", "it is not there")
            self.sent.append(self.drafts.pop(draft_id))
            return str(len(self.sent) - 1)

        return self._called("send_draft", send)

    def _called(self, name: str, effect: Callable[[], T]) -> T:
        is_cut, self.cut_off = self.cut_off == name, None if self.cut_off == name else self.cut_off
        if is_cut and not self.after_effect:
            raise Retryable("the call was cut off")
        done = effect()
        if is_cut:
            raise Retryable("the answer was lost")
        return done


@dataclass
class Scene:
    queue: JobQueue
    clock: ManualClock
    account: Account
    mailbox: MailboxThatFails
    settings: Settings

    async def morning(self) -> None:
        """The job as its schedule starts it, and its retries."""
        await self.queue.enqueue(NewJob(DIGEST_SEND.name, {}, key="schedule:digest.send"))
        sender = DigestSender(self.settings, cast(Any, self.mailbox))
        for _ in range(4):
            await run_until_idle(self.queue, {DIGEST_SEND.name: sender})
            self.clock.advance(1_800)

    async def states(self) -> list[tuple[str, str]]:
        query = select(digests.c.first_day, digests.c.state).order_by(digests.c.first_day)
        rows = await self.queue.database.read(lambda tx: tx.execute(query).all())
        return [(str(day), state) for day, state in rows]


@pytest.fixture
async def scene(database: Database, tmp_path: Path) -> Scene:
    clock = ManualClock(MORNING)
    account = await database.write(lambda tx: add_account(tx, NewAccount(ME, "https://gmail.example"), clock.now()))
    settings = Settings(home=tmp_path, digest=DigestSettings(every="daily", zone="Europe/Zagreb"))
    return Scene(JobQueue(database, CATALOGUE, clock), clock, account, MailboxThatFails(), settings)


async def test_each_day_is_sent_once_to_oneself_with_its_counts(scene: Scene) -> None:
    clock = ManualClock(MORNING - timedelta(hours=12))
    await make_message(scene.queue.database, clock, scene.account, "18f1", subject="Secret words")
    await scene.morning()
    await scene.morning()
    [raw] = scene.mailbox.sent
    letter = parse_mail(raw)
    assert "1 message received" in letter.best_text
    assert "Secret words" not in letter.best_text
    assert [each.address for each in letter.to] == [ME]
    entries = (await scene.queue.database.read(lambda tx: list_entries(tx, AuditFilter(action="digest.send")))).entries
    assert [entry.subject_id for entry in entries] == ["day-2026-11-16"]
    scene.clock.advance(86_400)
    await scene.morning()
    assert await scene.states() == [("2026-11-16", "sent"), ("2026-11-17", "sent")]
    assert len(scene.mailbox.sent) == 2


@on_sqlite
@pytest.mark.parametrize("after_effect", [False, True])
@pytest.mark.parametrize("call", CALLS)
async def test_a_run_that_is_cut_off_anywhere_sends_one_all_the_same(
    scene: Scene, call: str, after_effect: bool
) -> None:
    scene.mailbox.cut_off, scene.mailbox.after_effect = call, after_effect
    scene.mailbox.hides_sent = 1
    await scene.morning()
    await scene.morning()
    assert len(scene.mailbox.sent) == 1
    assert scene.mailbox.drafts == {}
    assert await scene.states() == [("2026-11-16", "sent")]


async def test_what_was_begun_is_finished_on_a_later_day_beside_the_next(scene: Scene) -> None:
    def cut_off(tx: Tx) -> None:
        scene.mailbox.drafts["d1"] = b"X-Postroom-Digest: day-2026-11-15"
        row = {"kind": "day", "first_day": MORNING.date() - timedelta(days=2), "account_id": scene.account.id}
        row |= {"state": "sending", "draft_id": "d1", "created_at": MORNING, "updated_at": MORNING}
        tx.execute(digests.insert().values(row))

    await scene.queue.database.write(cut_off)
    await scene.morning()
    assert await scene.states() == [("2026-11-15", "sent"), ("2026-11-16", "sent")]
    assert len(scene.mailbox.sent) == 2


@on_sqlite
async def test_a_draft_that_vanished_is_reported_and_no_other_is_sent(scene: Scene) -> None:
    scene.mailbox.cut_off = "send_draft"
    await scene.queue.enqueue(NewJob(DIGEST_SEND.name, {}, key="schedule:digest.send"))
    sender = DigestSender(scene.settings, cast(Any, scene.mailbox))
    await run_until_idle(scene.queue, {DIGEST_SEND.name: sender})
    scene.mailbox.drafts.clear()
    for _ in range(60):
        scene.clock.advance(3_600)
        await run_until_idle(scene.queue, {DIGEST_SEND.name: sender})
    assert ("2026-11-16", "unclear") in await scene.states()
    assert scene.mailbox.sent == []


async def test_a_digest_that_may_not_have_been_sent_is_shown_until_a_later_one_was(scene: Scene) -> None:
    database, zone = scene.queue.database, zone_of(scene.settings)

    async def put(day: int, state: str) -> None:
        row = {"kind": "day", "first_day": date(2026, 11, day), "account_id": scene.account.id, "state": state}
        await database.write(lambda tx: tx.execute(digests.insert().values(**row, **TIMES)))

    async def shown(now: datetime = MORNING) -> list[str]:
        said = await database.read(lambda tx: needs(tx, scene.settings, [], now))
        return [f"{need.text} {need.href}" for need in said if "digest" in need.text]

    assert await shown() == []
    await put(15, "unclear")
    [need] = await shown()
    assert "The digest of Sunday, 15 November 2026 may not have been sent to" in need
    assert "Look for it in your sent mail; it is not sent again." in need
    assert need.endswith("/digest?period=day&day=2026-11-15")
    assert await shown(MORNING + timedelta(days=15)) == []
    await put(16, "sending")
    assert len(await shown()) == 1
    await put(17, "sent")
    assert await shown() == []
    assert await database.read(lambda tx: unclear_digests(tx, zone, MORNING)) == []


async def test_the_doctor_reports_a_digest_that_may_not_have_been_sent(scene: Scene, database_url: str) -> None:
    settings = scene.settings.model_copy(update={"database": DatabaseSettings(url=database_url)})
    assert await examine_digests(settings, Vault(settings.home), scene.clock) == []
    row = {"kind": "day", "first_day": date(2026, 11, 15), "account_id": scene.account.id, "state": "unclear"}
    await scene.queue.database.write(lambda tx: tx.execute(digests.insert().values(**row, **TIMES)))
    [found] = await examine_digests(settings, Vault(settings.home), scene.clock)
    assert (found.check, found.verdict) == (Check.DIGEST, CheckVerdict.WARNING)
    assert "Look for it in your sent mail" in found.remedy


@on_sqlite
async def test_it_is_off_by_default_and_waits_for_a_mailbox(scene: Scene, tmp_path: Path) -> None:
    assert DIGEST_SEND.name not in [each.name for each in schedules(Settings(home=tmp_path))]
    [declared] = [each for each in schedules(scene.settings) if each.name == DIGEST_SEND.name]
    assert declared.cadence == "daily 07:00 Europe/Zagreb"
    await scene.queue.database.write(lambda tx: tx.execute(update(accounts).values(status="failing")))
    await scene.morning()
    assert await scene.states() == []
    weekly = DigestSettings(every="weekly")
    scene.settings = scene.settings.model_copy(update={"digest": weekly})
    await scene.queue.database.write(lambda tx: tx.execute(update(accounts).values(status="active")))
    await scene.morning()
    assert await scene.states() == [("2026-11-09", "sent")]


def test_it_is_not_judged_when_it_arrives_and_others_cannot_write_such_mail() -> None:
    def arrived(*labels: str, header: str = "X-Postroom-Digest") -> SourceMail:
        headers = parse_mail(f"{header}: day-2026-11-16\n\n".encode()).headers
        return SourceMail("18f1", "18f1", frozenset(labels), 0, headers)

    assert arrived("SENT", "INBOX").is_outbound
    assert not arrived("SENT", "INBOX", header="X-Note").is_outbound
    assert not arrived("INBOX").is_outbound
