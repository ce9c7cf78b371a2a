"""The mail list as conversations, saved searches, the density of the list, and the page of keyboard shortcuts."""

from __future__ import annotations

import re
from datetime import timedelta
from importlib.resources import files

import pytest
from sqlalchemy import select

from postroom.archive.messages import IncomingMail, Provenance
from postroom.db.tables.access import audit_log
from postroom.db.tables.triage import actions
from postroom.domain.roles import Permission, Role
from tests.dashboard.test_mail_page import BEGINNING, mail
from tests.support.dashboard_data import archive_mail, dashboard_actions
from tests.support.dashboards import Site, text_of
from tests.support.mail import letter

pytestmark = pytest.mark.req("UX-1")


def rows_of(page: str) -> list[str]:
    return [text_of(row) for row in re.findall(r'<li class="mail.*?</li>', page, re.DOTALL)]


async def test_a_conversation_is_one_row_and_is_acted_on_and_undone_as_one(site: Site) -> None:
    async with dashboard_actions(site) as scene:
        me, ids = scene.account.email, list[str]()
        for number, sender in enumerate(("Ann Example <ann@x.example>", f"Me <{me}>", "Bob <bob@x.example>")):
            gmail_id, _ = await scene.message("INBOX", *(["UNREAD"] if number == 0 else []))
            labels = frozenset({"INBOX", *(["UNREAD"] if number == 0 else ["work"])})
            raw, received = letter(f"Dinner {number}", sender=sender), BEGINNING + timedelta(hours=number)
            await archive_mail(site, [IncomingMail(raw, Provenance.API, gmail_id, "t", labels, received)], me)
            ids.append(gmail_id)
        sent = IncomingMail(letter("Dinner 9"), Provenance.API, "18f9", "t", frozenset({"SENT"}), BEGINNING)
        await archive_mail(site, [sent], me)
        page = (await site.get("/mail")).text
        [row] = rows_of(page)
        assert "Ann , me , Bob 3 messages Unread: Dinner 2" in row
        assert "work" in row
        assert f'value="{me} {ids[2]} {ids[1]} {ids[0]}"' in page  # and not what is not in the inbox
        [item] = (await site.api("GET", "/mail/conversations?view=inbox")).json()["items"]
        assert (item["keys"], item["people"]) == (ids[::-1], ["Ann", "me", "Bob"])
        await site.post("/mail", intent="archive", message=f"{me} {' '.join(ids)}", back="/mail")
        page = (await site.get("/mail")).text
        assert "3 messages in 1 conversation archived." in page
        assert rows_of(page) == []
        made = await site.read(lambda tx: list(tx.execute(select(actions.c.id)).scalars()))
        assert [each for each in made if f'name="action" value="{each}"' in page] == made
        await site.post("/mail/undo", action=made, back="/mail")
        page = (await site.get("/mail")).text
        assert "Undone: 3 changes." in page
        assert len(rows_of(page)) == 1
        await site.post("/mail", star=f"{me} {' '.join(ids)}")
        assert f'name="unstar" value="{me} {ids[2]} {ids[1]} {ids[0]}"' in (await site.get("/mail")).text
        assert (await site.post("/mail", intent="archive", message=" ")).status_code == 303
        assert "Not done: " in (await site.get("/mail")).text


async def test_pages_show_a_conversation_once_and_a_search_shows_what_matches(site: Site) -> None:
    # Letters 1, 5 and 9 are one conversation; a page reads three messages.
    await archive_mail(
        site, [mail(n, f"\r\nword{n % 2}", thread_id=f"t{n % 4}" if n % 4 == 1 else f"u{n}") for n in range(1, 10)]
    )
    seen, path = list[list[str]](), "/mail/conversations?view=inbox&limit=3"
    after = ""
    while True:
        page = (await site.api("GET", path + after)).json()
        seen.append([row["newest"]["subject"] for row in page["items"]])
        if page["next"] is None:
            break
        after = f"&after={page['next']}"
    assert seen == [["Letter 9", "Letter 8", "Letter 7"], ["Letter 6", "Letter 4"], ["Letter 3", "Letter 2"]]
    found = (await site.api("GET", "/mail/conversations?query=word1")).json()["items"]
    assert [(row["newest"]["subject"], len(row["keys"])) for row in found] == [
        ("Letter 9", 3),
        ("Letter 7", 1),
        ("Letter 3", 1),
    ]
    assert len((await site.api("GET", "/mail?view=inbox")).json()["items"]) == 9, "messages stay messages for programs"


async def test_a_page_whose_conversations_are_all_on_earlier_pages_is_passed_over(site: Site) -> None:
    await archive_mail(site, [mail(0), *(mail(n, thread_id="t") for n in range(1, 8))])
    first = (await site.api("GET", "/mail/conversations?view=inbox&limit=2")).json()
    second = (await site.api("GET", f"/mail/conversations?view=inbox&limit=2&after={first['next']}")).json()
    assert [len(row["keys"]) for row in first["items"]] == [7]
    assert [row["newest"]["subject"] for row in second["items"]] == ["Letter 0"]
    assert second["next"] is None
    assert second["previous"] is not None


async def test_a_search_is_saved_under_a_name_shown_beside_the_list_and_removed(site: Site) -> None:
    await archive_mail(site, [mail(1)])
    back = "/mail?query=subject%3Aletter"
    saved = await site.post("/mail/searches", name=" My  letters ", query="subject:letter", account="", back=back)
    assert saved.headers["location"] == back
    page = (await site.get(back)).text
    assert "Search saved as “My letters”." in text_of(page)
    assert f'<a href="{back}" aria-current="page"><span class="name"><bdi>My letters</bdi>' in page
    assert "Remove saved search" in page
    for fields, said in (
        ({"name": "MY LETTERS", "query": "x"}, "name “My letters” is already a saved search"),
        ({"name": "", "query": "x"}, "not saved: name"),
        ({"name": "Bad", "query": "form:ann"}, "not saved: query"),
        ({"name": "Bad", "query": ""}, "not saved: query"),
    ):
        await site.post("/mail/searches", **fields)
        assert said in text_of((await site.get("/mail")).text), fields
    refused = (await site.api("POST", "/mail/searches", json={"name": "Bad", "query": "a ("})).json()["error"]
    assert (refused["kind"], refused["field"]) == ("bad_input", "query")
    [known] = (await site.api("GET", "/mail/searches")).json()["searches"]
    assert (known["name"], known["query"], known["mailbox"]) == ("My letters", "subject:letter", None)
    assert (await site.api("DELETE", "/mail/searches/other")).status_code == 404
    await site.post("/mail/searches/remove", name="my letters", back=back)
    assert "Save search" in (await site.get(back)).text
    assert (await site.api("GET", "/mail/searches")).json() == {"searches": []}
    done = select(audit_log.c.action).where(audit_log.c.subject_type == "search").order_by(audit_log.c.id)
    assert await site.read(lambda tx: list(tx.execute(done).scalars())) == ["search.save", "search.remove"]
    reader = await site.token(Role.DASHBOARD, permissions=frozenset({Permission.READ}))
    async with site.stranger(headers={"authorization": f"Bearer {reader}"}) as program:
        assert (await program.get("/api/mail/searches")).status_code == 200
        assert (await program.post("/api/mail/searches", json={"name": "a", "query": "b"})).status_code == 403


async def test_the_density_is_remembered_by_the_browser_and_is_in_the_page_from_the_start(site: Site) -> None:
    await archive_mail(site, [mail(1)])
    assert '<ol class="mails comfortable"' in (await site.get("/mail")).text
    answer = await site.post("/mail/density", density="compact", back="/mail?view=all")
    assert answer.headers["location"] == "/mail?view=all"
    assert "httponly" in answer.headers["set-cookie"].lower()
    page = (await site.get("/mail")).text
    assert '<ol class="mails compact"' in page
    assert '<button name="density" value="compact" aria-pressed="true">' in page
    assert (await site.post("/mail/density", density="tight")).status_code == 422
    async with site.stranger(cookies={**site.cookie, "postroom_density": "nonsense"}) as other:
        assert '<ol class="mails comfortable"' in (await other.get("/mail")).text


async def test_the_shortcuts_have_a_page_that_every_page_links_to_and_that_names_every_key(site: Site) -> None:
    assert 'href="/keyboard" data-help' in (await site.get("/queue")).text
    page = (await site.get("/keyboard")).text
    shown, _, sheet = page.partition('<template id="key-dialog">')
    assert '<dialog id="keys"' in sheet
    script = files("postroom.dashboard").joinpath("static", "keys.js").read_text(encoding="utf-8")
    listed = re.search(r"PAGES = {(.*?)}", script, re.DOTALL)
    assert listed is not None
    for key, path in re.findall(r'"(.+?)": "(.+?)"', listed[1]):
        strokes = " ".join(f"<kbd>{each}</kbd>" for each in key.split())
        assert re.search(rf'<dt>{strokes} </dt><dd><a href="{path}">', shown), key
    for words in ("Keyboard shortcuts", "j k Next, previous row", "# Move to the trash", "a Approve"):
        assert words in text_of(shown)
        assert words in text_of(sheet)
