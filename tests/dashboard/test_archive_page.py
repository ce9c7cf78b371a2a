"""The Archive pages and their API: how complete the archive is, what is missing, and what proves it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from postroom.accounts.account import NewAccount, add_account, mailbox_id
from postroom.accounts.troubled import ArrivalLane, MessageTrouble, TroubleKind, record_trouble
from postroom.app.archive_runner import index_handler
from postroom.archive.certificates import ArchiveProof, Removal, RemovalAction, RemovalResult
from postroom.archive.messages import IncomingMail, Provenance
from postroom.archive.shards.certificates import Certificates
from postroom.db import Tx
from postroom.domain.clock import ManualClock
from postroom.domain.jobs import ARCHIVE_INDEX, CATALOGUE
from postroom.queue import JobQueue, NewJob
from postroom.sync.alerts import Alert, AlertCondition, AlertLevel, add_outcomes, settle
from postroom.sync.fetch import record_bad
from postroom.sync.slices import Granularity, Slice
from postroom.sync.state import begin_walk, finish_slice
from postroom.telemetry import metrics
from tests.support import dashboard_data as scene
from tests.support.archives import ME
from tests.support.attachments import with_attachments
from tests.support.backfills import add_history
from tests.support.dashboards import Site, open_site, text_of
from tests.support.queues import run_until_idle
from tests.support.switchboards import in_a_task

NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)
OLD = b"From: ann@example.org\r\nSubject: Lunch\r\nDate: Tue, 2 Mar 1999 10:00:00 +0000\r\n\r\nAt noon?\r\n"


@pytest.fixture
async def site(database_url: str, tmp_path: Path) -> AsyncIterator[Site]:
    async with in_a_task(open_site(tmp_path / "home", database_url, ManualClock(NOW))) as opened:
        yield opened


@pytest.mark.req("FD-1", "FD-2")
async def test_attachments_are_indexed_by_the_job_and_the_page_says_how_many_parts_are_searchable(site: Site) -> None:
    files = [("a.txt", b"hiddenword"), ("b.bin", bytes(range(256)))]
    await scene.archive_mail(site, [with_attachments(number, files) for number in range(3)])
    assert "Not counted yet" in (await site.get("/archive")).text
    queue = JobQueue(site.app.database, CATALOGUE, site.app.clock)
    for _ in range(2):
        await queue.enqueue(NewJob(ARCHIVE_INDEX.name, key="index"))
        await run_until_idle(queue, {ARCHIVE_INDEX.name: index_handler(site.app)})
    said = text_of((await site.get("/archive")).text)
    assert "Indexed 3 3 6 Kind not supported 0 3 3 All parts 3 6 9" in said
    counted = (await site.api("GET", "/archive/coverage")).json()
    assert counted["accounts"][ME]["attachments"] == {"indexed": 3, "kind not supported": 3}
    found = (await site.api("GET", "/mail", params={"query": "attachment:hiddenword"})).json()["items"]
    assert [row["attachment"] for row in found] == ["a.txt"] * 3
    assert "a.txt" in text_of((await site.get("/mail?query=hiddenword")).text)
    counts = {sample.labels["state"]: sample.value for sample in metrics.samples() if "archive_parts" in sample.name}
    assert not counts or counts["indexed"] == 6


def seconds(year: int, month: int = 1) -> int:
    return int(datetime(year, month, 1, tzinfo=UTC).timestamp())


async def walk_with_a_gap(site: Site) -> str:
    """All up to 2021 and 2022 are done, 2021 is not."""
    parts = [Slice(0, seconds(2021)), Slice(seconds(2021), seconds(2022)), Slice(seconds(2022), seconds(2023))]

    def run(tx: Tx) -> str:
        account = add_account(tx, NewAccount(ME, "http://127.0.0.1:9"), NOW)
        begin_walk(tx, account.id, [*parts, Slice(seconds(2023), None)], seconds(2023), Granularity.MONTH, NOW)
        for part in (parts[0], parts[2]):
            finish_slice(tx, account.id, 1, part, 10, NOW)
        return account.id

    return await site.write(run)


async def test_without_a_mailbox_the_page_says_how_to_begin(site: Site) -> None:
    page = await site.get("/archive")
    assert page.status_code == 200
    assert "postroom account add gmail" in text_of(page.text)
    assert (await site.api("GET", "/archive")).json() == []


async def test_the_page_shows_shards_watermark_and_counts(site: Site) -> None:
    await add_history(site)
    said = text_of((await site.get("/archive")).text)
    assert "120 messages" in said
    assert "2030-01-01 watermark" in said
    assert "2024.db 15" in said
    assert "Stored 120" in said
    assert "No gaps up to the last listing of the mailbox." in said
    (held,) = (await site.api("GET", "/archive")).json()
    assert sum(shard["messages"] for shard in held["files"]["shards"]) == 120
    assert [span["holding"] for span in held["spans"]] == ["proven"]


async def test_the_gap_map_shows_what_holds_the_watermark_up(site: Site) -> None:
    await walk_with_a_gap(site)
    page = (await site.get("/archive")).text
    said = text_of(page)
    assert "2021-01-01 watermark" in said
    assert "2021-01-01 2022-01-01" in said
    assert "coverage of me@example.org: ahead 365 d, open 365 d, unlisted" in page
    (held,) = (await site.api("GET", "/archive")).json()
    assert [span["holding"] for span in held["spans"]] == ["open", "ahead", "unlisted"]


async def test_a_shard_that_went_missing_is_missed(site: Site) -> None:
    await add_history(site)
    (held,) = (await site.api("GET", "/archive")).json()
    oldest = held["files"]["shards"][-1]["name"]
    (site.app.settings.home / "archive" / ME / oldest).unlink()
    assert "The file is missing" in text_of((await site.get("/archive")).text)


async def test_a_shard_that_is_damaged_is_said_to_be_and_hides_no_other(site: Site) -> None:
    await add_history(site)
    (site.app.settings.home / "archive" / ME / "1999.db").write_bytes(b"no database" * 1_000)
    said = text_of((await site.get("/archive")).text)
    assert "1999.db is damaged" in said
    assert "120 messages" in said


async def test_bad_messages_alerts_and_their_course_are_shown(site: Site) -> None:
    account = await walk_with_a_gap(site)

    def spoil(tx: Tx) -> None:
        for number in range(60):
            record_bad(tx, account, f"m{number:03}", "<script>alert(1)</script> broken", 1, NOW)
        add_outcomes(tx, account, 10_000, 900, 0, NOW)
        add_outcomes(tx, account, 10_000, 100, 60, NOW)
        settle(tx, account, [Alert(AlertCondition.BAD_SPIKE, AlertLevel.CRITICAL, "60 messages went bad.")], NOW)

    await site.write(spoil)
    page = (await site.get("/archive")).text
    said = text_of(page)
    assert "60 bad messages" in said
    assert "Critical: 60 messages went bad." in said
    assert "60 of the last 1,000 messages could not be fetched or read (6%)" in said
    assert "Share of bad messages" in page
    first = (await site.get(f"/archive/bad?account={ME}")).text
    assert "m000" in first
    assert "m059" not in first
    assert "<script>alert" not in first
    items = list[dict[str, Any]]()
    after = ""
    while True:
        answer = (await site.api("GET", f"/archive/bad?account={ME}&limit=25{after}")).json()
        items += answer["items"]
        if answer["next"] is None:
            break
        after = f"&after={answer['next']}"
    assert [item["key"] for item in items] == [f"m{number:03}" for number in range(60)]


@pytest.mark.req("HW-1")
async def test_bad_messages_of_imported_mail_without_an_account_are_shown(site: Site) -> None:
    def spoil(tx: Tx) -> None:
        trouble = MessageTrouble("i1", TroubleKind.READ, "ValueError in mail.py")
        record_trouble(tx, mailbox_id(tx, "old@example.org", NOW), ArrivalLane.IMPORT, [trouble], NOW)

    await site.write(spoil)
    href = "/archive/bad?account=old%40example.org"
    page = (await site.get("/archive")).text
    assert href in page
    assert "1 old@example.org" in text_of(page)
    assert (await site.api("GET", "/archive/unconnected")).json() == [{"account": "old@example.org", "bad": 1}]
    [item] = (await site.api("GET", "/archive/bad?account=old%40example.org")).json()["items"]
    assert (item["key"], item["lane"], item["archived"]) == ("i1", "import", True)
    assert "ValueError in mail.py" in (await site.get(href)).text
    [need] = (await site.api("GET", "/overview")).json()["needs"]
    assert (need["text"], need["level"]) == ("old@example.org: 1 message could not be processed", "warn")
    assert need["href"] == href


async def test_certificates_are_listed_newest_first_and_filtered(site: Site) -> None:
    await add_history(site)
    proofs = [
        ArchiveProof(f"g{number}", f"k{number}", f"{number:064x}", 100, f"{ME}/2024.db", number, Provenance.API)
        for number in range(60)
    ]
    with Certificates(site.app.settings.home / "archive", ME) as file:
        made = file.certify("b1", Removal(RemovalAction.TRASH), proofs, seconds(2025), NOW)
        file.settle(made[:10], RemovalResult.REMOVED, "", NOW + timedelta(seconds=1))
    said = text_of((await site.get("/archive")).text)
    assert "60 certificates" in said
    page = (await site.get(f"/archive/certificates?account={ME}&result=removed")).text
    assert re.search(r'<a href="/mail/me%40example.org/g\d+"><code>', page), "each leads to its message"
    assert "move to the trash" in page
    assert "g3<" in page
    assert "g30<" not in page
    first = (await site.api("GET", f"/archive/certificates?account={ME}&limit=40")).json()
    second = (await site.api("GET", f"/archive/certificates?account={ME}&limit=40&after={first['next']}")).json()
    found = [item["proof"]["gmail_id"] for item in first["items"] + second["items"]]
    assert found == [f"g{number}" for number in reversed(range(60))]
    one = (await site.api("GET", f"/archive/certificates?account={ME}&message=g7")).json()
    assert [item["result"] for item in one["items"]] == ["removed"]
    assert (await site.get(f"/archive/certificates?account={ME}&after=nonsense")).status_code == 422


async def test_where_no_series_is_kept_the_page_says_so(site: Site) -> None:
    said = text_of((await site.get("/archive")).text)
    assert "The charts above hold all processes" in said
    process = (await site.api("GET", "/archive/process")).json()
    assert set(process) >= {"calls", "median_s", "slow_s", "retries", "splits"}


async def test_what_is_not_there_is_not_found(site: Site) -> None:
    for path in ("/archive/bad", "/archive/certificates"):
        assert (await site.get(f"{path}?account=nobody@example.org")).status_code == 404
        assert (await site.api("GET", f"{path}?account=nobody@example.org")).json()["error"]["kind"] == "not_found"
        assert (await site.get(path)).status_code == 422


@pytest.mark.req("UX-5")
async def test_mail_by_year_and_imported_mail_without_an_account_are_shown(site: Site) -> None:
    await add_history(site)
    await scene.archive_mail(site, [IncomingMail(OLD, Provenance.IMPORT)], "old@example.org")
    page = (await site.get("/archive")).text
    said = text_of(page)
    assert "old@example.org Not connected: imported mail 1" in said
    assert f"{ME} Connected 120" in said
    assert f'alt="Messages by year: {ME} 120, old@example.org 1"' in page
    assert "in%3Aanywhere%20after%3A1999/01/01%20before%3A2000/01/01&amp;account=old%40example.org" in page
    held = (await site.api("GET", "/archive/mailboxes")).json()
    assert [(each["account"], each["origin"]) for each in held] == [(ME, "connected"), ("old@example.org", "imported")]
    assert held[1]["years"][0] | {"bytes": 0} == {"year": 1999, "messages": 1, "bytes": 0}
    overview = text_of((await site.get("/")).text)
    assert re.search(r"old@example\.org \S+ Not connected", overview)
