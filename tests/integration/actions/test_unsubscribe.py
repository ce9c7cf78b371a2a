"""One-click unsubscribing as an action: recorded before it is sent, sent at most once, and what came of it is known."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select

from postroom.accounts.account import Account
from postroom.actions import approvals, requests
from postroom.actions.browsing import ActionFilter, list_actions
from postroom.actions.discord.notices import asking
from postroom.actions.executor import ActionHandler
from postroom.actions.label_changes import LabelFinder
from postroom.actions.outbound.sending import Originals
from postroom.actions.unsubscribing import Unreached, Unsubscriber
from postroom.actions.wording import deed
from postroom.audit import Actor, AuditFilter, list_entries
from postroom.db.tables.mail import unsubscriptions
from postroom.domain.actions import ActionStatus, parse_action
from postroom.domain.errors import BadInput, NotAllowed, Retryable
from postroom.domain.ids import new_id
from postroom.domain.jobs import ACTION
from postroom.mail.headers import triage_headers
from postroom.mailboxes.gmail.mailbox import GmailMailbox
from postroom.queue import Handler, JobContext, JobQueue
from postroom.reading.mail import read_headers
from postroom.settings import WebSettings
from postroom.triage.rules.rule import parse_actions
from postroom.web.fetching.fetcher import open_owner_requests
from tests.support.actions import ActionScene, make_message
from tests.support.crashes import CrashingDatabase, CrashPoint, Killed
from tests.support.mail import letter
from tests.support.pictures import SERVERS, list_letter
from tests.support.queues import claim, run_until_idle
from tests.support.web_servers import Page, TinySite, tiny_site

pytestmark = pytest.mark.req("UX-1")

AGENT = Actor("agent", "helper")


@dataclass
class Boxes:
    """Implements `ActionMailboxes` with one client."""

    scene: ActionScene

    async def of(self, account: Account) -> GmailMailbox:
        return GmailMailbox(self.scene.client)


@dataclass
class ListScene:
    """A mailbox with mail of a list, whose server is on this machine: `https://lists.example` leads there."""

    scene: ActionScene
    server: TinySite
    before: Callable[[], None] = field(default=lambda: None)
    """Called right before the request is sent."""

    async def post(self, url: str, form: bytes) -> int:
        self.before()
        async with open_owner_requests(WebSettings(allow_private_hosts="127.0.0.1")) as web:
            return await web.post_form(url.replace("https://lists.example", self.server.url), form)

    def handler(self) -> ActionHandler:
        scene = self.scene
        labels = LabelFinder(scene.database, scene.clock)
        unsubscriber = Unsubscriber(Originals(None), self.post, SERVERS)
        return ActionHandler(Boxes(scene), labels, scene.settings, scene.safety, unsubscriber)

    async def work(self) -> None:
        handlers: dict[str, Handler] = {**self.scene.handlers(), ACTION.name: self.handler()}
        await run_until_idle(self.scene.queue, handlers)

    async def arrives(self, raw: bytes) -> str:
        gmail_id = self.scene.sim.control.deliver(raw, frozenset({"INBOX"}))
        headers = triage_headers(read_headers(raw))
        await make_message(self.scene.database, self.scene.clock, self.scene.account, gmail_id, headers=headers)
        return gmail_id

    async def left(self) -> list[Any]:
        return list(await self.scene.database.read(lambda tx: tx.execute(select(unsubscriptions)).all()))


@pytest.fixture
async def lists(scene: ActionScene) -> AsyncIterator[ListScene]:
    async with tiny_site() as server:
        server.pages["*"] = Page(b"Bye")
        yield ListScene(scene, server)


async def test_the_request_is_exactly_that_of_the_standard_and_is_recorded(lists: ListScene) -> None:
    gmail_id = await lists.arrives(list_letter())
    action_id = await lists.scene.want(gmail_id, "unsubscribe")
    assert await lists.scene.want(gmail_id, "unsubscribe") == action_id  # a second click
    await lists.work()
    action = await lists.scene.action(action_id)
    assert (action.status, action.error) == (ActionStatus.COMPLETED, None)
    [request] = lists.server.requests
    assert (request.method, request.path, request.body) == ("POST", "/leave?u=42", b"List-Unsubscribe=One-Click")
    assert request.headers["content-type"] == "application/x-www-form-urlencoded"
    assert not request.headers.keys() & {"cookie", "referer", "authorization"}
    [left] = await lists.left()
    assert (left.sender, left.way, left.action_id) == ("news@lists.example", "one_click", action_id)
    page = await lists.scene.database.read(lambda tx: list_entries(tx, AuditFilter(subject_id=action_id)))
    assert [entry.action for entry in page.entries] == ["unsubscribe.done", "action.want"]
    with pytest.raises(BadInput, match="subscribe again on its web site"):
        await lists.scene.ask_to_undo(action_id)


@pytest.mark.parametrize(
    ("status", "said"), [(302, "did not accept the request (status 302)"), (404, "(status 404)"), (503, "(status 503)")]
)
async def test_a_refusal_is_said_and_nothing_is_repeated_or_followed(lists: ListScene, status: int, said: str) -> None:
    lists.server.pages["*"] = Page(b"", status=status, headers={"location": "/elsewhere"})
    action_id = await lists.scene.want(await lists.arrives(list_letter()), "unsubscribe")
    await lists.work()
    action = await lists.scene.action(action_id)
    assert action.status is ActionStatus.FAILED
    assert said in str(action.error)
    assert lists.server.asked == ["/leave?u=42"]
    assert await lists.left() == []


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (letter(), "has no List-Unsubscribe header"),
        (list_letter(Authentication_Results="mx.google.com; dkim=fail header.d=lists.example"), "is not authenticated"),
        (letter(headers={"List-Unsubscribe": "<https://lists.example/x>"}), "the list does not offer it"),
    ],
)
async def test_mail_that_is_not_of_an_authenticated_list_is_never_answered(
    lists: ListScene, raw: bytes, said: str
) -> None:
    action_id = await lists.scene.want(await lists.arrives(raw), "unsubscribe")
    await lists.work()
    action = await lists.scene.action(action_id)
    assert (action.status, said in str(action.error)) == (ActionStatus.FAILED, True)
    assert lists.server.asked == []


async def test_a_proposal_waits_for_approval_and_no_rule_unsubscribes(lists: ListScene) -> None:
    gmail_id = await lists.arrives(list_letter())
    scene, wanted = lists.scene, parse_action("unsubscribe")
    action_id = await scene.database.write(
        lambda tx: requests.propose_action(
            tx, scene.queue, requests.message_named(tx, gmail_id), wanted, "never read", AGENT, timedelta(days=7)
        )
    )
    await lists.work()
    assert (await scene.action(action_id)).status is ActionStatus.APPROVED_PENDING
    assert lists.server.asked == []
    question = await scene.database.read(lambda tx: approvals.get_question(tx, action_id))
    would = "unsubscribe from the list that sent the message (contacts lists.example)"
    assert deed(question.action) == would
    assert f"Would: `{would}`" in asking(question)["content"]
    [listed] = await scene.database.read(
        lambda tx: list_actions(tx, ActionFilter(status=ActionStatus.APPROVED_PENDING))
    )
    assert deed(listed.action) == would
    long = replace(listed.action, host=f"bank.example.{'a' * 60}.{'b' * 60}.evil.example")
    assert deed(long).endswith("bbb.evil.example)")
    assert len(deed(long)) < 130
    assert "unsubscribe" in {str(each) for each in scene.safety.dangerous}
    with pytest.raises(BadInput, match="a rule can archive or trash"):
        parse_actions(["unsubscribe"])


async def test_killed_at_any_step_the_request_is_sent_at_most_once_and_the_owner_is_told(lists: ListScene) -> None:
    """A worker dies before or after each commit, and right before and after the request itself."""
    scene, point, died, unclear = lists.scene, 0, True, 0
    while died:
        point += 1
        lists.server.requests.clear()
        gmail_id = await lists.arrives(list_letter(subject=f"News {point}"))
        action_id = await scene.want(gmail_id, "unsubscribe")
        died = await _dies_at(lists, point)
        await lists.work()
        action = await scene.action(action_id)
        assert len(lists.server.requests) <= 1
        if action.status is ActionStatus.FAILED:
            unclear += 1
            assert "It is not known whether lists.example received the request" in str(action.error)
            assert "It was not repeated." in str(action.error)
        else:
            assert (action.status, len(lists.server.requests)) == (ActionStatus.COMPLETED, 1)
    assert point > 5
    assert unclear >= 3  # after the record, before the request, and after it


async def _dies_at(lists: ListScene, point: int) -> bool:
    scene, reaper = lists.scene, CrashPoint(strike_at=point)
    lists.before = reaper.point
    [job] = await claim(scene.queue, worker=new_id())
    queue = JobQueue(CrashingDatabase(scene.database, reaper), scene.queue.catalogue, scene.clock)
    try:
        await lists.handler()(JobContext(queue, job))
    except Killed:
        return True
    finally:
        lists.before = lambda: None
        scene.clock.advance(120)
    return False


async def test_after_an_unclear_end_only_a_person_asks_again(lists: ListScene) -> None:
    def hang_up() -> None:
        raise Retryable("lists.example took longer than 10 s")

    lists.before = hang_up
    scene = lists.scene
    action_id = await scene.want(await lists.arrives(list_letter()), "unsubscribe")
    await lists.work()
    failed = await scene.action(action_id)
    assert "It is not known whether" in str(failed.error)
    lists.before = lambda: None
    job_id = str(failed.job_id)
    await scene.database.write(lambda tx: requests.retry_job(tx, scene.queue, job_id, AGENT))
    await lists.work()
    assert lists.server.requests == []  # a retry of the job alone repeats nothing
    await scene.retry(action_id)
    await lists.work()
    assert (await scene.action(action_id)).status is ActionStatus.COMPLETED
    assert len(lists.server.requests) == 1


async def test_a_server_that_was_never_reached_is_told_apart(lists: ListScene) -> None:
    def unreached() -> None:
        raise Unreached("10.0.0.1 is not a public address")

    lists.before = unreached
    action_id = await lists.scene.want(await lists.arrives(list_letter()), "unsubscribe")
    await lists.work()
    error = str((await lists.scene.action(action_id)).error)
    assert error == "You are still subscribed: 10.0.0.1 is not a public address. Nothing was sent; retry it later."


@pytest.mark.parametrize("url", ["https://127.0.0.1/x", "https://[::1]/x", "https://169.254.169.254/x"])
async def test_no_list_makes_postroom_talk_to_this_network(url: str) -> None:
    async with open_owner_requests(WebSettings()) as web:
        with pytest.raises(NotAllowed):
            await web.post_form(url, b"x")
