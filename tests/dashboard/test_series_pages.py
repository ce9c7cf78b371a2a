"""Charts over time on the overview, the queue and the archive, and their JSON."""

from __future__ import annotations

import itertools
import re
from datetime import timedelta

import pytest

from postroom.dashboard.series import TimeWindow, read_series, starts_of
from postroom.db.series import add_amounts
from postroom.telemetry.series import NO_BOUND, Amount, Series, bound_of
from tests.support import dashboard_data as scene
from tests.support.dashboards import Site, text_of

pytestmark = pytest.mark.req("UX-5")


async def record(site: Site, series: Series, count: int, total: float, ago: timedelta = timedelta()) -> None:
    moment = site.app.clock.now() - ago
    await site.write(lambda tx: add_amounts(tx, {(moment, series, NO_BOUND): Amount(count, total, total)}))


@pytest.mark.parametrize("window", list(TimeWindow))
async def test_the_last_point_holds_now_and_all_points_follow_each_other(site: Site, window: TimeWindow) -> None:
    now = site.app.clock.now()
    starts = starts_of(window, now)
    steps = {later - earlier for earlier, later in itertools.pairwise(starts)}
    assert len(steps) == 1
    assert starts[-1] <= now < starts[-1] + steps.pop()
    await record(site, Series.MAIL_LIVE_DEFAULT, 3, 3.0)
    found = await site.read(lambda tx: read_series(tx, [Series.MAIL_LIVE_DEFAULT], window, now))
    points = found.series[Series.MAIL_LIVE_DEFAULT]
    assert [point.start for point in points] == starts
    assert [point.count for point in points] == [0] * (len(starts) - 1) + [3]


async def test_the_overview_has_charts_with_a_table_behind_each(site: Site) -> None:
    await record(site, Series.MAIL_LIVE_HIGH_PRIORITY, 7, 7.0, timedelta(hours=2))
    await record(site, Series.DECIDED_BY_LEARNING, 5, 5.0)
    await record(site, Series.SPEND, 2, 1_500_000.0)
    page = (await site.get("/")).text
    said = text_of(page)
    assert "Mail by tier 7 messages" in said
    assert "$1.50 for 2 model calls" in said
    assert 'alt="Mail by tier, 24 hours: High priority 7, Interactive 0, Default 0, Backfill 0"' in page
    assert 'alt="Decisions by who decided, 24 hours: Rules 0, Learned 5, Model 0, No decision 0"' in page
    assert "No data in this period" in said
    table = page[page.index('id="t-mail"') :]
    assert re.search(r'<td class="number">7</td>', table[: table.index("</details>")])
    assert re.search(r'<p class="axis"><time class="date" datetime="[^"]+">[^<]+ UTC</time>', page)  # local by script


async def test_another_window_counts_what_lies_in_it(site: Site) -> None:
    await record(site, Series.MAIL_LIVE_DEFAULT, 4, 4.0, timedelta(days=3))
    assert "4 messages" not in text_of((await site.get("/")).text)
    assert "Mail by tier 4 messages" in text_of((await site.get("/?window=week")).text)
    assert "Mail by tier 4 messages" in text_of((await site.get("/?window=month")).text)
    assert (await site.get("/?window=century")).status_code == 422


async def test_the_queue_page_has_depth_waiting_times_and_failures(site: Site) -> None:
    now = site.app.clock.now()
    waits = {
        (now, Series.WAIT_LIVE, bound_of(seconds)): Amount(n, n * seconds, seconds)
        for seconds, n in ((1, 90), (60, 10))
    }
    await site.write(lambda tx: add_amounts(tx, waits))
    await record(site, Series.DEPTH_WORK, 1, 12.0)
    assert "Failures No job failed" in text_of((await site.get("/queue")).text)
    await record(site, Series.JOBS_FAILED, 2, 2.0)
    page = (await site.get("/queue?state=failed")).text
    said = text_of(page)
    assert "Failures 2 jobs failed" in said
    await record(site, Series.JOBS_RETRIED, 52, 52.0)
    said = text_of((await site.get("/queue")).text)
    assert "2 jobs failed; 52 attempts without success, repeated automatically" in said
    assert "Jobs that failed" in said
    assert "Work 12, at most 12" in page
    assert "Waiting time, live queue median and 95th percentile" in said
    assert 'href="/queue?state=failed&amp;window=week#over-time"' in page
    (point,) = (await site.api("GET", "/series?window=hour&about=queue")).json()["series"]["queue.wait.live"][-1:]
    assert point["median"] == pytest.approx(1, rel=0.42)
    assert point["slow"] == pytest.approx(60, rel=0.42)


async def test_the_archive_page_has_the_series_of_the_sync(site: Site) -> None:
    await record(site, Series.SYNC_MESSAGES, 50, 50.0)
    await record(site, Series.SYNC_BAD, 1, 1.0)
    await record(site, Series.SYNC_SPLITS, 3, 3.0)
    await record(site, Series.SYNC_LAG, 1, 7_200.0)
    page = (await site.get("/archive?window=day")).text
    said = text_of(page)
    assert "Bad messages 1 of 50 messages" in said
    assert "Retries, throttling, splits 3 in all" in said
    assert "Lag 2 h, at most 2 h" in page


async def test_the_json_has_every_topic_and_no_words_of_mail(site: Site) -> None:
    await scene.add_series(site)
    reply = (await site.api("GET", "/series?window=month")).json()
    assert set(reply["series"]) == {each.value for each in Series} - {"derived"}
    assert {len(points) for points in reply["series"].values()} == {30}
    assert set(reply["series"]["spend"][0]) == {"start", "count", "total", "most", "median", "slow"}
