"""A machine on which the commands of the handbook can be run: a home, and stand-ins for all that lies outside of it."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from postroom import settings
from postroom.accounts.jobs import job_of
from postroom.accounts.store import list_accounts
from postroom.app import open_app
from postroom.app.jobs import BACKFILL, HISTORY_SYNC
from postroom.app.working import open_worker
from postroom.gmail.sim.command import build
from postroom.gmail.sim.server import Sim, running_sim
from postroom.triage.sim.server import ModelSim, running_model
from postroom.websources.sim.server import SiteSim, running_site
from tests.support.archives import generated
from tests.support.command_line import Done, in_this_process, postroom
from tests.support.databases import SqliteFactory
from tests.support.handbook import Command
from tests.support.mail_files import write_mbox
from tests.support.models import INPUT_PRICE, OUTPUT_PRICE
from tests.support.sim_mail import letter

YOU = "you@gmail.com"
SITE = "gazette.example"
_LISTINGS = {
    "ACTION": ("actions", "list", "--rule", "Receipts", "--status", "completed"),
    "QUESTION": ("approvals", "list"),
    "JOB": ("jobs", "list"),
    "BACKFILL": ("backfill", "list"),
    "TOKEN": ("token", "list"),
    "RUN": ("web", "runs"),
}
"""What a name in capitals stands for: the first that this command lists."""
_CSV = "Name,E-mail 1 - Value\nAnn,ann@friends.example\n"


@dataclass(frozen=True)
class World:
    home: Path
    folder: Path
    gmail: Sim

    async def run(self, command: Command) -> Done:
        """As it stands in the page, but for what only a person or Google can do."""
        words = command.words[1:]
        if words[:1] == ["worker"]:
            return await self._work()
        filled = [await self._filled(word) for word in self._logged_in(words)]
        # An import listens for signals, which only the main thread gets; and it asks no stand-in.
        done = in_this_process(*filled) if words[0] == "import" else await postroom(*filled)
        if ">" in command.text and done.code == 0:
            (self.folder / command.text.split(">")[-1].strip()).write_text(done.stdout)
        return done

    def _logged_in(self, words: list[str]) -> list[str]:
        """A login by browser becomes one with a token, at the stand-in."""
        if "--client-secrets" not in words:
            return words
        place = words.index("--client-secrets")
        own = ["--api-base", self.gmail.url, "--access-token", self.gmail.token]
        return [*words[:place], *own, *words[place + 2 :]]

    async def _filled(self, word: str) -> str:
        if word == "MESSAGE":
            return str(in_this_process("search", "in:inbox", "--json").json["hits"][0]["message"]["gmail_id"])
        if word not in _LISTINGS:
            return word
        listed = (await postroom(*_LISTINGS[word], "--json")).json
        entries = listed if isinstance(listed, list) else next(v for v in listed.values() if isinstance(v, list))
        return str(entries[0].get("id") or entries[0].get("action_id") or entries[0]["action"]["id"])

    async def _work(self) -> Done:
        """One letter from a shop has arrived since the last time."""
        bill = letter("Invoice 4711", sender="Shop <orders@shop.example>", to=YOU)
        self.gmail.control.deliver(bill, frozenset({"INBOX", "UNREAD"}))
        async with open_app(settings.load()) as app, open_worker(app, until_idle=True) as worker:
            accounts = await app.database.read(list_accounts)  # whose minute has come, as it were
            due = [job_of(kind.name, account) for account in accounts for kind in (HISTORY_SYNC, BACKFILL)]
            await app.queue.enqueue(*due)
            await worker.run()
        return Done(0, "", "")


@asynccontextmanager
async def handbook_world(
    home: Path, folder: Path, factory: SqliteFactory, monkeypatch: pytest.MonkeyPatch, *, messages: int = 60
) -> AsyncIterator[World]:
    """Backfill is on, the model is made up, nothing waits longer than it must."""
    home.mkdir(mode=0o700, parents=True)
    shutil.copy(factory.url().removeprefix("sqlite:///"), home / "postroom.db")
    async with AsyncExitStack() as stack:
        gmail = await stack.enter_async_context(running_sim(build(messages, 3, YOU)))
        model = await stack.enter_async_context(running_model())
        site = await stack.enter_async_context(running_site(documents=6))
        for name, value in _variables(model).items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(folder)
        _files(home, folder, site)
        yield World(home, folder, gmail)


def _variables(model: ModelSim) -> Mapping[str, str]:
    return {
        "BACKFILL_ENABLED": "true",
        "POSTROOM_SYNC__RPS_START": "1000",
        "POSTROOM_SYNC__RPS_MAX": "1000",
        "POSTROOM_SYNC__SETTLE_S": "0",
        "POSTROOM_BACKFILL__RATE_LIMIT_PER_HOUR": "100000",
        "POSTROOM_WEB__FETCHES_PER_MINUTE": "6000",
        "POSTROOM_MODEL__PROVIDER": "compatible",
        "POSTROOM_MODEL__NAME": "simulated-small",
        "POSTROOM_MODEL__BASE_URL": model.url,
        "POSTROOM_MODEL__API_KEY": model.token,
        "POSTROOM_MODEL__INPUT_PRICE": str(INPUT_PRICE),
        "POSTROOM_MODEL__OUTPUT_PRICE": str(OUTPUT_PRICE),
    }


def _files(home: Path, folder: Path, site: SiteSim) -> None:
    """What the pages suppose to be there already."""
    (folder / "contacts.csv").write_text(_CSV)
    write_mbox(folder / "old.mbox", [mail.raw for mail in generated(5)])
    (home / "sources.toml").write_text(
        f'[[source]]\nslug = "{SITE}"\ndomains = ["127.0.0.1"]\nallow_private = true\nmin_delay_ms = 0\n'
        f'max_delay_ms = 0\n[[source.endpoint]]\nname = "sitemap"\nmode = "sitemap"\nurl = "{site.url}/sitemap.xml"\n'
    )
