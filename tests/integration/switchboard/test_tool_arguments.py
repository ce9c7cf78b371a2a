"""Arguments of every tool: what fits its schema is understood, what does not is refused by the name of the argument."""

from __future__ import annotations

import re
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from sqlalchemy import func, literal, select, union_all

from postroom.db import Tx
from postroom.db.tables import all_tables
from postroom.domain.errors import BadInput, Fatal, PostroomError
from postroom.domain.roles import Caller, Role
from postroom.switchboard.toolbox import Tool
from tests.support.archives import plain_letter
from tests.support.databases import on_sqlite
from tests.support.mail import ME, envelope, inline
from tests.support.switchboards import Bench

JOB = {"job_id": "0199a1c2-7e5b-7abc-8def-0123456789ab"}
MAILBOX = {"connector_type": "gmail", "endpoint_identity": ME}
DAYS = {"date_from": "2025-01-01", "date_to": "2025-12-31"}
NOTHING = "0199a1c2-7e5b-7abc-8def-0123456789ab"
RULE = {
    "name": "Shops", "scope": "global", "priority": 7, "condition": {"sender_domain": "shop.example"},
    "actions": ["archive"], "unattended": False, "enabled": True,
}  # fmt: skip
GUIDANCE = {"name": "School", "scope": "domain:school.example", "text": "Keep it."}
FITTING: dict[str, dict[str, Any]] = {
    "accounts.add": {"email": ME, "api_base": "https://mail.example", "access_token": "abc"},
    "accounts.sync_labels": {"endpoint_identity": ME},
    "categories.correct": {"sender": "shop.example", "category": "finance"},
    "categories.define": {"version": "old", "definitions": ""},
    "categories.forget": {"sender": "shop.example"},
    "checklist.show": {"step": "model", "shown": True},
    "imports.forget": {"import_id": NOTHING},
    "imports.list": {"limit": 5},
    "imports.resume": {"import_id": NOTHING},
    "imports.start": {"upload": NOTHING, "name": "old.mbox", "endpoint_identity": ME},
    "imports.stop": {"import_id": NOTHING},
    "model.check": {},
    "pictures.allow": {"endpoint_identity": ME, "key": "a"},
    "pictures.forget": {"sender": "zoe@friends.example"},
    "pictures.load": {"endpoint_identity": ME, "key": "a"},
    "policy.replace": {"version": "old", "rules": []},
    "searches.list": {},
    "searches.remove": {"name": "Shops"},
    "searches.save": {"name": "Shops", "query": "from:shop.example", "endpoint_identity": ME},
    "settings.change": {"version": "old", "values": {"model.timeout_s": "7"}},
    "settings.list": {},
    "settings.secret": {"name": "model.api_key", "secret": "x"},
    "unsubscribe.forget": {"endpoint_identity": ME, "sender": "zoe@friends.example"},
    "unsubscribe.note": {"endpoint_identity": ME, "key": "a", "way": "link"},
    "contacts.add": {"address": "zoe@friends.example"},
    "contacts.remove": {"address": "zoe@friends.example"},
    "contacts.set_priority": {"address": "zoe@friends.example", "has_priority": False},
    "actions.cancel": {"action": NOTHING},
    "actions.dismiss": {"action": NOTHING},
    "model.ceiling": {"cents": 900},
    "web.list_sources": {},
    "web.add_source": {"url": "ftp://127.0.0.1/feed", "mode": "PAGE", "slug": "nothing-there", "dry_run": True},
    "web.pause_source": {"source": "nothing-there", "paused": True},
    "web.remove_source": {"source": "nothing-there"},
    "web.set_notify": {"source": "nothing-there", "notify": []},
    "web.set_schedule": {"source": "nothing-there", "every": "weekly"},
    "actions.retry": {"action": NOTHING},
    "actions.do": {"message": NOTHING, "type": "apply_label", "parameters": {"label": "Later"}},
    "actions.do_many": {"messages": [{"mailbox": ME, "key": "a"}], "type": "apply_label", "parameters": {"label": "x"}},
    "actions.snooze": {"action": NOTHING, "until": "2026-07-01T00:00:00Z"},
    "actions.undo": {"action": NOTHING},
    "actions.undo_all": {"by": "model", "since": "2026-06-01T00:00:00Z", "until": "2026-06-02T00:00:00Z"},
    "actions.wake": {"action": NOTHING},
    "approvals.answer": {"action": NOTHING, "verdict": "approve", "note": "yes"},
    "approvals.answer_many": {"actions": [NOTHING], "verdict": "approve", "note": "yes"},
    "actions.take_back": {"actions": [NOTHING]},
    "review.reopen": {"items": [NOTHING]},
    "rules.dismiss_suggestion": {"suggestion": "0" * 32},
    "directions.add": {"text": "Be brief."},
    "directions.edit": {"direction": NOTHING, "text": "Be kind.", "enabled": True, "seen": "2026-06-01T00:00:00Z"},
    "directions.remove": {"direction": NOTHING},
    "guidance.add": GUIDANCE,
    "guidance.edit": {"guidance": NOTHING, **GUIDANCE, "enabled": True, "seen": "2026-06-01T00:00:00Z"},
    "guidance.remove": {"guidance": NOTHING},
    "jobs.cancel": {"job": NOTHING},
    "jobs.cancel_many": {"jobs": [NOTHING]},
    "jobs.retry": {"job": NOTHING},
    "jobs.retry_many": {"jobs": [NOTHING]},
    "jobs.retry_failed": {"type": "classify"},
    "model.switch": {"enabled": True},
    "review.ask": {"all": True, "cause": "budget"},
    "review.done": {"items": [NOTHING]},
    "review.list": {"cause": "budget", "endpoint_identity": ME, "after": NOTHING, "limit": 5},
    "learning.correct": {"message": NOTHING, "action": "archive"},
    "learning.status": {},
    "learning.switch": {"enabled": True},
    "restores.approve": {"run": NOTHING},
    "restores.list": {"limit": 5},
    "restores.plan": {"account": ME, "query": "older_than:1y", "to_account": "you@example.org", "folder": "Old"},
    "restores.reject": {"run": NOTHING},
    "restores.resume": {"run": NOTHING},
    "restores.start": {"account": ME, "query": "older_than:1y", "to_account": "you@example.org", "folder": "Old"},
    "restores.stop": {"run": NOTHING},
    "restores.undo": {"run": NOTHING},
    "propose_restore": {
        "account": ME, "query": "older_than:1y", "to_account": "you@example.org", "folder": "Old", "why": "asked",
    },
    "rules.add": RULE,
    "rules.applications": {"rule": NOTHING, "limit": 5},
    "rules.apply": {"rule": NOTHING, "query": "older_than:1y", "mailbox": ME, "cap": 5},
    "rules.resume_application": {"application": NOTHING, "cap": 10},
    "rules.stop_application": {"application": NOTHING},
    "rules.undo_application": {"application": NOTHING},
    "rules.edit": {"rule": NOTHING, **RULE, "stamp": "1"},
    "rules.move": {"rule": NOTHING, "direction": "up"},
    "rules.remove": {"rule": NOTHING, "stamp": "1"},
    "rules.switch": {"rule": NOTHING, "enabled": True},
    "tokens.create": {
        "role": "agent", "name": "reader", "expires_days": 3, "identity": ME, "permissions": ["read"],
    },
    "tokens.revoke": {"id": NOTHING},
    "tokens.revoke_all": {},
    "web.cancel_run": {"run": NOTHING},
    "web.create_run": {
        "sources": ["tiny"], "mode": "SITEMAP", "max_urls": 5, "max_urls_per_source": 5, "date_from": "2025-01-01",
        "date_to": "2025-12-31", "dry_run": True,
    },
    "web.look": {},
    "web.resume_run": {"run": NOTHING},
    "web.retry": {"sources": ["tiny"], "dry_run": True},
    "archive.changes": {"endpoint_identity": ME, "labels": [{"gmail_id": "a", "labels": ["INBOX"]}], "deleted": ["b"]},
    "archive.lookup": {"endpoint_identity": ME, "gmail_ids": ["a", "b"]},
    "archive.range": {"endpoint_identity": ME, **DAYS, "limit": 5, "headers": ["From"], "cursor": None},
    "archive.store": {
        "endpoint_identity": ME,
        "messages": [{"gmail_id": "a", "internal_date": 1, "raw": inline(plain_letter())["base64"], "labels": []}],
    },
    "audit.list": {"action": "backfill.create", "limit": 5},
    "backfill.cancel": JOB,
    "backfill.change": {**JOB, "rate_limit_per_hour": 7},
    "backfill.judge_again": JOB,
    "backfill.estimate": {**MAILBOX, **DAYS, "target_categories": ["finance"]},
    "backfill.list": {**MAILBOX, "status": "pending", "limit": 5},
    "backfill.pause": JOB,
    "backfill.poll": MAILBOX,
    "backfill.progress": {**JOB, "fence": 1, "rows_processed": 1, "rows_skipped": 0, "cursor": {"page": 1}},
    "backfill.resume": JOB,
    "backfill.show": JOB,
    "backfill.switch": {"enabled": True},
    "backfill.switch_state": {},
    "connector.heartbeat": {
        **MAILBOX, "instance": "one", "version": "1", "status": "running", "counters": {"n": 1}, "capabilities": ["x"],
    },
    "contacts.export": {"if_newer_than": "2026-01-01T00:00:00Z"},
    "create_backfill_job": {**MAILBOX, **DAYS, "target_categories": ["finance"], "rate_limit_per_hour": 10},
    "ask_archive": {"question": "When is the dentist?", "endpoint_identity": ME},
    "mail.ask": {"question": "When is the dentist?", "endpoint_identity": ME},
    "email_search_and_ingest": {"query": "dentist", "max_results": 5},
    "history.claim": {"endpoint_identity": ME, "instance": "one"},
    "history.commit": {
        "endpoint_identity": ME,
        "fence": 1,
        "history_id": "7",
        "release": False,
        "gap": {"since": 1_700_000_000, "only_older": False},
    },
    "history.gap": {"endpoint_identity": ME, "step": 1, "stage": "arrivals", "before": 1_700_000_000, "mark": "18f"},
    "ingest": envelope("a"),
    "list_actions": {"status": "completed", "by": "rule", "endpoint_identity": ME, "after": NOTHING, "limit": 5},
    "list_approvals": {"endpoint_identity": ME, "after": NOTHING, "limit": 5},
    "list_decisions": {"needs_review": True, "limit": 5},
    "list_jobs": {"state": "queued", "limit": 5},
    "list_review": {"cause": "budget", "endpoint_identity": ME, "after": NOTHING, "limit": 5},
    "list_rules": {},
    "list_web_sources": {},
    "propose_action": {"message": NOTHING, "type": "star", "parameters": {}, "why": "It is from your doctor."},
    "propose_rule": {
        "name": "Doctors", "scope": "global", "condition": {"sender": "a@b.example"}, "actions": ["star"], "why": "So.",
    },
    "archive_stats": {"by": "sender", "limit": 5},
    "show_digest": {"period": "week", "day": "2026-06-01"},
    "read_attachment": {"id": "18f0000000000001", "attachment": 0},
    "read_conversation": {"id": "18f0000000000001", "limit": 5},
    "read_message": {"id": "18f0000000000001"},
    "search_archive": {"query": "dentist", "limit": 5},
    "try_rule": {"condition": {"sender": "a@b.example"}, "scope": "global", "newest": 5},
    "undo_action": {"action": NOTHING},
    "sent.add": {"endpoint_identity": ME, "messages": [{"message_id": "<a@b>", "sent_at": "2026-01-01T00:00:00Z"}]},
    "sent.lookup": {"endpoint_identity": ME, "message_ids": ["<a@b>"]},
    "trouble.report": {
        "endpoint_identity": ME, "lane": "live", "settled": ["b"],
        "troubled": [{"gmail_id": "a", "archived": True, "reason": "cannot be read"}],
    },
}  # fmt: skip
NAMES_NOTHING = (
    "job_id", "id", "connector_type", "action", "rule", "direction", "guidance", "job", "run", "sources", "address",
    "endpoint_identity", "message", "messages", "actions", "item", "application", "source", "suggestion", "url",
    "import_id", "upload", "key", "sender", "name", "version", "query", "to_account",
)  # fmt: skip
"""Arguments that name what this installation does not have."""
JUNK: list[Any] = [
    None, True, -1, 0, 10**30, 1.5, float("nan"), "", " ", "\0", "\ud800", "x" * 70_000, "../..", [], [None], [[]],
    ["\0"], {}, {"": 1}, {"a": {"b": {}}}, "9999-12-31", "0001-01-01", "2025-02-30",
]  # fmt: skip


async def outcome(bench: Bench, tool: Tool[Any, Any], given: dict[str, Any]) -> PostroomError | None:
    try:
        await bench.toolbox.call(Caller(tool.role, "fuzz"), tool.alias, given)
    except PostroomError as error:
        return error
    return None


async def rows(bench: Bench) -> dict[str, int]:
    def count(tx: Tx) -> dict[str, int]:
        here = [table for table in all_tables().tables.values() if table.info.get("only") in (None, tx.dialect)]
        counts = [select(literal(table.name), func.count()).select_from(table) for table in here]
        return {name: number for name, number in tx.execute(union_all(*counts))}

    return await bench.database.read(count)


async def test_every_tool_has_a_schema_that_fits_what_it_takes(bench: Bench) -> None:
    assert {tool.name for tool in bench.toolbox} == set(FITTING)
    await bench.account()
    for tool in bench.toolbox:
        jsonschema.Draft202012Validator.check_schema(tool.schema)
        jsonschema.validate(FITTING[tool.name], tool.schema)
        assert tool.schema["additionalProperties"] is False
        assert len(tool.description) > 30
        error = await outcome(bench, tool, FITTING[tool.name])
        assert not isinstance(error, BadInput) or error.field in NAMES_NOTHING, (tool.name, error)


@pytest.mark.req("PL-4")
async def test_junk_in_any_argument_is_refused_by_its_name_and_stores_nothing(bench: Bench) -> None:
    """Whatever an argument holds: it is taken, or the answer names it; and a refusal has changed nothing."""
    for tool in bench.toolbox:
        for name in FITTING[tool.name]:
            before = await rows(bench)
            taken = 0
            for junk in JUNK:
                error = await outcome(bench, tool, {**FITTING[tool.name], name: junk})
                taken += error is None
                assert not isinstance(error, Fatal), (tool.name, name, junk)
                if isinstance(error, BadInput):
                    expected = (name, *FITTING[tool.name])
                    assert re.split(r"[.\[]", error.field)[0] in expected, (tool.name, name, junk, error.field)
            assert taken or await rows(bench) == before, (tool.name, name)


async def test_an_argument_that_does_not_belong_or_is_missing_is_named(bench: Bench) -> None:
    for tool in bench.toolbox:
        with pytest.raises(BadInput) as refused:
            await bench.toolbox.call(Caller(tool.role, "fuzz"), tool.name, {**FITTING[tool.name], "surprise": 1})
        assert refused.value.field == "surprise", tool.name
        required = ENVELOPE_FIELDS if tool.name == "ingest" else tool.schema.get("required", [])
        for name in required:
            given = {key: value for key, value in FITTING[tool.name].items() if key != name}
            with pytest.raises(BadInput, match="is missing") as refused:
                await bench.toolbox.call(Caller(tool.role, "fuzz"), tool.name, given)
            assert refused.value.field == name, tool.name


async def test_an_unknown_tool_is_named(bench: Bench) -> None:
    async with bench.client(Role.AGENT) as call:
        with pytest.raises(BadInput, match="there is no tool 'nothing'"):
            await call("nothing")


ENVELOPE_FIELDS = ["schema_version", "source", "event", "sender", "payload", "control"]


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


UNHOLDABLE: dict[str, dict[str, Any]] = {
    "a NUL": {"a": ["\0"]},
    "half a character": {"a": {"b": "\ud800"}},
    "in a name": {"a": [{"\0": 1}]},
    "too deep": nested(30),
    "far too deep": nested(400),
    "too large": {"a": ["x" * 1_000] * 100},
}


@on_sqlite
@pytest.mark.parametrize(
    ("tool", "field"),
    [("backfill.progress", "cursor"), ("create_backfill_job", "estimate"), ("connector.heartbeat", "checkpoint")],
)
async def test_an_object_that_a_database_cannot_hold_is_refused_by_name(tool: str, field: str, bench: Bench) -> None:
    """PostgreSQL has no form for a NUL in JSON, and what nests without end breaks whoever lists it."""
    found = bench.toolbox.get(tool)
    assert found is not None
    for kind, value in UNHOLDABLE.items():
        with pytest.raises(BadInput) as refused:
            await bench.toolbox.call(Caller(found.role, "test"), tool, {**FITTING[tool], field: value})
        assert refused.value.field.split(".")[0] == field, kind
    broken = {**FITTING["backfill.progress"], "status": "error", "error": "a\0b"}
    with pytest.raises(BadInput) as refused:
        await bench.toolbox.call(Caller(Role.CONNECTOR, "test"), "backfill.progress", broken)
    assert refused.value.field == "error"


@on_sqlite
async def test_labels_may_hold_joined_emoji_and_marks_of_direction(bench: Bench) -> None:
    """People name labels so, and a message that carries one is to be stored like any other."""
    labels = ["\U0001f468\u200d\U0001f469\u200d\U0001f467 Family", "\u200f\u05d3\u05d5\u05d0\u05e8"]
    stored = {**FITTING["archive.store"]["messages"][0], "labels": labels}
    async with bench.client() as call:
        await call("archive.store", endpoint_identity=ME, messages=[stored])
        changed = [{"gmail_id": "a", "labels": labels}]
        assert (await call("archive.changes", endpoint_identity=ME, labels=changed))["unknown"] == []
        for bad in ("a\0b", "a\x1b[31m", "a\nb", "\ud800"):
            with pytest.raises(BadInput):
                await bench.toolbox.call(
                    Caller(Role.CONNECTOR, "test"),
                    "archive.changes",
                    {"endpoint_identity": ME, "labels": [{"gmail_id": "a", "labels": [bad]}]},
                )
