"""Audit: who did what, filtered and page by page."""

from __future__ import annotations

import pytest

from postroom import audit
from postroom.app.auditing import sealing, verify_audit
from postroom.audit import SYSTEM, Actor
from postroom.dashboard.security.passphrase import make_link
from postroom.db import Tx
from postroom.domain.ids import new_id
from postroom.triage.rules.store import remove_rule
from tests.support import dashboard_data as scene
from tests.support.dashboards import Site, text_of
from tests.support.mail import ME

ANN = Actor("dashboard", "<Ann>")


async def entries(site: Site, count: int, action: str = "thing.change", subject: str = "t1") -> None:
    def run(tx: Tx) -> None:
        for number in range(count):
            now = site.app.clock.now()
            audit.record(tx, ANN, action, ("thing", subject), now, before={"n": number}, after={"n": "</pre><b>"})

    await site.write(run)


async def test_entries_are_shown_newest_first_with_before_and_after_as_text(site: Site) -> None:
    await entries(site, 1)
    page = (await site.get("/audit")).text
    assert "&lt;Ann&gt;" in page
    assert "</pre><b>" not in page
    assert "Thing changed" in text_of(page)


@pytest.mark.req("HW-5")
async def test_the_page_says_how_far_the_log_is_sealed_and_when_it_was_verified(site: Site) -> None:
    await entries(site, 2)
    words = text_of((await site.get("/audit")).text)
    assert "Nothing is sealed yet; " in words
    assert "not sealed yet, the oldest from" in words
    assert "Never verified" in words
    async with sealing(site.app):
        pass
    found = await verify_audit(site.app)
    words = text_of((await site.get("/audit")).text)
    assert f"Sealed up to entry {found.sealed}, " in words
    assert "no problems found" in words


async def test_a_filter_holds_over_all_pages(site: Site) -> None:
    await entries(site, 60)
    await entries(site, 60, "other.change", "t2")
    first = (await site.api("GET", "/audit?action=thing.change&limit=50")).json()
    second = (await site.api("GET", f"/audit?action=thing.change&after={first['next']}")).json()
    assert {entry["action"] for entry in first["items"] + second["items"]} == {"thing.change"}
    assert len(first["items"]) + len(second["items"]) == 60
    page = (await site.get("/audit?subject_type=thing&subject_id=t2")).text
    assert "subject_type=thing&amp;subject_id=t2&amp;after=" in page
    assert "Thing changed" not in text_of(page).split("Before and after")[1]


async def test_an_empty_answer_says_so(site: Site) -> None:
    assert "No entries match" in (await site.get("/audit?action=nothing.such")).text
    assert (await site.get("/audit?after=nonsense")).status_code == 422


@pytest.mark.req("UX-3")
async def test_things_have_their_names_and_pages_and_filters_are_choices(site: Site) -> None:
    account = await scene.add_mailbox(site)
    rule = await scene.add_one_rule(site, "Receipts")
    gone = await scene.add_one_rule(site, "Short-lived")
    [job] = await scene.add_failed_jobs(site)
    now, imported = site.app.clock.now(), new_id()

    def run(tx: Tx) -> None:
        remove_rule(tx, gone, ANN, now)
        audit.record(tx, ANN, "account.add", ("account", account.id), now)
        audit.record(tx, ANN, "job.retry", ("job", job), now)
        asked = {"path": "/home/uploads/x.mbox", "account": ME, "uploaded_as": "takeout.mbox"}
        audit.record(tx, ANN, "archive.import", ("archive_task", imported), now, after=asked)

    await site.write(run)
    page = (await site.get("/audit")).text
    assert f'<a href="/rules/{rule.id}"><bdi>Receipts</bdi></a>' in page
    assert f'<a href="/queue/{job}"><bdi>Classify</bdi></a>' in page
    said = text_of(page)
    assert f"Account added {account.email}" in said
    assert "Rule removed Short-lived" in said, "as its entry remembers it"
    assert "Archive import takeout.mbox" in said
    assert account.id not in said
    assert "<input" not in page.split('aria-label="Filter entries"')[1].split("</form>")[0]
    assert '<option value="rule.remove">Rule removed</option>' in page
    assert f'<option value="{account.id}">{account.email}</option>' in page
    chosen = (await site.get(f"/audit?subject_type=rule&subject_id={gone.id}")).text
    assert f'<option value="{gone.id}" selected>Short-lived</option>' in chosen
    assert "Rule removed" in text_of(chosen.split("Before and after")[1])
    assert "Account added" not in text_of(chosen.split("Before and after")[1])


async def test_a_passphrase_link_has_a_name(site: Site) -> None:
    await site.app.database.write(lambda tx: make_link(tx, SYSTEM, site.app.clock.now()) and None)
    [entry] = (await site.api("GET", "/audit?action=dashboard.link")).json()["items"]
    page = (await site.get("/audit?action=dashboard.link")).text
    assert "One-time link" in text_of(page)
    assert entry["subject_id"] not in text_of(page)
