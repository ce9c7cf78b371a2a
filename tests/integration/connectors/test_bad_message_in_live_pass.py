"""Whatever one message does, it alone is troubled: its bytes are archived, it is listed, and the others come in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from postroom.accounts.account import get_account
from postroom.accounts.history import live_trouble
from postroom.accounts.troubled import (
    ArrivalLane,
    TroubledMessage,
    TroubleKind,
    count_troubled,
    troubled_number,
    troubled_of,
)
from postroom.archive.messages import ArchivedMessage
from postroom.connectors import intake
from postroom.db import Database, Tx
from postroom.domain.envelope import Payload
from postroom.domain.errors import Fatal, Retryable
from postroom.mailboxes.errors import MailboxThrottled
from postroom.sim.gmail.faults import FaultRule, GmailFault
from postroom.sync.status import LIVE_FAILING, status_of
from tests.hostile.corpus import corpus
from tests.support.connectors import NOW, ConnectorRig, connector_rig, listed, ms, source_of
from tests.support.mail import OWNER
from tests.support.reading_faults import break_reading

pytestmark = pytest.mark.req("HW-1")

HEAD = b"From: Eve <eve@x.example>\r\nTo: %s\r\nSubject: Hostile\r\nMessage-ID: <evil@x.example>\r\n" % OWNER.encode()
LONG_REFERENCE = HEAD + b"Content-Type: text/html\r\n\r\n<p>Hi &#" + b"9" * 5_000 + b"; there</p>\r\n"
DAMAGED = HEAD + b"Content-Type: text/plain\r\nContent-Transfer-Encoding: base64\r\n\r\n" + b"!A" * 200_001
MARK = b"Subject: Hostile"


def is_hostile(raw: bytes) -> bool:
    return MARK in raw


def deliver(stage: ConnectorRig, raw: bytes = LONG_REFERENCE) -> str:
    return stage.sim.control.deliver(raw, frozenset({"INBOX"}), internal_date=ms(stage.clock.now()))


async def troubled(stage: ConnectorRig) -> dict[str, TroubledMessage]:
    def read(tx: Tx) -> list[TroubledMessage]:
        return troubled_of(tx, get_account(tx, OWNER).id)

    return {each.key: each for each in await stage.bench.database.read(read)}


async def archived(stage: ConnectorRig, key: str) -> tuple[ArchivedMessage, bytes, str]:
    """The message, its bytes and its indexed text."""

    def read(reader: Any) -> tuple[ArchivedMessage, bytes, str]:
        message = reader.message(OWNER, key)
        return message, reader.raw_of(message), reader.body_of(message)

    return await stage.bench.archive.read(read)


@pytest.mark.req("HW-2")
@pytest.mark.parametrize("raw", [LONG_REFERENCE, DAMAGED], ids=["long reference", "damaged base64"])
async def test_the_mails_that_stopped_everything_are_ordinary_mail(
    database: Database, tmp_path: Path, raw: bytes
) -> None:
    async with connector_rig(source_of([listed(0, 1_700_000_000_000)]), database, tmp_path) as stage:
        await stage.passes.live()
        evil, after = deliver(stage, raw), stage.deliver("Lunch?")
        await stage.passes.live()
        assert {evil, after} <= set(await stage.rows())
        message, bytes_, _ = await archived(stage, evil)
        assert (message.subject, bytes_) == ("Hostile", raw)
        assert await troubled(stage) == {}


async def test_every_hostile_mail_of_the_corpus_is_taken_in_with_its_exact_bytes(
    database: Database, tmp_path: Path
) -> None:
    """Also one of no bytes at all."""
    mails = {kind.name: kind.sized(500) for kind in corpus().values() if "mail" in kind.readers}
    assert b"" in mails.values()
    async with connector_rig(source_of([listed(0, 1_700_000_000_000)]), database, tmp_path) as stage:
        await stage.passes.live()
        sent = {deliver(stage, raw): raw for raw in mails.values()}
        while (await stage.passes.live()).stored:
            pass
        assert set(sent) <= set(await stage.rows())
        changed = [key for key, raw in sent.items() if (await archived(stage, key))[1] != raw]
        assert (changed, await troubled(stage)) == ([], {})


@pytest.mark.parametrize("error", [ValueError, MemoryError, RecursionError])
async def test_live_mail_goes_on_past_a_message_that_breaks_the_reader(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    async with connector_rig(source_of([listed(0, 1_700_000_000_000)]), database, tmp_path) as stage:
        await stage.passes.live()
        break_reading(monkeypatch, is_hostile, error)
        before, evil, after = stage.deliver("Before"), deliver(stage), stage.deliver("After")
        tally = await stage.passes.live()
        assert (tally.stored, tally.waiting) == (3, None)
        assert {before, evil, after} <= set(await stage.rows())
        message, raw, text = await archived(stage, evil)
        assert (raw, text, message.subject, message.sender) == (LONG_REFERENCE, "", "Hostile", "Eve <eve@x.example>")
        [one] = (await troubled(stage)).values()
        assert (one.key, one.kind, one.lane, one.archived) == (evil, TroubleKind.READ, "live", True)
        assert error.__name__ in one.reason
        assert (await stage.passes.live()).stored == 0, "the cursor has moved on"


async def test_a_message_that_can_be_read_again_is_indexed_and_leaves_the_list(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connector_rig(source_of([listed(0, 1_700_000_000_000)]), database, tmp_path) as stage:
        await stage.passes.live()
        break_reading(monkeypatch, is_hostile)
        evil = deliver(stage)
        await stage.passes.live()
        monkeypatch.undo()
        store = stage.bench.archive.of(OWNER)
        assert await store.reread([evil, "unknown"]) == {evil: None}
        message, raw, text = await archived(stage, evil)
        assert (raw, "there" in text, message.message_id) == (LONG_REFERENCE, True, "<evil@x.example>")
        assert (await store.reread([evil])) == {evil: None}, "again, it changes nothing"


async def test_backfill_goes_on_past_a_message_that_breaks_the_reader(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mails = [listed(number, ms(NOW) - number * 3_600_000, subject=f"Old {number}") for number in range(1, 6)]
    mails.append(listed(9, ms(NOW) - 9_000_000, subject="Hostile"))
    async with connector_rig(source_of(mails), database, tmp_path) as stage:
        break_reading(monkeypatch, is_hostile)
        await stage.calls("backfill.switch", enabled=True)
        day = date(NOW.year, NOW.month, NOW.day)
        await stage.create_job(day - timedelta(days=2), day)
        outcome = await stage.passes.backfill()
        assert (outcome.status, outcome.processed) == ("completed", 6)
        [one] = (await troubled(stage)).values()
        assert (one.lane, one.archived, one.kind) == ("backfill", True, TroubleKind.READ)


async def test_a_search_on_demand_goes_on_past_a_message_that_breaks_the_reader(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mails = [listed(1, ms(NOW) - 3_600_000, subject="Invoice"), listed(2, ms(NOW) - 7_200_000, subject="Hostile")]
    async with connector_rig(source_of(mails), database, tmp_path) as stage:
        break_reading(monkeypatch, is_hostile)
        outcome = await stage.passes.on_demand("in:anywhere")
        assert (outcome.ingested, outcome.failed) == (2, 0)
        [one] = (await troubled(stage)).values()
        assert (one.lane, one.archived) == ("on demand", True)


def _broken_for_hostile(make: Callable[..., Any]) -> Callable[..., Any]:
    def broken(mail: Any, *given: Any) -> Any:
        if mail.headers.get("Subject") == "Hostile":
            raise OSError("nobody thought of this")
        return make(mail, *given)

    return broken


@pytest.mark.parametrize("step", ["full_payload", "envelope_of"])
async def test_an_error_that_nobody_thought_of_is_held_against_one_message(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    async with connector_rig(source_of([listed(0, 1_700_000_000_000)]), database, tmp_path) as stage:
        await stage.passes.live()
        monkeypatch.setattr(intake, step, _broken_for_hostile(getattr(intake, step)))
        before, evil, after = stage.deliver("Before"), deliver(stage), stage.deliver("After")
        for _ in range(2):
            with pytest.raises(Exception, match="cannot be taken in"):
                await stage.passes.live()
            assert {before, after} <= set(await stage.rows()), "the others are in at once"
        assert (await stage.passes.live()).deferred == 1, "the cursor moves on without it"
        [one] = (await troubled(stage)).values()
        assert (one.key, one.kind, one.lane, one.archived) == (evil, TroubleKind.INTAKE, "live", True)
        later = stage.deliver("Later")
        await stage.passes.live()
        assert later in await stage.rows()
        monkeypatch.undo()
        stage.clock.advance(timedelta(days=2).total_seconds())
        await stage.passes.live()
        assert evil in await stage.rows()
        assert await troubled(stage) == {}


async def test_a_tool_that_fails_for_one_message_keeps_no_other_out(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connector_rig(source_of([listed(0, 1_700_000_000_000)]), database, tmp_path) as stage:
        await stage.passes.live()
        store = stage.bench.archive.of(OWNER)
        real = store.store

        async def broken(mails: Any) -> Any:
            if any(is_hostile(mail.raw) for mail in mails):
                raise KeyError("the archive trips over it")
            return await real(mails)

        monkeypatch.setattr(store, "store", broken)
        before, evil, after = stage.deliver("Before"), deliver(stage), stage.deliver("After")
        for _ in range(2):
            with pytest.raises(Fatal):
                await stage.passes.live()
        await stage.passes.live()
        assert {before, after} <= set(await stage.rows())
        [one] = (await troubled(stage)).values()
        assert (one.key, one.kind, one.archived) == (evil, TroubleKind.FETCH, False)


@pytest.mark.req("SY-5")
async def test_a_message_that_is_throttled_alone_is_listed_once_the_cursor_passes_it(
    database: Database, tmp_path: Path
) -> None:
    async with connector_rig(source_of([listed(0, 1_700_000_000_000)]), database, tmp_path) as stage:
        await stage.passes.live()
        slow, fine = stage.deliver("Slow"), stage.deliver("Fine")
        throttled = GmailFault(kind="error", code=429, reason="rateLimitExceeded")
        stage.sim.control.add_fault(FaultRule(fault=throttled, method="messages.get", ids=frozenset({slow})))
        for _ in range(2):
            with pytest.raises(MailboxThrottled):
                await stage.passes.live()
            assert await troubled(stage) == {}, "the next pass comes back to it"
        assert (await stage.passes.live()).deferred == 1
        assert fine in await stage.rows()
        [one] = (await troubled(stage)).values()
        assert (one.key, one.kind, one.archived) == (slow, TroubleKind.FETCH, False)


async def test_status_says_when_new_mail_fails_again_and_again(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connector_rig(source_of([listed(0, 1_700_000_000_000)]), database, tmp_path) as stage:
        await stage.passes.live()

        def looked(tx: Tx) -> tuple[str, bool]:
            account = get_account(tx, OWNER)
            return status_of(tx, account, stage.clock.now()).phase, live_trouble(tx, account.id) is not None

        assert (await stage.bench.database.read(looked))[1] is False

        async def away(*given: Any) -> Mapping[str, Payload]:
            raise Retryable("the network is down")

        monkeypatch.setattr(stage.client, "list_history", away)
        monkeypatch.setattr(type(stage.passes._live), "_follow", away)
        for _ in range(3):
            with pytest.raises(Retryable):
                await stage.passes.live()
        assert await stage.bench.database.read(looked) == (LIVE_FAILING, True)
        monkeypatch.undo()
        await stage.passes.live()
        assert (await stage.bench.database.read(looked))[1] is False


async def test_everything_that_counts_troubled_messages_counts_the_same(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connector_rig(source_of([listed(0, 1_700_000_000_000)]), database, tmp_path) as stage:
        await stage.passes.live()
        break_reading(monkeypatch, is_hostile)
        deliver(stage)
        await stage.passes.live()

        def counted(tx: Tx) -> tuple[int, int, Mapping[str, Mapping[ArrivalLane, int]]]:
            account = get_account(tx, OWNER)
            return troubled_number(tx), status_of(tx, account, stage.clock.now()).bad, count_troubled(tx)

        number, bad, lanes = await stage.bench.database.read(counted)
        assert (number, bad, [dict(each) for each in lanes.values()]) == (1, 1, [{"live": 1}])
