"""The Queue page and its API: what they show, and what they change."""

from __future__ import annotations

import pytest
from sqlalchemy import update

from postroom import audit
from postroom.db.tables.queue import jobs
from postroom.domain.ids import new_id
from postroom.domain.terms import Tier
from postroom.queue import JobState, NewJob, QueueName
from tests.support.dashboard_data import add_live_mail
from tests.support.dashboards import Site, text_of
from tests.support.mail import ME


async def enqueue(site: Site, number: int = 1, **new: object) -> list[str]:
    wanted = [NewJob("classify", {"n": n}, **new) for n in range(number)]  # type: ignore[arg-type]
    return [answer.job_id for answer in await site.app.queue.enqueue(*wanted)]


async def fail(site: Site, *ids: str, error: str = "no") -> None:
    now = site.app.clock.now()
    values = {"state": JobState.FAILED, "ready": False, "finished_at": now, "last_error": error}
    await site.write(lambda tx: tx.execute(update(jobs).where(jobs.c.id.in_(ids)).values(**values)))


async def test_the_page_counts_jobs_by_state_line_and_type(site: Site) -> None:
    await enqueue(site, 3, queue=QueueName.LIVE, tier=Tier.HIGH_PRIORITY)
    await fail(site, *(await enqueue(site, 2)))
    page = await site.get("/queue")
    assert page.status_code == 200
    said = text_of(page.text)
    assert "3 Waiting" in said
    assert "2 Failed" in said
    assert "Live High priority 3 0" in said
    assert "classify 3 0 2" in said


async def test_lines_without_jobs_fold_away(site: Site) -> None:
    assert "All lines are empty" in text_of((await site.get("/queue")).text)
    await enqueue(site, 3, queue=QueueName.LIVE, tier=Tier.HIGH_PRIORITY)
    page = (await site.get("/queue")).text
    assert "8 empty lines" in text_of(page)
    folded = page[page.index('id="empty-lines"') :].partition("</details>")[0]
    assert "Work, default" in text_of(folded)
    assert "Live, high priority" not in text_of(folded)


@pytest.mark.req("UX-5")
async def test_a_job_leads_to_its_message_and_action(site: Site) -> None:
    message, gone, run = new_id(), new_id(), new_id()
    await add_live_mail(site, {Tier.DEFAULT: 1}, id=message, archive_key="18f0/1", subject="<b>Lunch</b>")
    payload = {"message_id": message, "action_id": gone, "run": run, "original_action_id": "not an id"}
    made = await site.app.queue.enqueue(NewJob("classify", payload))
    found = (await site.api("GET", f"/queue/jobs/{made[0].job_id}")).json()["links"]
    assert sorted(link["href"] for link in found) == [f"/mail/{ME}/18f0%2F1", f"/web/runs/{run}"]
    page = (await site.get(f"/queue/{made[0].job_id}")).text
    assert f'<a href="/mail/{ME}/18f0%2F1"><bdi>&lt;b&gt;Lunch&lt;/b&gt;</bdi></a>' in page


async def test_a_filter_shows_its_jobs_and_no_others_and_survives_to_the_next_page(site: Site) -> None:
    await fail(site, *(await enqueue(site, 60)))
    (other,) = await enqueue(site, 1)
    first = await site.get("/queue", params={"state": "failed", "type": "classify", "tier": "", "queue": ""})
    assert first.text.count('<th scope="row"><a href="/queue/0') == 50
    assert other not in first.text
    assert "state=failed&amp;type=classify&amp;after=" in first.text
    api = (await site.api("GET", "/queue/jobs?state=failed&limit=50")).json()
    second = (await site.api("GET", f"/queue/jobs?state=failed&after={api['next']}")).json()
    assert len({job["id"] for job in api["items"] + second["items"]}) == 60
    assert second["next"] is None


@pytest.mark.req("UX-5")
async def test_a_state_has_the_same_name_in_figures_rows_and_on_the_page_of_a_job(site: Site) -> None:
    (later,) = await enqueue(site, not_before=site.app.clock.now().replace(year=2099))
    (now,) = await enqueue(site)
    for job, name in ((later, "Scheduled"), (now, "Waiting")):
        said = text_of((await site.get(f"/queue?state={name.lower()}")).text)
        assert f"1 {name}" in said
        assert f"classify {name} Work" in said
        assert f"classify {name}" in text_of((await site.get(f"/queue/{job}")).text)
        (row,) = (await site.api("GET", f"/queue/jobs?state={name.lower()}")).json()["items"]
        assert (row["state"], row["phase"]) == ("queued", name.lower())


async def test_every_order_pages_through_all_jobs_once(site: Site) -> None:
    await enqueue(site, 5, priority=1)
    await enqueue(site, 5, queue=QueueName.LIVE, tier=Tier.INTERACTIVE)
    later = site.app.clock.now().replace(year=2099)
    await enqueue(site, 5, not_before=later)
    await fail(site, *(await enqueue(site, 5)))
    for state, wanted in (("waiting", 10), ("scheduled", 5), ("failed", 5), ("", 20)):
        seen, after = list[str](), ""
        while True:
            query = "&".join(
                part for part in (state and f"state={state}", after and f"after={after}", "limit=3") if part
            )
            answer = (await site.api("GET", f"/queue/jobs?{query}")).json()
            seen += [job["id"] for job in answer["items"]]
            if answer["next"] is None:
                break
            after = answer["next"]
        assert len(seen) == len(set(seen)) == wanted


async def test_a_job_is_shown_with_its_error_and_retried_with_the_button_on_its_page(site: Site) -> None:
    (job,) = await enqueue(site)
    await fail(site, job, error="<script>alert(1)</script> \u202eevil")
    page = await site.get(f"/queue/{job}")
    assert "&lt;script&gt;" in page.text
    assert "<script>alert" not in page.text
    assert "\u202e" not in page.text
    assert f'action="/queue/{job}/retry"' in page.text
    answer = await site.post(f"/queue/{job}/retry")
    assert (answer.status_code, answer.headers["location"]) == (303, f"/queue/{job}")
    after = text_of((await site.get(f"/queue/{job}")).text)
    assert "queued again" in after
    assert "classify Waiting" in after
    assert "queued again" not in text_of((await site.get(f"/queue/{job}")).text)
    entry = (await site.read(lambda tx: audit.list_entries(tx, audit.AuditFilter(action="job.retry")))).entries[0]
    assert (entry.actor.name, entry.subject_id) == ("owner", job)


async def test_cancelling_a_finished_job_changes_nothing_and_says_so(site: Site) -> None:
    (job,) = await enqueue(site)
    assert (await site.post(f"/queue/{job}/cancel")).status_code == 303
    again = await site.post(f"/queue/{job}/cancel")
    assert again.status_code == 422
    assert "already finished" in again.text


@pytest.mark.req("UX-5")
async def test_selected_jobs_are_retried_and_cancelled_together_and_others_stay(site: Site) -> None:
    failed = await enqueue(site, 2)
    await fail(site, *failed)
    (waiting,) = await enqueue(site, 1)
    page = (await site.get("/queue?state=failed")).text
    assert page.count('name="job"') == 2
    answer = await site.post("/queue/retry", job=[*failed, waiting], state="failed", type="")
    assert (answer.status_code, answer.headers["location"]) == (303, "/queue?state=failed#jobs")
    said = text_of((await site.get("/queue")).text)
    assert "2 jobs queued again. 1 job left as before" in said
    assert "3 Waiting" in said
    reply = (await site.api("POST", "/queue/jobs/cancel", json={"jobs": [*failed, new_id()]})).json()
    assert (reply["jobs"], len(reply["left"])) == (2, 1)
    await site.post("/queue/cancel", state="", type="")
    assert "Select at least one job" in text_of((await site.get("/queue")).text)
    counts = (await site.api("GET", "/queue")).json()["counts"]
    assert (counts["waiting"]["number"], counts["canceled"]["number"]) == (1, 2)


async def test_all_failed_jobs_of_a_type_are_retried_at_once(site: Site) -> None:
    await fail(site, *(await enqueue(site, 4)))
    assert (await site.post("/queue/retry-failed", type="classify")).status_code == 303
    states = {job["state"] for job in (await site.api("GET", "/queue/jobs")).json()["items"]}
    assert states == {"queued"}


async def test_the_api_does_what_the_page_does(site: Site) -> None:
    (job,) = await enqueue(site)
    cancelled = await site.api("POST", f"/queue/jobs/{job}/cancel")
    assert cancelled.json()["job"]["state"] == "canceled"
    retried = await site.api("POST", f"/queue/jobs/{job}/retry")
    assert retried.json()["job"]["state"] == "queued"
    overview = (await site.api("GET", "/queue")).json()
    assert overview["counts"]["waiting"] == {"number": 1, "is_more": False}
    refused = await site.api("POST", "/queue/retry-failed", json={"type": "nonsense"})
    assert (refused.status_code, refused.json()["error"]["field"]) == (422, "type")


async def test_what_is_not_there_is_not_found(site: Site) -> None:
    assert (await site.api("GET", f"/queue/jobs?after={new_id()}")).status_code == 404
    assert (await site.get(f"/queue/{new_id()}")).status_code == 404
    assert (await site.api("GET", f"/queue/jobs/{new_id()}")).json()["error"]["kind"] == "not_found"
    assert (await site.get("/queue/nonsense")).status_code == 422
    assert (await site.get("/queue?state=nonsense")).status_code == 422
