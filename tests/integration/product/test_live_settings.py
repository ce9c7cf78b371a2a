"""Settings that are changed while Postroom runs: what begins later uses them, in every process, without a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from postroom.accounts.account import Account
from postroom.app import App, open_app
from postroom.app.live_settings import Renewable, look_once
from postroom.app.worker import open_worker
from postroom.db.tables.queue import schedules
from postroom.db.tables.triage import decisions, model_calls
from postroom.domain.ids import new_id
from postroom.domain.jobs import BACKFILL, CLASSIFY, DIGEST_SEND
from postroom.domain.money import Denial, Denied, Micros, NewCall, Reserved
from postroom.queue import NewJob
from postroom.settings import (
    DISCORD_TOKEN_ENTRY,
    LIVE,
    MODEL_KEY_ENTRY,
    NEED_RESTART,
    BackfillSettings,
    CurrentSettings,
    DatabaseSettings,
    ModelSettings,
    RecurringSettings,
    Settings,
    read_layers,
)
from postroom.settings.live import EDITABLE, planned
from postroom.sim.model.server import ModelSim, running_model
from tests.support.actions import make_account, make_message
from tests.support.backfills import OPERATOR, new_backfill
from tests.support.commands import PostroomProcess
from tests.support.databases import SqliteFactory

pytestmark = pytest.mark.req("UX-2")

ME = "me@example.com"
CENT = Micros(10_000)
QUIET = RecurringSettings(live="off", sync="off", labels="off", bad_messages="off", sentinel="off")
PRICES = {"model__input_price": "0.30", "model__output_price": "2.50"}


def change(home: Path, **values: str) -> None:
    """As the dashboard writes it; `backfill__enabled` is the key backfill.enabled."""
    by_key = {name.replace("__", "."): value for name, value in values.items()}
    planned(home, read_layers(home).version, by_key).write()


async def noticed(app: App) -> None:
    await look_once(app, app.schedules())


@asynccontextmanager
async def running(home: Path, url: str, **groups: Any) -> AsyncIterator[App]:
    home.mkdir(exist_ok=True)
    settings = Settings(home=home, database=DatabaseSettings(url=url), recurring=QUIET, **groups)
    async with open_app(settings, patience_s=1) as app:
        yield app


async def test_a_changed_cap_holds_for_the_next_reservation_and_the_next_job(tmp_path: Path, database_url: str) -> None:
    model = ModelSettings(
        provider="compatible",
        name="m",
        base_url="http://127.0.0.1:1/v1",
        input_price=Decimal("0.01"),
        output_price=Decimal("0.01"),
    )
    backfill = BackfillSettings(enabled=True, share_of_ceiling_percent=60)
    async with running(tmp_path / "home", database_url, model=model, backfill=backfill) as app:
        await make_account(app.database, app.clock, ME, "http://127.0.0.1:1")
        first = await app.backfill.create(OPERATOR, new_backfill(endpoint_identity=ME, daily_cost_cap_cents=1_000))

        async def reserve() -> Reserved | Denied:
            deadline = app.clock.now() + timedelta(minutes=1)
            call = NewCall(Micros(700 * CENT), deadline, backfill_job_id=first.id, queue_job_id=new_id())
            return await app.database.write(lambda tx: app.budget.reserve(tx, call))

        refused = await reserve()
        assert isinstance(refused, Denied)
        assert refused.denial is Denial.NOT_ASKED
        change(app.settings.home, backfill__share_of_ceiling_percent="90", backfill__daily_cost_cap_cents="321")
        assert isinstance(await reserve(), Denied)  # not noticed yet
        await noticed(app)
        assert isinstance(await reserve(), Reserved)
        second = await app.backfill.create(OPERATOR, new_backfill(endpoint_identity=ME, daily_cost_cap_cents=None))
        assert (second.cap, first.cap) == (321 * CENT, 1_000 * CENT)


def use_model(app: App, sim: ModelSim, name: str) -> None:
    of_model = {"model__provider": "compatible", "model__name": name, "model__base_url": sim.url}
    change(app.settings.home, **of_model, **PRICES)
    app.vault.put(MODEL_KEY_ENTRY, sim.token.encode())


async def judged(app: App, account: Account, gmail_id: str) -> str | None:
    """Which model a message was shown to, by the worker that runs; None: to none."""
    message_id = await make_message(app.database, app.clock, account, gmail_id)
    await app.queue.enqueue(NewJob(CLASSIFY.name, {"message_id": message_id}))
    decided = select(decisions.c.id).where(decisions.c.message_id == message_id)
    while await app.database.read(lambda tx: tx.execute(decided).first()) is None:
        await asyncio.sleep(0.01)
    asked = select(model_calls.c.model).where(model_calls.c.message_id == message_id).limit(1)
    return await app.database.read(lambda tx: tx.execute(asked).scalar())


async def test_the_next_call_goes_to_the_model_that_is_set_while_a_worker_runs(
    tmp_path: Path, database_url: str
) -> None:
    async with running_model() as one, running_model() as two, running(tmp_path / "home", database_url) as app:
        account = await make_account(app.database, app.clock, ME, "http://127.0.0.1:1")
        async with open_worker(app) as worker:
            working = asyncio.create_task(worker.run())
            assert await judged(app, account, "1") is None
            use_model(app, one, "first")
            await noticed(app)
            assert await judged(app, account, "2") == "first"
            seen = len(one.responder.prompts)
            use_model(app, two, "second")
            await noticed(app)
            assert await judged(app, account, "3") == "second"
            change(app.settings.home, model__provider="")
            await noticed(app)
            assert await judged(app, account, "4") is None
            worker.stop()
            await working
        assert (seen, len(one.responder.prompts)) == (seen, seen)
        assert len(two.responder.prompts) > 0


async def test_estimates_and_new_jobs_know_the_price_of_the_model_that_is_set_now(
    tmp_path: Path, sqlite_factory: SqliteFactory
) -> None:
    async with running(tmp_path / "home", sqlite_factory.url()) as app:
        assert app.backfill.meter.tariff is None
        of_model = {"model__provider": "compatible", "model__name": "m", "model__base_url": "http://127.0.0.1:1/v1"}
        change(app.settings.home, **of_model, **PRICES)
        await noticed(app)
        tariff = app.backfill.meter.tariff
        assert tariff is not None
        assert "$0.30 in" in tariff.describe()


async def test_discord_begins_when_its_last_part_is_set_and_what_recurs_follows(
    tmp_path: Path, sqlite_factory: SqliteFactory
) -> None:
    home = tmp_path / "home"
    async with running(home, sqlite_factory.url()) as app:
        assert app.discord.bot_token is None
        declared = app.schedules()
        change(home, discord__channel_id="42", discord__public_key="ab" * 32, discord__allowed_users="7")
        app.vault.put(DISCORD_TOKEN_ENTRY, b"a bot's token")
        now_declared = await look_once(app, declared)
        assert app.discord.bot_token is not None
        assert len(now_declared) == len(declared) + 1
        change(home, discord__channel_id="43")
        await noticed(app)
        assert app.discord.channel_id == "43"
        app.vault.remove(DISCORD_TOKEN_ENTRY)
        assert app.discord.bot_token is None


async def test_the_digest_recurs_as_soon_as_it_is_switched_on_and_no_longer_when_it_is_off(
    tmp_path: Path, database_url: str
) -> None:
    async def declared() -> list[str]:
        query = select(schedules.c.cadence).where(schedules.c.name == DIGEST_SEND.name)
        return await app.database.read(lambda tx: [*tx.execute(query).scalars()])

    home = tmp_path / "home"
    async with running(home, database_url) as app:
        before = app.schedules()
        change(home, digest__every="daily", digest__at="06:30", digest__zone="Europe/Zagreb")
        before = await look_once(app, before)
        [spec] = await declared()
        assert ("06:30" in spec, "Europe/Zagreb" in spec) == (True, True)
        change(home, digest__every="off")
        await look_once(app, before)
        assert await declared() == []


async def test_a_file_that_is_broken_changes_nothing_and_says_why_until_it_is_mended(
    tmp_path: Path, sqlite_factory: SqliteFactory
) -> None:
    home = tmp_path / "home"
    async with running(home, sqlite_factory.url()) as app:
        change(home, backfill__rate_limit_per_hour="7")
        await noticed(app)
        good = (home / "dashboard.toml").read_bytes()
        for broken in (
            b"[backfill",
            b"[backfill]\nrate_limit_per_hour = -1\n",
            b'[model]\nprovider = "openai"\n',
            b"\xff",
        ):
            (home / "dashboard.toml").write_bytes(broken)
            await noticed(app)
            assert app.current.problem is not None
            assert app.settings.backfill.rate_limit_per_hour == 7
        (home / "dashboard.toml").write_bytes(good.replace(b"7", b"8"))
        await noticed(app)
        assert (app.current.problem, app.settings.backfill.rate_limit_per_hour) == (None, 8)


def test_what_a_process_was_started_with_stays_unless_the_files_change_it(tmp_path: Path) -> None:
    started = Settings(home=tmp_path, backfill=BackfillSettings(rate_limit_per_hour=3, auto_resume=False))
    current = CurrentSettings(started)
    assert current.refresh() == []
    change(tmp_path, backfill__daily_cost_cap_cents="9", backfill__day_zone="Europe/Zagreb")
    assert current.refresh() == ["backfill.daily_cost_cap_cents"]
    backfill = current.now.backfill
    assert (backfill.rate_limit_per_hour, backfill.auto_resume, backfill.daily_cost_cap_cents) == (3, False, 9)
    assert (backfill.day_zone, current.waiting(read_layers(tmp_path).settings())) == ("UTC", ["backfill.day_zone"])
    change(tmp_path, backfill__daily_cost_cap_cents="", backfill__day_zone="")
    assert current.refresh() == ["backfill.daily_cost_cap_cents"]
    assert (current.now, current.waiting(read_layers(tmp_path).settings())) == (started, [])


def test_every_setting_of_the_dashboard_is_live_or_says_that_it_needs_a_restart() -> None:
    assert {*LIVE, *NEED_RESTART} == {*EDITABLE}
    assert not {*LIVE} & {*NEED_RESTART}


async def test_work_under_way_keeps_what_it_began_with_and_its_last_use_closes_it() -> None:
    made_of = ["one"]
    closed: list[str] = []

    @asynccontextmanager
    async def opened(name: str) -> AsyncIterator[str]:
        yield name
        closed.append(name)

    async with Renewable(lambda: made_of[0], opened) as renewable:
        async with renewable.use() as first, renewable.use() as same:
            made_of[0] = "two"
            async with renewable.use() as second:
                assert (first, same, second, closed) == ("one", "one", "two", [])
        assert closed == ["one"]
        made_of[0] = "three"
        async with asyncio.TaskGroup() as tasks:
            for _ in range(3):
                tasks.create_task(_used(renewable))
        assert closed == ["one", "two"]
    assert closed == ["one", "two", "three"]


async def _used(renewable: Renewable[str, str]) -> None:
    async with renewable.use() as value:
        assert value == "three"
        await asyncio.sleep(0)


async def test_a_running_up_and_a_worker_beside_it_notice_by_themselves(tmp_path: Path) -> None:
    home = tmp_path / "home"
    up = PostroomProcess("up", "--json", home=home, variables={"POSTROOM_SWITCHBOARD__PORT": "0"})
    worker = PostroomProcess("worker", home=home, variables={})
    await up.start()
    try:
        await up.ready()
        await worker.start()
        await worker.logged("worker.started")
        change(home, backfill__enabled="true", backfill__rate_limit_per_hour="7")
        for process in (up, worker):
            await process.logged("settings.applied")
        (home / "dashboard.toml").write_bytes(b"[backfill")
        for process in (up, worker):
            await process.logged("settings.kept")
            assert process.is_running
        async with open_app(Settings(home=home)) as app:
            names = await app.database.read(lambda tx: tx.execute(select(schedules.c.name)).scalars().all())
        assert any(BACKFILL.name in name for name in names)
    finally:
        await worker.kill()
        await up.kill()
