"""The Web pages and their API: sources, runs and evidence, by the functions that the command uses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import update

from postroom.audit import AuditFilter, list_entries
from postroom.dashboard.display.foreign_content import FRAME_POLICY, SANDBOX
from postroom.db.tables.web import backfill_runs
from postroom.domain.ids import new_id
from postroom.web.runs import backfill_job
from postroom.web.sentinel import sentinel_job
from tests.support import dashboard_data as scene
from tests.support.backfills import BACKFILL_ON
from tests.support.dashboards import Site, open_site, text_of
from tests.support.hostile_mail import HTML_BODIES, read_frame, read_page
from tests.support.switchboards import in_a_task
from tests.support.web_servers import TinySite, tiny_site

pytestmark = pytest.mark.req("PL-5")

HOSTILE = "<script>window.hit=1</script>\u202e" + "unbroken" * 50


@pytest.fixture
async def site(database_url: str, tmp_path: Path) -> AsyncIterator[Site]:
    async with in_a_task(open_site(tmp_path / "home", database_url, **BACKFILL_ON)) as opened:
        yield opened


async def audited(site: Site, action: str) -> int:
    found = await site.read(lambda tx: list_entries(tx, AuditFilter(action=action)))
    return len(found.entries)


async def test_without_sources_the_page_says_how_to_follow_one(site: Site) -> None:
    page = await site.get("/web")
    assert "No website is followed yet" in page.text
    assert "sources.toml" in page.text
    assert (await site.get("/web/runs/new")).status_code == 200
    assert "No runs yet" in (await site.get("/web/runs")).text
    assert "No pages yet" in (await site.get("/web/evidence")).text


async def test_sources_are_shown_with_what_they_brought_and_what_went_wrong(site: Site) -> None:
    scene.follow_sources(site)
    await scene.add_items(site, {"FETCHED": 3, "PENDING": 2, "FAILED": 1}, error="The server answered 503.")
    await scene.add_look(site, "the sitemap is not XML")
    run = await scene.add_run(site)
    said = text_of((await site.get("/web")).text)
    assert "The Gazette" in said
    assert "sitemap https://gazette.example/sitemap.xml sitemap daily 3 hours ago 3 2 1 0" in said
    assert "sitemap: 40 pages found, 3 new, 7 known ones checked again; 12 new pages not reached" in said
    assert "The next check goes on with them." in said
    assert "gazette.example · from sources.toml" in said
    assert "sitemap: the sitemap is not XML" in said
    assert "The server answered 503." in said
    told = (await site.api("GET", "/web")).json()
    assert told["sources"][0]["last_run"]["id"] == run.id
    assert [each["slug"] for each in told["sources"]] == ["gazette", "tax-office"]
    assert told["failed"][0]["error"] == "The server answered 503."
    assert told["last_look"]["state"] == "completed"


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TinySite]:
    """A web site that may be followed although it is on this machine."""
    monkeypatch.setattr("postroom.web.fetching.targets.is_public", lambda address: True)
    async with tiny_site() as served:
        served.feed("/feed", {"/1": "2026-01-01T00:00:00Z"})
        yield served


async def test_a_source_is_added_by_its_address_and_managed_on_the_page(site: Site, world: TinySite) -> None:
    added = await site.post("/web/sources", url=f"{world.url}/feed", name=HOSTILE[:150], notify="discord")
    assert added.status_code == 303
    page = await site.get("/web")
    assert "It is a feed with 1 entry" in page.text
    assert "added here" in page.text
    assert read_page(page.text).harms == []
    [source] = (await site.api("GET", "/web")).json()["sources"]
    slug = source["slug"]
    assert (source["origin"], source["notify"], source["endpoints"][0]["mode"]) == ("added", ["discord"], "FEED")
    assert (await site.post(f"/web/sources/{slug}/pause")).status_code == 303
    assert (await site.api("GET", "/web")).json()["sources"][0]["paused"]
    assert (await site.api("POST", f"/web/sources/{slug}/unpause")).status_code == 200
    assert (await site.post(f"/web/sources/{slug}/notify", notify="email")).status_code == 303
    assert (await site.api("GET", "/web")).json()["sources"][0]["notify"] == ["email"]
    assert (source["every"], source["endpoints"][0]["every"]) == ("daily", "daily")
    assert (await site.post(f"/web/sources/{slug}/schedule", every="6h")).status_code == 303
    assert (await site.api("GET", "/web")).json()["sources"][0]["every"] == "6h"
    assert "every 6 hours" in (await site.get("/web")).text
    assert (await site.post(f"/web/sources/{slug}/schedule", every="never")).status_code == 422
    assert (await site.post(f"/web/sources/{slug}/remove")).status_code == 303
    assert (await site.api("GET", "/web")).json()["sources"] == []
    assert await audited(site, "web_source.add") == 1


@pytest.mark.req("UX-2")
async def test_an_address_is_previewed_with_the_pages_that_it_lists_and_followed_only_then(
    site: Site, world: TinySite
) -> None:
    wanted = {"url": f"{world.url}/feed", "notify": "email", "unwatched": "yes"}
    preview = await site.post("/web/sources", intent="preview", **wanted)
    said = text_of(preview.text)
    assert preview.status_code == 200
    assert "Kind feed" in said
    assert f"{world.url}/1" in said
    assert "Checked not automatically" in said
    assert "Nothing is followed yet." in said
    assert 'value="email" checked' in preview.text
    assert (await site.api("GET", "/web")).json()["sources"] == []
    assert await audited(site, "web_source.add") == 0
    assert (await site.get("/web/sources")).headers["location"] == "/web"
    await site.post("/web/sources", **wanted)
    [source] = (await site.api("GET", "/web")).json()["sources"]
    assert (source["notify"], source["endpoints"][0]["watched"]) == (["email"], False)


async def test_an_address_that_cannot_be_followed_is_shown_again_with_the_reason(site: Site) -> None:
    for url, reason in (("ftp://x", "does not begin with http"), ("http://127.0.0.1:1/", "not a public address")):
        page = await site.post("/web/sources", url=url)
        assert page.status_code == 422
        assert reason in page.text
        assert f'value="{url}"' in page.text
    scene.follow_sources(site)
    assert (await site.post("/web/sources/gazette/remove")).status_code == 422
    assert (await site.post("/web/sources/nobody/pause")).status_code == 404


async def test_the_overview_tells_what_is_new_on_the_web(site: Site) -> None:
    scene.follow_sources(site)
    kept = await scene.add_kept_page(site, "<p>news</p>", "news", title="A new law")
    await scene.add_items(site, {"FETCHED": 25}, evidence_id=kept)
    page = text_of((await site.get("/")).text)
    assert "New on the web The Gazette : A new law new just now" in page
    assert "The Gazette : 5 more new or changed" in page
    assert (await site.api("GET", "/overview")).json()["web"][0]["slug"] == "gazette"


async def test_a_mistake_in_the_file_is_told_and_breaks_nothing(site: Site) -> None:
    scene.follow_sources(site, "[[source]]\nslug = 'x'\n")
    page = await site.get("/web")
    assert page.status_code == 200
    assert "The sources file has an error" in page.text
    assert "domains" in (await site.api("GET", "/web")).json()["problem"]
    assert (await site.get("/web/runs/new")).status_code == 200
    refused = await site.api("POST", "/web/runs", json={"sources": ["x"], "mode": "SITEMAP"})
    assert refused.status_code == 422


async def test_a_look_is_queued_once_and_audited(site: Site) -> None:
    scene.follow_sources(site)
    first = await site.post("/web/look")
    assert first.status_code == 303
    job = (await site.api("POST", "/web/look")).json()["job"]
    assert (await site.api("GET", f"/queue/jobs/{job}")).json()["job"]["key"] == sentinel_job().key
    assert await audited(site, "web.look_later") == 2


async def test_failed_pages_are_asked_for_once_more(site: Site) -> None:
    scene.follow_sources(site)
    await scene.add_items(site, {"FAILED": 2}, error="no answer")
    listed = (await site.api("POST", "/web/retry", json={"dry_run": True})).json()
    assert [each["error"] for each in listed] == ["no answer", "no answer"]
    assert await audited(site, "web.retry") == 0
    answer = await site.post("/web/retry")
    assert answer.status_code == 303
    assert "2 pages queued again." in (await site.get("/web")).text
    assert await audited(site, "web.retry") == 1
    assert (await site.api("POST", "/web/retry", json={"sources": ["nobody"]})).status_code == 404


async def test_a_run_is_made_with_a_form_and_waits_for_a_worker(site: Site) -> None:
    scene.follow_sources(site)
    made = await site.post(
        "/web/runs", sources="gazette", mode="archive", max_urls="20", date_from="2024-01-01", date_to="2024-01-31"
    )
    assert made.status_code == 303
    page = await site.get(made.headers["location"])
    said = text_of(page.text)
    assert "Waiting for a worker" in said
    assert "2024-01-01 until 2024-02-01" in said
    assert "of up to 20" in said
    run_id = made.headers["location"].rpartition("/")[2]
    assert await site.app.queue.is_under_way(str(backfill_job(run_id).key))
    assert (await site.api("GET", f"/web/runs/{run_id}")).json()["run"]["run_by"] == "owner"


MISTAKES: list[tuple[dict[str, str], str]] = [
    ({"mode": "sitemap"}, "sources"),
    ({"sources": "nobody", "mode": "sitemap"}, "sources"),
    ({"sources": "gazette", "mode": "sideways"}, "mode"),
    ({"sources": "gazette", "mode": "pagination"}, "mode"),
    ({"sources": "gazette", "mode": "sitemap", "max_urls": "1000000000"}, "max_urls"),
    ({"sources": "gazette", "mode": "sitemap", "max_urls": "9" * 5_000}, "max_urls"),
    ({"sources": "gazette", "mode": "sitemap", "max_urls": "many"}, "max_urls"),
    ({"sources": "gazette", "mode": "sitemap", "date_from": "yesterday"}, "date_from"),
    ({"sources": "gazette", "mode": "sitemap", "date_to": "9999-12-31"}, "date_to"),
    ({"sources": "gazette", "mode": "sitemap", "date_from": "2024-02-01", "date_to": "2024-01-01"}, "date_from"),
]


async def test_a_form_with_a_mistake_is_shown_again_with_the_field_named(site: Site) -> None:
    scene.follow_sources(site)
    for fields, field in MISTAKES:
        page = await site.post("/web/runs", **fields)
        assert page.status_code == 422, fields
        assert f'href="#f-{field}"' in page.text, fields
    assert (await site.api("GET", "/web/runs")).json()["items"] == []


async def test_a_failed_run_says_why_and_is_resumed_by_a_worker(site: Site) -> None:
    scene.follow_sources(site)
    run = await scene.add_run(site)
    await scene.start_run(site, run.id, found=7)
    await scene.add_items(site, {"FETCHED": 4, "PENDING": 3}, run_id=run.id)
    await scene.fail_run(site, run.id, "the sitemap could not be read", (f"{scene.SITE_URL}/sitemap.xml", "503"))
    page = await site.get(f"/web/runs/{run.id}")
    said = text_of(page.text)
    for part in ("The sitemap could not be read", "7 of up to 1,000", "3 waiting", "4 fetched", "503", "Resume"):
        assert part in said, part
    assert (await site.post(f"/web/runs/{run.id}/resume")).status_code == 303
    detail = (await site.api("GET", f"/web/runs/{run.id}")).json()
    assert detail["job"] is not None
    assert not detail["can_resume"]
    assert await audited(site, "web_run.resume_later") == 1


async def test_a_run_whose_process_is_gone_says_so_and_may_be_resumed(site: Site) -> None:
    scene.follow_sources(site)
    run = await scene.add_run(site)
    await scene.start_run(site, run.id, heartbeat_at=site.app.clock.now() - timedelta(minutes=5))
    page = await site.get(f"/web/runs/{run.id}")
    assert "has probably ended" in page.text
    assert (await site.api("POST", f"/web/runs/{run.id}/resume")).json()["run"]["status"] == "FAILED"


async def test_a_run_is_cancelled_for_good(site: Site) -> None:
    scene.follow_sources(site)
    run = await scene.add_run(site)
    assert (await site.post(f"/web/runs/{run.id}/cancel")).status_code == 303
    assert "Cancelled by owner" in (await site.get(f"/web/runs/{run.id}")).text
    assert (await site.api("POST", f"/web/runs/{run.id}/cancel")).status_code == 422
    assert (await site.api("POST", f"/web/runs/{run.id}/resume")).status_code == 422
    assert (await site.api("GET", f"/web/runs/{new_id()}")).status_code == 404
    assert (await site.get("/web/runs/nonsense")).status_code == 422


async def test_while_the_switch_is_off_no_run_is_made_or_resumed(site: Site) -> None:
    scene.follow_sources(site)
    run = await scene.add_run(site)
    await scene.fail_run(site, run.id, "stopped")
    await site.api("POST", "/settings/backfill-switch", json={"enabled": False})
    assert (await site.post("/web/runs", sources="gazette", mode="sitemap")).status_code == 403
    assert (await site.post(f"/web/runs/{run.id}/resume")).status_code == 403
    for path in ("/web", "/web/runs/new", f"/web/runs/{run.id}"):
        assert "Backfill is off" in (await site.get(path)).text, path


async def test_runs_are_listed_by_status_and_page_by_page(site: Site) -> None:
    scene.follow_sources(site)
    made = [(await scene.add_run(site)).id for _ in range(4)]
    cancelled = (await site.api("POST", f"/web/runs/{made[0]}/cancel")).json()["run"]["id"]
    first = (await site.api("GET", "/web/runs?limit=3")).json()
    second = (await site.api("GET", f"/web/runs?limit=3&after={first['next']}")).json()
    assert [run["id"] for run in first["items"] + second["items"]] == made[::-1]
    assert second["next"] is None
    listed = (await site.get("/web/runs?status=CANCELLED")).text
    assert cancelled in listed
    assert made[1] not in listed
    assert (await site.get("/web/runs?status=asleep")).status_code == 422


async def test_the_list_of_runs_needs_no_walks(site: Site) -> None:
    """They can be large, and only their own run understands them."""
    scene.follow_sources(site)
    run = await scene.add_run(site)
    await site.write(lambda tx: tx.execute(update(backfill_runs).values(walks={"from": "a newer Postroom"})))
    assert run.id in (await site.get("/web/runs")).text


async def test_evidence_is_searched_as_the_command_does_it(site: Site) -> None:
    wanted = await scene.add_kept_page(site, "<p>taxes</p>", "All about taxes.", title="Taxes")
    await scene.add_kept_page(site, "<p>fish</p>", "All about fish.", path="/item/2")
    found = (await site.api("GET", "/web/evidence", params={"query": "taxes label:gazette"})).json()
    assert [hit["id"] for hit in found["items"]] == [wanted]
    assert wanted in (await site.get("/web/evidence", params={"query": "subject:taxes"})).text
    assert "No pages match" in (await site.get("/web/evidence", params={"query": "elephants"})).text
    wrong = await site.get("/web/evidence", params={"query": "a ("})
    assert wrong.status_code == 422
    assert 'class="mistake"' in wrong.text
    assert (await site.api("GET", "/web/evidence", params={"query": "to:me"})).status_code == 422
    assert (await site.api("GET", "/web/evidence", params={"after": "-1"})).status_code == 422


async def test_evidence_is_turned_page_by_page(site: Site) -> None:
    ids = {await scene.add_kept_page(site, f"page {n}", f"page {n}", path=f"/item/{n}") for n in range(5)}
    first = (await site.api("GET", "/web/evidence?limit=3")).json()
    second = (await site.api("GET", f"/web/evidence?limit=3&after={first['next']}")).json()
    assert {hit["id"] for hit in first["items"] + second["items"]} == ids
    assert second["next"] is None


async def test_a_page_is_shown_with_its_hash_its_times_and_its_versions(site: Site) -> None:
    old = await scene.add_kept_page(site, "<p>20 %</p>", "The tax is 20 %.\nSince May.", age=timedelta(days=40))
    new = await scene.add_kept_page(site, "<p>25 %</p>", "The tax is 25 %.\nSince May.")
    told = (await site.api("GET", f"/web/evidence/{new}")).json()
    assert [version["id"] for version in told["versions"]] == [new, old]
    page = await site.get(f"/web/evidence/{new}")
    assert told["evidence"]["content_hash"] in page.text
    assert f"/web/evidence/{new}/compare/{old}" in page.text
    assert "The tax is 25 %." in page.text
    raw = await site.get(f"/web/evidence/{new}/raw")
    assert raw.content == b"<p>25 %</p>"
    assert raw.headers["content-disposition"].startswith("attachment")


async def test_two_versions_stand_side_by_side_with_what_differs_marked(site: Site) -> None:
    old = await scene.add_kept_page(site, "<p>20 %</p>", "The tax is 20 %.\nSince May.", age=timedelta(days=40))
    new = await scene.add_kept_page(site, "<p>25 %</p>", "The tax is 25 %.\nSince May.")
    for path in (f"/web/evidence/{new}/compare/{old}", f"/web/evidence/{old}/compare/{new}"):
        page = (await site.get(path)).text
        assert "<del>20</del>" in page
        assert "<ins>25</ins>" in page
        assert "1 line removed, 1 line added." in text_of(page)
    source = (await site.get(f"/web/evidence/{new}/compare/{old}?of=source")).text
    assert "&lt;p&gt;" in source
    told = (await site.api("GET", f"/web/evidence/{new}/compare/{old}")).json()
    assert (told["old"]["id"], told["difference"]["added"]) == (old, 1)
    other = await scene.add_kept_page(site, "elsewhere", "elsewhere", path="/item/9")
    assert (await site.get(f"/web/evidence/{new}/compare/{other}")).status_code == 422
    assert (await site.get(f"/web/evidence/{new}/compare/{new_id()}")).status_code == 404
    assert "No differences" not in (await site.get(f"/web/evidence/{new}/compare/{new}")).text


async def test_bytes_that_are_no_letters_are_only_downloaded(site: Site) -> None:
    pdf = await scene.add_kept_page(
        site, b"%PDF-1.7 \x00", "", title=None, content_type="application/pdf", problem="pictures"
    )
    page = await site.get(f"/web/evidence/{pdf}?view=page")
    assert "No text could be extracted." in page.text
    assert "<iframe" not in page.text
    assert (await site.get(f"/web/evidence/{pdf}/body")).status_code == 404


async def test_a_hostile_page_is_shown_without_anything_that_acts(site: Site) -> None:
    scene.follow_sources(site)
    await scene.add_items(site, {"FAILED": 1}, error=HOSTILE)
    await scene.add_look(site, HOSTILE)
    run = await scene.add_run(site)
    await scene.start_run(site, run.id)
    await scene.fail_run(site, run.id, HOSTILE, (f"{scene.SITE_URL}/{HOSTILE}", HOSTILE))
    before = await scene.add_kept_page(
        site, f"{HOSTILE}\nbefore", f"{HOSTILE}\nbefore", title=HOSTILE, age=timedelta(days=1)
    )
    paths = ["/web", "/web/runs", f"/web/runs/{run.id}", "/web/evidence"]
    for name in ("script", "svg", "styles", "frames", "meta", "break-out", "bidi", "deep", "long-word"):
        body = HTML_BODIES[name]
        kept = await scene.add_kept_page(site, f"{body} {name}", f"{body} {name}"[:100_000], title=body[:900])
        address = f"/web/evidence/{kept}"
        page = await site.get(f"{address}?view=page")
        (frame,) = read_page(page.text).frames
        assert (frame["src"], frame["sandbox"]) == (f"{address}/body", SANDBOX)
        shown = await site.get(f"{address}/body")
        assert shown.headers["content-security-policy"] == FRAME_POLICY
        assert read_frame(shown.text).harms == [], name
        paths += [address, f"{address}?view=source", f"{address}?view=page", f"{address}/compare/{before}?of=source"]
    for path in paths:
        page = await site.get(path)
        assert page.status_code == 200, path
        assert read_page(page.text).harms == [], path
