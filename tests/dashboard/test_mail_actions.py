"""Acting on mail from its list and its page, and taking that back; the places beside the list."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import pytest
from sqlalchemy import select

from postroom.archive.messages import IncomingMail, Provenance
from postroom.db.tables.mail import messages
from postroom.db.tables.triage import actions
from postroom.domain.roles import Role
from tests.dashboard.test_mail_page import BEGINNING, mail
from tests.support.actions import ActionScene
from tests.support.dashboard_data import add_decided_mail, add_decision, add_mailbox, archive_mail, dashboard_actions
from tests.support.dashboards import Site, text_of
from tests.support.mail import ME, letter

pytestmark = pytest.mark.req("UX-1")


@dataclass
class MailboxScene:
    """Mail in a mailbox, here and in the archive."""

    site: Site
    scene: ActionScene
    ids: list[str]

    @property
    def email(self) -> str:
        return self.scene.account.email

    def names(self, *numbers: int) -> list[str]:
        return [f"{self.email} {self.ids[number]}" for number in numbers]

    def path(self, number: int) -> str:
        return f"/mail/{self.email}/{self.ids[number]}"

    async def undo(self, page: str) -> str:
        """Press the button of the message that says what was done; what the next page says."""
        made = await self.site.read(lambda tx: list(tx.execute(select(actions.c.id)).scalars()))
        mine = [each for each in made if f'name="action" value="{each}"' in page]
        answer = await self.site.post("/mail/undo", action=mine, back="/mail?view=inbox")
        return text_of((await self.site.get(answer.headers["location"])).text)


async def filled(site: Site, scene: ActionScene, count: int = 3) -> MailboxScene:
    ids = []
    for number in range(count):
        gmail_id, _ = await scene.message("INBOX", "UNREAD")
        raw = letter(f"Dinner {number}", sender="Ann <ann@friends.example>")
        received = BEGINNING + timedelta(hours=number)
        labels = frozenset({"INBOX", "UNREAD", "work"})
        stored = IncomingMail(raw, Provenance.API, gmail_id, f"t{number}", labels, received)
        await archive_mail(site, [stored], scene.account.email)
        ids.append(gmail_id)
    return MailboxScene(site, scene, ids)


async def test_chosen_messages_are_archived_together_and_that_is_undone(site: Site) -> None:
    async with dashboard_actions(site) as scene:
        inbox = await filled(site, scene)
        answer = await site.post("/mail", intent="archive", message=inbox.names(0, 2), back="/mail?view=inbox&after=")
        assert answer.headers["location"] == "/mail?view=inbox"
        page = (await site.get("/mail")).text
        assert "2 messages archived." in page
        assert "Dinner 1" in page  # what is under way is shown as done
        assert "Dinner 0" not in page
        assert "Undone: 2 changes." in (said := await inbox.undo(page))  # called off, because no worker was at it yet
        assert "Dinner 0" in said
        await site.post("/mail", intent="archive", message=inbox.names(0, 2))
        page = (await site.get("/mail")).text
        await scene.work()
        assert scene.labels(inbox.ids[0]) == {"UNREAD"}
        assert "Undone: 2 changes." in await inbox.undo(page)
        await scene.work()
        assert scene.labels(inbox.ids[0]) == scene.labels(inbox.ids[2]) == {"INBOX", "UNREAD"}


@pytest.mark.parametrize(
    ("fields", "said", "labels"),
    [
        ({"intent": "mark_read"}, "1 message marked as read.", {"INBOX"}),
        ({"intent": "trash"}, "1 message moved to the trash.", {"TRASH", "UNREAD"}),
        ({"intent": "apply_label", "label": "Bills"}, "1 message labelled “Bills”.", {"INBOX", "UNREAD", "Bills"}),
    ],
)
async def test_every_button_of_the_list_is_an_ordinary_action(
    site: Site, fields: dict[str, str], said: str, labels: set[str]
) -> None:
    async with dashboard_actions(site, Label_1="Bills") as scene:
        inbox = await filled(site, scene, 1)
        await site.post("/mail", message=inbox.names(0), **fields)
        assert said in text_of((await site.get("/mail")).text)
        await scene.work()
        assert scene.labels(inbox.ids[0]) == {{"Bills": "Label_1"}.get(each, each) for each in labels}


async def test_a_row_has_its_own_star_and_a_mistake_changes_nothing(site: Site) -> None:
    async with dashboard_actions(site) as scene:
        inbox = await filled(site, scene, 1)
        await site.post("/mail", star=inbox.names(0))
        assert "Unstar Dinner 0" in (await site.get("/mail")).text
        for fields, said in (
            ({"intent": "archive"}, "Select one or more messages first."),
            ({"intent": "apply_label", "message": inbox.names(0)}, "label write the name of a label"),
            ({"intent": "delete", "message": inbox.names(0)}, "intent is not one of archive"),
            ({"intent": "snooze", "message": inbox.names(0), "hours": "5"}, "hours is not one of 1"),
            ({"intent": "archive", "message": f"{inbox.email} nothing"}, "it is not in the archive"),
        ):
            await site.post("/mail", **fields)
            assert said in text_of((await site.get("/mail")).text)
        away = await site.post("/mail", intent="archive", message=inbox.names(0), back="https://evil.example/mail/")
        assert away.status_code == 422
        made = await site.read(lambda tx: list(tx.execute(select(actions.c.type)).scalars()))
        assert made == ["star"]


async def test_mail_that_is_only_in_the_archive_says_what_is_possible(site: Site) -> None:
    async with dashboard_actions(site) as scene:
        inbox = await filled(site, scene, 1)
        (old,) = await archive_mail(site, [IncomingMail(letter("Old"), Provenance.IMPORT)], inbox.email)
        page = text_of((await site.get(f"/mail/{inbox.email}/{old}")).text)
        assert "It cannot be archived, labelled or answered here: it was imported from a file" in page
        assert "Make a rule" in page
        assert "Reply" not in page
        answer = await site.post("/mail", intent="star", message=[*inbox.names(0), f"{inbox.email} {old}"])
        said = text_of((await site.get(answer.headers["location"])).text)
        assert "1 message starred. 1 message left as they were: it was imported from a file" in said


async def test_the_page_of_a_message_has_a_toolbar_and_a_history(site: Site) -> None:
    async with dashboard_actions(site) as scene:
        inbox = await filled(site, scene)
        path = inbox.path(1)
        page = (await site.get(f"{path}?list=view%3Dinbox")).text
        for words in ("Archive", "☆ Star", "Mark as read", "Trash", "Snooze", "Reply", "Forward", "Make a rule"):
            assert words in page
        assert f'rel="prev" aria-keyshortcuts="k" href="{inbox.path(2)}?list=view%3Dinbox"' in page
        assert f'rel="next" aria-keyshortcuts="j" href="{inbox.path(0)}?list=view%3Dinbox"' in page
        answer = await site.post(f"{path}/act", intent="archive", list="view=inbox")
        assert answer.headers["location"] == f"{path}?list=view%3Dinbox"
        page = text_of((await site.get(path)).text)
        assert "1 message archived." in page
        assert "Move to inbox" in page
        assert 0 < page.index("Activity") < page.rindex("Received") < page.index("Archive the message Queued")
        await site.post(f"{path}/act", intent="inbox")
        await scene.work()
        assert scene.labels(inbox.ids[1]) == {"INBOX", "UNREAD"}
        await site.post(f"{path}/act", intent="remove_label", label="")
        assert "write the name of a label" in (await site.get(path)).text
        rule = (await site.get(f"/rules/new?account={inbox.email}&key={inbox.ids[1]}")).text
        assert 'value="Mail from ann@friends.example"' in rule


async def test_what_waits_is_approved_on_the_page_of_its_message(site: Site) -> None:
    async with dashboard_actions(site) as scene:
        inbox = await filled(site, scene, 1)
        [message] = await site.read(lambda tx: list(tx.execute(select(messages.c.id)).scalars()))
        [waiting] = await add_decision(scene, (inbox.ids[0], message), "trash", why="trash is dangerous")
        page = (await site.get(inbox.path(0))).text
        assert "needs your approval" in page
        answer = await site.post(f"/approvals/{waiting}/approve", back=inbox.path(0))
        assert answer.headers["location"] == inbox.path(0)
        assert (await scene.action(waiting)).status == "queued"
        assert (await site.post(f"/approvals/{waiting}/reject", back="https://evil.example")).status_code == 422


async def test_mail_opens_on_the_inbox_with_places_and_counts_beside_it(site: Site) -> None:
    site.dashboard.pages.state.services.mail_counts.time_s = 60.0  # a busy machine counts late
    here = frozenset({"INBOX", "UNREAD", "Bills"})
    await archive_mail(site, [mail(1, labels=here), mail(2, labels=frozenset({"work"})), mail(3)])
    keys = await archive_mail(site, [mail(4, labels=frozenset({"TRASH"}))])
    await add_decided_mail(site, keys[0])
    said = text_of((await site.get("/mail")).text)
    assert "Letter 1" in said
    assert "Letter 2" not in said
    assert "Letter 2" in (await site.get("/mail?view=all")).text
    assert "Letter 4" in (await site.get("/mail?view=trash")).text
    places = (await site.api("GET", "/mail/places")).json()
    counts = {each["title"]: each["count"] and each["count"]["number"] for each in places["views"] + places["labels"]}
    assert (counts["Inbox"], counts["Bills"], counts["work"]) == (1, 1, 0)
    assert {"Review", "Snoozed", "Starred", "All mail"} <= counts.keys()
    assert places["tiers"][0] == {
        "title": "High priority",
        "href": "/mail?tier=high_priority",
        "count": {"number": 1, "is_more": False},
        "counted": "in the last 24 hours",
    }
    assert (await site.get("/mail?tier=high_priority")).status_code == 200
    assert (await site.api("GET", "/mail?tier=default&query=a")).status_code == 422


async def test_a_tier_s_mail_is_listed_newest_first_page_by_page(site: Site) -> None:
    keys = await archive_mail(site, [mail(number) for number in range(3)])
    for key in keys:
        await add_decided_mail(site, key)
    first = (await site.api("GET", "/mail?tier=high_priority&limit=2")).json()
    second = (await site.api("GET", f"/mail?tier=high_priority&limit=2&after={first['next']}")).json()
    assert [row["key"] for row in first["items"] + second["items"]] == keys[::-1]
    assert second["next"] is None


async def test_pages_lead_forth_and_back(site: Site) -> None:
    await archive_mail(site, [mail(number) for number in range(5)])
    first = (await site.api("GET", "/mail?view=inbox&limit=2")).json()
    second = (await site.api("GET", f"/mail?view=inbox&limit=2&after={first['next']}")).json()
    back = (await site.api("GET", f"/mail?view=inbox&limit=2&before={second['previous']}")).json()
    assert (back["items"], back["previous"]) == (first["items"], None)
    page = (await site.get(f"/mail?limit=2&after={first['next']}")).text
    assert "Previous page" in page
    assert "Next page" in page


async def test_a_program_acts_on_many_within_its_rights(site: Site) -> None:
    async with dashboard_actions(site) as scene:
        inbox = await filled(site, scene, 1)
        await add_mailbox(site)
        names = [{"mailbox": inbox.email, "key": inbox.ids[0]}, {"mailbox": ME, "key": "18f1"}]
        done = (await site.api("POST", "/mail/act", json={"messages": names, "type": "star"})).json()["messages"]
        assert [each["reason"] for each in done] == [None, "it is not in the archive"]
        takes = {"actions": [done[0]["action"]]}
        for counted, standing in ((True, "is cancelled"), (False, "canceled")):
            [answer] = (await site.api("POST", "/actions/take-back", json=takes)).json()["answers"]
            assert (answer["counted"], standing in answer["standing"]) == (counted, True)
        far = await site.api("POST", "/mail/act", json={"messages": names, "type": "delete"})
        assert "one message at a time" in far.json()["error"]["message"]
        token = await site.token(Role.DASHBOARD, endpoint_identity=inbox.email)
        async with site.stranger(headers={"authorization": f"Bearer {token}"}) as program:
            others = await program.post("/api/mail/act", json={"messages": names, "type": "star"})
            assert others.status_code == 403
            mine = await program.post("/api/mail/act", json={"messages": names[:1], "type": "mark_read"})
            assert mine.status_code == 200, mine.text
