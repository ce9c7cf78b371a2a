"""SIGKILL of the worker while it puts mail back, at steps left to chance: every message is there once in the end."""

from __future__ import annotations

import contextlib
import imaplib
import random
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from postroom.accounts.account import NewAccount, add_account
from postroom.actions.restore import runs
from postroom.actions.restore.runs import RestoreOrder, RunState
from postroom.app.installation import open_vault
from postroom.db import Database, connect
from postroom.domain.actions import ItemState
from postroom.domain.clock import SystemClock
from postroom.domain.jobs import CATALOGUE
from postroom.mailboxes.credentials import GrantStore, StaticGrant
from postroom.mailboxes.imap.login import ImapLogins
from postroom.mailboxes.imap.mailbox import ImapMailbox
from postroom.mailboxes.ports import PriorityLane
from postroom.queue import JobQueue
from postroom.settings import Settings
from postroom.sim.gmail.faults import FaultRule, GmailFault
from postroom.sim.gmail.server import running_sim
from postroom.sim.gmail.sources import ListedMail, ListSource
from postroom.sync.engine import build_engine
from tests.support.archives import opened_store
from tests.support.databases import DatabaseFactory, install
from tests.support.dovecot import Dovecot, dovecot
from tests.support.imap import imap_account, session_of
from tests.support.kill_points import LATER_S, KilledWorker
from tests.support.mail import OWNER
from tests.support.restores import WHO, archived, assert_put_back, at_target, sent_at, sha256, store, truth_of
from tests.support.sync import archived as archived_hashes
from tests.support.sync import settings_with, sync_rig

_MOST_LIVES = 400


async def check_kills(
    folder: Path, worker: KilledWorker, databases: DatabaseFactory, count: int, *, steps: int, there: int
) -> int:
    """Restore so many messages, and undo that; how often the worker was killed. `there` lie in the mailbox before."""
    mails = [archived(number) for number in range(count)]
    before = [mail for number, mail in enumerate(mails) if number % 7 != 6][:there]
    store(folder / "archive", mails)
    dice, url = random.Random(count), databases.url()
    database = await connect(url)
    try:
        async with running_sim(at_target(before, frozenset())) as sim:
            grant = StaticGrant(email=OWNER, api_base=sim.url, access_token=sim.token)
            GrantStore(open_vault(Settings(home=folder))).save(grant)
            lost = GmailFault(kind="drop", after_effect=True)
            sim.control.add_fault(FaultRule(fault=lost, method="messages.insert", probability=0.02, seed=1))
            variables = {
                "POSTROOM_HOME": str(folder),
                "POSTROOM_DATABASE__URL": url,
                "POSTROOM_WORKER__CONCURRENCY": "1",
                "POSTROOM_RESTORE__SETTLE_S": "0",
                "POSTROOM_SYNC__RPS_START": "1000",
                "POSTROOM_SYNC__RPS_MAX": "1000",
            }
            queue = JobQueue(database, CATALOGUE, SystemClock())
            await database.write(lambda tx: add_account(tx, NewAccount(OWNER, sim.url), queue.clock.now()))
            run = await database.write(lambda tx: runs.begin(tx, queue, RestoreOrder.of(OWNER), WHO))
            kills = await _live_through(database, worker, variables, run.id, dice, steps)
            done = await database.read(lambda tx: runs.progress_of(tx, runs.get_run(tx, run.id)))
            assert done.run.state is RunState.COMPLETED, done.run.reason
            assert done.counts.get(ItemState.ALREADY_THERE, 0) == there
            assert done.counts[ItemState.VERIFIED] == count - there
            if there:
                assert len(truth_of(sim)) == count
                assert len({each.sha256 for each in truth_of(sim)}) == count
            else:
                assert_put_back(sim, mails)
            await database.write(lambda tx: runs.undo(tx, queue, run.id, WHO))
            kills += await _live_through(database, worker, variables, run.id, dice, max(2, steps // 4))
            assert sum("TRASH" not in each.labels for each in truth_of(sim)) == there
            return kills
    finally:
        await database.close()


async def _live_through(
    database: Database, worker: KilledWorker, variables: dict[str, str], run_id: str, dice: random.Random, steps: int
) -> int:
    """Each worker dies within so many steps; the next comes when the lease of the last has ended."""
    queue, kills = JobQueue(database, CATALOGUE, SystemClock()), 0
    for life in range(1, _MOST_LIVES):
        await database.write(lambda tx: runs.revive(tx, queue))  # as a schedule does each minute
        run = await database.read(lambda tx: runs.get_run(tx, run_id))
        if run.state not in runs.AT_WORK:
            break
        ended = await worker.live(variables, die_at=dice.randint(1, steps), ahead_s=life * LATER_S)
        kills += ended.killed
    return kills


@pytest.mark.req("IM-8", "IM-9")
async def test_a_worker_killed_at_random_steps_puts_every_message_back_once(
    tmp_path: Path, worker: KilledWorker, database_factory: DatabaseFactory
) -> None:
    assert await check_kills(tmp_path, worker, database_factory, 60, steps=60, there=0) > 3


@pytest.mark.req("IM-8")
async def test_killed_workers_leave_what_was_there_alone(
    tmp_path: Path, worker: KilledWorker, database_factory: DatabaseFactory
) -> None:
    assert await check_kills(tmp_path, worker, database_factory, 40, steps=20, there=20) > 3


@pytest.mark.chaos
@pytest.mark.timeout(3_000)
@pytest.mark.req("IM-8", "IM-9")
async def test_5_000_messages_come_back_once_each_through_a_hundred_kills(
    tmp_path: Path, worker: KilledWorker, database_factory: DatabaseFactory
) -> None:
    assert await check_kills(tmp_path, worker, database_factory, 5_000, steps=400, there=0) > 30


MOVED_TO = "new@example.com"
_KINDS: tuple[frozenset[str], ...] = (
    frozenset({"INBOX", "UNREAD"}),
    frozenset({"INBOX", "STARRED"}),
    frozenset({"UNREAD"}),
    frozenset(),
)


async def check_round_trip(
    folder: Path, worker: KilledWorker, databases: DatabaseFactory, count: int, *, steps: int
) -> int:
    """Gmail, archive, a real IMAP server, the archive of another home; how often the worker was killed between."""
    mails = [archived(number) for number in range(count)]
    listed = [
        ListedMail(mail.raw, int(sent_at(number).timestamp() * 1_000), _KINDS[number % len(_KINDS)])
        for number, mail in enumerate(mails)
    ]
    url = databases.url()
    async with contextlib.AsyncExitStack() as stack:
        database = await connect(url)
        stack.push_async_callback(database.close)
        server = stack.enter_context(dovecot(email=MOVED_TO))
        async with sync_rig(ListSource(listed, email=OWNER), database, folder / "archive") as gmail:
            await gmail.whole(settings_with(settle_s=0, extend_s=0)).run(once=True)
        login, clock = server.login(), SystemClock()
        ImapLogins(open_vault(Settings(home=folder))).save(login)
        await imap_account(database, server, clock)
        queue = JobQueue(database, CATALOGUE, clock)
        order = RestoreOrder.of(OWNER, to_account=MOVED_TO)
        run = await database.write(lambda tx: runs.begin(tx, queue, order, WHO))
        variables = {
            "POSTROOM_HOME": str(folder),
            "POSTROOM_DATABASE__URL": url,
            "POSTROOM_WORKER__CONCURRENCY": "1",
            "POSTROOM_RESTORE__SETTLE_S": "0",
        }
        kills = await _live_through(database, worker, variables, run.id, random.Random(count), steps)
        done = await database.read(lambda tx: runs.progress_of(tx, runs.get_run(tx, run.id)))
        assert done.run.state is RunState.COMPLETED, done.run.reason
        assert done.counts == {ItemState.VERIFIED: count}
        assert_moved(server, listed)

        other = await connect(f"sqlite:///{install(folder / 'other') / 'postroom.db'}")
        stack.push_async_callback(other.close)
        account = await imap_account(other, server, clock)
        session = session_of(login, other, account, clock)
        stack.push_async_callback(session.close)
        root = folder / "other" / "archive"
        async with opened_store(root, MOVED_TO) as kept:
            chosen = settings_with(settle_s=0, extend_s=0)
            await build_engine(other, account, ImapMailbox(session, PriorityLane.SYNC), kept, chosen, clock).run(
                once=True
            )
        before, after = archived_hashes(folder / "archive", OWNER), archived_hashes(root, MOVED_TO)
        assert len(before) == count
        assert sorted(before.values()) == sorted(after.values()), "the two archives hold the same messages"
        return kills


def assert_moved(server: Dovecot, mails: Sequence[ListedMail]) -> None:
    """Each lies in one folder of the server once, with its bytes, its date and its flags."""
    expected = Counter((sha256(mail.raw), mail.internal_date // 1_000, *_flags(mail.label_ids)) for mail in mails)
    found: Counter[tuple[str, int, bool, bool]] = Counter()
    with server.client() as client:
        names = [line.decode().rpartition(' "/" ')[2] for line in client.list()[1] if isinstance(line, bytes)]
        for name in names:
            if client.select(name, readonly=True)[1] == [b"0"]:
                continue
            _, parts = client.fetch("1:*", "(FLAGS INTERNALDATE BODY.PEEK[])")
            for head, raw in (each for each in parts if isinstance(each, tuple)):
                moment = imaplib.Internaldate2tuple(head)
                assert moment is not None
                found[sha256(raw), int(time.mktime(moment)), b"\\Seen" in head, b"\\Flagged" in head] += 1
    assert found == expected


def _flags(labels: frozenset[str]) -> tuple[bool, bool]:
    return "UNREAD" not in labels, "STARRED" in labels


@pytest.mark.req("IM-8", "IM-9")
async def test_a_mailbox_moves_from_gmail_to_another_server_with_the_same_hashes_at_the_end(
    tmp_path: Path, worker: KilledWorker, database_factory: DatabaseFactory
) -> None:
    assert await check_round_trip(tmp_path, worker, database_factory, 40, steps=60) > 0


@pytest.mark.chaos
@pytest.mark.timeout(3_000)
@pytest.mark.req("IM-8", "IM-9")
async def test_5_000_messages_move_from_gmail_to_another_server_through_many_kills(
    tmp_path: Path, worker: KilledWorker, database_factory: DatabaseFactory
) -> None:
    assert await check_round_trip(tmp_path, worker, database_factory, 5_000, steps=600) > 10
