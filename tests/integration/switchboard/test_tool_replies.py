"""What every tool answers, field by field: null where it says null, absent where it is silent.

`tool_replies.json` holds the answers of one story, with ids and times as they come replaced by their kind.
`WRITE_TOOL_REPLIES=1` writes it anew.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from postroom.archive.shards.file_archive import FileArchive
from postroom.archive.shards.searching import search_shards
from postroom.db import Database, Tx
from postroom.db.tables.accounts import sync_states
from postroom.db.tables.mail import contact_exports, contacts, messages
from postroom.db.tables.triage import decisions
from postroom.domain.clock import ManualClock
from postroom.domain.errors import PostroomError, error_to_wire
from postroom.domain.ids import new_id
from postroom.domain.model_costs import CostMeter, FixedTariff
from postroom.domain.roles import Role
from postroom.mail.categories import shipped
from postroom.settings import RetentionSettings, Settings
from postroom.settings.files import version_of
from postroom.switchboard.estimate import Estimator
from postroom.switchboard.on_demand import OnDemandSearch
from postroom.switchboard.retention import RetentionRule
from postroom.switchboard.spending import ModelBudget
from postroom.switchboard.tools.assembly import Services, build_toolbox
from tests.support.mail import ME, envelope, inline, letter
from tests.support.switchboards import BACKFILL, Bench, all_owner_tools, open_bench, refuse_accounts

GOLDEN = Path(__file__).with_name("tool_replies.json")
NOW = datetime(2026, 6, 15, 8, 0, tzinfo=UTC)
RECEIVED_MS = int((NOW - timedelta(days=3)).timestamp() * 1_000)
MAILBOX = {"connector_type": "gmail", "endpoint_identity": ME}
MINE = {"endpoint_identity": ME}
DAYS = {"date_from": "2026-06-01", "date_to": "2026-06-14"}
_ID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}\b")


PLAIN = letter("Letter 1", headers={"Message-ID": "<1@x.example>"})
WITH_BILL = (
    b"From: Ann <ann@friends.example>\r\nTo: owner@example.com\r\nSubject: Letter 2\r\nMessage-ID: <2@x.example>\r\n"
    b'MIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary="b"\r\n\r\n'
    b"--b\r\nContent-Type: text/plain\r\n\r\nHow are you?\r\n"
    b'--b\r\nContent-Type: application/pdf\r\nContent-Disposition: attachment; filename="bill.pdf"\r\n\r\n%PDF\r\n'
    b"--b--\r\n"
)


def stored(number: int, content: bytes) -> dict[str, Any]:
    return {
        "gmail_id": f"a{number}",
        "internal_date": RECEIVED_MS,
        "raw": inline(content)["base64"],
        "labels": ["INBOX"],
    }


class Story:
    """Calls tools and keeps what each answered."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.told: list[dict[str, Any]] = []

    async def call(self, role: Role, tool: str, /, **arguments: Any) -> dict[str, Any]:
        async with self.bench.client(role) as call:
            try:
                answer = await call(tool, arguments)
            except PostroomError as error:
                answer = error_to_wire(error)
        self.told.append({tool: json.loads(_ID.sub("<id>", json.dumps(answer)))})
        return answer


@asynccontextmanager
async def whole_bench(database: Database, path: Path, clock: ManualClock) -> AsyncIterator[Bench]:
    """With everything that a tool may need: an estimator, and searches on demand that nobody answers."""
    tariff = CostMeter(FixedTariff(Decimal("0.30"), Decimal("2.50")), 500)
    place: Any = FileArchive(path / "archive")
    nobody: Any = None
    kept = RetentionRule.from_settings(RetentionSettings())
    async with open_bench(database, path, clock) as bench:
        estimator = Estimator(bench.backfill.budget, place, nobody, shipped(), tariff, kept)
        queue = bench.queue
        with search_shards(path / "archive", clock) as search:
            on_demand = OnDemandSearch(queue, search, timedelta())
            parts = (
                queue,
                bench.archive,
                search,
                bench.backfill,
                ModelBudget(queue, Settings(backfill=BACKFILL)),
                estimator,
                on_demand,
            )
            services = Services(*parts, enrol=refuse_accounts)
            yield replace(bench, toolbox=build_toolbox(services, all_owner_tools(queue, path)))


async def deliver(story: Story) -> None:
    call, connector = story.call, Role.CONNECTOR
    mails = [stored(1, PLAIN), stored(2, WITH_BILL), stored(3, b"\0\xff" * 50)]
    proofs = (await call(connector, "archive.store", **MINE, messages=mails))["stored"]
    await call(connector, "archive.store", **MINE, messages=mails[:1], lane="backfill")
    await call(connector, "archive.lookup", **MINE, gmail_ids=["a1", "nope"])
    await call(connector, "archive.range", **MINE, **DAYS, limit=2, headers=["From"])
    await call(connector, "archive.range", **MINE, **DAYS)
    changed = [{"gmail_id": "a1", "labels": ["INBOX", "STARRED"]}]
    await call(connector, "archive.changes", **MINE, labels=changed, deleted=["yy"])
    reference = {"key": proofs[0]["key"], "sha256": proofs[0]["sha256"]}
    await call(connector, "ingest", **envelope("a1", raw=reference))
    await call(connector, "ingest", **envelope("a1", raw=reference))
    wrong = envelope("a7", raw={**reference, "sha256": "0" * 64})
    unknown_job = envelope("a8", backfill_job_id=new_id())
    several = [envelope("a2"), envelope("a2"), wrong, unknown_job, envelope("x", identity="you@example.org"), {}]
    await call(connector, "ingest", envelopes=several)
    await call(connector, "ingest", **wrong)
    troubled = [{"gmail_id": "a9", "archived": False, "reason": "gone"}]
    await call(connector, "trouble.report", **MINE, troubled=troubled, settled=["a5"])


async def keep_the_place(story: Story) -> None:
    call, connector = story.call, Role.CONNECTOR
    await call(connector, "history.claim", **MINE, instance="one")
    await call(connector, "history.claim", **MINE, instance="two")
    await call(connector, "history.commit", **MINE, fence=1, history_id="77")
    await call(connector, "history.commit", **MINE, fence=1, release=True)
    await call(connector, "history.claim", **MINE, instance="two")
    await call(
        connector, "history.commit", **MINE, fence=2, history_id="99", release=True, gap={"since": 1_700_000_000}
    )
    await call(connector, "history.gap", **MINE)
    await call(connector, "history.gap", **MINE, step=1, stage="labels", before=1_700_000_000)
    await call(connector, "history.gap", **MINE, step=2)
    sent = [{"message_id": "<a@b>", "sent_at": "2026-01-01T00:00:00Z"}, {"message_id": "<c@d>"}]
    await call(connector, "sent.add", **MINE, messages=sent)
    await call(connector, "sent.lookup", **MINE, message_ids=["<a@b>", "<e@f>"])


async def be_present(story: Story) -> None:
    call, connector = story.call, Role.CONNECTOR
    beat = {**MAILBOX, "instance": "one", "version": "1", "status": "running"}
    first = await call(connector, "connector.heartbeat", **beat)
    await call(connector, "contacts.export")

    def export(tx: Tx) -> None:
        tx.execute(contacts.insert().values(address="ann@x.example", source="manual", added_at=NOW))
        tx.execute(contact_exports.insert().values(version=1, generated_at=NOW, addresses=1, sha256="0" * 64))

    await story.bench.database.write(export)
    await call(connector, "connector.heartbeat", **beat, policy_version=first["policy"]["version"])
    await call(connector, "contacts.export")
    await call(connector, "contacts.export", if_newer_than=NOW.isoformat())


async def recover(story: Story, clock: ManualClock) -> None:
    call, dashboard, connector = story.call, Role.DASHBOARD, Role.CONNECTOR
    await call(connector, "backfill.poll", **MAILBOX)
    estimate = await call(dashboard, "backfill.estimate", **MAILBOX, date_from="2026-06-01", date_to="2026-06-13")
    wanted = {**MAILBOX, **DAYS, "target_categories": ["finance"], "rate_limit_per_hour": 1}
    job = {"job_id": (await call(dashboard, "create_backfill_job", **wanted, estimate=estimate))["job_id"]}
    await call(dashboard, "backfill.pause", **job)
    await call(dashboard, "backfill.resume", **job)
    await call(dashboard, "backfill.change", **job, daily_cost_cap_cents=400)
    await call(dashboard, "backfill.judge_again", **job)
    fence = (await call(connector, "backfill.poll", **MAILBOX))["fence"]
    await call(connector, "ingest", **envelope("b1", backfill_job_id=job["job_id"]))
    await call(connector, "ingest", **envelope("b2", backfill_job_id=job["job_id"]))
    await call(connector, "ingest", envelopes=[envelope("b3", backfill_job_id=job["job_id"])])
    done = {**job, "fence": fence, "rows_processed": 1, "rows_skipped": 2, "report_seq": 1, "cursor": {"page": 1}}
    await call(connector, "backfill.progress", **done)
    await call(dashboard, "backfill.show", **job)
    await call(connector, "backfill.progress", **{**done, "report_seq": 2, "status": "error", "error": "no more"})
    await call(dashboard, "backfill.cancel", **job)
    await call(dashboard, "backfill.pause", **job)
    clock.advance(60)
    await call(dashboard, "create_backfill_job", **MAILBOX, **DAYS, mode="background", includes=["sent"])
    await call(dashboard, "backfill.list")
    await call(dashboard, "backfill.list", status="active")
    await call(dashboard, "backfill.switch_state")
    await call(dashboard, "backfill.switch", enabled=False)
    await call(connector, "backfill.poll", **MAILBOX)
    await call(dashboard, "audit.list", limit=3)
    await call(dashboard, "audit.list", action="nothing.at_all")


async def read(story: Story) -> None:
    call, agent = story.call, Role.AGENT
    await call(agent, "search_archive", query="letter", limit=1)
    await call(agent, "search_archive", query="unheard-of")
    await call(agent, "read_message", id="a2")
    await call(agent, "read_message", id="none")
    await call(agent, "read_conversation", id="a2")
    await call(agent, "read_attachment", id="a2", attachment=0)
    await call(agent, "archive_stats", by="sender")
    await call(agent, "show_digest", period="week")
    await call(agent, "ask_archive", question="How is Ann's letter?")
    await call(agent, "list_jobs", limit=1)

    def decide(tx: Tx) -> None:
        [first, *_] = tx.execute(messages.select().order_by(messages.c.external_event_id)).all()
        row = {
            "id": new_id(),
            "message_id": first.id,
            "source": "deterministic",
            "action": "archive",
            "reason": "a rule",
        }
        tx.execute(decisions.insert().values(**row, confidence=None, needs_review=True, created_at=NOW))

    await story.bench.database.write(decide)
    await call(agent, "list_decisions", needs_review=True)
    await call(agent, "email_search_and_ingest", query="letter", max_results=1)
    await call(agent, "list_review")
    await call(agent, "list_rules")
    await call(agent, "list_web_sources")
    await call(agent, "try_rule", condition={"sender": "nobody@example.org"})
    await call(agent, "propose_rule", name="Ann", condition={"sender": "a@b.example"}, actions=["star"], why="Why not.")
    await call(agent, "propose_action", message="a1", type="star", why="It is from your doctor.")
    await call(agent, "list_approvals")
    await call(agent, "list_actions", by="rule")
    await call(agent, "undo_action", action=new_id())


async def steer(story: Story) -> None:
    """The owner's tools as they answer; `test_owner_tools.py` has what they do."""
    owner, nothing = Role.DASHBOARD, new_id()

    async def call(tool: str, /, **arguments: Any) -> dict[str, Any]:
        return await story.call(owner, tool, **arguments)

    await call("approvals.answer", action=nothing, verdict="approve")
    await call("approvals.answer_many", actions=[nothing], verdict="approve")
    await call("actions.take_back", actions=[nothing])
    await call("review.reopen", items=[nothing])
    await call("rules.dismiss_suggestion", suggestion="0" * 32)
    await call("mail.ask", question="Who or what?")
    await call("actions.do", message="a1", type="archive")
    await call("actions.do_many", messages=[{"mailbox": ME, "key": "a1"}, {"mailbox": ME, "key": "nope"}], type="star")
    await call("review.list")
    await call("review.done", items=[nothing])
    await call("review.ask", all=True, cause="budget")
    for tool in ("undo", "retry", "dismiss", "cancel", "wake"):
        await call(f"actions.{tool}", action=nothing)
    await call("actions.snooze", action=nothing, until="2026-07-01T00:00:00Z")
    await call("actions.undo_all", since="2026-06-14T00:00:00Z")
    written = {"name": "Shops", "condition": {"sender_domain": "shop.example"}, "actions": ["archive"]}
    rule = {"rule": (await call("rules.add", **written))["rule"]}
    await call("rules.edit", **rule, **written | {"name": "All shops"})
    await call("rules.move", **rule, direction="up")
    await call("rules.switch", **rule, enabled=False)
    await call("rules.apply", **rule)
    await call("rules.applications")
    application = {"application": nothing}
    await call("rules.stop_application", **application)
    await call("rules.resume_application", **application)
    await call("rules.undo_application", **application)
    await call("rules.remove", **rule)
    await call("searches.save", name="Shops", query="from:shop.example")
    await call("searches.save", name="Bad", query="form:shop")
    await call("searches.list")
    await call("searches.remove", name="shops")
    await call("learning.status")
    await call("learning.correct", message="a1")
    await call("learning.switch", enabled=False)
    await call("model.ceiling")
    await call("web.list_sources")
    for tool in ("pause_source", "remove_source"):
        await call(f"web.{tool}", source="nothing")
    await call("web.set_notify", source="nothing", notify=[])
    await call("web.set_schedule", source="nothing", every="weekly")
    await call("web.add_source", url="ftp://127.0.0.1", dry_run=True)
    direction = {"direction": (await call("directions.add", text="Be brief."))["direction"]}
    await call("directions.edit", **direction, enabled=False)
    await call("directions.remove", **direction)
    guidance = {"guidance": (await call("guidance.add", name="School", text="Never hide it."))["guidance"]}
    await call("guidance.edit", **guidance, scope="domain:school.example")
    await call("guidance.remove", **guidance)
    await call("web.look")
    await call("web.retry")
    await call("web.create_run", sources=["nothing"], mode="SITEMAP")
    await call("web.resume_run", run=nothing)
    await call("web.cancel_run", run=nothing)
    await call("tokens.create", role="agent", name="reader")
    await call("tokens.revoke", id=nothing)
    await call("tokens.revoke_all")
    await call("accounts.add", email=ME, api_base="https://mail.example", access_token="x")  # noqa: S106
    await call("accounts.sync_labels", endpoint_identity=ME)
    await call("categories.correct", sender="Shop.example", category="finance")
    await call("categories.forget", sender="shop.example")
    await call("contacts.add", address="Zoe@friends.example", name="Zoe")
    await call("contacts.set_priority", address="zoe@friends.example", has_priority=False)
    await call("contacts.remove", address="zoe@friends.example")
    await call("model.switch", enabled=False)
    await call("jobs.retry", job=nothing)
    await call("jobs.cancel", job=nothing)
    await call("jobs.retry_failed", type="classify")
    await call("jobs.retry_many", jobs=[nothing])
    await call("jobs.cancel_many", jobs=[nothing])
    version = (await call("settings.list"))["version"]
    await call("settings.change", version=version, values={"model.timeout_s": "60.0"})
    await call("settings.change", version="old", values={"model.timeout_s": "7"})
    await call("settings.secret", name="model.api_key", secret="x")  # noqa: S106
    await call("model.check")
    await call("policy.replace", version="old", rules=[])
    await call("checklist.show", step="checklist", shown=False)
    await call("imports.list")
    await call("imports.start", **MINE, upload=nothing, name="old.mbox")
    for tool in ("stop", "resume", "forget"):
        await call(f"imports.{tool}", import_id=nothing)
    await call("restores.plan", account=ME)
    await call("restores.start", account=ME)
    proposed = await story.call(Role.AGENT, "propose_restore", account=ME, query="letter", why="they asked")
    await call("restores.list")
    for tool in ("approve", "resume", "stop", "undo", "reject"):
        await call(f"restores.{tool}", run=proposed["id"])
    await call("pictures.load", **MINE, key="a1")
    await call("pictures.allow", **MINE, key="a1")
    await call("pictures.forget", sender="ann@x.example")
    await call("unsubscribe.note", **MINE, key="a1", way="link")
    await call("unsubscribe.forget", **MINE, sender="ann@x.example")
    await call("categories.define", version=version_of(b""), definitions="")


async def held_until(bench: Bench, account_id: str, day: date) -> None:
    mark = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())
    row = {"account_id": account_id, "walk": 1, "walk_started_at": NOW, "granularity": "month", "until": mark}
    more = {"frontier": mark, "watermark": mark, "compared_walk": 0, "counters": "{}", "updated_at": NOW}
    await bench.database.write(lambda tx: tx.execute(sync_states.insert().values(row | more)))


@pytest.mark.req("BF-2", "PL-4")
async def test_every_tool_answers_as_it_always_has(database: Database, tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    async with whole_bench(database, tmp_path, clock) as bench:
        account = await bench.account()
        await held_until(bench, account.id, date(2026, 6, 14))
        story = Story(bench)
        await deliver(story)
        await keep_the_place(story)
        await be_present(story)
        await recover(story, clock)
        await read(story)
        await steer(story)
        assert {tool for told in story.told for tool in told} == {tool.name for tool in bench.toolbox}
    if os.environ.get("WRITE_TOOL_REPLIES"):
        GOLDEN.write_text(json.dumps(story.told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    assert story.told == json.loads(GOLDEN.read_text(encoding="utf-8"))
