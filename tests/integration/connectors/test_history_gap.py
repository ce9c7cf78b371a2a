"""After Gmail has forgotten its history: live mail goes on at once, and what was missed is owed until it is in."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from postroom.accounts.account import get_account
from postroom.accounts.history import OpenGap, open_gap
from postroom.archive.messages import IncomingMail, Provenance
from postroom.connectors.state_files import write_json
from postroom.connectors.switchboard_client import SwitchboardAway
from postroom.db import Database
from postroom.domain.errors import Retryable
from postroom.sim.gmail.faults import FaultRule, GmailFault
from tests.integration.connectors.test_bad_message_in_live_pass import troubled
from tests.integration.connectors.test_live_pass import archived, cursor, ms_days_before
from tests.support.connectors import NOW, ConnectorRig, Losses, connector_rig, listed, source_of
from tests.support.mail import OWNER

DAY_S = 86_400
HOUR_S = 3_600.0
pytestmark = pytest.mark.req("SY-13", "JB-18")


async def owed(stage: ConnectorRig) -> OpenGap | None:
    return await stage.bench.database.read(lambda tx: open_gap(tx, get_account(tx, OWNER).id))


async def away_for(stage: ConnectorRig, days: int, missed: int) -> list[str]:
    """A first look, then some days in which mail comes and nobody looks, until Gmail has forgotten the changes."""
    await stage.passes.live()
    stage.clock.advance(days * DAY_S)
    ids = [stage.deliver(f"Missed {number}") for number in range(missed)]
    stage.sim.control.expire_history()
    return ids


def gets(stage: ConnectorRig) -> int:
    return stage.sim.control.state().calls.get("messages.get", 0)


async def test_new_mail_is_taken_in_at_once_while_the_gap_is_still_open(database: Database, tmp_path: Path) -> None:
    async with connector_rig(source_of([]), database, tmp_path) as stage:
        missed = await away_for(stage, 20, 350)
        before = gets(stage)
        assert (await stage.passes.live()).gap
        assert gets(stage) == before, "the pass that finds the gap does not walk it"
        fresh = stage.deliver("Fresh")
        tally = await stage.passes.live()
        assert (tally.ingested, tally.gap) == (1, True)
        assert set(await stage.rows()) == {fresh}
        await stage.passes.walk_gap(HOUR_S)
        assert set(await stage.rows()) == {fresh, *missed}
        assert not (await stage.passes.live()).gap
        assert await owed(stage) is None


async def test_the_cursor_and_what_is_owed_are_written_together(database: Database, tmp_path: Path) -> None:
    losses = Losses(1, 0.0)
    async with connector_rig(source_of([]), database, tmp_path, losses=losses) as stage:
        missed = await away_for(stage, 20, 3)
        old = await cursor(stage)

        async def crash(tool: str, arguments: object) -> None:
            if tool == "history.commit":
                raise SwitchboardAway()

        losses.before_call = crash
        with pytest.raises(SwitchboardAway):
            await stage.passes.live()
        assert (await cursor(stage), await owed(stage)) == (old, None)
        losses.before_call = None
        losses.answers_to_lose["history.commit"] = 1
        with pytest.raises(SwitchboardAway):
            await stage.passes.live()
        assert await cursor(stage) > old
        assert await owed(stage) is not None, "the answer was lost, and the debt was not"
        stage.clock.advance(100)
        stage.restart("another host")
        (stage.folder / "live.json").unlink(missing_ok=True)
        await stage.passes.live()
        await stage.passes.walk_gap(HOUR_S)
        assert set(await stage.rows()) == set(missed), "no file of the first connector is needed"


async def test_a_gap_is_walked_in_bounded_steps_that_no_crash_repeats(database: Database, tmp_path: Path) -> None:
    async with connector_rig(source_of([]), database, tmp_path) as stage:
        missed = await away_for(stage, 20, 230)
        await stage.passes.live()
        sizes = []
        for _ in range(5):
            before = gets(stage)
            stage.restart()
            with stopped_clock(stage):
                await stage.passes.walk_gap(0.5)
            sizes.append(gets(stage) - before)
        assert max(sizes) <= 60, "a chunk of 50 and what belongs to it"
        stage.restart()
        await stage.passes.walk_gap(HOUR_S)
        assert set(await stage.rows()) == set(missed)
        assert gets(stage) <= 230 + 230 + 60, "each is fetched once, and its labels are compared once"


class stopped_clock:
    """Makes each chunk take a second of the connector's time."""

    def __init__(self, stage: ConnectorRig) -> None:
        self._stage = stage

    def __enter__(self) -> None:
        take, clock = self._stage.passes._gap._arrivals.take, self._stage.clock

        async def slow(*args: object, **more: object) -> None:
            await take(*args, **more)  # type: ignore[arg-type]
            clock.advance(1)

        self._stage.passes._gap._arrivals.take = slow  # type: ignore[method-assign]

    def __exit__(self, *ended: object) -> None:
        return None


async def test_an_expired_history_leaves_no_gap(database: Database, tmp_path: Path) -> None:
    history = [listed(n, ms_days_before(200 + n)) for n in range(3)]
    async with connector_rig(source_of(history), database, tmp_path) as stage:
        await stage.passes.live()
        before = stage.deliver("Before")
        await stage.passes.live()
        stage.clock.advance(20 * DAY_S)
        missed = [stage.deliver(f"Missed {number}") for number in range(120)]
        spam = stage.deliver("Spam", labels=("SPAM",))
        await stage.calls("backfill.switch", enabled=False)
        stage.sim.control.expire_history()
        await stage.passes.live()
        tally = await stage.passes.walk_gap(HOUR_S)
        assert tally.ingested == 120, "filling a gap is live work, whatever the kill switch says"
        assert set(await stage.rows()) == {before, *missed}
        assert await archived(stage) >= {before, *missed, spam}
        after = stage.deliver("After")
        await stage.passes.live()
        rows = await stage.rows()
        assert set(rows) == {before, *missed, after}, "what is older than the gap is archived, not ingested"
        assert all(row.backfill_job_id is None for row in rows.values())
        assert len(await archived(stage)) == 3 + 1 + 120 + 1 + 1


async def test_mail_that_a_sync_has_archived_since_is_taken_in(database: Database, tmp_path: Path) -> None:
    async with connector_rig(source_of([]), database, tmp_path) as stage:
        [missed] = await away_for(stage, 20, 1)
        raw = IncomingMail(
            raw=stage.sim.control.raw(missed),
            provenance=Provenance.API,
            gmail_id=missed,
            thread_id=missed,
            labels=frozenset({"INBOX", "UNREAD"}),
            received=stage.clock.now(),
        )
        await stage.bench.archive.of(stage.sim.email).store([raw])
        await stage.passes.live()
        assert (await stage.passes.walk_gap(HOUR_S)).ingested == 1
        assert set(await stage.rows()) == {missed}


async def test_known_mail_is_compared_too(database: Database, tmp_path: Path) -> None:
    async with connector_rig(source_of([]), database, tmp_path) as stage:
        await stage.passes.live()
        starred, deleted, same = (stage.deliver(name) for name in ("Starred", "Deleted", "Same"))
        await stage.passes.live()
        stage.clock.advance(10 * DAY_S)
        await stage.client.modify_message(starred, add=["STARRED"], remove=["INBOX"])
        await stage.client.delete_message(deleted)
        stage.sim.control.expire_history()
        await stage.passes.live()
        tally = await stage.passes.walk_gap(HOUR_S)
        rows = await stage.rows()
        assert tally.compared == 2
        assert rows[starred].labels == ["STARRED", "UNREAD"]
        assert rows[deleted].deleted_at_source is not None
        assert (rows[same].labels, rows[same].deleted_at_source) == (["INBOX", "UNREAD"], None)


async def test_a_crash_while_filling_a_gap_loses_nothing(database: Database, tmp_path: Path) -> None:
    losses = Losses(1, 0.0)
    async with connector_rig(source_of([]), database, tmp_path, losses=losses) as stage:
        missed = await away_for(stage, 20, 60)
        await stage.passes.live()

        async def crash(tool: str, arguments: object) -> None:
            if tool == "ingest":
                raise SwitchboardAway()

        losses.before_call = crash
        with pytest.raises(SwitchboardAway):
            await stage.passes.walk_gap(HOUR_S)
        assert len(await archived(stage)) == 50, "stored, and not yet ingested"
        losses.before_call = None
        stage.restart()
        await stage.passes.walk_gap(HOUR_S)
        assert set(await stage.rows()) == set(missed)


@pytest.mark.parametrize("seed", range(2))
async def test_lost_and_repeated_calls_lose_nothing_of_a_gap(database: Database, tmp_path: Path, seed: int) -> None:
    losses = Losses(seed, 0.0)
    async with connector_rig(source_of([]), database, tmp_path, losses=losses) as stage:
        missed = await away_for(stage, 20, 130)
        losses._probability = 0.1
        while await owed(stage) is not None or not await stage.rows():
            for turn in (stage.passes.live(), stage.passes.walk_gap(HOUR_S)):
                try:
                    await turn
                except Retryable:
                    stage.clock.advance(100)
                    stage.restart()
        assert losses.lost
        assert set(await stage.rows()) == set(missed)
        assert len(await stage.queue()) == len(missed)


async def test_a_message_that_fails_in_a_gap_is_listed_from_its_first_failure_on(
    database: Database, tmp_path: Path
) -> None:
    async with connector_rig(source_of([listed(1, ms_days_before(300))]), database, tmp_path) as stage:
        bad, good = await away_for(stage, 20, 2)
        fault = FaultRule(fault=GmailFault(kind="malformed"), method="messages.get", ids=frozenset({bad}))
        number = stage.sim.control.add_fault(fault)
        await stage.passes.live()
        with pytest.raises(Retryable):
            await stage.passes.walk_gap(HOUR_S)
        assert set(await troubled(stage)) == {bad}
        fresh = stage.deliver("Fresh")
        await stage.passes.live()
        assert set(await stage.rows()) == {good, fresh}
        stage.sim.control.clear_faults(number)
        await stage.passes.walk_gap(HOUR_S)
        assert set(await stage.rows()) == {bad, good, fresh}
        assert await troubled(stage) == {}


async def test_a_gap_that_an_earlier_version_kept_in_a_file_is_taken_over(database: Database, tmp_path: Path) -> None:
    async with connector_rig(source_of([]), database, tmp_path) as stage:
        await stage.passes.live()
        stage.clock.advance(2 * DAY_S)
        early = stage.deliver("Early")
        stage.clock.advance(18 * DAY_S)
        late = stage.deliver("Late")
        stage.sim.control.expire_history()
        begins = int((NOW + timedelta(days=1)).timestamp())
        kept = {"seen_at": None, "target": "77", "begins": begins, "before": None, "older_before": None}
        file = stage.folder / "live.json"
        write_json(file, kept)
        stage.restart()
        await stage.passes.live()
        assert not file.exists()
        await stage.passes.walk_gap(HOUR_S)
        assert set(await stage.rows()) == {early, late}


async def test_older_mail_that_an_earlier_version_still_had_to_store_is_stored(
    database: Database, tmp_path: Path
) -> None:
    async with connector_rig(source_of([listed(1, ms_days_before(300))]), database, tmp_path) as stage:
        await stage.passes.live()
        before = int(NOW.timestamp()) - 100 * DAY_S
        kept = {"seen_at": NOW.isoformat(), "target": None, "begins": None, "before": None, "older_before": before}
        write_json(stage.folder / "live.json", kept)
        stage.restart()
        assert (await stage.passes.live()).gap
        await stage.passes.walk_gap(HOUR_S)
        assert len(await archived(stage)) == 1
        assert await stage.rows() == {}
        assert await owed(stage) is None
