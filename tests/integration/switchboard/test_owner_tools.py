"""The owner's tools: what the dashboard changes is changed the same way by a direct call and over HTTP, by those who
may, and with the passphrase where it is asked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from postroom.actions import lifecycle
from postroom.actions.lifecycle import NewAction
from postroom.actions.scheduling import ActionIntake
from postroom.actions.snoozes import wake_job, write_snooze
from postroom.audit import AuditFilter, list_entries
from postroom.connectors.mcp_client import http_client, over_http
from postroom.contract import actions, agent, restores, rules, senders, steering, web
from postroom.contract import settings as configuration
from postroom.contract import settings as saved_searches
from postroom.contract.tool import Tools, ToolSignature
from postroom.db import Tx
from postroom.db.tables.queue import jobs as jobs_table
from postroom.db.tables.triage import actions as actions_table
from postroom.db.tables.triage import decisions as decisions_table
from postroom.domain.actions import ActionOrder, Origin, Proposal, parse_action
from postroom.domain.errors import BadInput, NotAllowed, PostroomError, error_to_wire
from postroom.domain.ids import new_id
from postroom.domain.jobs import CLASSIFY
from postroom.domain.roles import Caller, Permission, ProofNeeded, Role, all_permissions
from postroom.queue import NewJob
from postroom.settings import SafetySettings, read_layers
from postroom.settings.files import version_of
from postroom.switchboard.definitions import all_policy_rules, all_rules_version
from postroom.switchboard.tokens import list_tokens, verify_token
from postroom.switchboard.toolbox import Direct, Tool
from tests.support.actions import make_decision, make_message
from tests.support.mail import ME
from tests.support.switchboards import Bench, all_owner_tools, in_a_task, served
from tests.support.web_sources import sources_file, write_sources

OTHER = "you@example.org"
SHOPS = {"name": "Shops", "condition": {"sender_domain": "shop.example"}, "actions": ["archive"]}
DANGEROUS = {**SHOPS, "name": "Away", "actions": ["trash"], "unattended": True}
STEERING: list[ToolSignature[Any, Any]] = [actions.RETRY, actions.CANCEL, actions.UNDO, actions.WAKE]
_VARIES = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}|\d{4}-\d\d-\d\dT[\d:.]+(?:\+00:00|Z)"
    r"|prt_[\w-]{43}|(?<=changed_by\": \")\w+|(?<=created_by\": \")\w+|(?<=requested_by\": \")[\w ]+"
    r"|(?:stopped|undone) by \w+|(?<=by_rules\": )\d+|(?<=undecided\": )\d+"
    r"|by dashboard .*? at \d{4}-\d\d-\d\d \d\d:\d\d"
)


def owner_tools_of(bench: Bench) -> set[str]:
    """Those that this suite is about: all of the dashboard's role but backfill and the audit."""
    return {
        tool.name
        for tool in bench.toolbox.of(Role.DASHBOARD)
        if not tool.name.startswith(("backfill.", "audit.")) and tool.name != "create_backfill_job"
    }


@pytest.fixture
async def mcp(bench: Bench) -> AsyncIterator[str]:
    async with in_a_task(served(bench)) as url:
        yield url


class Installation:
    """What there is to change: made anew for every way of calling."""

    def __init__(self, bench: Bench, home: Path) -> None:
        self.bench = bench
        self.home = home
        self.made = 0

    async def action(self, status: str = "queued", wanted: str = "archive", email: str = ME) -> str:
        bench, clock = self.bench, self.bench.queue.clock
        account, gmail_id = await bench.account(email), self._next()
        message = await make_message(bench.database, clock, account, gmail_id)
        new = NewAction(account.id, gmail_id, parse_action(wanted), Origin.PERSON, "a person", message)

        def insert(tx: Tx) -> str:
            made = lifecycle.insert_action(tx, new, clock.now())
            tx.execute(update(actions_table).where(actions_table.c.id == made).values(status=status))
            return made

        return await bench.database.write(insert)

    async def message(self) -> str:
        bench = self.bench
        return await make_message(bench.database, bench.queue.clock, await bench.account(), self._next())

    async def left_to_a_person(self) -> str:
        """A message that nothing decided; the item of the review list."""
        bench, clock = self.bench, self.bench.queue.clock
        account = await bench.account()
        made = await make_decision(bench.database, clock, await self.message(), account.id)
        values = {"source": "none", "needs_review": True}
        change = update(decisions_table).where(decisions_table.c.id == made).values(values)
        await bench.database.write(lambda tx: tx.execute(change))
        return made

    async def question(self) -> str:
        bench, clock = self.bench, self.bench.queue.clock
        account, gmail_id = await bench.account(), self._next()
        message = await make_message(bench.database, clock, account, gmail_id)
        decision = await make_decision(bench.database, clock, message, account.id)
        asked = (Proposal(parse_action("trash"), ("trash is dangerous",)),)
        order = ActionOrder(account.id, message, gmail_id, None, decision, Origin.MODEL, "model m", asked)
        intake = ActionIntake(bench.queue, SafetySettings())
        return (await bench.database.write(lambda tx: intake.accept(tx, order)))[0]

    async def snooze(self) -> str:
        action_id, queue = await self.action("completed"), self.bench.queue
        until = queue.clock.now() + timedelta(hours=1)

        def arrange(tx: Tx) -> None:
            action = lifecycle.get_action(tx, action_id)
            job = wake_job(action.account_id, action.message_id, action_id, "L", until)
            write_snooze(tx, action, until, ("L", "later"), queue.add(tx, job)[0].job_id, queue.clock.now())

        await self.bench.database.write(arrange)
        return action_id

    async def job(self, state: str = "queued") -> str:
        queue = self.bench.queue

        def add(tx: Tx) -> str:
            made = queue.add(tx, NewJob(CLASSIFY.name, {"message_id": self._next()}, key=self._next()))[0].job_id
            if state != "queued":
                tx.execute(update(jobs_table).where(jobs_table.c.id == made).values(state=state, ready=False))
            return made

        return await self.bench.database.write(add)

    def _next(self) -> str:
        self.made += 1
        return f"m{self.made}"


class Changes:
    """Calls tools one way, and keeps what each answered or refused."""

    def __init__(self, tools: Tools) -> None:
        self.tools = tools
        self.told: list[tuple[str, Any]] = []

    async def __call__(self, tool: ToolSignature[Any, Any], /, **arguments: Any) -> Any:
        try:
            reply = await self.tools.call(tool, tool.arguments.model_validate(arguments))
        except PostroomError as error:
            self.told.append((tool.name, error_to_wire(error)["error"]))
            return None
        self.told.append((tool.name, reply.wire()))
        return reply

    def outcome(self) -> list[str]:
        """Without ids, times, tokens, the name of the caller, and what was decided before."""
        return [_VARIES.sub("*", json.dumps(each)) for each in self.told]

    def refused(self) -> set[str]:
        return {name for name, reply in self.told if "kind" in reply}


async def change_everything(call: Changes, there: Installation) -> None:
    await _actions(call, there)
    await _rules(call)
    await _web(call, there)
    await _installation(call, there)


async def _actions(call: Changes, there: Installation) -> None:
    question = await there.question()
    await call(actions.ANSWER, action=question, verdict="reject", note="no")
    await call(actions.ANSWER, action=question, verdict="approve")
    await call(actions.ANSWER_MANY, actions=[await there.question(), question], verdict="approve")
    await call(actions.TAKE_BACK, actions=[question])
    await call(actions.RETRY, action=await there.action("failed"))
    await call(actions.DISMISS, action=await there.action("failed"))
    await call(actions.CANCEL, action=await there.action())
    await call(actions.DO, message=await there.message(), type="star")
    await call(actions.DO_MANY, messages=[{"mailbox": "me@example.org", "key": "nothing"}], type="star")
    await call(actions.LIST_REVIEW)
    item = await there.left_to_a_person()
    await call(actions.REVIEW_DONE, items=[item])
    await call(actions.REVIEW_REOPEN, items=[item])
    await call(actions.REVIEW_DONE, items=[item])
    await there.left_to_a_person()
    await call(actions.REVIEW_ASK, all=True)
    await call(actions.UNDO, action=await there.action())
    snooze = await there.snooze()
    await call(actions.SNOOZE, action=snooze, until=there.bench.queue.clock.now() + timedelta(days=2))
    await call(actions.WAKE, action=snooze)
    now = there.bench.queue.clock.now()
    await call(actions.UNDO_ALL, since=now - timedelta(hours=1), until=now)


async def _rules(call: Changes) -> None:
    made = await call(rules.ADD, **SHOPS)
    await call(rules.EDIT, rule=made.rule, **SHOPS | {"priority": 7})
    await call(rules.EDIT, rule=made.rule, stamp="old", **SHOPS)
    await call(rules.MOVE, rule=made.rule, direction="down")
    await call(rules.SWITCH, rule=made.rule, enabled=False)
    await call(rules.DISMISS_SUGGESTION, suggestion="0" * 32)
    await call(rules.ADD, **DANGEROUS)
    past = {"application": (await call(rules.APPLY, rule=made.rule, query="older_than:1d")).id}
    await call(rules.STOP_APPLICATION, **past)
    await call(rules.RESUME_APPLICATION, **past, cap=7)
    await call(rules.UNDO_APPLICATION, **past)
    await call(rules.APPLICATIONS, rule=made.rule)
    await call(rules.REMOVE, rule=made.rule)
    direction = (await call(rules.ADD_DIRECTION, text="Be brief.")).direction
    await call(rules.EDIT_DIRECTION, direction=direction, text="Be kind.")
    await call(rules.REMOVE_DIRECTION, direction=direction)
    guidance = (await call(rules.ADD_GUIDANCE, name="School", text="Keep it.")).guidance
    await call(rules.EDIT_GUIDANCE, guidance=guidance, scope="domain:school.example", enabled=False)
    await call(rules.REMOVE_GUIDANCE, guidance=guidance)


async def _web(call: Changes, there: Installation) -> None:
    write_sources(there.home, sources_file("http://127.0.0.1:1"))
    await call(web.LIST_SOURCES)
    await call(web.ADD_SOURCE, url="http://127.0.0.1:1/", mode="PAGE", slug="home", dry_run=True)
    await call(web.PAUSE_SOURCE, source="tiny")
    await call(web.PAUSE_SOURCE, source="tiny", paused=False)
    await call(web.SET_NOTIFY, source="tiny", notify=["overview"])
    await call(web.SET_SCHEDULE, source="tiny", every="weekly")
    await call(web.REMOVE_SOURCE, source="tiny")
    await call(web.LOOK)
    await call(web.RETRY_PAGES, sources=["tiny"])
    run = (await call(web.CREATE_RUN, sources=["tiny"], mode="SITEMAP")).run
    await call(web.CANCEL_RUN, run=run)
    await call(web.RESUME_RUN, run=run)


async def _installation(call: Changes, there: Installation) -> None:
    heir = (await call(steering.CREATE_TOKEN, role="dashboard", name="heir", permissions=["read"])).stored.id
    await call(steering.CREATE_TOKEN, role="agent", name="beyond")
    await call(steering.REVOKE_TOKEN, id=heir)
    await call(steering.REVOKE_ALL_TOKENS)
    await call(steering.ADD_ACCOUNT, email=ME, api_base="https://mail.example", access_token="abc")  # noqa: S106
    await call(steering.SET_CEILING, cents=900)
    await call(steering.SYNC_LABELS, endpoint_identity=ME)
    await call(senders.ADD_CONTACT, address="zoe@friends.example")
    await call(senders.SET_CONTACT_PRIORITY, address="zoe@friends.example", has_priority=False)
    await call(senders.REMOVE_CONTACT, address="zoe@friends.example")
    await call(senders.CORRECT_CATEGORY, sender="shop.example", category="finance")
    await call(senders.FORGET_CORRECTION, sender="shop.example")
    await call(steering.SWITCH_MODEL, enabled=False)
    await call(steering.SWITCH_MODEL, enabled=True)
    await call(rules.SWITCH_LEARNING, enabled=False)
    await call(rules.SWITCH_LEARNING, enabled=True)
    await call(rules.CORRECT_DECISION, message=await there.message(), action="archive")
    await call(rules.LEARNING_STATUS)
    await call(steering.RETRY_JOB, job=await there.job("failed"))
    await call(steering.RETRY_JOBS, jobs=[await there.job("failed")])
    await call(steering.CANCEL_JOBS, jobs=[await there.job("failed")])
    await call(steering.CANCEL_JOB, job=await there.job())
    await there.job("failed")
    await call(steering.RETRY_FAILED_JOBS, type=CLASSIFY.name)
    await call(saved_searches.SAVE_SEARCH, name="Shops", query="from:shop.example")
    await call(saved_searches.LIST_SEARCHES)
    await call(saved_searches.REMOVE_SEARCH, name="Shops")
    await call(steering.SHOW_CHECKLIST, step="model", shown=False)
    await call(steering.SHOW_CHECKLIST, step="model", shown=True)
    await _nothing_there(call)
    await call(configuration.LIST_SETTINGS)
    version = read_layers(there.home).version
    await call(configuration.CHANGE_SETTINGS, version=version, values={"model.timeout_s": "7"})
    await call(configuration.STORE_SECRET, name="model.api_key", secret="x")  # noqa: S106
    await call(configuration.CHECK_MODEL)
    version, policy = await there.bench.database.read(lambda tx: (all_rules_version(tx), all_policy_rules(tx)))
    await call(configuration.REPLACE_POLICY, version=version, rules=policy)
    await call(configuration.DEFINE_CATEGORIES, version=version_of(b""), definitions="")


async def _nothing_there(call: Changes) -> None:
    """Imports, restores, questions, pictures and lists have tests of their own, with files and mail that they need."""
    nothing, mail = new_id(), {"endpoint_identity": ME, "key": "nothing"}
    await call(steering.LIST_IMPORTS)
    await call(steering.START_IMPORT, upload=nothing, name="old.mbox", endpoint_identity=ME)
    for tool in (steering.STOP_IMPORT, steering.RESUME_IMPORT, steering.FORGET_IMPORT):
        await call(tool, import_id=nothing)
    await call(restores.LIST)
    await call(restores.PLAN, account=ME)
    await call(restores.START, account=ME)
    for step in (restores.APPROVE, restores.REJECT, restores.STOP, restores.RESUME, restores.UNDO):
        await call(step, run=nothing)
    await call(agent.ASK, question="Where is the invoice of Zoe?")
    await call(actions.LOAD_PICTURES, **mail)
    await call(actions.ALLOW_PICTURES, **mail)
    await call(actions.FORGET_PICTURES, sender="zoe@friends.example")
    await call(actions.NOTE_UNSUBSCRIBED, **mail, way="link")
    await call(actions.FORGET_UNSUBSCRIBED, endpoint_identity=ME, sender="zoe@friends.example")


async def entries(bench: Bench, name: str) -> list[tuple[str, str]]:
    found = (await bench.database.read(lambda tx: list_entries(tx, AuditFilter(limit=500)))).entries
    return [(entry.action, entry.actor.role) for entry in found if entry.actor.name == name]


async def test_every_change_is_the_same_by_a_direct_call_and_over_http(bench: Bench, mcp: str, tmp_path: Path) -> None:
    there = Installation(bench, tmp_path)
    every = all_permissions(Role.DASHBOARD)
    texts = {way: await bench.token(Role.DASHBOARD, name=way, permissions=every) for way in ("direct", "http")}
    found = await bench.database.read(lambda tx: verify_token(tx, texts["direct"], bench.queue.clock.now()))
    assert found is not None
    async with http_client() as http:
        ways: dict[str, Tools] = {
            "direct": Direct(bench.toolbox, found.caller),
            "http": over_http(mcp, texts["http"], http),
        }
        told = {}
        for way, tools in ways.items():
            told[way] = Changes(tools)
            await change_everything(told[way], there)
    assert told["direct"].outcome() == told["http"].outcome()
    assert {name for name, _ in told["http"].told} == owner_tools_of(bench)
    beyond_a_token = {"actions.undo", "rules.edit", "rules.add", "web.resume_run", "accounts.add"}
    out_of_reach = {"actions.do_many", "accounts.sync_labels", "web.add_source", "web.remove_source", "web.set_notify"}
    out_of_reach |= {"web.set_schedule"}
    never_made = {"rules.dismiss_suggestion"}
    with_proof = {"settings.change", "settings.secret", "tokens.create", "tokens.revoke_all"}
    with_proof |= {"restores.start", "restores.approve", "restores.resume"}
    not_there = {"imports.start", "imports.stop", "imports.resume", "imports.forget", "unsubscribe.note"}
    not_there |= {"pictures.load", "pictures.allow", "pictures.forget", "unsubscribe.forget"}
    not_there |= {"restores.reject", "restores.stop", "restores.undo"}
    refused = beyond_a_token | out_of_reach | never_made | with_proof | not_there
    assert told["http"].refused() == refused
    assert await entries(bench, "direct") == await entries(bench, "http")
    assert len(await entries(bench, "http")) > 20


async def test_a_caller_changes_what_its_permissions_say_and_nothing_else(bench: Bench, mcp: str) -> None:
    every = all_permissions(Role.DASHBOARD)
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(http_client())
        for permission in every - {Permission.READ, Permission.BACKFILL}:
            mine = {tool.name for tool in bench.toolbox.of(Role.DASHBOARD) if tool.permission is permission}
            assert mine, permission
            lacking = every - {permission}
            text = await bench.token(Role.DASHBOARD, name=permission, permissions=lacking)
            caller = Caller(Role.DASHBOARD, "someone", permissions=lacking, token_id="x")  # noqa: S106
            for tool in bench.toolbox.of(Role.DASHBOARD):
                assert (tool.refusal(caller) is None) == (tool.name not in mine), tool.name
            for name in sorted(mine):
                for tools in (Direct(bench.toolbox, caller), over_http(mcp, text, http)):
                    with pytest.raises(NotAllowed, match=f"permission `{permission}`"):
                        await tools.call(_signature(bench, name), {})


async def test_tokens_make_no_sensitive_change_and_a_person_only_with_the_passphrase(bench: Bench, mcp: str) -> None:
    text = await bench.token(Role.DASHBOARD, permissions=all_permissions(Role.DASHBOARD))
    owner = Caller(Role.DASHBOARD, "owner")
    rule = (await Direct(bench.toolbox, replace(owner, is_proved=True)).call(rules.ADD, DANGEROUS)).rule
    await Direct(bench.toolbox, owner).call(rules.SWITCH, {"rule": rule, "enabled": False})
    sensitive: list[tuple[ToolSignature[Any, Any], dict[str, Any]]] = [
        (rules.ADD, {**DANGEROUS, "name": "Again"}),
        (rules.EDIT, {**DANGEROUS, "rule": rule}),
        (rules.SWITCH, {"rule": rule, "enabled": True}),
    ]
    async with http_client() as http:
        for tool, arguments in sensitive:
            with pytest.raises(NotAllowed, match=r"A token cannot save or switch on a rule .* needs the passphrase"):
                await over_http(mcp, text, http).call(tool, arguments)
    for tool, arguments in [*sensitive, (steering.CREATE_TOKEN, {"role": "agent", "name": "reader"})]:
        with pytest.raises(ProofNeeded, match="give your passphrase again"):
            await Direct(bench.toolbox, owner).call(tool, arguments)
        await Direct(bench.toolbox, replace(owner, is_proved=True)).call(tool, arguments)
    assert {token.name for token in await bench.database.read(list_tokens)} == {"a dashboard", "reader"}


async def test_a_bound_token_changes_actions_of_its_own_mailbox_and_nothing_that_concerns_all(
    bench: Bench, mcp: str, tmp_path: Path
) -> None:
    there = Installation(bench, tmp_path)
    mine, other = await there.action("failed"), await there.action("failed", email=OTHER)
    every = all_permissions(Role.DASHBOARD)
    text = await bench.token(Role.DASHBOARD, endpoint_identity=ME, permissions=every)
    caller = Caller(Role.DASHBOARD, "bound", ME, every, token_id="x")  # noqa: S106
    mine_too = [tool for tool in all_owner_tools(bench.queue, tmp_path) if tool.role is Role.DASHBOARD]
    concerns_all = {tool.name for tool in mine_too if not (tool.keeps_to_mailbox or tool.names_mailbox)}
    assert {"rules.add", "web.look", "actions.undo_all"} <= concerns_all
    async with http_client() as http:
        for tools in (Direct(bench.toolbox, caller), over_http(mcp, text, http)):
            for name in concerns_all:
                with pytest.raises(NotAllowed, match="concerns every mailbox"):
                    await tools.call(_signature(bench, name), {})
            for tool in STEERING:
                with pytest.raises(NotAllowed, match=f"for {ME} only"):
                    await tools.call(tool, {"action": other})
            with pytest.raises(NotAllowed, match=f"for {ME} only"):
                await tools.call(actions.ANSWER, {"action": other, "verdict": "approve"})
            with pytest.raises(BadInput, match="only what has not begun"):
                await tools.call(actions.CANCEL, {"action": mine})
        assert (await over_http(mcp, text, http).call(actions.RETRY, {"action": mine})).action == mine
    status = select(actions_table.c.status).where(actions_table.c.id == other)
    assert await bench.database.read(lambda tx: tx.execute(status).scalar_one()) == "failed"


def _signature(bench: Bench, name: str) -> ToolSignature[Any, Any]:
    tool: Tool[Any, Any] | None = bench.toolbox.get(name)
    assert tool is not None
    return tool.signature
