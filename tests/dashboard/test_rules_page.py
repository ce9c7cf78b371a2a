"""The Rules page and its API: an editor that says all that is wrong, a trial before anything is saved, an order."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import Any

import pytest
from sqlalchemy import update

from postroom.archive.messages import IncomingMail, Provenance
from postroom.audit import AuditFilter, list_entries
from postroom.dashboard.rules import queries
from postroom.db.tables.triage import rules as table
from postroom.domain.ids import new_id
from tests.support.dashboard_data import (
    HOSTILE_TEXT,
    add_decision,
    add_one_rule,
    archive_mail,
    dashboard_actions,
    message_at,
)
from tests.support.dashboards import Site, text_of

FILLED = {"name": "Receipts", "priority": "50", "whose_mail": "global", "enabled": "yes"}
FILLED |= {"domain": "shop.example\r\nstore.example", "subject": "receipt"}
FILLED |= {"action_1": "apply_label", "with_1": "Receipts", "action_2": "archive"}


def letter(number: int, sender: str = "orders@shop.example", subject: str = "Your receipt") -> IncomingMail:
    date = f"Mon, {number + 1:02} Jun 2026 10:00:00 +0000"
    lines = [f"From: {sender}", f"Subject: {subject}", f"Date: {date}", f"Message-ID: <{number}@x>", "", "Hello"]
    return IncomingMail("\r\n".join(lines).encode(), Provenance.IMPORT)


async def stored(site: Site) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = (await site.api("GET", "/rules")).json()["items"]
    return items


async def test_a_rule_is_written_in_the_editor_and_listed_in_words(site: Site) -> None:
    assert "Create a rule" in (await site.get("/rules")).text
    saved = await site.post("/rules/new", **FILLED, intent="save")
    [made] = await stored(site)
    assert saved.headers["location"] == f"/rules/{made['id']}"
    assert made["condition"] == {"sender_domain": ["shop.example", "store.example"], "subject_contains": "receipt"}
    assert made["actions"] == [{"type": "apply_label", "label": "Receipts"}, {"type": "archive"}]
    assert (made["priority"], made["enabled"], made["unattended"]) == (50, True, False)
    detail = text_of((await site.get(f"/rules/{made['id']}")).text)
    assert "The rule is saved." in detail
    assert "apply_label=Receipts" in unescape(detail)
    listed = text_of((await site.get("/rules")).text)
    assert "from shop.example or store.example, and the subject contains “receipt”" in listed
    assert "label “Receipts”" in listed
    entries = (await site.read(lambda tx: list_entries(tx, AuditFilter(action="rule.add")))).entries
    assert [entry.actor.name for entry in entries] == ["owner"]


async def test_all_that_is_wrong_stands_beside_its_field_and_nothing_typed_is_lost(site: Site) -> None:
    typed = {"name": " ", "priority": "soon", "whose_mail": "domain", "which": "not a domain"}
    typed |= {"sender": "ann@example.org\nnobody", "subject_regex": "(", "older": "long", "larger": "big"}
    typed |= {"action_1": "apply_label", "action_2": "archive", "with_2": "surplus", "action_3": "auto_reply"}
    refused = await site.post("/rules/new", **typed, intent="save")
    assert refused.status_code == 422
    for name in ("name", "priority", "which", "sender", "subject_regex", "older", "larger", "with_1", "with_2"):
        assert f'id="e-{name}"' in refused.text, name
    assert 'id="e-reply"' in refused.text
    said = unescape(text_of(refused.text))
    assert "'nobody' is not one mail address" in said
    assert "needs the name of a label" in said
    assert "ann@example.org\nnobody</textarea>" in refused.text
    assert 'value="not a domain"' in refused.text
    assert 'value="soon"' in refused.text
    assert await stored(site) == []


MISTAKES: list[tuple[dict[str, str], str, str]] = [
    ({"domain": "", "subject": ""}, "sender", "would apply to all mail"),
    ({"condition": '{"sender": "a@b.example"}'}, "condition", "clear either it or them"),
    ({"domain": "", "subject": "", "condition": "{"}, "condition", "is not JSON"),
    ({"domain": "", "subject": "", "condition": '{"any": [{"sender": 5}]}'}, "condition", "any[0].sender"),
    ({"action_1": "", "with_1": "", "action_2": ""}, "action_1", "choose at least one action"),
    ({"action_2": "delete"}, "action_2", "delete stands alone"),
    ({"action_2": "dance"}, "action_2", "is no action"),
    ({"action_1": "snooze", "with_1": "tomorrow"}, "with_1", "(snooze)"),
    ({"action_1": "forward", "with_1": "nobody"}, "with_1", "(forward)"),
    ({"whose_mail": "account", "which": "nobody@example.org"}, "which", "nobody@example.org"),
    ({"domain": "", "subdomains": "yes"}, "domain", "is needed to include its subdomains"),
    ({"name": "TAKEN"}, "name", "there is a rule named"),
]


async def test_each_mistake_is_told_where_it_was_made(site: Site) -> None:
    await add_one_rule(site, "Taken")
    for typed, field, problem in MISTAKES:
        refused = await site.post("/rules/new", **{**FILLED, **typed}, intent="save")
        assert refused.status_code == 422, typed
        beside = refused.text.partition(f'id="e-{field}">')[2].partition("</p>")[0]
        assert problem in unescape(text_of(beside)), (typed, refused.text)
    assert len(await stored(site)) == 1


async def test_a_rule_is_tried_over_the_archive_before_it_is_saved(site: Site) -> None:
    await archive_mail(site, [*(letter(number) for number in range(3)), letter(5, "ann@friends.example", "Lunch")])
    tried = await site.post("/rules/new", **FILLED, intent="try")
    said = text_of(tried.text)
    assert "3 messages of the newest 4 would have matched." in said
    assert tried.text.count('href="/mail/me@example.org/') == 3
    assert "label “Receipts”" in said
    assert 'value="Receipts"' in tried.text
    assert await stored(site) == []
    nameless = {"priority": "100", "whose_mail": "sender", "which": "ann@friends.example", "older": "1h"}
    assert "1 message of the newest 4" in text_of((await site.post("/rules/new", **nameless, intent="try")).text)
    wrong = await site.post("/rules/new", **{**FILLED, "older": "x"}, intent="try")
    assert (wrong.status_code, 'id="e-older"' in wrong.text) == (422, True)


async def test_a_saved_rule_is_tried_and_a_trial_ends_in_time(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    made = await add_one_rule(site)
    empty = text_of((await site.get(f"/rules/{made.id}/try")).text)
    assert "The archive is empty" in empty
    await archive_mail(site, [letter(number) for number in range(25)])
    answer = (await site.api("POST", f"/rules/{made.id}/try", json={"newest": 24})).json()
    assert (answer["looked_at"], answer["matched"], len(answer["samples"])) == (24, 24, 20)
    assert answer["effects"] == [{"text": "archive the message", "waits_because": []}]
    page = text_of((await site.get(f"/rules/{made.id}/try?newest=1000")).text)
    assert "25 messages of the newest 25 would have matched." in page
    assert "The newest 20 matching messages" in page
    monkeypatch.setattr(queries, "_LONGEST_S", 0)
    assert (await site.api("POST", f"/rules/{made.id}/try", json={})).json()["is_cut_short"] is True
    assert (await site.get(f"/rules/{made.id}/try?newest=100001")).status_code == 422


async def test_an_editor_shows_a_rule_as_it_was_written_and_saves_it_unchanged(site: Site) -> None:
    tree = {"any": [{"sender": "ann@example.org"}, {"not": {"has_attachment": True}}]}
    deeds: list[Any] = [{"type": "forward", "to": ["a@x.example", "b@x.example"], "note": "Look:"}, "snooze=2d"]
    simple = {
        "sender_domain": {"domain": "shop.example", "subdomains": True},
        "header": {"name": "x-a", "contains": "b"},
    }
    made = [
        await add_one_rule(site, "Tree", deeds, condition=tree, unattended=True, enabled=False),
        await add_one_rule(site, "Simple", ["auto_reply=Thank you."], condition=simple, scope="domain:shop.example"),
    ]
    before = await stored(site)
    for each in made:
        page = (await site.get(f"/rules/{each.id}/edit")).text
        fields = {**_fields(page), "intent": "save"}
        assert (await site.post(f"/rules/{each.id}/edit", **fields)).status_code == 303, page
    changing = ("stamp", "updated_at")
    after = [{name: value for name, value in row.items() if name not in changing} for row in await stored(site)]
    assert after == [{name: value for name, value in row.items() if name not in changing} for row in before]


def _fields(page: str) -> dict[str, str]:
    """What a browser would send of the editor as it stands."""
    form = page[page.index('aria-label="Rule"') :]
    found = {
        name: unescape(value) for name, value in re.findall(r'<input[^>]*name="([^"]+)"[^>]*value="([^"]*)"', form)
    }
    boxes = re.findall(r'name="([^"]+)" type="checkbox" value="yes"( checked)?', form)
    found = {name: value for name, value in found.items() if name not in {box for box, on in boxes if not on}}
    found |= {
        name: unescape(value).lstrip("\n")
        for name, value in re.findall(r'<textarea[^>]*name="([^"]+)"[^>]*>(.*?)</textarea>', form, re.S)
    }
    for name, options in re.findall(r'<select[^>]*name="([^"]+)"[^>]*>(.*?)</select>', form, re.S):
        chosen = re.search(r'value="([^"]*)" selected', options)
        found[name] = chosen[1] if chosen else ""
    return found


async def test_whoever_saves_second_is_told_and_overwrites_nothing(site: Site) -> None:
    made = await add_one_rule(site, "Receipts")
    fields = {**FILLED, "stamp": made.stamp, "intent": "save"}
    assert (await site.post(f"/rules/{made.id}/edit", **fields)).status_code == 303
    second = await site.post(f"/rules/{made.id}/edit", **{**fields, "subject": "other"})
    assert second.status_code == 422
    assert "changed or removed by someone else" in second.text
    assert (await site.post(f"/rules/{made.id}/remove", stamp=made.stamp)).status_code == 422
    assert (await stored(site))[0]["condition"]["subject_contains"] == "receipt"


async def test_rules_are_moved_switched_and_removed_after_a_question(site: Site) -> None:
    first, second, third = [await add_one_rule(site, name) for name in ("First", "Second", "Third")]
    moved = await site.post(f"/rules/{third.id}/move", direction="up")
    assert moved.headers["location"] == f"/rules#r-{third.id}"
    assert [row["name"] for row in await stored(site)] == ["First", "Third", "Second"]
    await site.api("POST", f"/rules/{first.id}/move", json={"direction": "down"})
    await site.api("POST", f"/rules/{second.id}/move", json={"direction": "down"})
    assert [row["name"] for row in await stored(site)] == ["Third", "First", "Second"]
    assert (await site.post(f"/rules/{first.id}/move", direction="sideways")).status_code == 422
    await site.post(f"/rules/{first.id}/disable", back="list")
    assert "The rule First is off." in text_of((await site.get("/rules")).text)
    assert (await site.api("POST", f"/rules/{first.id}/enable")).json()["enabled"] is True
    question = await site.get(f"/rules/{second.id}/remove")
    assert "Remove Second ?" in text_of(question.text)
    assert len(await stored(site)) == 3
    assert (await site.post(f"/rules/{second.id}/remove")).headers["location"] == "/rules"
    removed = await site.api("DELETE", f"/rules/{third.id}")
    assert removed.json() == {"id": third.id, "name": "Third"}
    assert [row["name"] for row in await stored(site)] == ["First"]


async def test_a_rule_says_how_often_it_was_used(site: Site) -> None:
    made = await add_one_rule(site, actions=("archive", "star"))
    async with dashboard_actions(site) as scene:
        for _ in range(2):
            await add_decision(scene, await message_at(scene, "INBOX"), "archive", "star", by=made)
    await add_one_rule(site, "Unused")
    uses = {row["name"]: row["uses"] for row in await stored(site)}
    assert uses.pop("Unused") == {"times": {"number": 0, "is_more": False}, "last": None}
    [used] = uses.values()
    assert used["times"] == {"number": 2, "is_more": False}
    assert used["last"] is not None
    page = (await site.get(f"/rules/{made.id}")).text
    assert f'href="/actions?rule={made.id}"' in page


async def test_a_broken_rule_does_not_spoil_the_page(site: Site) -> None:
    made = await add_one_rule(site, "Broken")
    await add_one_rule(site, "Whole")
    values = {"condition": {"nonsense": HOSTILE_TEXT}}
    await site.write(lambda tx: tx.execute(update(table).where(table.c.id == made.id).values(**values)))
    listed = text_of((await site.get("/rules")).text)
    assert "It cannot be read" in listed
    assert "Whole" in listed
    for path in ("", "/edit", "/remove"):
        assert (await site.get(f"/rules/{made.id}{path}")).status_code == 200
    assert (await site.get(f"/rules/{made.id}/try")).status_code == 422
    assert (await site.post(f"/rules/{made.id}/enable")).status_code == 422
    repaired = await site.post(f"/rules/{made.id}/edit", **FILLED, intent="save")
    assert repaired.status_code == 303


async def test_directions_are_added_changed_switched_and_removed(site: Site) -> None:
    assert "No directions yet." in (await site.get("/rules/instructions")).text
    await site.post("/rules/directions", direction="Be brief.")
    [row] = (await site.api("GET", "/directions")).json()
    refused = await site.post("/rules/directions", direction=" ")
    assert (refused.status_code, 'id="e-direction"' in refused.text) == (422, True)
    path = f"/rules/directions/{row['id']}"
    assert "Be brief." in (await site.get(path)).text
    seen = row["updated_at"]
    assert (await site.post(path, text="Be kind.", seen=seen)).status_code == 303
    assert (await site.post(path, text="Be rude.", seen=seen)).status_code == 422
    assert (await site.post(path, text="Be rude.", seen="2026-01-01")).status_code == 422
    assert (await site.post(f"{path}/switch")).status_code == 303
    [row] = (await site.api("GET", "/directions")).json()
    assert (row["text"], row["enabled"]) == ("Be kind.", False)
    await site.post(f"{path}/remove")
    assert (await site.api("GET", "/directions")).json() == []
    assert (await site.post(f"{path}/remove")).status_code == 404


async def test_guidance_is_added_changed_switched_and_removed(site: Site) -> None:
    given = {"name": "Shops", "whose_mail": "domain", "which": "shop.example", "text": "Offers may go."}
    assert (await site.post("/rules/guidance", **given)).status_code == 303
    again = await site.post("/rules/guidance", **given)
    assert (again.status_code, 'id="e-name"' in again.text, "Offers may go." in again.text) == (422, True, True)
    lost = await site.post("/rules/guidance", **{**given, "name": "x", "which": ""})
    assert 'id="e-which"' in lost.text
    [row] = (await site.api("GET", "/guidance")).json()
    assert (row["scope"], row["whose_mail"]) == ("domain:shop.example", "mail from shop.example and its subdomains")
    path = f"/rules/guidance/{row['id']}"
    assert 'value="shop.example"' in (await site.get(path)).text
    changed = await site.post(path, **{**given, "text": "Offers stay."}, seen=row["updated_at"])
    assert changed.status_code == 303
    await site.post(f"{path}/switch")
    [row] = (await site.api("GET", "/guidance")).json()
    assert (row["text"], row["enabled"]) == ("Offers stay.", False)
    await site.post(f"{path}/remove")
    assert (await site.api("GET", "/guidance")).json() == []


async def test_the_api_does_what_the_pages_do(site: Site) -> None:
    wanted = {"name": "Receipts", "condition": {"sender": "ann@example.org"}, "actions": ["archive"]}
    made = (await site.api("POST", "/rules", json=wanted)).json()
    assert (made["number"], made["condition_text"]) == (1, "from ann@example.org")
    put = await site.api("PUT", f"/rules/{made['id']}", json={**wanted, "priority": 7, "stamp": made["stamp"]})
    assert put.json()["priority"] == 7
    stale = await site.api("PUT", f"/rules/{made['id']}", json={**wanted, "stamp": "another"})
    assert stale.status_code == 422
    tried = await site.api("POST", "/rules/try", json={"condition": {"sender": "ann@example.org"}})
    assert (tried.json()["matched"], tried.json()["effects"]) == (0, [])
    told = (await site.api("POST", "/directions", json={"text": "Be brief."})).json()
    put = await site.api("PUT", f"/directions/{told['id']}", json={"enabled": False, "seen": told["updated_at"]})
    assert put.json()["enabled"] is False
    late = {"text": "x", "seen": "9999-12-31T23:59:59.999999Z"}
    assert (await site.api("PUT", f"/directions/{told['id']}", json=late)).status_code == 422
    shops = (await site.api("POST", "/guidance", json={"name": "S", "scope": "domain:a.example", "text": "Go."})).json()
    put = await site.api("PUT", f"/guidance/{shops['id']}", json={"scope": "global"})
    assert put.json()["scope"] == "global"
    assert (await site.api("DELETE", f"/guidance/{shops['id']}")).json()["name"] == "S"
    assert (await site.api("DELETE", f"/directions/{told['id']}")).json()["text"] == "Be brief."


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"condition": {}}, "condition"),
    ({"condition": {"sender": "nobody"}}, "condition.sender"),
    ({"condition": {"subject_regex": "("}}, "condition.subject_regex"),
    ({"condition": {"sender": "a\x00@b.example"}}, "body"),
    ({"condition": {"label": "\ud800"}}, "condition.label"),
    ({"actions": []}, "actions"),
    ({"actions": ["dance"]}, "actions[0].type"),
    ({"actions": ["archive", "archive"]}, "actions[1]"),
    ({"scope": "nowhere"}, "scope"),
    ({"priority": 10**30}, "priority"),
    ({"name": "\x00"}, "body"),
    ({"name": "a" * 101}, "name"),
    ({"surplus": 1}, "surplus"),
]


async def test_the_api_refuses_with_the_place_of_the_fault(site: Site) -> None:
    for change, field in FAULTS:
        wanted = {"name": "R", "condition": {"sender": "ann@example.org"}, "actions": ["archive"], **change}
        body = json.dumps(wanted).encode()
        headers = {"x-csrf-token": site.csrf, "content-type": "application/json"}
        refused = await site.http.post("/api/rules", content=body, headers=headers)
        assert (refused.status_code, refused.json()["error"]["field"]) == (422, field), change
    assert await stored(site) == []


async def test_what_is_not_there_is_not_found(site: Site) -> None:
    for path in (f"/rules/{new_id()}", f"/directions/{new_id()}", f"/guidance/{new_id()}", f"/rules?after={new_id()}"):
        assert (await site.api("GET", path)).status_code == 404, path
    for path in ("/rules/nonsense", "/directions/%00", "/guidance/1"):
        assert (await site.api("GET", path)).status_code == 422, path
    for path in (f"/rules/{new_id()}", "/rules/nonsense", f"/rules/{new_id()}/edit", f"/rules/guidance/{new_id()}"):
        assert (await site.get(path)).status_code == 404, path
    assert (await site.post(f"/rules/{new_id()}/enable")).status_code == 404


async def test_what_strangers_wrote_stays_text(site: Site) -> None:
    words = HOSTILE_TEXT.replace("\u202e", "")
    made = await add_one_rule(
        site, words, [f"apply_label={HOSTILE_TEXT}"], condition={"subject_contains": HOSTILE_TEXT}
    )
    await archive_mail(site, [letter(1, f'"{words}" <x@y.example>', words)])
    await site.post("/rules/directions", direction=HOSTILE_TEXT)
    await site.post("/rules/guidance", name=words, whose_mail="global", text=HOSTILE_TEXT)
    tried = await site.post(
        "/rules/new", **{**FILLED, "domain": "y.example", "subject": "", "name": words}, intent="try"
    )
    pages = [(await site.get(path)).text for path in ("/rules", f"/rules/{made.id}", f"/rules/{made.id}/edit")]
    pages += [
        tried.text,
        (await site.get("/rules/instructions")).text,
        (await site.get(f"/rules/{made.id}/remove")).text,
    ]
    for page in pages:
        assert "window.hit" in page
        assert "<script>window" not in page
        assert "<img src=x" not in page
