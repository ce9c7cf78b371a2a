"""Resources and prompts have the bounds of the tools that they are made of: role, permission and mailbox."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import get_args

import pytest
from mcp.shared.exceptions import MCPError

from postroom.archive.indexing import index_conversations
from postroom.archive.messages import IncomingMail, Provenance
from postroom.archive.statistics import StatisticsBy
from postroom.contract.agent import StatisticsArguments
from postroom.domain.errors import NotAllowed, NotFound
from postroom.domain.roles import Caller, Permission, Role
from postroom.switchboard.mcp_resources import PROMPTS, RESOURCES, AssistantLibrary
from tests.support.conversations import mail as conversation_mail
from tests.support.databases import on_sqlite
from tests.support.mail import ME, letter
from tests.support.switchboards import Bench, in_a_task, served, stranger

pytestmark = pytest.mark.req("UX-4")

OTHER = "other@example.org"


@pytest.fixture
async def mcp(bench: Bench) -> AsyncIterator[str]:
    async with in_a_task(served(bench)) as url:
        yield url


def agent(*permissions: Permission, mailbox: str | None = None) -> Caller:
    return Caller(Role.AGENT, "a test", mailbox, frozenset(permissions), token_id="t" if permissions else None)


async def stored(bench: Bench, mailbox: str, subject: str) -> str:
    mail = IncomingMail(letter(subject, to=mailbox), Provenance.API, gmail_id=f"18f{len(subject):013x}")
    [found] = await bench.archive.of(mailbox).store([mail])
    return found.key


@on_sqlite
async def test_a_bound_token_reads_its_own_mailbox_only(bench: Bench) -> None:
    mine, theirs = await stored(bench, ME, "Mine"), await stored(bench, OTHER, "Not mine")
    library, bound = AssistantLibrary(bench.toolbox), agent(Permission.READ, mailbox=ME)
    assert "Mine" in (await library.read(bound, f"postroom://message/{mine}")).text
    for kind in ("message", "conversation"):
        with pytest.raises(NotFound):
            await library.read(bound, f"postroom://{kind}/{theirs}")
    assert "Not mine" in (await library.read(agent(), f"postroom://conversation/{theirs}")).text
    await bench.account(ME)
    assert '"items":[]' in (await library.read(bound, "postroom://attention")).text
    counted = await bench.toolbox.call(bound, "archive_stats", {"by": "sender"})
    assert [row["messages"] for row in counted.wire()["rows"]] == [1]


@on_sqlite
@pytest.mark.req("FD-5")
async def test_a_conversation_reaches_over_mailboxes_but_not_past_those_of_a_token(bench: Bench) -> None:
    first = conversation_mail("first", to=ME)
    answer = conversation_mail("second", answers="first", sender=OTHER, to="ann@x.example", day=1)
    [mine] = await bench.archive.of(ME).store([first])
    await bench.archive.of(OTHER).store([answer])
    index_conversations(bench.archive.backend)
    called = await bench.toolbox.call(agent(), "read_conversation", {"id": mine.key})
    whole = called.wire()
    assert [each["account"] for each in whole["messages"]] == [ME, OTHER]
    assert (whole["count"], whole["has_older"]) == (2, False)
    assert {"address": OTHER, "wrote": 1, "received": 0} in whole["people"]
    bound = agent(Permission.READ, mailbox=ME)
    part = (await bench.toolbox.call(bound, "read_conversation", {"id": mine.key})).wire()
    assert [each["account"] for each in part["messages"]] == [ME]
    assert part["count"] == 1
    assert OTHER not in str(part)


@on_sqlite
async def test_what_a_token_may_not_call_is_not_offered_and_is_refused(bench: Bench) -> None:
    library = AssistantLibrary(bench.toolbox)
    searcher, reader = agent(Permission.SEARCH), agent(Permission.READ)
    assert (library.resources(searcher), library.templates(searcher), library.prompts(searcher)) == ([], [], [])
    assert {each.name for each in library.prompts(reader)} == {"needs_me", "conversation"}
    assert {each.name for each in library.prompts(agent())} == {each.name for each in PROMPTS}
    assert len(library.resources(reader)) + len(library.templates(reader)) == len(RESOURCES)
    for uri in ("postroom://attention", "postroom://today"):
        with pytest.raises(NotAllowed):
            await library.read(searcher, uri)
    with pytest.raises(NotAllowed):
        await library.prompt(searcher, "needs_me", {})


@on_sqlite
async def test_other_roles_have_neither_and_an_agent_has_both_over_http(bench: Bench, mcp: str) -> None:
    async with stranger(mcp, await bench.token(Role.AGENT)) as call:
        assert len((await call.client.list_prompts()).prompts) == len(PROMPTS)
        assert "<data>" in (await call.client.read_resource("postroom://today")).contents[0].text  # type: ignore[union-attr]
        with pytest.raises(MCPError, match="there is no"):
            await call.client.read_resource("postroom://nothing")
    for role in (Role.DASHBOARD, Role.CONNECTOR):
        async with stranger(mcp, await bench.token(role)) as call:
            with pytest.raises(MCPError):
                await call.client.read_resource("postroom://today")


@on_sqlite
async def test_no_prompt_or_resource_can_approve_or_change_anything(bench: Bench) -> None:
    """Agents never approve: not by a tool, and not by what is made of tools."""
    used = {call.tool for each in RESOURCES for call in each.calls} | {name for each in PROMPTS for name in each.tools}
    changing = {name for name in used if (tool := bench.toolbox.get(name)) is None or not tool.reads_only}
    assert changing == {"ask_archive"}  # which changes what was spent, and nothing else
    offered = bench.toolbox.open_to(agent())
    assert not [tool.name for tool in offered if tool.permission is Permission.APPROVE or "approve" in tool.name]


def test_statistics_are_counted_by_what_the_archive_counts_by() -> None:
    assert set(get_args(StatisticsArguments.model_fields["by"].annotation)) == set(StatisticsBy)
