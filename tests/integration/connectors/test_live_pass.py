"""The live pass against the stand-in and a real Switchboard: everything new, once, before the cursor moves."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from postroom.accounts.account import get_account
from postroom.accounts.history import cursor_of
from postroom.db import Database
from postroom.domain.errors import Retryable
from postroom.mailboxes.gmail import calls
from postroom.sim.gmail.faults import FaultRule, GmailFault
from postroom.telemetry import metrics
from tests.integration.connectors.test_bad_message_in_live_pass import troubled
from tests.support.connectors import NOW, ConnectorRig, Losses, connector_rig, listed, ms, source_of
from tests.support.mail import OWNER

BULK = {"List-Unsubscribe": "<https://x.example/off>", "Precedence": "bulk"}


async def archived(stage: ConnectorRig) -> set[str]:
    known = await stage.passes.switchboard.archive_lookup(
        [str(each["id"]) for each in stage.sim.control.truth(hashes=False)]
    )
    return set(known)


@pytest.mark.req("SY-13", "PQ-1", "BF-13")
async def test_new_mail_is_stored_then_ingested_in_its_tier(database: Database, tmp_path: Path) -> None:
    async with connector_rig(source_of([listed(0, 1_700_000_000_000)]), database, tmp_path) as stage:
        await stage.passes.live()
        direct = stage.deliver("Lunch?")
        bulk = stage.deliver("Weekly", headers=BULK)
        offer = stage.deliver("Sale", labels=("INBOX", "CATEGORY_PROMOTIONS"), headers=BULK)
        draft = stage.deliver("Unfinished", labels=("DRAFT",))
        tally = await stage.passes.live()
        rows = await stage.rows()
        assert {key: (row.policy_tier, row.ingestion_tier) for key, row in rows.items()} == {
            direct: ("interactive", "full"),
            bulk: ("default", "metadata"),
        }
        assert rows[direct].idempotency_key == f"gmail:{OWNER}:{direct}"
        assert rows[bulk].normalized_text is None
        assert await archived(stage) == {direct, bulk, offer, draft}, "everything new, whatever its tier"
        assert (tally.stored, tally.ingested, tally.skipped) == (4, 2, 1)
        assert (await stage.passes.live()).stored == 0


@pytest.mark.req("HW-5", "PQ-10")
async def test_metrics_name_the_mailbox_by_its_opaque_id_and_never_by_its_address(
    database: Database, tmp_path: Path
) -> None:
    metrics.configure()
    async with connector_rig(source_of([listed(0, ms_days_before(3))]), database, tmp_path) as stage:
        await stage.passes.live()
        stage.deliver("Lunch?")
        stage.deliver("Weekly", headers=BULK)
        await stage.create_job(NOW.date() - timedelta(days=9), NOW.date())
        await stage.passes.live()
        await stage.passes.backfill()
        [account_id] = {row.account_id for row in (await stage.rows()).values()}
        families = list(text_string_to_metric_families(metrics.exposition().decode()))
        labels = [(family.name, sample.labels) for family in families for sample in family.samples]
        named = [
            each["endpoint_identity"]
            for name, each in labels
            if name.startswith("butlers_connector_gmail_priority_tier")
        ]
        assert account_id in named
        told = {value for _, each in labels for value in each.values()}
        assert not [value for value in told if "@" in value or OWNER.split("@")[0] in value]


@pytest.mark.req("SY-13")
async def test_mail_from_before_the_first_look_is_left_to_backfill(database: Database, tmp_path: Path) -> None:
    async with connector_rig(
        source_of(listed(n, 1_700_000_000_000 + n) for n in range(5)), database, tmp_path
    ) as stage:
        await stage.passes.live()
        assert (await stage.rows(), await archived(stage)) == ({}, set())


@pytest.mark.req("PQ-3")
async def test_a_reply_to_sent_mail_is_served_first(database: Database, tmp_path: Path) -> None:
    old = listed(
        1, ms_days_before(10), labels=("SENT",), sender=OWNER, to="bo@x.example", headers={"Message-ID": "<old@me>"}
    )
    async with connector_rig(source_of([old]), database, tmp_path) as stage:
        await stage.passes.live()
        assert await stage.passes.fill_sent_index()
        sent = stage.deliver(
            "Question", labels=("SENT",), sender=OWNER, to="bo@x.example", headers={"Message-ID": "<new@me>"}
        )
        await stage.passes.live()
        answers = [
            stage.deliver("Re: Question", to="list@x.example", headers={"In-Reply-To": target})
            for target in ("<new@me>", "<old@me>", "<other@me>")
        ]
        stage.restart()
        await stage.passes.live()
        rows = await stage.rows()
        assert sent not in rows
        assert [rows[each].policy_tier for each in answers] == ["high_priority", "high_priority", "default"]


def ms_days_before(days: int) -> int:
    return ms(NOW) - days * 86_400_000


@pytest.mark.req("SY-13")
async def test_labels_and_deletions_reach_the_archive(database: Database, tmp_path: Path) -> None:
    async with connector_rig(source_of([]), database, tmp_path) as stage:
        await stage.passes.live()
        kept, gone, flash = (stage.deliver(each) for each in ("kept", "gone", "flash"))
        await stage.client.delete_message(flash)
        await stage.passes.live()
        label = await stage.client.create_label("Travel/2026")
        await stage.client.modify_message(kept, add=[label.id], remove=["INBOX", "UNREAD"])
        await stage.client.delete_message(gone)
        await stage.passes.live()
        page = await stage.passes.switchboard.archive_range(date(2026, 6, 1), date(2026, 6, 30), None, 10, ("From",))
        assert {(mail.gmail_id, tuple(mail.labels), mail.deleted_at_source) for mail in page.messages} == {
            (kept, ("Travel/2026",), False),
            (gone, ("INBOX", "UNREAD"), True),
        }
        assert set(await stage.rows()) == {kept, gone}


async def cursor(stage: ConnectorRig) -> int:
    found = await stage.bench.database.read(lambda tx: cursor_of(tx, get_account(tx, OWNER).id))
    return int(found or 0)


async def labels_in_archive(stage: ConnectorRig) -> dict[str, list[str]]:
    page = await stage.passes.switchboard.archive_range(date(2026, 6, 1), date(2026, 6, 30), None, 10, ("From",))
    return {mail.gmail_id: mail.labels for mail in page.messages}


async def test_a_label_deleted_before_its_change_is_read_leaves_no_trace(database: Database, tmp_path: Path) -> None:
    async with connector_rig(source_of([]), database, tmp_path) as stage:
        await stage.passes.live()
        old = stage.deliver("here already")
        await stage.passes.live()
        passing = await stage.client.create_label("Passing")
        await stage.client.modify_message(old, add=[passing.id], remove=["UNREAD"])
        new = stage.deliver("labelled on arrival", labels=("INBOX", passing.id))
        stage.sim.control.delete_label(passing.id)
        await stage.passes.live()
        assert await labels_in_archive(stage) == {old: ["INBOX"], new: ["INBOX"]}


async def test_a_renamed_label_is_stored_by_its_new_name(database: Database, tmp_path: Path) -> None:
    async with connector_rig(source_of([]), database, tmp_path) as stage:
        await stage.passes.live()
        label = await stage.client.create_label("Work")
        moved = stage.deliver("before", labels=("INBOX", label.id))
        await stage.passes.live()
        assert await labels_in_archive(stage) == {moved: ["INBOX", "Work"]}
        stage.sim.control._box.store.labels.change(label.id, {"name": "Office"}, whole=False)
        new = stage.deliver("after", labels=("INBOX", label.id))
        await stage.client.modify_message(moved, remove=["INBOX"])
        await stage.passes.live()
        assert await labels_in_archive(stage) == {moved: ["Office"], new: ["INBOX", "Office"]}


async def test_mail_taken_out_of_the_spam_folder_is_ingested(database: Database, tmp_path: Path) -> None:
    async with connector_rig(source_of([]), database, tmp_path) as stage:
        await stage.passes.live()
        mail = stage.deliver("Not spam at all", labels=("SPAM",))
        await stage.passes.live()
        assert await stage.rows() == {}
        await stage.client.modify_message(mail, add=["INBOX"], remove=["SPAM"])
        await stage.passes.live()
        assert set(await stage.rows()) == {mail}


@pytest.mark.req("SY-13", "BF-13")
@pytest.mark.parametrize("seed", range(2))
async def test_lost_and_repeated_calls_lose_and_double_nothing(database: Database, tmp_path: Path, seed: int) -> None:
    losses = Losses(seed, 0.08)
    async with connector_rig(source_of([]), database, tmp_path, losses=losses) as stage:
        stage.sim.control.add_fault(
            FaultRule(fault=GmailFault(kind="duplicate_history"), method="history.list", probability=0.5)
        )
        stage.sim.control.add_fault(
            FaultRule(fault=GmailFault(kind="reorder_history"), method="history.list", probability=0.5)
        )
        delivered: set[str] = set()
        await until_quiet(stage)
        for _ in range(6):
            delivered |= {stage.deliver(f"Mail {number}") for number in range(7)}
            for _ in range(2):
                await one_try(stage)
        await until_quiet(stage)
        assert losses.lost
        assert set(await stage.rows()) == delivered
        assert len(await stage.queue()) == len(delivered)
        assert await archived(stage) == delivered


async def one_try(stage: ConnectorRig) -> bool:
    try:
        await stage.passes.live()
    except Retryable:
        stage.clock.advance(100)
        stage.restart()
        return False
    return True


async def until_quiet(stage: ConnectorRig) -> None:
    while not await one_try(stage):
        pass
    while not await one_try(stage):
        pass


@pytest.mark.req("JB-18")
async def test_changes_at_the_source_reach_the_control_database(database: Database, tmp_path: Path) -> None:
    async with connector_rig(source_of([]), database, tmp_path) as stage:
        await stage.passes.live()
        read, deleted = stage.deliver("Read"), stage.deliver("Deleted")
        await stage.passes.live()
        await stage.client.modify_message(read, remove=["UNREAD"])
        await stage.client.delete_message(deleted)
        for kind in ("duplicate_history", "reorder_history"):
            stage.sim.control.add_fault(FaultRule(fault=GmailFault(kind=kind), method="history.list"))
        await stage.passes.live()
        rows = await stage.rows()
        assert rows[read].labels == ["INBOX"]
        assert (rows[read].deleted_at_source, rows[deleted].deleted_at_source) == (None, stage.clock.now())


async def test_a_message_that_cannot_be_read_holds_up_nobody_for_long(database: Database, tmp_path: Path) -> None:
    async with connector_rig(source_of([]), database, tmp_path) as stage:
        await stage.passes.live()
        bad, good = stage.deliver("Bad"), stage.deliver("Good")
        fault = FaultRule(fault=GmailFault(kind="malformed"), method="messages.get", ids=frozenset({bad}))
        number = stage.sim.control.add_fault(fault)
        for _ in range(2):
            with pytest.raises(Retryable):
                await stage.passes.live()
            stage.restart()
        assert (await stage.passes.live()).deferred == 1
        assert set(await stage.rows()) == {good}
        assert set(await troubled(stage)) == {bad}
        later = stage.deliver("Later")
        await stage.passes.live()
        assert set(await stage.rows()) == {good, later}
        stage.sim.control.clear_faults(number)
        stage.clock.advance(600)
        stage.restart()
        await stage.passes.live()
        assert set(await stage.rows()) == {bad, good, later}
        assert await troubled(stage) == {}


@pytest.mark.req("SY-13")
async def test_the_cursor_moves_page_by_page_and_stays_before_one_that_has_to_wait(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_full = calls.history
    monkeypatch.setattr(calls, "history", lambda since, token: [*in_full(since, token), ("maxResults", "2")])
    async with connector_rig(source_of([]), database, tmp_path) as stage:
        await stage.passes.live()
        before = await cursor(stage)
        ids = [stage.deliver(f"New {number}") for number in range(8)]
        fault = FaultRule(fault=GmailFault(kind="malformed"), method="messages.get", ids=frozenset({ids[-1]}))
        number = stage.sim.control.add_fault(fault)
        with pytest.raises(Retryable):
            await stage.passes.live()
        between = await cursor(stage)
        assert between > before
        taken = stage.sim.control.state().calls["messages.get"]
        stage.sim.control.clear_faults(number)
        await stage.passes.live()
        assert set(await stage.rows()) == set(ids)
        assert await cursor(stage) > between
        assert stage.sim.control.state().calls["messages.get"] - taken <= 4, "only the last pages are read again"


@pytest.mark.req("SY-13")
async def test_two_connectors_never_read_the_history_at_once(database: Database, tmp_path: Path) -> None:
    async with connector_rig(source_of([]), database, tmp_path) as stage:
        await stage.passes.live()
        first = await stage.passes.switchboard.history_claim("somebody else")
        with pytest.raises(Retryable, match="somebody else"):
            await stage.passes.live()
        await stage.passes.switchboard.history_commit(first.fence, release=True)
        await stage.passes.live()
