"""The owner of an installation, who types commands and reads what they print; a worker works whenever he lets it, and
the time passes as he says. Everything is real but the outside and the time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from postroom import settings
from postroom.accounts.account import list_accounts
from postroom.accounts.account_jobs import job_of
from postroom.app import open_app
from postroom.app.worker import open_worker
from postroom.demo.demo_session import StandIns, open_stand_ins, write_home
from postroom.domain.clock import SystemClock
from tests.support.commands import postroom

NOTHING_RECURS = dict.fromkeys(("live", "sync", "backfill", "bad_messages", "labels", "sentinel"), "off")


@dataclass
class Owner:
    outside: StandIns
    later: timedelta = timedelta()

    @property
    def email(self) -> str:
        return self.outside.gmail.email

    async def types(self, *arguments: str) -> str:
        done = await postroom(*arguments)
        assert done.code == 0, done.stderr + done.stdout
        return done.stdout

    async def reads(self, *arguments: str) -> Any:
        done = await postroom(*arguments, "--json")
        assert done.code == 0, done.stderr + done.stdout
        return done.json

    async def is_refused(self, *arguments: str) -> str:
        """What the command says."""
        done = await postroom(*arguments)
        assert done.code != 0, done.stdout
        return done.stderr + done.stdout

    async def adds_the_account(self) -> None:
        gmail = self.outside.gmail
        login = ("--api-base", gmail.url, "--access-token", gmail.token)
        await self.types("account", "add", "gmail", "--email", gmail.email, *login)
        await self.lets_it_work("sync.gmail", "labels.sync.gmail")

    async def lets_it_work(self, *types: str, **later: float) -> None:
        """As `postroom worker --once` does, after so much time has passed; jobs of these types are due."""
        self.later += timedelta(**later)
        async with open_app(settings.load()) as app:
            accounts = await app.database.read(list_accounts)
            await app.queue.enqueue(*(job_of(name, account) for account in accounts for name in types))
            async with open_worker(app, until_idle=True) as worker:
                await worker.run()


@asynccontextmanager
async def living_at(
    home: Path, monkeypatch: pytest.MonkeyPatch, messages: int, documents: int = 1, **groups: Any
) -> AsyncIterator[Owner]:
    async with open_stand_ins(messages, documents) as outside:
        write_home(home, outside, **{"recurring": NOTHING_RECURS, **groups})
        owner = Owner(outside)
        monkeypatch.setattr(SystemClock, "now", lambda self: datetime.now(UTC) + owner.later)
        yield owner
