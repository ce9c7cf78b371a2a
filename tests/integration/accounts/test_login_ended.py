"""A login that has ended: said where people look, its jobs wait, and after a new login they go on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from postroom.accounts.account import Account, AccountStatus, LoginNotice, Provider, account_with_id, end_login
from postroom.accounts.account_jobs import job_of
from postroom.accounts.doctor import examine_installation
from postroom.accounts.enrolment import Enrolment, log_in_again
from postroom.actions.discord.notices import ended, over
from postroom.app import App, open_app
from postroom.app.worker import open_worker
from postroom.audit import SYSTEM
from postroom.dashboard.overview import needs
from postroom.domain.checkups import Check, CheckVerdict
from postroom.domain.clock import SystemClock
from postroom.domain.jobs import HISTORY_SYNC, LABELS_SYNC
from postroom.mailboxes.credentials import StaticGrant
from postroom.mailboxes.errors import LoginNeeded
from postroom.mailboxes.gmail.methods import EVERYTHING
from postroom.mailboxes.ports import PriorityLane
from postroom.queue import JobState
from postroom.queue.inspection import JobFilter, list_jobs
from postroom.settings import DatabaseSettings, RecurringSettings, Settings
from postroom.settings.groups import DiscordSettings
from postroom.sim.discord import running_discord
from postroom.sim.gmail.server import GmailSim, running_sim
from tests.support.commands import postroom
from tests.support.logins import logged_in
from tests.support.mail import OWNER, mailbox

pytestmark = pytest.mark.req("HW-7")

NOTHING_RECURS = RecurringSettings(live="off", sync="off", labels="off", bad_messages="off", sentinel="off")
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
JOBS = (LABELS_SYNC.name, HISTORY_SYNC.name)


class LaterClock(SystemClock):
    """The time of the machine, and as much later as the test says."""

    later = timedelta()

    def now(self) -> datetime:
        return super().now() + self.later


@asynccontextmanager
async def installation(
    home: Path, database_url: str, sim: GmailSim, clock: LaterClock, discord: DiscordSettings | None = None
) -> AsyncIterator[tuple[App, Account]]:
    home.mkdir(mode=0o700)
    settings = Settings(
        home=home,
        database=DatabaseSettings(url=database_url),
        recurring=NOTHING_RECURS,
        discord=discord or DiscordSettings(),
    )
    async with open_app(settings, clock) as app:
        _, grant = await logged_in(sim, home, clock)
        account, _ = await app.take_in(grant, SYSTEM)
        yield app, account


async def work(app: App, account: Account) -> dict[str, JobState]:
    """Jobs of the account wherever none waits, and a worker for them; how each stands then."""
    await app.queue.enqueue(*(job_of(name, account) for name in JOBS))
    async with open_worker(app, until_idle=True) as worker:
        await worker.run()
    found = await app.database.read(lambda tx: [list_jobs(tx, JobFilter(type=name))[0] for name in JOBS])
    return {job.type: job.state for job in found}


async def status(app: App, account: Account) -> AccountStatus:
    found = await app.database.read(lambda tx: account_with_id(tx, account.id))
    assert found is not None
    return found.status


async def test_a_revoked_login_is_said_and_its_jobs_wait_for_a_new_one(tmp_path: Path, database_url: str) -> None:
    clock = LaterClock()
    async with (
        running_sim(mailbox(1)) as sim,
        installation(tmp_path / "home", database_url, sim, clock) as (app, account),
    ):
        assert await work(app, account) == dict.fromkeys(JOBS, JobState.COMPLETED)
        sim.control.revoke()
        assert await work(app, account) == dict.fromkeys(JOBS, JobState.QUEUED)
        assert await status(app, account) is AccountStatus.LOGIN_ENDED
        [need] = await app.database.read(lambda tx: needs(tx, app.settings, [], clock.now()))
        assert need.text == f"{sim.email}: the login has expired and its jobs are waiting. Log in again"
        assert need.href == "/settings/accounts/new?email=owner%40example.com"
        found = [each async for each in examine_installation(app.settings, app.vault, clock)]
        [failed] = [each for each in found if each.verdict is CheckVerdict.FAILED]
        assert failed.check is Check.AUTH
        assert f"postroom account add gmail --email {sim.email}" in failed.text

        _, grant = await logged_in(sim, app.settings.home, clock)
        await app.take_in(grant, SYSTEM)
        assert await status(app, account) is AccountStatus.ACTIVE
        clock.later = timedelta(seconds=61)
        assert await work(app, account) == dict.fromkeys(JOBS, JobState.COMPLETED)


async def test_discord_is_told_once_that_a_login_has_ended_and_that_it_is_good_again(
    tmp_path: Path, database_url: str
) -> None:
    clock = LaterClock()
    async with (
        running_sim(mailbox(1)) as sim,
        running_discord() as discord,
        installation(tmp_path / "home", database_url, sim, clock, DiscordSettings(**discord.settings("42"))) as (
            app,
            account,
        ),
    ):
        sim.control.revoke()
        await work(app, account)
        clock.later = timedelta(seconds=70)  # the schedule ticks, and the jobs come to their turn again
        await work(app, account)
        [told] = discord.board.messages.values()
        assert f"the login of `{sim.email}` has ended, and its jobs wait" in told["content"]
        assert f"`postroom account add gmail --email {sim.email} --client-secrets FILE`" in told["content"]
        _, grant = await logged_in(sim, app.settings.home, clock)
        await app.take_in(grant, SYSTEM)
        clock.later = timedelta(seconds=140)
        await work(app, account)
        [told] = discord.board.messages.values()
        assert "is good again" in told["content"]


def test_who_had_full_access_is_told_to_log_in_with_full_access() -> None:
    account = Account(
        id="1", provider=Provider.GMAIL, email=OWNER, api_base="", quota=None, scopes=frozenset({EVERYTHING}),
        status=AccountStatus.LOGIN_ENDED, created_at=LONG_AGO, updated_at=LONG_AGO, last_checked_at=None,
        last_error=None,
    )  # fmt: skip
    command = f"`postroom account add gmail --email {OWNER} --client-secrets FILE --full-access`"
    assert command in log_in_again(account)
    notice = LoginNotice(account, LONG_AGO, None)
    assert command in ended(notice, None)
    at_page = "<https://post.example/settings/accounts/new?email=owner%40example.com>"
    assert at_page in ended(notice, "https://post.example/")
    assert "was removed" in over(replace(notice, account=replace(account, status=AccountStatus.REMOVED)))


async def test_the_list_of_accounts_says_how_to_log_in_again(home: Path) -> None:
    async with running_sim(mailbox(1)) as sim:
        grants, grant = await logged_in(sim, home, SystemClock())
        async with open_app(Settings(home=home)) as app:
            account, _ = await Enrolment(app.database, grants, app.clock).add(grant)
            await app.database.write(lambda tx: end_login(tx, account, app.clock.now(), "refused"))
        listed = await postroom("account", "list")
        assert "login_ended" in listed.stdout
        assert f"Log in again with `postroom account add gmail --email {sim.email} " in listed.stdout


async def test_a_check_notes_that_a_login_has_ended_and_that_it_is_good_again(
    tmp_path: Path, database_url: str
) -> None:
    clock = LaterClock()
    async with (
        running_sim(mailbox(1)) as sim,
        installation(tmp_path / "home", database_url, sim, clock) as (app, account),
    ):
        enrolment = Enrolment(app.database, app.grants, clock)
        sim.control.revoke()
        await enrolment.check(account)
        assert await status(app, account) is AccountStatus.LOGIN_ENDED
        await logged_in(sim, app.settings.home, clock)
        await enrolment.check(account)
        assert await status(app, account) is AccountStatus.ACTIVE


async def test_a_login_that_was_refused_by_mistake_is_tried_again(tmp_path: Path, database_url: str) -> None:
    clock = LaterClock()
    async with (
        running_sim(mailbox(1)) as sim,
        installation(tmp_path / "home", database_url, sim, clock) as (app, account),
    ):
        await work(app, account)
        await app.database.write(lambda tx: end_login(tx, account, clock.now(), "a mistake"))
        assert await work(app, account) == dict.fromkeys(JOBS, JobState.QUEUED), "nothing is asked for ten minutes"
        clock.later = timedelta(minutes=11)
        sim.control.skew_clock(660)  # else the check-up complains about the clock
        assert await work(app, account) == dict.fromkeys(JOBS, JobState.COMPLETED)
        assert await status(app, account) is AccountStatus.ACTIVE


async def test_a_login_that_was_renewed_meanwhile_is_not_called_ended(tmp_path: Path, database_url: str) -> None:
    clock = LaterClock()
    async with (
        running_sim(mailbox(1)) as sim,
        installation(tmp_path / "home", database_url, sim, clock) as (app, account),
    ):
        clock.later = timedelta(seconds=1)
        await app.take_in(app.grants.load(sim.email), SYSTEM)
        await app.database.write(lambda tx: end_login(tx, account, clock.now(), "too late"))
        assert await status(app, account) is AccountStatus.ACTIVE


async def test_a_client_that_is_open_takes_up_a_new_login_of_any_kind(tmp_path: Path, database_url: str) -> None:
    clock = LaterClock()
    async with (
        running_sim(mailbox(1)) as sim,
        installation(tmp_path / "home", database_url, sim, clock) as (app, account),
        app.gmail.client(account, PriorityLane.LIVE) as client,
    ):
        assert (await client.get_profile()).email == sim.email
        sim.control.revoke()
        with pytest.raises(LoginNeeded):
            await client.get_profile()
        bare = sim.control.new_token()
        app.grants.save(StaticGrant(email=sim.email, api_base=sim.url, access_token=bare))
        assert (await client.get_profile()).email == sim.email
        sim.control.revoke()
        await logged_in(sim, app.settings.home, clock)
        assert (await client.get_profile()).email == sim.email
