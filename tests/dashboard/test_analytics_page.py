"""Analytics: what is in the archive, each row a link to its search."""

from __future__ import annotations

import pytest

from postroom.app.archive_statistics import count_archive
from tests.integration.archive.test_statistics import CONVERSATION, MAIL
from tests.support.dashboard_data import archive_mail
from tests.support.dashboards import Site, text_of

pytestmark = pytest.mark.req("UX-5")


async def count(site: Site) -> None:
    await count_archive(site.app.database, site.app.archive.backend, site.app.clock)


async def test_before_anything_is_counted_the_page_says_how(site: Site) -> None:
    assert "postroom stats --now" in text_of((await site.get("/analytics")).text)


async def test_each_row_leads_to_the_messages_that_it_counts(site: Site) -> None:
    await archive_mail(site, MAIL)
    await count(site)
    page = (await site.get("/analytics?by=domain")).text
    assert 'href="/mail?query=in%3Aanywhere%20from%3Aone.example"' in page
    for by in ("sender", "domain", "year", "month", "size", "label", "type"):
        found = (await site.api("GET", f"/analytics?by={by}")).json()
        for row in found["rows"]:
            hits = (await site.api("GET", "/mail", params={"query": row["search"]})).json()
            assert len(hits["items"]) == row["messages"], row
    assert (await site.api("GET", "/analytics?by=hour")).json()["rows"][0]["search"] is None


async def test_times_have_a_chart_and_a_limit_is_kept(site: Site) -> None:
    await archive_mail(site, MAIL)
    await count(site)
    page = (await site.get("/analytics?by=year")).text
    assert 'alt="Messages by year: Messages 4, 2023 to 2024"' in page
    said = text_of((await site.get("/analytics?by=sender&limit=1")).text)
    assert "First 1 of 3" in said
    assert "Show more" in said
    assert (await site.get("/analytics?by=colour")).status_code == 422


async def test_response_times_are_shown_of_both_sides_and_lead_to_the_mail_with_a_person(site: Site) -> None:
    assert "postroom stats --now" in text_of((await site.get("/analytics/responses")).text)
    await archive_mail(site, CONVERSATION)
    await count(site)
    assert 'href="/analytics/responses"' in (await site.get("/analytics")).text
    page = (await site.get("/analytics/responses")).text
    said = text_of(page)
    assert "Everyone 2 4 h 10 h 1 1 h 1 h" in said
    assert "ann@one.example 2 4 h 10 h" in said
    assert "2 people" in said
    [everyone, ann, _] = (await site.api("GET", "/analytics/responses")).json()["rows"]
    assert ann["owner"] == everyone["owner"] == {"replies": 2, "median_s": 14_400, "p90_s": 36_000}
    hits = (await site.api("GET", "/mail", params={"query": ann["search"]})).json()
    assert len(hits["items"]) == 3
    assert "First 1 of 2 people" in text_of((await site.get("/analytics/responses?limit=1")).text)
