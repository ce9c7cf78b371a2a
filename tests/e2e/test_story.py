"""The story of `postroom demo`, as the product lives it: in one process on SQLite, and in seven on PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from postroom import settings
from postroom.accounts.account import find_account
from postroom.app import open_app
from postroom.db.tables.mail import messages
from postroom.db.tables.triage import decisions
from postroom.demo.archive_steps import (
    ArchivingResult,
    archive_the_mailbox,
    follow_a_web_source,
    know_the_doctor,
    recover_old_mail,
)
from postroom.demo.decision_steps import a_burst_in_the_morning, approve_what_waits, rules_and_model, undo_an_action
from postroom.demo.demo_session import (
    CONFIRMATION,
    MEETING,
    MORNING,
    PRIZE,
    DemoSession,
    StandIns,
    open_demo_session,
    open_stand_ins,
    write_home,
)
from postroom.domain.actions import ActionStatus
from postroom.domain.roles import Role
from postroom.domain.terms import BackfillStatus, Tier
from postroom.mailboxes.credentials import StaticGrant
from postroom.queue import JobState
from postroom.queue.inspection import JobFilter, list_jobs
from postroom.sim.gmail.generated import GeneratedMailbox
from postroom.sim.gmail.server import GmailSim, running_sim
from postroom.web import runs
from tests.support.commands import PostroomProcess
from tests.support.databases import PostgresFactory
from tests.support.deployment import ConnectorProcess
from tests.support.switchboards import SwitchboardProcess

MESSAGES = 500
WORKERS = 3
ONE_AT_A_TIME = 1
"""With more slots than there is mail, all of it would be served in the same instant, and no order be seen."""


@asynccontextmanager
async def staged(home: Path, **groups: Any) -> AsyncIterator[StandIns]:
    async with open_stand_ins(MESSAGES, documents=18) as outside:
        write_home(home, outside, **groups)
        yield outside


@asynccontextmanager
async def told_by(outside: StandIns, url: str) -> AsyncIterator[DemoSession]:
    """From this process, which does nothing of the work."""
    async with open_app(settings.load()) as app, open_demo_session(app, outside, url) as scene:
        yield scene


@pytest.mark.req("PL-1", "PL-2")
async def test_the_story_in_one_process_on_sqlite(home: Path) -> None:
    async with staged(home) as outside:
        up = PostroomProcess("up", "--json", home=home)
        await up.start()
        try:
            url = str((await up.ready())["url"])
            async with told_by(outside, url) as scene:
                mailbox_is_archived(await archive_the_mailbox(scene))
                await the_rest_holds(scene)
            code, log = await up.end()
            assert code == 0, log
        finally:
            await up.kill()


def mailbox_is_archived(archived: ArchivingResult) -> None:
    assert (archived.in_the_mailbox, archived.stored, archived.bad) == (MESSAGES, MESSAGES, 0)
    assert list(archived.watermarks) == sorted(set(archived.watermarks)), "it only ever moves on"
    assert archived.found > 0
    assert all(mail.key for mail in archived.newest)


async def the_rest_holds(scene: DemoSession) -> None:
    await the_doctor_comes_first(scene)
    await rules_and_model_decide(scene)
    await harm_waits_for_a_person_and_what_was_done_is_undone(scene)
    await old_mail_costs_no_more_than_it_may(scene)
    await the_web_source_is_kept(scene)
    failed = await scene.read(lambda tx: list_jobs(tx, JobFilter(state=JobState.FAILED)))
    assert failed == []


async def the_doctor_comes_first(scene: DemoSession) -> None:
    morning = await a_burst_in_the_morning(scene)
    assert dict(morning.by_tier) == {Tier.HIGH_PRIORITY: 1, Tier.INTERACTIVE: 1, Tier.DEFAULT: len(MORNING) - 2}
    [doctor] = [each for each in morning.served if each.subject == CONFIRMATION.subject]
    assert doctor.tier is Tier.HIGH_PRIORITY
    assert morning.doctors_place <= WORKERS, "each worker may take its first turn in the same instant"
    assert sum(not each.is_full for each in morning.served) == 15


async def rules_and_model_decide(scene: DemoSession) -> None:
    decided = (await rules_and_model(scene)).decided
    done, waits = ActionStatus.COMPLETED, ActionStatus.APPROVED_PENDING
    assert [(each.by, each.action, each.status) for each in decided] == [
        ("rule", "Label “Bills”", done),
        ("rule", "Archive", done),
        ("rule", "Trash", waits),
        ("model", "Star", done),
        ("model", "Archive", waits),
    ]


async def harm_waits_for_a_person_and_what_was_done_is_undone(scene: DemoSession) -> None:
    approved = await approve_what_waits(scene)
    assert "TRASH" in approved.labels_after
    assert MEETING.subject in approved.still_waiting
    assert PRIZE.subject not in approved.still_waiting
    undone = await undo_an_action(scene)
    assert ("INBOX" in undone.before, "INBOX" in undone.after) == (False, True)


async def old_mail_costs_no_more_than_it_may(scene: DemoSession) -> None:
    recovery = await recover_old_mail(scene)
    selective, capped = recovery.selective, recovery.capped
    assert selective.job.status is BackfillStatus.COMPLETED
    assert selective.job.rows_processed == selective.estimate["messages"] > 0
    assert capped.job.status is BackfillStatus.COST_CAPPED
    assert 0 < capped.job.rows_processed < capped.estimate["messages"]
    for each in (selective, capped):
        assert 0 < each.spent <= each.most <= each.job.cap


async def the_web_source_is_kept(scene: DemoSession) -> None:
    followed = await follow_a_web_source(scene)
    assert followed.run.status is runs.RunStatus.COMPLETED
    assert followed.kept == followed.run.queued_count == 15 < followed.published
    assert followed.found > 0


@pytest.mark.timeout(300)
@pytest.mark.req("PL-3", "SY-18")
async def test_the_story_in_seven_processes_on_postgresql(
    home: Path, tmp_path: Path, postgres_factory: PostgresFactory
) -> None:
    url = postgres_factory.url()
    groups = {
        "database": {"url": url},
        "archive": {"store": "database"},
        "recurring": {"live": "off", "sync": "off", "backfill": "every 2s"},
        "worker": {"concurrency": ONE_AT_A_TIME, "drain_s": 5.0},
    }
    async with staged(home, **groups) as outside, AsyncExitStack() as stack:
        switchboard = SwitchboardProcess(home, url)
        workers = [PostroomProcess("worker", home=home) for _ in range(WORKERS)]
        await begin(stack, switchboard, *workers)
        async with told_by(outside, switchboard.url.removesuffix("/mcp")) as scene:
            archiving = asyncio.create_task(archive_the_mailbox(scene))
            await scene.until(lambda: scene.read(lambda tx: find_account(tx, scene.email)), "the account")
            second = await stack.enter_async_context(running_sim(GeneratedMailbox(20, 5, "second@simulated.example")))
            await scene.app.take_in(grant_of(second), scene.who)
            await know_the_doctor(scene, second.email)
            connectors = [await connector(switchboard, sim, tmp_path) for sim in (outside.gmail, second)]
            sync = PostroomProcess("sync", "run", home=home)
            await begin(stack, *connectors)
            await begin(stack, sync)
            mailbox_is_archived(await archiving)
            await the_rest_holds(scene)
            await is_served_too(scene, second)
        ends = await asyncio.gather(*(process.end() for process in (*connectors, sync, *workers, switchboard)))
        assert [code for code, _ in ends] == [0] * 7, "\n".join(log for code, log in ends if code)


async def begin(stack: AsyncExitStack, *processes: PostroomProcess) -> None:
    for process in processes:
        stack.push_async_callback(process.kill)
    await asyncio.gather(*(process.start() for process in processes))


async def connector(switchboard: SwitchboardProcess, sim: GmailSim, path: Path) -> ConnectorProcess:
    """In a home of its own, with the mailbox's login, a token, and no database."""
    token = await switchboard.token(Role.CONNECTOR, endpoint_identity=sim.email)
    return ConnectorProcess(path / f"connector of {sim.email}", sim, switchboard.url, token)


def grant_of(sim: GmailSim) -> StaticGrant:
    return StaticGrant(email=sim.email, api_base=sim.url, access_token=sim.token)


async def is_served_too(scene: DemoSession, sim: GmailSim) -> None:
    """The other mailbox, by its own connector."""
    gmail_id = sim.control.deliver(CONFIRMATION.raw(sim.email))
    decided = select(messages.c.policy_tier).join(decisions, decisions.c.message_id == messages.c.id)
    query = decided.where(messages.c.external_event_id == gmail_id)
    tier = await scene.until(lambda: scene.read(lambda tx: tx.execute(query).scalar()), "the other mailbox's mail")
    assert tier == Tier.HIGH_PRIORITY
