"""Connectors: alive or silent, and their mail by tier for a chosen window."""

from __future__ import annotations

import base64
import re
from datetime import timedelta
from pathlib import Path

import pytest

from postroom.domain.clock import ManualClock
from postroom.domain.terms import Tier
from tests.support import dashboard_data as scene
from tests.support.dashboards import Site, open_site, text_of
from tests.support.mail import ME


async def test_without_connectors_the_page_says_how_one_is_started(site: Site) -> None:
    assert "postroom connector gmail" in (await site.get("/connectors")).text


@pytest.mark.req("PL-5")
async def test_a_connector_is_alive_until_it_was_silent_for_five_minutes(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_site(tmp_path / "home", clock=clock) as site:
        await scene.add_heartbeat(site)
        assert f"{ME} Gmail Alive" in text_of((await site.get("/connectors")).text)
        clock.advance(299)
        assert "Alive" in text_of((await site.get("/connectors")).text)
        clock.advance(1)
        said = text_of((await site.get("/connectors")).text)
        assert "Silent" in said
        assert "5 minutes ago" in said


@pytest.mark.req("PL-5")
async def test_the_silent_ones_stand_first(site: Site) -> None:
    await scene.add_heartbeat(site, "a@example.org")
    await scene.add_heartbeat(site, "b@example.org", ago=timedelta(hours=1))
    rows = (await site.api("GET", "/connectors")).json()
    assert [(row["endpoint_identity"], row["is_alive"]) for row in rows] == [
        ("b@example.org", False),
        ("a@example.org", True),
    ]


@pytest.mark.req("PQ-9")
async def test_the_detail_has_a_pie_with_counts_percentages_and_the_time_of_the_snapshot(site: Site) -> None:
    await scene.add_heartbeat(site)
    await scene.add_live_mail(site, {Tier.HIGH_PRIORITY: 2, Tier.INTERACTIVE: 3, Tier.DEFAULT: 5}, timedelta(minutes=5))
    await scene.add_live_mail(site, {Tier.DEFAULT: 90}, timedelta(minutes=5), endpoint_identity="other@example.org")
    page = (await site.get(f"/connectors/gmail/{ME}")).text
    said = text_of(page)
    assert "High priority 2 20%" in said
    assert "Interactive 3 30%" in said
    assert "Default 5 50%" in said
    assert re.search(r"UTC to \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", said)
    assert "Known contact High priority 2 20%" in said
    (drawn,) = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)" alt="Mail by tier', page)
    svg = base64.b64decode(drawn).decode()
    assert svg.count("<path") == 3
    assert "<desc>High priority 2 (20%), Interactive 3 (30%), Default 5 (50%)</desc>" in svg


@pytest.mark.req("PQ-9")
async def test_the_window_is_chosen(site: Site) -> None:
    await scene.add_heartbeat(site)
    await scene.add_live_mail(site, {Tier.DEFAULT: 1}, timedelta(minutes=30))
    await scene.add_live_mail(site, {Tier.DEFAULT: 1}, timedelta(hours=20))
    await scene.add_live_mail(site, {Tier.DEFAULT: 1}, timedelta(days=6))
    await scene.add_live_mail(site, {Tier.DEFAULT: 1}, timedelta(days=29))
    totals = [
        (await site.api("GET", f"/connectors/gmail/{ME}?window={window}")).json()["mail"]["total"]
        for window in ("1h", "24h", "7d", "30d")
    ]
    assert totals == [1, 2, 3, 4]
    assert 'aria-current="true">Last 7 days' in (await site.get(f"/connectors/gmail/{ME}?window=7d")).text
    assert (await site.get(f"/connectors/gmail/{ME}?window=9y")).status_code == 422


@pytest.mark.req("PQ-9")
async def test_mail_is_counted_by_when_it_was_taken_in_or_by_when_it_was_received(site: Site) -> None:
    await scene.add_heartbeat(site)
    now = site.app.clock.now()
    await scene.add_live_mail(site, {Tier.DEFAULT: 3}, timedelta(days=20), accepted_at=now - timedelta(minutes=5))
    await scene.add_live_mail(site, {Tier.DEFAULT: 1}, timedelta(minutes=5))

    async def total(query: str) -> int:
        return int((await site.api("GET", f"/connectors/gmail/{ME}?window=1h{query}")).json()["mail"]["total"])

    assert (await total(""), await total("&by=taken_in"), await total("&by=received")) == (4, 4, 1)
    page = (await site.get(f"/connectors/gmail/{ME}?window=1h&by=received")).text
    assert 'aria-current="true">Mail received' in page
    assert "Mail received, last hour" in text_of(page)


@pytest.mark.req("PL-5")
async def test_two_connectors_of_one_mailbox_are_two_rows(site: Site) -> None:
    await scene.add_heartbeat(site, instance="host a", ago=timedelta(minutes=1), status="running")
    await scene.add_heartbeat(site, instance="host b", status="paused")
    rows = (await site.api("GET", "/connectors")).json()
    assert [(row["instance"], row["status"]) for row in rows] == [("host b", "paused"), ("host a", "running")]
    newest = (await site.api("GET", f"/connectors/gmail/{ME}")).json()
    assert (newest["connector"]["instance"], newest["others"][0]["instance"]) == ("host b", "host a")
    page = (await site.get(f"/connectors/gmail/{ME}?instance=host%20a")).text
    assert "This mailbox has other connectors: host b Alive" in text_of(page)
    assert (await site.get(f"/connectors/gmail/{ME}?instance=host%20c")).status_code == 404


@pytest.mark.req("PL-5")
async def test_a_connector_that_another_one_replaced_is_dropped_after_a_week_of_silence(site: Site) -> None:
    await scene.add_heartbeat(site, instance="host a", ago=timedelta(days=8))
    await scene.add_heartbeat(site, "other@example.org", ago=timedelta(days=8))
    await scene.add_heartbeat(site, instance="host b")
    rows = (await site.api("GET", "/connectors")).json()
    assert [(row["endpoint_identity"], row["instance"]) for row in rows] == [
        ("other@example.org", "worker"),
        (ME, "host b"),
    ]


async def test_counters_and_checkpoint_are_shown_whatever_the_connector_wrote_there(site: Site) -> None:
    hostile = {"<script>alert(1)</script>": "<img src=x onerror=alert(1)>", "deep": {"x": ["</pre>"]}, "flag": True}
    await scene.add_heartbeat(site, checkpoint=hostile, status="\u202e<b>running", counters={"ingested": 1_234})
    page = (await site.get(f"/connectors/gmail/{ME}")).text
    assert "Ingested 1,234" in text_of(page)
    assert "<script>alert" not in page
    assert "<img src=x" not in page
    assert "</pre>" not in page
    assert "\u202e" not in page


async def test_a_time_in_a_checkpoint_is_shown_as_times_are_everywhere(site: Site) -> None:
    odd = {"walk": "0001-01-01T00:00:00+14:00", "local": "2026-05-04T03:02:01", "word": "The end"}
    await scene.add_heartbeat(site, checkpoint={"last_pass": "2026-05-04T03:02:01+00:00", **odd})
    page = (await site.get(f"/connectors/gmail/{ME}")).text
    assert re.search(r'<time datetime="2026-05-04T03:02:01[^>]*>', page)
    assert "Last pass 2026-05-04T03:02:01" not in text_of(page)
    for text in odd.values():
        assert text in text_of(page)


async def test_a_connector_that_never_called_is_not_found(site: Site) -> None:
    assert (await site.get("/connectors/gmail/nobody@example.org")).status_code == 404
    assert (await site.api("GET", "/connectors/gmail/nobody@example.org")).status_code == 404
