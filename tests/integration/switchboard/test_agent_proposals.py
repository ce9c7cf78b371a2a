"""An agent proposes, and never approves: by role, permission and mailbox."""

from __future__ import annotations

from typing import Any

import pytest

from postroom.domain.errors import NotAllowed
from postroom.domain.roles import Caller, Permission, Role, all_permissions, default_permissions
from tests.support.actions import action_by_id, make_message
from tests.support.switchboards import Bench

ME, OTHER = "me@example.org", "other@example.org"

pytestmark = pytest.mark.req("UX-4", "HW-4")


async def call(bench: Bench, tool: str, *, mailbox: str | None = None, **arguments: Any) -> dict[str, Any]:
    given = default_permissions(Role.AGENT)
    caller = Caller(Role.AGENT, "helper", mailbox, given, token_id="x")  # noqa: S106
    return (await bench.toolbox.call(caller, tool, arguments)).wire()


async def mail_in(bench: Bench, email: str, key: str) -> None:
    await make_message(bench.database, bench.queue.clock, await bench.account(email), key)


async def test_a_proposed_action_waits_for_a_person_and_is_listed(bench: Bench) -> None:
    await mail_in(bench, ME, "m1")
    made = await call(bench, "propose_action", message="m1", type="archive", why="You have read it.")
    action = await action_by_id(bench.database, made["action"])
    assert (action.status, action.wanted_by) == ("approved_pending", "agent helper")
    assert action.reasons == ("helper proposes it: You have read it.",)
    [asked] = (await call(bench, "list_approvals"))["actions"]
    assert (asked["id"], asked["key"]) == (made["action"], "m1")
    for tool in ("approvals.answer", "actions.do", "rules.switch", "review.done"):
        with pytest.raises(NotAllowed, match="not allowed for role agent"):
            await call(bench, tool)


async def test_a_proposed_rule_is_off_until_a_person_switches_it_on(bench: Bench) -> None:
    written: dict[str, Any] = {"name": "Ann", "condition": {"sender": "ann@example.org"}, "actions": ["trash"]}
    await call(bench, "propose_rule", **written, why="You always do that.")
    [rule] = (await call(bench, "list_rules"))["rules"]
    assert not rule["enabled"]
    assert rule["disabled_reason"] == "proposed by helper: You always do that."


async def test_a_bound_agent_keeps_to_its_mailbox(bench: Bench) -> None:
    await mail_in(bench, ME, "m1")
    await mail_in(bench, OTHER, "m2")
    await call(bench, "propose_action", message="m2", type="star", why="So.")
    with pytest.raises(NotAllowed, match=f"for {ME} only"):
        await call(bench, "propose_action", mailbox=ME, message="m2", type="star", why="So.")
    assert (await call(bench, "list_actions", mailbox=ME))["actions"] == []
    assert len((await call(bench, "list_actions", mailbox=OTHER))["actions"]) == 1
    for tool in ("list_rules", "list_web_sources"):
        with pytest.raises(NotAllowed, match="concerns every mailbox"):
            await call(bench, tool, mailbox=ME)


async def test_undoing_is_a_permission_that_has_to_be_named(bench: Bench) -> None:
    with pytest.raises(NotAllowed, match="permission `undo`"):
        await call(bench, "undo_action")
    assert Permission.UNDO in all_permissions(Role.AGENT)
    assert Permission.APPROVE not in all_permissions(Role.AGENT)
