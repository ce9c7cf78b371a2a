"""`postroom approvals`: what a person sees, and what the answers do."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroom import settings
from postroom.app import open_app
from postroom.domain.actions import ActionStatus
from tests.support.actions import PendingApprovals
from tests.support.commands import PostroomProcess, postroom

pytestmark = pytest.mark.req("JB-16")


async def ask(kind: str = "trash", parameters: dict[str, object] | None = None, **columns: object) -> str:
    async with open_app(settings.load()) as app:
        return await PendingApprovals(app.database, app.clock).ask(kind, parameters, **columns)


async def status(action_id: str) -> ActionStatus:
    async with open_app(settings.load()) as app:
        return (await PendingApprovals(app.database, app.clock).action(action_id)).status


async def test_a_person_sees_what_is_needed_to_decide(home: Path) -> None:
    action_id = await ask("auto_reply", {"body": "Away until Monday.\x1b[2J"}, subject="Hi\x1b[2J")
    listed = await postroom("approvals", "list")
    shown = await postroom("approvals", "show", action_id)
    assert (listed.code, shown.code) == (0, 0)
    for text in (action_id, "Ann <ann@friends.example>", "reply to the sender", "only 60 % sure"):
        assert text in listed.stdout
    for text in (
        "model small",
        "auto_reply is dangerous",
        "only 60 % sure",
        "Away until Monday.",
        "waits for approval",
    ):
        assert text in shown.stdout
    assert "\x1b" not in listed.stdout + shown.stdout


async def test_several_are_answered_at_once(home: Path) -> None:
    first, second, third = [await ask() for _ in range(3)]
    done = await postroom("approvals", "approve", first, second, "--json")
    assert [(each["id"], each["counted"]) for each in done.json] == [(first, True), (second, True)]
    assert (await postroom("approvals", "reject", third, "--note", "no")).code == 0
    assert [await status(each) for each in (first, second, third)] == ["queued", "queued", "rejected"]


async def test_who_comes_second_is_told_and_fails(home: Path) -> None:
    action_id, other = await ask(), await ask()
    await postroom("approvals", "reject", action_id)
    late = await postroom("approvals", "approve", action_id, other)
    assert late.code == 1
    assert "not changed: rejected by dashboard cli" in late.stdout
    assert await status(other) is ActionStatus.QUEUED


async def test_a_dry_run_changes_nothing(home: Path) -> None:
    action_id = await ask()
    done = await postroom("approvals", "approve", "--all", "--dry-run")
    assert f"{action_id} would approve: move the message to the trash" in done.stdout
    assert await status(action_id) is ActionStatus.APPROVED_PENDING


async def test_all_are_answered_only_when_that_is_confirmed(home: Path) -> None:
    action_id = await ask()
    unsure = await postroom("approvals", "reject", "--all")
    assert unsure.code == 1
    assert await status(action_id) is ActionStatus.APPROVED_PENDING
    assert (await postroom("approvals", "reject", "--all", "--yes")).code == 0
    assert await status(action_id) is ActionStatus.REJECTED


@pytest.mark.parametrize("arguments", [["approve"], ["approve", "--all", "x"], ["show", "nonsense"], ["approve", "x"]])
async def test_bad_usage_is_told_apart(home: Path, arguments: list[str]) -> None:
    assert (await postroom("approvals", *arguments)).code == 2


async def test_the_stand_in_for_discord_is_a_command(tmp_path: Path) -> None:
    process = PostroomProcess("sim", "discord", home=tmp_path)
    await process.start()
    ready = await process.ready()
    assert set(ready) == {"url", "token", "channel_id", "public_key", "control_token"}
    assert (await process.end())[0] == 0
