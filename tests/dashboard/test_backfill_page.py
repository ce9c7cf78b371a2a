"""The Backfill pages and their API: what they show, and that they change things by the Switchboard's tools only."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from postroom import audit
from postroom.audit import AuditFilter
from postroom.db.tables.access import dashboard_sessions
from postroom.domain.clock import ManualClock
from postroom.domain.ids import new_id
from postroom.domain.money import Micros, NewCall, Reserved, from_cents
from postroom.domain.roles import Role
from postroom.switchboard.backfill import ledger
from postroom.switchboard.backfill.admission import open_gate
from postroom.switchboard.backfill.job import find_job
from tests.support.archives import ME
from tests.support.backfills import BACKFILL_ON, add_history, make_job, report_progress, take_job
from tests.support.dashboards import Site, open_site, text_of
from tests.support.switchboards import in_a_task

WHAT: dict[str, Any] = {
    "endpoint_identity": ME,
    "target_categories": ["finance", "health"],
    "date_from": "2000-01-01",
    "date_to": "2029-12-31",
    "rate_limit_per_hour": "60",
    "daily_cost_cap": "1.50",
    "auto_resume": "yes",
}


@pytest.fixture
def time() -> ManualClock:
    return ManualClock(datetime(2026, 5, 4, 12, tzinfo=UTC))


@pytest.fixture
async def site(database_url: str, tmp_path: Path, time: ManualClock) -> AsyncIterator[Site]:
    async with in_a_task(open_site(tmp_path / "home", database_url, time, **BACKFILL_ON)) as opened:
        await add_history(opened)
        yield opened


def offer_in(page: str) -> str:
    found = re.search(r'name="offer" value="([^"]+)"', page)
    assert found is not None
    return unescape(found[1])


async def jobs_of(site: Site) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = (await site.api("GET", "/backfill/jobs")).json()["items"]
    return items


@pytest.mark.req("BF-19")
async def test_a_job_is_made_in_three_steps_and_only_the_last_begins_anything(site: Site) -> None:
    first = text_of((await site.get("/backfill/new")).text)
    assert "The last 7 years" in first
    assert "Newsletters" in first
    assert WHAT["endpoint_identity"] in first

    second = await site.post("/backfill/new/estimate", **WHAT)
    assert second.status_code == 200
    said = text_of(second.text)
    assert re.search(r"\d+ messages counted in the archive", said)
    assert re.search(r"\$0\.\d+ cost, about", said)
    assert "Limited by the hourly message limit" in said
    assert "2000-01-01 to 2029-12-31" in said

    third = await site.post("/backfill/new/consent", offer=offer_in(second.text))
    assert "spend up to $1.50 a day" in text_of(third.text)
    assert re.search(r"\d+ messages counted in the archive", text_of(third.text))
    assert await jobs_of(site) == []

    made = await site.post("/backfill", offer=offer_in(third.text), consent="yes")
    assert made.status_code == 303
    (standing,) = await jobs_of(site)
    job = standing["job"]
    assert made.headers["location"] == f"/backfill/{job['id']}"
    assert (job["target_categories"], job["rate_limit_per_hour"]) == (["finance", "health"], 60)
    assert (job["daily_cost_cap_cents"], job["auto_resume"]) == (150, True)
    assert job["consent_by"] == "dashboard owner"
    assert f"{job['estimate']['messages']} messages" in said


@pytest.mark.req("BF-19")
async def test_nothing_begins_without_the_tick_of_consent(site: Site) -> None:
    offer = offer_in((await site.post("/backfill/new/estimate", **WHAT)).text)
    answer = await site.post("/backfill", offer=offer)
    assert answer.status_code == 422
    assert "nothing starts without it" in answer.text
    assert offer_in(answer.text) == offer
    refused = await site.api("POST", "/backfill/jobs", json={"offer": offer, "consent": False})
    assert (refused.status_code, refused.json()["error"]["field"]) == (422, "consent")
    assert await jobs_of(site) == []


@pytest.mark.req("BF-19")
async def test_an_estimate_of_too_long_ago_is_refused_and_a_new_one_shown(site: Site, time: ManualClock) -> None:
    offer = offer_in((await site.post("/backfill/new/estimate", **WHAT)).text)
    time.advance(14 * 60)
    carried = offer_in((await site.post("/backfill/new/consent", offer=offer)).text)
    assert carried == offer, "going on does not make it younger"
    time.advance(2 * 60)
    for path, more in (("/backfill/new/consent", {}), ("/backfill", {"consent": "yes"})):
        answer = await site.post(path, offer=offer, **more)
        assert answer.status_code == 422
        assert "This is a new estimate" in answer.text
    refused = await site.api("POST", "/backfill/jobs", json={"offer": offer, "consent": True})
    assert (refused.status_code, refused.json()["error"]["field"]) == (422, "offer")
    assert await jobs_of(site) == []
    fresh = offer_in(answer.text)
    assert (await site.post("/backfill", offer=fresh, consent="yes")).status_code == 303


@pytest.mark.req("BF-19")
async def test_an_offer_that_was_changed_or_shown_to_somebody_else_is_refused(site: Site) -> None:
    offer = offer_in((await site.post("/backfill/new/estimate", **WHAT)).text)
    text, _, signature = offer.rpartition(".")
    for forged in (f"{text}.{'0' * 64}", f"{text[:-8]}AAAAAAA=.{signature}", "", "nonsense", "e30=.x", "\u20ac.x"):
        answer = await site.post("/backfill", offer=forged, consent="yes")
        assert answer.status_code == 422, forged
    bearer = {"authorization": f"Bearer {await site.token(Role.DASHBOARD)}"}
    async with site.stranger(headers=bearer) as program:
        other = await program.post("/api/backfill/jobs", json={"offer": offer, "consent": True})
    assert (other.status_code, other.json()["error"]["field"]) == (422, "offer")
    assert await jobs_of(site) == []


async def test_a_refusal_of_a_tool_stands_beside_the_field_it_names_and_the_form_keeps_what_was_written(
    site: Site,
) -> None:
    cases: dict[str, dict[str, Any]] = {
        "target_categories": {"target_categories": ["nonsense"]},
        "date_from": {"date_from": "2029-12-31", "date_to": "2000-01-01"},
        "date_to": {"date_to": "yesterday"},
        "rate_limit_per_hour": {"rate_limit_per_hour": "0"},
        "daily_cost_cap": {"daily_cost_cap": "0.001"},
        "endpoint_identity": {"endpoint_identity": "nobody@example.org"},
        "includes": {"includes": ["everything"]},
    }
    for field, change in cases.items():
        answer = await site.post("/backfill/new/estimate", **WHAT | change)
        assert answer.status_code == 422, field
        assert f'id="e-{field}"' in answer.text, field
        assert 'value="health" checked' in answer.text or field == "target_categories"
    nothing = await site.post("/backfill/new/estimate", **WHAT | {"target_categories": []})
    assert "What to recover : choose one or more categories" in text_of(nothing.text)
    too_fast = await site.post("/backfill/new/estimate", **WHAT | {"rate_limit_per_hour": "0"})
    assert "Please fix the following: Maximum messages per hour : 0 is not" in text_of(too_fast.text)
    both = await site.post("/backfill/new/estimate", **WHAT | {"all_mail": "yes"})
    assert "choose either categories or all mail" in both.text


async def test_what_is_left_empty_is_filled_in_by_category_and_settings(site: Site) -> None:
    answer = await site.post(
        "/backfill/new/estimate", endpoint_identity=ME, target_categories=["travel"], background="yes"
    )
    said = text_of(answer.text)
    assert "2024-05-04 to 2026-05-04" in said
    assert "20 messages per hour, $0.50 per day" in said
    assert "Only while no live mail is waiting" in said
    assert "Stays paused until resumed" in said
    change = re.search(r'href="(/backfill/new\?[^"]+)"', answer.text)
    assert change is not None
    again = (await site.get(unescape(change[1]))).text
    assert 'value="travel" checked' in again
    assert 'name="background" type="checkbox" value="yes" checked' in again
    assert 'value="0.50"' in again


async def test_a_source_that_cannot_be_asked_is_said_above_the_form(site: Site) -> None:
    """The archive holds nothing after 2029, so Gmail would be asked; and nobody listens there."""
    answer = await site.post("/backfill/new/estimate", **WHAT | {"date_to": "2031-01-01"})
    assert answer.status_code == 422
    assert "No estimate" in answer.text
    assert 'value="finance" checked' in answer.text


async def test_the_list_says_how_far_each_job_is_and_why_it_stands_so(site: Site, time: ManualClock) -> None:
    job_id = await make_job(site)
    work = await take_job(site)
    await report_progress(
        site, work, rows_processed=50, rows_skipped=7, cursor={"place": {"received_ms": 1_720_000_000_000}}
    )

    def admit(tx: Any) -> None:
        gate = open_gate(tx, site.app.settings.backfill, job_id, ME, time.now())
        for _ in range(3):
            gate.admit()

    await site.write(admit)

    def spend(tx: Any) -> None:
        job = find_job(tx, job_id, lock=True)
        ledger.book(tx, job, time.now().date(), time.now(), reserved=20_000, settled=8_000)

    await site.write(spend)
    said = text_of((await site.get("/backfill")).text)
    assert "Finance" in said
    assert "Running: gmail-one is fetching mail." in said
    assert "50 of about 200" in said
    assert "3 of 100" in said
    assert "1 h 30 min" in said
    assert "less than $0.01 of $5.00, $0.02 reserved" in said
    detail = text_of((await site.get(f"/backfill/{job_id}")).text)
    assert "it has reached 2024-07-03; it stops at 2024-01-01" in detail
    assert "Messages imported 200 0" in detail
    assert "Cost $0.40 less than $0.01" in detail
    assert "Start" in detail
    assert "Pending → Active" in detail


async def test_time_left_is_said_of_a_job_at_work_and_a_capped_one_says_when_it_goes_on(
    site: Site, time: ManualClock
) -> None:
    job_id = await make_job(site)
    work = await take_job(site)
    await report_progress(site, work, rows_processed=50)
    path = f"/backfill/{job_id}"
    assert "1 h 30 min left, about" in text_of((await site.get(path)).text)

    def spend(tx: Any) -> None:
        job = ledger.book(tx, find_job(tx, job_id, lock=True), time.now().date(), time.now(), settled=5_000_000)
        ledger.stop_at_cap(tx, site.app.settings.backfill, job, Micros(1), time.now())

    await site.write(spend)
    detail, listed = text_of((await site.get(path)).text), text_of((await site.get("/backfill")).text)
    assert "in 12 hours continues by itself 2026-05-05 00:00:00 UTC" in detail
    assert "continues in 12 hours" in listed
    assert "1 h 30 min" not in detail + listed
    await site.post(f"{path}/pause")
    paused = text_of((await site.get(path)).text)
    assert "left, about" not in paused
    assert "resumes by itself" not in paused


@pytest.mark.req("BF-19")
async def test_after_a_job_has_ended_estimate_and_actual_stand_side_by_side(site: Site, time: ManualClock) -> None:
    job_id = await make_job(site)
    work = await take_job(site)
    time.advance(3_600)
    await report_progress(site, work, rows_processed=180, rows_skipped=25, status="completed")
    said = text_of((await site.get(f"/backfill/{job_id}")).text)
    assert "the actual figures so far" not in said
    assert "Messages imported 200 0" in said
    assert "Skipped 20 25" in said
    assert "Duration 2 h 1 h" in said
    api = (await site.api("GET", f"/backfill/jobs/{job_id}")).json()
    assert api["comparison"]["messages"] == {"estimated": 200, "actual": 0}
    assert api["summary"]["can"] == []


async def test_the_buttons_of_a_job_steer_it_through_the_tools_and_stand_in_its_audit(site: Site) -> None:
    job_id = await make_job(site)
    path = f"/backfill/{job_id}"
    page = (await site.get(path)).text
    assert f'action="{path}/pause"' in page
    assert f'action="{path}/resume"' not in page
    assert (await site.post(f"{path}/pause")).headers["location"] == path
    paused = text_of((await site.get(path)).text)
    assert "Paused by owner. It keeps its place until you resume it." in paused
    await site.post(f"{path}/resume")
    await site.post(f"{path}/cancel")
    late = await site.post(f"{path}/pause")
    assert late.status_code == 303
    assert "Not possible: a job that is cancelled cannot be paused" in text_of((await site.get(path)).text)
    which = AuditFilter(subject_type="backfill_job", subject_id=job_id)
    entries = (await site.read(lambda tx: audit.list_entries(tx, which))).entries
    done = [(entry.action, entry.actor.role, entry.actor.name) for entry in entries]
    names = ("cancel", "resume", "pause", "create")
    assert done == [(f"backfill.{name}", "dashboard", "owner") for name in names]


async def test_the_kill_switch_is_shown_wherever_it_matters_and_stops_what_runs(site: Site) -> None:
    job_id = await make_job(site)
    await take_job(site)
    offer = offer_in((await site.post("/backfill/new/estimate", **WHAT)).text)
    assert (await site.post("/backfill/switch", turn="off")).status_code == 303
    for path in ("/backfill", "/backfill/new", f"/backfill/{job_id}"):
        said = text_of((await site.get(path)).text)
        assert "All backfill is off" in said, path
        assert "switched off by owner" in said, path
    detail = text_of((await site.get(f"/backfill/{job_id}")).text)
    assert "All backfill is off: switched off by owner." in detail
    refused = await site.post("/backfill", offer=offer, consent="yes")
    assert refused.status_code == 422
    assert "The job was not created" in refused.text
    assert '<button class="primary" disabled>' in refused.text
    on = await site.api("POST", "/backfill/switch", json={"enabled": True})
    assert on.json()["is_on"] is True
    assert "All backfill is off" not in (await site.get("/backfill")).text


async def test_where_the_environment_forbids_backfill_the_page_says_what_to_do(tmp_path: Path) -> None:
    async with in_a_task(open_site(tmp_path / "home")) as site:
        said = text_of((await site.get("/backfill")).text)
        assert "BACKFILL_ENABLED=true" in said
        assert "Switch backfill on" not in said
        nobody = (await site.get("/backfill/new")).text
        assert "postroom account add gmail" in text_of(nobody)
        assert 'href="/settings/accounts/new"' in nobody
        turned = await site.post("/backfill/switch", turn="on")
        assert turned.status_code == 303
        assert "Backfill is off." in text_of((await site.get("/backfill")).text)


async def test_the_api_estimates_makes_and_steers_a_job_as_the_pages_do(site: Site) -> None:
    names = {choice["name"]: choice["years"] for choice in (await site.api("GET", "/backfill/categories")).json()}
    assert (names["finance"], names["health"], names["travel"]) == (7, None, 2)
    wanted = {"endpoint_identity": ME, "target_categories": ["finance"], "date_to": "2026-01-01"}
    offered = (await site.api("POST", "/backfill/estimate", json=wanted)).json()
    assert offered["estimate"]["is_exact"] is True
    assert offered["holds_until"] == "2026-05-04T12:15:00Z"
    agreed = {"offer": offered["offer"], "consent": True}
    made = (await site.api("POST", "/backfill/jobs", json=agreed)).json()["summary"]["job"]
    assert made["estimate"] == offered["estimate"]
    assert (made["date_from"], made["date_to"]) == ("2019-05-04", "2026-01-01")
    for what, status in (("pause", "paused"), ("resume", "pending"), ("cancel", "cancelled")):
        answer = await site.api("POST", f"/backfill/jobs/{made['id']}/{what}")
        assert answer.json()["summary"]["job"]["status"] == status
    refused = await site.api("POST", f"/backfill/jobs/{made['id']}/resume")
    assert (refused.status_code, refused.json()["error"]["field"]) == (422, "status")
    overview = (await site.api("GET", "/backfill")).json()
    assert overview["statuses"]["cancelled"] == 1
    wrong = await site.api("POST", "/backfill/estimate", json=wanted | {"rate_limit_per_hour": -1})
    assert (wrong.status_code, wrong.json()["error"]["field"]) == (422, "rate_limit_per_hour")


@pytest.mark.req("HW-4")
async def test_a_cap_above_that_of_the_settings_takes_the_passphrase_and_no_token_gives_it(site: Site) -> None:
    wanted = {"endpoint_identity": ME, "target_categories": ["finance"], "daily_cost_cap_cents": 501}
    offer = (await site.api("POST", "/backfill/estimate", json=wanted)).json()["offer"]
    long_ago = {"proved_at": site.app.clock.now() - timedelta(minutes=5)}
    await site.write(lambda tx: tx.execute(update(dashboard_sessions).values(long_ago)))
    refused = await site.api("POST", "/backfill/jobs", json={"offer": offer, "consent": True})
    assert (refused.status_code, "passphrase" in refused.json()["error"]["message"]) == (403, True)
    asked = await site.post("/backfill", offer=offer, consent="yes")
    assert (asked.status_code, "Confirm with your passphrase" in asked.text) == (403, True)
    token = await site.token(Role.DASHBOARD)
    async with site.stranger(headers={"authorization": f"Bearer {token}"}) as program:
        theirs = (await program.post("/api/backfill/estimate", json=wanted)).json()["offer"]
        answer = await program.post("/api/backfill/jobs", json={"offer": theirs, "consent": True})
        assert (answer.status_code, "command line" in answer.json()["error"]["message"]) == (403, True)
    usual = (await site.api("POST", "/backfill/estimate", json=wanted | {"daily_cost_cap_cents": 500})).json()["offer"]
    assert (await site.api("POST", "/backfill/jobs", json={"offer": usual, "consent": True})).status_code == 200


async def test_hostile_words_of_a_connector_or_a_program_are_shown_as_text(site: Site) -> None:
    job_id = await make_job(site, estimate={"messages": "<b>many</b>", "seconds": -1, "cost_microdollars": 1.5})
    work = await take_job(site)
    evil = "<script>alert(1)</script> \u202eevil"
    await report_progress(site, work, status="error", error=evil, cursor={"place": "elsewhere"})
    for path in ("/backfill", f"/backfill/{job_id}"):
        page = await site.get(path)
        assert page.status_code == 200
        assert "&lt;script&gt;" in page.text
        assert "<script>alert" not in page.text
        assert "\u202e" not in page.text
    assert (await site.api("GET", f"/backfill/jobs/{job_id}")).json()["summary"]["seconds_left"] is None


async def test_lists_are_filtered_and_paged_newest_first(site: Site) -> None:
    ids = [await make_job(site) for _ in range(5)]
    await site.post(f"/backfill/{ids[0]}/cancel")
    first = (await site.api("GET", "/backfill/jobs?limit=3")).json()
    second = (await site.api("GET", f"/backfill/jobs?limit=3&after={first['next']}")).json()
    assert [item["job"]["id"] for item in first["items"] + second["items"]] == ids[::-1]
    assert second["next"] is None
    page = (await site.get("/backfill?status=cancelled")).text
    assert ids[0] in page
    assert ids[1] not in page
    assert (await site.get("/backfill?status=nonsense")).status_code == 422
    assert (await site.get(f"/backfill?after={new_id()}")).status_code == 404


async def test_what_is_not_there_is_not_found(site: Site) -> None:
    assert (await site.get(f"/backfill/{new_id()}")).status_code == 404
    assert (await site.post(f"/backfill/{new_id()}/pause")).status_code == 404
    assert (await site.api("GET", f"/backfill/jobs/{new_id()}")).json()["error"]["kind"] == "not_found"


async def test_a_job_made_on_the_page_is_the_job_that_its_connector_gets(site: Site) -> None:
    offer = offer_in((await site.post("/backfill/new/estimate", **WHAT)).text)
    made = await site.post("/backfill", offer=offer, consent="yes")
    work = await take_job(site)
    assert made.headers["location"].endswith(work.job_id)
    assert list(work.target_categories) == ["finance", "health"]
    job = await site.read(lambda tx: find_job(tx, work.job_id))
    assert job.estimate is not None
    assert job.estimate["is_exact"] is True


async def test_nonsense_is_refused_and_never_breaks_anything(site: Site) -> None:
    for path in (
        "/backfill/jobs?account=%00",
        "/backfill/jobs?after=%00",
        "/backfill/jobs?status=%00",
        "/archive/bad?account=%00",
        f"/archive/bad?account={ME}&after=%00%ff",
        f"/archive/certificates?account={ME}&message=%00",
        f"/archive/certificates?account={ME}&after=99999999999999999999",
    ):
        assert (await site.api("GET", path)).status_code in (200, 404, 422), path
    for change in (
        {"endpoint_identity": "\x00@example.org"},
        {"endpoint_identity": "x" * 300},
        {"target_categories": ["\x00"]},
        {"target_categories": ["finance", "finance"]},
        {"date_from": "0001-01-01"},
        {"date_to": "9999-12-31"},
        {"rate_limit_per_hour": 10**30},
        {"daily_cost_cap_cents": 0},
        {"includes": ["drafts", "drafts"], "date_from": "2026-01-02", "date_to": "2026-01-01"},
        {"nonsense": 1},
    ):
        wanted = {"endpoint_identity": ME, "target_categories": ["finance"], **change}
        assert (await site.api("POST", "/backfill/estimate", json=wanted)).status_code in (404, 422), change
    for offer in ("\ud800", "\x00", ".", "A" * 60_000):
        body = json.dumps({"offer": offer, "consent": True})
        assert (await site.api("POST", "/backfill/jobs", content=body)).status_code in (415, 422), offer[:10]
    form = WHAT | {"daily_cost_cap": "1e999999", "rate_limit_per_hour": "9" * 5_000}
    assert (await site.post("/backfill/new/estimate", **form)).status_code == 422
    for amount in ("1e999999", "NaN", "-1", "1e9", "$1,50"):
        answer = await site.post("/backfill/new/estimate", **WHAT | {"daily_cost_cap": amount})
        assert answer.status_code == 422, amount


@pytest.mark.req("BF-6", "BF-9")
async def test_a_job_shows_what_is_uncertain_what_its_connector_spent_and_who_decided(
    site: Site, time: ManualClock
) -> None:
    job_id = await make_job(site)
    work = await take_job(site)
    call = NewCall(from_cents(3), time.now() + timedelta(seconds=90), new_id(), job_id, new_id())
    reserved = await site.write(lambda tx: site.app.budget.reserve(tx, call))
    assert isinstance(reserved, Reserved)
    await site.write(lambda tx: site.app.budget.settle(tx, reserved.call_id, None))
    await report_progress(site, work, cost_spent_cents=7, report_seq=1)
    page = text_of((await site.get(f"/backfill/{job_id}")).text)
    assert "$0.10 spent today" in page
    assert "$0.03 is uncertain" in page
    assert "0 messages decided by rules, 0 by local triage, 0 by the model, 0 left as they are" in page
    assert "$0.10 of $5.00" in text_of((await site.get("/backfill")).text)
    assert "$0.10 of $5.00" in text_of((await site.get("/")).text)


@pytest.mark.req("BF-9", "BF-19")
async def test_rules_alone_are_chosen_at_consent_and_the_choice_stays_with_the_job(site: Site) -> None:
    page = await site.post("/backfill/new/estimate", **WHAT, rules_only="yes")
    consent = await site.post("/backfill/new/consent", offer=offer_in(page.text))
    said = text_of(consent.text)
    assert "let rules alone decide about it, at no cost" in said
    assert "Decided by Rules alone" in said
    await site.post("/backfill", offer=offer_in(consent.text), consent="yes")
    [row] = await jobs_of(site)
    assert row["job"]["uses_model"] is False
