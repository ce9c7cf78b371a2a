"""Questions in Discord: asked there, answered there by those who may, whatever goes wrong on the way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import httpx2
import pytest
from pydantic import SecretStr
from sqlalchemy import update

from postroom.actions import requests
from postroom.actions.approvals import ApprovalVerdict
from postroom.actions.discord.client import DiscordChannel, open_channel
from postroom.actions.discord.interactions import LARGEST_BODY, PATH, DiscordInteractions
from postroom.actions.discord.notices import ApprovalNotifier
from postroom.db import Database
from postroom.db.tables.triage import actions
from postroom.domain.actions import ActionStatus
from postroom.domain.clock import ManualClock
from postroom.domain.errors import Fatal, Retryable
from postroom.domain.jobs import ACTION, APPROVAL_NOTIFY, APPROVALS_EXPIRE
from postroom.queue import NewJob
from postroom.queue.context import JobContext
from postroom.settings import DiscordSettings
from postroom.sim.discord import DiscordFault, DiscordSim, running_discord
from postroom.webserver import listening, serving
from tests.support.actions import ANA, PendingApprovals
from tests.support.crashes import CrashingDatabase, CrashPoint, Killed
from tests.support.databases import on_sqlite
from tests.support.queues import claim

pytestmark = pytest.mark.req("JB-16")
USER, STRANGER = "42", "43"


class Scene:
    def __init__(self, office: PendingApprovals, sim: DiscordSim, channel: DiscordChannel, url: str) -> None:
        self.office, self.sim, self.channel, self.url = office, sim, channel, url

    async def notify(self) -> None:
        await self.office.notify(self.channel)

    async def asked(self) -> tuple[str, str]:
        """A question in the channel: the action's id and the message's."""
        action_id = await self.office.ask()
        await self.notify()
        notice = await self.office.notice(action_id)
        assert notice is not None
        assert notice[0] is not None
        return action_id, notice[0]


@pytest.fixture
async def scene(database: Database) -> AsyncIterator[Scene]:
    """Signatures hold for some minutes of real time, so the clock stands at the present."""
    clock = ManualClock(datetime.now(UTC))
    office = PendingApprovals(database, clock)
    async with running_discord() as sim:
        settings = DiscordSettings(**sim.settings(f"{USER}, 99"))
        listener = listening("127.0.0.1", 0)
        sim.board.interactions_url = f"http://127.0.0.1:{listener.getsockname()[1]}{PATH}"
        app = DiscordInteractions(settings, office.queue)
        async with serving(app, listener, patience_s=1.0), open_channel(settings) as channel:
            assert channel is not None
            yield Scene(office, sim, channel, sim.board.interactions_url)


async def test_a_question_is_asked_and_answered_with_a_button(scene: Scene) -> None:
    action_id, message_id = await scene.asked()
    message = scene.sim.board.messages[message_id]
    assert "Dinner?" in message["content"]
    assert message["allowed_mentions"] == {"parse": []}
    answer = await scene.sim.board.press(message_id, "Approve", USER)
    assert answer["type"] == 7
    action = await scene.office.action(action_id)
    assert (action.status, action.answered_by) == (ActionStatus.QUEUED, "discord ana (42)")
    assert await scene.office.jobs_of(ACTION.name) == ["queued"]
    await scene.notify()
    assert scene.sim.board.messages[message_id]["components"] == []
    assert await scene.office.notice(action_id) == (message_id, "closed")
    (entry,) = await scene.office.audited(action_id)
    assert (entry.action, entry.actor.role, entry.actor.name) == ("action.approve", "discord", "ana (42)")


async def test_a_second_press_changes_nothing_and_is_told_how_things_stand(scene: Scene) -> None:
    action_id, message_id = await scene.asked()
    board = scene.sim.board
    presses = {label: board.button(message_id, label) for label in ("Approve", "Reject")}
    await board.press(message_id, "Reject", USER)
    user = {"member": {"user": {"id": "99", "username": "ben"}}}
    late = await board.deliver({"type": 3, "data": {"custom_id": presses["Approve"]}, **user})
    assert "rejected by discord ana" in late["data"]["content"]
    assert (await scene.office.action(action_id)).status is ActionStatus.REJECTED
    assert len(await scene.office.audited(action_id)) == 1


async def test_an_answer_on_the_command_line_takes_the_buttons_away(scene: Scene) -> None:
    action_id, message_id = await scene.asked()
    await scene.office.answer(action_id, ApprovalVerdict.REJECT)
    await scene.notify()
    assert scene.sim.board.messages[message_id]["components"] == []
    assert "rejected by dashboard cli ana" in scene.sim.board.messages[message_id]["content"]


async def test_an_approval_that_is_taken_back_gives_the_buttons_back(scene: Scene) -> None:
    action_id, message_id = await scene.asked()
    await scene.sim.board.press(message_id, "Approve", USER)
    await scene.notify()
    assert await scene.office.notice(action_id) == (message_id, "closed")
    await scene.office.take_back(action_id)
    await scene.notify()
    assert await scene.office.notice(action_id) == (message_id, "sent")
    await scene.sim.board.press(message_id, "Reject", USER)
    assert (await scene.office.action(action_id)).status is ActionStatus.REJECTED


async def test_a_question_that_ended_otherwise_loses_its_buttons_within_the_hour(scene: Scene) -> None:
    action_id, message_id = await scene.asked()
    gone = (
        update(actions).where(actions.c.id == action_id).values(status=ActionStatus.CANCELED, error="It was deleted.")
    )
    await scene.office.database.write(lambda tx: tx.execute(gone) and None)
    assert isinstance(scene.office.clock, ManualClock)
    scene.office.clock.advance(120)
    await scene.office.queue.enqueue(NewJob(APPROVALS_EXPIRE.name))
    await scene.notify()
    await scene.notify()
    assert scene.sim.board.messages[message_id]["components"] == []
    assert "called off: It was deleted." in scene.sim.board.messages[message_id]["content"]


async def test_a_question_that_is_called_off_loses_its_buttons_at_once(scene: Scene) -> None:
    action_id, message_id = await scene.asked()
    await scene.office.database.write(
        lambda tx: requests.cancel_action(tx, scene.office.queue, action_id, ANA, "no need")
    )
    await scene.notify()
    assert scene.sim.board.messages[message_id]["components"] == []
    assert "called off: no need" in scene.sim.board.messages[message_id]["content"]
    (entry,) = await scene.office.audited(action_id)
    assert (entry.action, entry.actor, entry.after) == (
        "action.cancel",
        ANA,
        {"status": "canceled", "reason": "no need"},
    )


@on_sqlite
async def test_what_could_not_be_asked_is_asked_once_discord_lets_it(scene: Scene) -> None:
    scene.sim.board.add_fault(DiscordFault(status=401))
    action_id = await scene.office.ask()
    await scene.notify()
    assert await scene.office.jobs_of(APPROVAL_NOTIFY.name) == ["failed"]
    assert isinstance(scene.office.clock, ManualClock)
    scene.office.clock.advance(3_600)
    await scene.office.queue.enqueue(NewJob(APPROVALS_EXPIRE.name))
    await scene.notify()
    notice = await scene.office.notice(action_id)
    assert notice is not None
    assert notice[1] == "sent"


async def test_questions_from_before_discord_was_set_up_are_asked_once_it_is(scene: Scene) -> None:
    action_id = await scene.office.ask("auto_reply", {"body": "With pleasure."})
    answered = await scene.office.ask()
    await scene.office.notify(None)
    await scene.office.answer(answered, ApprovalVerdict.REJECT)
    assert isinstance(scene.office.clock, ManualClock)
    scene.office.clock.advance(3_600)
    await scene.office.queue.enqueue(NewJob(APPROVALS_EXPIRE.name))
    await scene.notify()
    await scene.notify()
    (message,) = scene.sim.board.messages.values()
    assert "With pleasure." in message["content"]
    notice = await scene.office.notice(action_id)
    assert notice is not None
    assert notice[1] == "sent"


async def test_a_question_answered_before_it_was_asked_is_not_asked(scene: Scene) -> None:
    action_id = await scene.office.ask()
    await scene.office.answer(action_id, ApprovalVerdict.APPROVE)
    await scene.notify()
    assert scene.sim.board.messages == {}


@pytest.mark.req("PL-7")
@on_sqlite
async def test_strangers_are_not_heard(scene: Scene) -> None:
    action_id, message_id = await scene.asked()
    answer = await scene.sim.board.press(message_id, "Approve", STRANGER)
    assert (answer["type"], answer["data"]["flags"]) == (4, 64)
    nobody = {"type": 3, "data": {"custom_id": scene.sim.board.button(message_id, "Approve")}}
    assert (await scene.sim.board.deliver(nobody))["type"] == 4
    assert (await scene.office.action(action_id)).status is ActionStatus.APPROVED_PENDING


@pytest.mark.req("PL-7")
@on_sqlite
async def test_what_discord_did_not_sign_is_refused(scene: Scene) -> None:
    action_id, message_id = await scene.asked()
    board = scene.sim.board
    press = {"type": 3, "data": {"custom_id": board.button(message_id, "Approve")}, "user": {"id": USER}}
    body, headers = board.signed(press)
    old_body, old_headers = board.signed(press, 1_000_000_000)
    forged = headers | {"X-Signature-Ed25519": "0" * 128}
    async with httpx2.AsyncClient() as http:
        statuses = [
            (await http.post(scene.url, content=body)).status_code,
            (await http.post(scene.url, content=body, headers=forged)).status_code,
            (await http.post(scene.url, content=body + b" ", headers=headers)).status_code,
            (await http.post(scene.url, content=old_body, headers=old_headers)).status_code,
            (await http.get(scene.url)).status_code,
            (await http.post(scene.url, content=b"x" * (LARGEST_BODY + 1), headers=headers)).status_code,
        ]
    assert statuses == [401, 401, 401, 401, 405, 413]
    assert (await scene.office.action(action_id)).status is ActionStatus.APPROVED_PENDING


@on_sqlite
async def test_discord_can_check_that_the_endpoint_is_there(scene: Scene) -> None:
    assert await scene.sim.board.ping() == {"type": 1, "status": 200}


@on_sqlite
@pytest.mark.parametrize(
    "interaction", [{"type": 2}, {"type": 3}, {"type": 3, "data": {"custom_id": "other:thing"}}, {}, {"type": "3"}]
)
async def test_signed_calls_that_are_no_press_of_ours_are_refused(scene: Scene, interaction: dict[str, object]) -> None:
    assert (await scene.sim.board.deliver(interaction))["status"] == 400


@on_sqlite
async def test_a_press_for_an_action_that_is_unknown_says_so(scene: Scene) -> None:
    data = {"custom_id": "postroom:approve:0199a1c2-7e5b-7abc-8def-0123456789ab"}
    answer = await scene.sim.board.deliver({"type": 3, "data": data, "user": {"id": USER, "username": "ana"}})
    assert "no longer known" in answer["data"]["content"]


@on_sqlite
@pytest.mark.parametrize(
    ("fault", "error", "said"),
    [
        (DiscordFault(status=401), Fatal, "bot_token"),
        (DiscordFault(status=403), Fatal, "may not write"),
        (DiscordFault(status=404), Fatal, "channel_id"),
        (DiscordFault(status=400), Fatal, "refused by the stand-in"),
        (DiscordFault(status=429, retry_after=2.5), Retryable, "fewer calls"),
        (DiscordFault(status=503), Retryable, "503"),
    ],
)
async def test_refusals_become_our_errors(scene: Scene, fault: DiscordFault, error: type[Exception], said: str) -> None:
    scene.sim.board.add_fault(fault)
    with pytest.raises(error, match=said) as raised:
        await scene.channel.post({"content": "x"}, "n")
    if fault.retry_after is not None:
        assert isinstance(raised.value, Retryable)
        assert raised.value.retry_after is not None
        assert raised.value.retry_after.total_seconds() == fault.retry_after


@pytest.mark.req("PL-6")
async def test_no_error_tells_the_token() -> None:
    settings = DiscordSettings(
        bot_token=SecretStr("very-secret-token"),
        channel_id="1",
        public_key="0" * 64,
        allowed_users="1",
        base_url="http://127.0.0.1:1",
    )
    async with open_channel(settings) as channel:
        assert channel is not None
        with pytest.raises(Retryable) as raised:
            await channel.post({"content": "x"}, "n")
    assert "very-secret-token" not in repr(raised.value) + str(raised.value.__cause__) + repr(settings)
    assert raised.value.__suppress_context__


async def test_a_lost_answer_does_not_ask_twice(scene: Scene) -> None:
    scene.sim.board.add_fault(DiscordFault(status=503, after_effect=True))
    action_id = await scene.office.ask()
    await scene.notify()
    assert isinstance(scene.office.clock, ManualClock)
    scene.office.clock.advance(60)
    await scene.notify()
    assert len(scene.sim.board.messages) == 1
    notice = await scene.office.notice(action_id)
    assert notice == (next(iter(scene.sim.board.messages)), "sent")


async def test_a_message_that_somebody_deleted_is_no_trouble(scene: Scene) -> None:
    action_id, message_id = await scene.asked()
    del scene.sim.board.messages[message_id]
    await scene.office.answer(action_id, ApprovalVerdict.APPROVE)
    await scene.notify()
    assert await scene.office.notice(action_id) == (message_id, "closed")


@on_sqlite
async def test_a_process_that_dies_anywhere_loses_no_question(scene: Scene) -> None:
    office, point, died = scene.office, 0, True
    assert isinstance(office.clock, ManualClock)
    while died:
        point, died = point + 1, False
        action_id = await office.ask()
        (job,) = await claim(office.queue, worker=f"w{point}")
        queue = PendingApprovals(CrashingDatabase(office.database, CrashPoint(point)), office.clock).queue
        try:
            await ApprovalNotifier(scene.channel)(JobContext(queue, job))
        except Killed:
            died = True
            office.clock.advance(120)
        await scene.notify()
        office.clock.advance(600)
        await scene.notify()
        notice = await office.notice(action_id)
        assert notice is not None
        assert notice[1] == "sent"
        assert len([each for each in scene.sim.board.messages.values() if action_id in str(each["components"])]) == 1
    assert point > 5
    assert set(await office.jobs_of(APPROVAL_NOTIFY.name)) == {"completed"}
