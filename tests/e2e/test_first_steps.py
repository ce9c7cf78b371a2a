"""From an empty home to old and new mail taken in, by commands alone: what a person types, and a worker beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import CommandResult, PostroomProcess, command
from tests.support.deployment import model_variables, stand_in

DAYS = ("--from", "2022-01-01", "--to", "2024-12-31")


class Person:
    """At a terminal, with a few settings in the environment."""

    def __init__(self, home: Path, variables: dict[str, str]) -> None:
        self.home = home
        self.variables = variables

    async def types(self, *arguments: str) -> CommandResult:
        done = await command(self.home, *arguments, **self.variables)
        assert done.code == 0, done.stderr
        return done

    async def reads(self, *arguments: str) -> Any:
        return (await self.types(*arguments, "--json")).json

    async def until(self, *arguments: str, holds: Callable[[Any], bool]) -> Any:
        while not holds(told := await self.reads(*arguments)):
            await asyncio.sleep(0.5)
        return told


@pytest.mark.req("BF-2", "BF-19", "BF-22", "PQ-4", "JB-18", "PL-2")
async def test_commands_and_a_worker_bring_old_and_new_mail(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with (
        stand_in(tmp_path / "gmail", "gmail", "--messages", "120", "--seed", "3") as gmail,
        stand_in(tmp_path / "model", "model") as model,
    ):
        quick = {"POSTROOM_RECURRING__LIVE": "every 2s", "POSTROOM_RECURRING__BACKFILL": "every 2s"}
        variables = {**model_variables(model), **quick, "BACKFILL_ENABLED": "true", "POSTROOM_WORKER__POLL_S": "0.5"}
        person = Person(home, variables)
        who = ("--email", gmail.email, "--api-base", gmail.url, "--access-token", gmail.token)
        await person.types("account", "add", "gmail", *who)
        await know_ann(person, tmp_path / "people.csv")
        assert (await person.reads("token", "create", "--role", "agent"))["role"] == "agent"

        days = ("--account", gmail.email, "--all-mail", *DAYS, "--rate", "100000")
        estimate = await person.reads("backfill", "estimate", *days)
        created = await person.reads("backfill", "create", *days, "--yes")
        worker = PostroomProcess("worker", home=home, variables=variables)
        await worker.start()
        try:
            await comes_in(person, lambda: gmail.deliver("Lunch?"), created["job_id"], estimate)
            assert (await worker.end())[0] == 0
        finally:
            await worker.kill()


async def know_ann(person: Person, file: Path) -> None:
    file.write_text("Name,E-mail 1 - Value\nAnn,ann@friends.example\n")
    assert (await person.reads("contacts", "import", str(file)))["result"]["added"] == 1
    assert (await person.reads("contacts", "export"))["addresses"] == ["ann@friends.example"]


async def comes_in(person: Person, write: Callable[[], Awaitable[str]], job_id: str, estimate: Any) -> None:
    looked = ("jobs", "list", "--type", "history.sync.gmail", "--state", "completed")
    await person.until(*looked, holds=bool)
    await write()
    [job] = await person.until("backfill", "list", "--status", "completed", holds=bool)
    assert job["id"] == job_id
    shown = await person.reads("backfill", "show", job_id)
    assert shown["job"]["rows_processed"] > 0
    assert estimate["messages"] > 0
    live = ("jobs", "list", "--type", "classify", "--queue", "live", "--state", "completed")
    [classified] = await person.until(*live, holds=bool)
    assert classified["tier"] == "high_priority", "from somebody we know"
    audited = (await person.reads("audit", "--subject", job_id))["entries"]
    assert [entry["action"] for entry in reversed(audited)] == [
        "backfill.create",
        "backfill.start",
        "backfill.complete",
    ]
    assert await person.reads("jobs", "list", "--state", "failed") == []
