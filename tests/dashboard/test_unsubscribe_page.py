"""The Unsubscribe page: senders by volume and how little is read, three ways to leave, and what came afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select

from postroom.actions import requests
from postroom.actions.unsubscribing import Unsubscription, record_unsubscription
from postroom.archive.messages import IncomingMail, Provenance
from postroom.audit import Actor
from postroom.dashboard.mail import mailing_lists
from postroom.db import Tx
from postroom.db.tables.mail import unsubscriptions
from postroom.db.tables.triage import actions
from postroom.domain.actions import parse_action
from postroom.domain.roles import Permission, Role
from postroom.mail.unsubscribing import UnsubscribeWay
from tests.support.actions import ActionScene, make_message
from tests.support.dashboard_data import archive_mail, dashboard_actions
from tests.support.dashboards import Site, text_of
from tests.support.mail import letter
from tests.support.pictures import list_headers

pytestmark = pytest.mark.req("UX-1")

MAIL_ONLY = {"List-Unsubscribe": "<mailto:leave@shop.example?subject=stop>"}
LINK_ONLY = {"List-Unsubscribe": "<https://paper.example/leave?me=1>"}


@dataclass
class ListMail:
    site: Site
    scene: ActionScene

    @property
    def email(self) -> str:
        return self.scene.account.email

    async def arrives(
        self, sender: str, headers: dict[str, str], *, read: bool = False, days_ago: float = 0.0, name: str = ""
    ) -> str:
        """Mail in the mailbox, in the archive and here; the path of its page."""
        raw = letter(f"From {sender}", sender=f"{name} <{sender}>", headers=headers)
        labels = frozenset({"INBOX"} if read else {"INBOX", "UNREAD"})
        gmail_id = self.scene.sim.control.deliver(raw, labels)
        received = self.site.app.clock.now() - timedelta(days=days_ago)
        columns: dict[str, Any] = {"sender_identity": sender, "sender_name": name or None, "labels": sorted(labels)}
        columns |= {"headers": {each.lower(): value for each, value in headers.items()}, "received_at": received}
        await make_message(self.site.app.database, self.scene.clock, self.scene.account, gmail_id, **columns)
        stored = IncomingMail(raw, Provenance.API, gmail_id, gmail_id, labels, received)
        [key] = await archive_mail(self.site, [stored], self.email)
        return f"/mail/{self.email}/{key}"

    async def says(self, path: str = "/unsubscribe") -> str:
        return text_of((await self.site.get(path)).text)

    async def left(self) -> list[Any]:
        return list(await self.site.read(lambda tx: tx.execute(select(unsubscriptions)).all()))

    async def leaves(self, sender: str, days_ago: float) -> None:
        at = self.site.app.clock.now() - timedelta(days=days_ago)
        left = Unsubscription(self.email, sender, UnsubscribeWay.LINK, at, "dashboard owner")
        await self.site.write(lambda tx: record_unsubscription(tx, left))


@pytest.fixture
async def lists(site: Site) -> AsyncIterator[ListMail]:
    async with dashboard_actions(site) as scene:
        yield ListMail(site, scene)


async def test_senders_are_listed_by_volume_or_by_what_stays_unread(
    lists: ListMail, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        await lists.arrives("news@lists.example", list_headers(), read=number > 0, days_ago=number, name="The News")
    for _ in range(2):
        await lists.arrives("deals@shop.example", MAIL_ONLY)
    await lists.arrives("ann@friends.example", {})
    await lists.arrives("old@paper.example", LINK_ONLY, days_ago=100)
    said = await lists.says()
    assert "The News news@lists.example 3 33%" in said
    assert "asks lists.example" in said
    assert "deals@shop.example 2 100%" in said
    assert said.index("The News") < said.index("deals@shop.example")
    assert "friends.example" not in said
    assert "paper.example" not in said
    unread = await lists.says("/unsubscribe?by=unread")
    assert unread.index("deals@shop.example") < unread.index("The News")
    found = (await lists.site.api("GET", f"/unsubscribe?account={lists.email}")).json()
    assert [(each["sender"], each["messages"], each["unread"]) for each in found["senders"]] == [
        ("news@lists.example", 3, 1),
        ("deals@shop.example", 2, 2),
    ]
    assert found["senders"][0]["offer"]["way"] == "one_click"
    assert (await lists.site.api("GET", "/unsubscribe?account=x@example.org")).status_code == 422
    monkeypatch.setattr(mailing_lists, "MOST_COUNTED", 2)
    assert "counted over the newest 2 messages" in await lists.says()
    token = await lists.site.token(Role.DASHBOARD, permissions={Permission.READ}, endpoint_identity="x@example.org")
    async with lists.site.stranger(headers={"authorization": f"Bearer {token}"}) as program:
        assert (await program.get(f"/api/unsubscribe?account={lists.email}")).status_code == 403


async def test_one_click_is_an_action_of_the_owner(lists: ListMail) -> None:
    path = await lists.arrives("news@lists.example", list_headers())
    said = await lists.says(path)
    assert "Postroom asks lists.example to take you off the list. This cannot be undone." in said
    answer = await lists.site.post(f"{path}/unsubscribe")
    [row] = await lists.site.read(lambda tx: tx.execute(select(actions)).all())
    assert (row.type, row.status, row.origin) == ("unsubscribe", "queued", "person")
    assert answer.headers["location"] == f"/actions/{row.id}"
    assert "nsubscribe from the list that sent the message" in await lists.says(answer.headers["location"])
    again = await lists.site.post(f"{path}/unsubscribe")
    assert again.headers["location"] == answer.headers["location"]
    token = await lists.site.token(Role.DASHBOARD, permissions={Permission.ACT})
    async with lists.site.stranger(headers={"authorization": f"Bearer {token}"}) as program:
        refused = await program.post(f"/api{path}/unsubscribe")
    assert (refused.status_code, "`approve`" in refused.text) == (403, True)
    assert (await lists.site.api("POST", f"{path}/unsubscribe")).json() == {"action": row.id}


async def test_a_mail_is_written_for_the_owner_who_sends_it(lists: ListMail) -> None:
    path = await lists.arrives("deals@shop.example", MAIL_ONLY)
    assert "You see it before you send it." in await lists.says(path)
    page = (await lists.site.get(f"{path}/write/reply?unsubscribe=yes")).text
    for value in ("leave@shop.example", "stop", "unsubscribe"):
        assert value in page
    assert await lists.left() == []
    sent = {"to": "leave@shop.example", "subject": "stop", "body": "unsubscribe", "unsubscribe": "yes"}
    answer = await lists.site.post(f"{path}/write/reply", **sent)
    [row] = await lists.site.read(lambda tx: tx.execute(select(actions)).all())
    assert (row.type, row.parameters["to"]) == ("auto_reply", ["leave@shop.example"])
    assert answer.headers["location"] == f"/actions/{row.id}"
    [left] = await lists.left()
    assert (left.sender, left.way, left.action_id) == ("deals@shop.example", "mail", row.id)
    other = await lists.arrives("ann@friends.example", {})
    assert (await lists.site.get(f"{other}/write/reply?unsubscribe=yes")).status_code == 404


async def test_a_link_is_text_and_what_the_owner_did_there_can_be_noted(lists: ListMail) -> None:
    path = await lists.arrives("daily@paper.example", LINK_ONLY)
    page = (await lists.site.get(path)).text
    assert "https://paper.example/leave?me=1" in text_of(page)
    assert 'href="https://paper.example' not in page
    await lists.site.post(f"{path}/unsubscribed")
    assert "Postroom watches whether mail still comes from daily@paper.example." in (said := await lists.says())
    assert "on its web page waiting" in said.lower()
    assert "You unsubscribed" in await lists.says(path)
    key = path.rpartition("/")[2]
    wanted = {"endpoint_identity": lists.email, "key": key, "way": "link"}
    assert (await lists.site.api("POST", "/unsubscribe/left", json=wanted)).status_code == 200
    friend = (await lists.arrives("ann@friends.example", {})).rpartition("/")[2]
    refused = await lists.site.api("POST", "/unsubscribe/left", json=wanted | {"key": friend})
    assert (refused.status_code, refused.json()["error"]["field"]) == (422, "key")
    await lists.site.post("/unsubscribe/forget", mailbox=lists.email, sender="daily@paper.example")
    assert await lists.left() == []
    gone = {"endpoint_identity": lists.email, "sender": "daily@paper.example"}
    assert (await lists.site.api("POST", "/unsubscribe/forget", json=gone)).status_code == 404


async def test_a_list_that_still_sends_after_ten_days_is_shown_as_such(lists: ListMail) -> None:
    for days_ago in (1, 5, 15):
        await lists.arrives("stubborn@lists.example", list_headers(), days_ago=days_ago)
    await lists.arrives("slow@lists.example", list_headers(), days_ago=1)
    await lists.arrives("good@lists.example", list_headers(), days_ago=15)
    await lists.leaves("stubborn@lists.example", 20)
    await lists.leaves("slow@lists.example", 3)
    await lists.leaves("good@lists.example", 20)
    found = (await lists.site.api("GET", "/unsubscribe?account=" + lists.email)).json()
    states = {each["sender"].partition("@")[0]: (each["state"], each["since"]) for each in found["left"]}
    assert states == {"stubborn": ("still_sending", 2), "slow": ("waiting", 0), "good": ("stopped", 0)}
    assert found["senders"] == []
    assert "Still sending 2 messages" in await lists.says()


async def test_what_waits_for_approval_names_whom_unsubscribing_contacts(lists: ListMail) -> None:
    path = await lists.arrives("news@lists.example", list_headers())
    scene, key = lists.scene, path.rpartition("/")[2]
    who = Actor("agent", "helper")

    def propose(tx: Tx) -> str:
        target = requests.message_named(tx, key)
        return requests.propose_action(tx, scene.queue, target, parse_action("unsubscribe"), "", who, timedelta(days=7))

    assert "waiting for approval" not in await lists.says("/rules")
    action_id = await lists.site.write(propose)
    assert "Approvals 1 waiting for approval Review" in await lists.says("/rules")  # the badge, on every page
    would = "Unsubscribe from the list that sent the message (contacts lists.example)"
    assert would in await lists.says("/approvals")
    assert would in await lists.says(f"/actions/{action_id}")
    [waiting] = (await lists.site.api("GET", "/approvals")).json()
    assert waiting["summary"] == would
