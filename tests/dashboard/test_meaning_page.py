"""Similar mail in the dashboard: the job that works it out, the list on a message's page, and the order of a search."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from html import unescape
from pathlib import Path

import pytest

from postroom.app.archive_runner import vectors_handler
from postroom.app.schedules import schedules
from postroom.archive.messages import IncomingMail, Provenance
from postroom.domain.clock import ManualClock
from postroom.domain.extras import _BRINGS, Extra
from postroom.domain.jobs import ARCHIVE_VECTORS, CATALOGUE
from postroom.queue import JobQueue, NewJob
from tests.support import dashboard_data as scene
from tests.support.archives import ME
from tests.support.dashboards import Site, open_site, text_of
from tests.support.mail import letter
from tests.support.queues import run_until_idle
from tests.support.switchboards import in_a_task

pytestmark = pytest.mark.req("FD-3", "HW-7")

NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)
BODIES = {
    "Appointment": "The dentist will look at your tooth on Monday.",
    "Filling": "My tooth hurt, so a dentist looked at it yesterday.",
    "Sunday": "Our football team won the match by three goals.",
}


@pytest.fixture
async def site(database_url: str, tmp_path: Path) -> AsyncIterator[Site]:
    async with in_a_task(open_site(tmp_path / "home", database_url, ManualClock(NOW))) as opened:
        yield opened


async def test_a_job_works_out_what_mail_means_and_pages_show_it(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    mails = [IncomingMail(letter(subject, f"{body}\n"), Provenance.IMPORT) for subject, body in BODIES.items()]
    appointment, filling, _ = await scene.archive_mail(site, mails)
    page = f"/mail/{ME}/{appointment}"
    assert "Related" not in text_of((await site.get(page)).text)

    queue = JobQueue(site.app.database, CATALOGUE, site.app.clock)
    await queue.enqueue(NewJob(ARCHIVE_VECTORS.name, key="vectors"))
    await run_until_idle(queue, {ARCHIVE_VECTORS.name: vectors_handler(site.app)})
    assert (site.app.settings.home / "archive" / ME / "vectors").exists()

    shown = (await site.get(page)).text
    assert "Related Filling" in text_of(shown)
    assert f"/mail/{ME}/{filling}" in shown
    best = await site.api("GET", "/mail", params={"query": "soccer tournament", "sort": "best"})
    assert best.json()["items"][0]["subject"] == "Sunday"
    assert (await site.api("GET", "/mail", params={"query": "soccer tournament"})).json()["items"] == []
    alike = await site.api("GET", "/mail", params={"query": f"similar:{appointment}"})
    assert [row["subject"] for row in alike.json()["items"]] == ["Filling", "Sunday"]
    assert "Matching mail, best first" in (await site.get("/mail?query=soccer&sort=best")).text

    for module in _BRINGS[Extra.MEANING]:
        monkeypatch.setitem(sys.modules, module, None)
    assert "Related" not in text_of((await site.get(page)).text)
    refused = await site.get("/mail?query=soccer&sort=best")
    assert refused.status_code == 422
    assert "best needs the meaning extra: pip install 'postroom[meaning]'" in unescape(text_of(refused.text))
    assert ARCHIVE_VECTORS.name not in [each.job_type for each in schedules(site.app.settings)]
