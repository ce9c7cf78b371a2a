"""The world of the demonstration, and how its steps act and look in it.

Everything outside is simulated on loopback (a mailbox, a model, a web site): with a home folder that points to it, the
mail that arrives during the demonstration, and what the simulated model says about it. All of it is made up. The steps
act through the services that commands and pages use, and over MCP as an agent does. A session needs only the
installation and an address, so it works in the process that does the work or in another.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.utils import formatdate, make_msgid, parseaddr
from pathlib import Path
from typing import Any, TypeVar

import tomli_w
from sqlalchemy import select

from postroom import settings
from postroom.accounts.account import Account, get_account
from postroom.app import App
from postroom.audit import Actor
from postroom.connectors.mcp_client import http_client, over_http
from postroom.contract.tool import A, R, Tools, ToolSignature
from postroom.db import Tx
from postroom.db.tables.queue import jobs
from postroom.domain.errors import Fatal
from postroom.domain.roles import Caller, Role
from postroom.sim.gmail.server import GmailSim, build, running_sim
from postroom.sim.model.answers import Script, ScriptedAnswer
from postroom.sim.model.server import ModelSim, running_model
from postroom.sim.web.server import SiteSim, running_site
from postroom.switchboard.tokens import NewToken, create_token, revoke_token

DOCTOR = "Dr. Novak's practice <office@clinic.example>"
_BULK = {"List-Unsubscribe": "<https://news.example/off>", "Precedence": "bulk"}
_LIST = {
    **_BULK,
    "Precedence": "list",
    "List-Id": "Choir <choir.lists.example>",
    "List-Post": "<mailto:c@lists.example>",
}


@dataclass(frozen=True)
class DemoLetter:
    sender: str
    subject: str
    text: str = "This letter is simulated.\n"
    headers: Mapping[str, str] = field(default_factory=dict)

    def raw(self, to: str) -> bytes:
        message = EmailMessage()
        domain = parseaddr(self.sender)[1].rpartition("@")[2]
        message["Authentication-Results"] = f"mx.google.com; dmarc=pass header.from={domain}"  # as Gmail adds it
        message["From"], message["To"], message["Subject"] = self.sender, to, self.subject
        message["Date"] = formatdate()
        message["Message-ID"] = make_msgid(domain="simulated.example")
        for name, value in self.headers.items():
            message[name] = value
        message.set_content(self.text)
        return message.as_bytes()


CONFIRMATION = DemoLetter(DOCTOR, "Your appointment tomorrow at 10:30 is confirmed", "Please come ten minutes early.\n")
MORNING = (
    *(DemoLetter("Morning News <news@news.example>", f"Newsletter {n} of 15", headers=_BULK) for n in range(1, 16)),
    *(DemoLetter("Choir <choir@lists.example>", f"Rehearsal, part {n}", headers=_LIST) for n in range(1, 4)),
    DemoLetter("Piano shop <hello@pianos.example>", "Your piano can be collected", "It is tuned. Come by any time.\n"),
    CONFIRMATION,
)
"""Eight in the morning. The one that matters comes last."""

BILL = DemoLetter(
    "City Power <billing@power.example>", "Your electricity bill for October", "The total is 61.20 EUR.\n"
)
OFFER = DemoLetter("Lamp World <offers@lamps.example>", "20 % off all lamps", headers=_BULK)
PRIZE = DemoLetter("Lottery <win@prizes.example>", "You have won a prize", "Send us your bank details.\n")
QUESTION = DemoLetter("Tom Hale <tom.hale@pianos.example>", "Question about your piano", "Is it still for sale?\n")
MEETING = DemoLetter("Ruth Birch <ruth@parish.example>", "Minutes of the meeting", "Nothing to do for you.\n")
FOR_RULES = (BILL, OFFER, PRIZE)
ARRIVALS = (*FOR_RULES, QUESTION, MEETING)
"""No rule decides the last two: they are for the model."""

RULES: tuple[Mapping[str, Any], ...] = (
    {
        "name": "Bills are filed",
        "condition": {"sender_domain": "power.example", "subject_contains": ["bill"]},
        "actions": ["apply_label=Bills"],
    },
    {"name": "Offers leave the inbox", "condition": {"sender_domain": "lamps.example"}, "actions": ["archive"]},
    {"name": "Prizes go to the trash", "condition": {"subject_contains": ["you have won"]}, "actions": ["trash"]},
)
"""The last one destroys, so a person is asked."""


def scripts() -> list[Script]:
    """What the simulated model decides. It is not sure about the minutes, so a person is asked."""
    return [
        _answers(QUESTION, "star", 0.93, "Simulated: a person asks something and waits for an answer."),
        _answers(MEETING, "archive", 0.55, "Simulated: it may be only for information."),
    ]


def _answers(letter: DemoLetter, tool: str, confidence: float, reason: str) -> Script:
    said = {"confidence": confidence, "reason": reason, "needs_approval": False}
    return Script(pattern=letter.subject, answer=ScriptedAnswer(tool=tool, arguments=said))


EMAIL = "you@simulated.example"
DOCUMENTS = 24
_SEED = 7


@dataclass(frozen=True)
class StandIns:
    gmail: GmailSim
    model: ModelSim
    site: SiteSim


@asynccontextmanager
async def open_stand_ins(messages: int, documents: int = DOCUMENTS) -> AsyncIterator[StandIns]:
    """On free ports, until the block ends."""
    async with AsyncExitStack() as stack:
        gmail = await stack.enter_async_context(running_sim(build(messages, _SEED, EMAIL)))
        model = await stack.enter_async_context(running_model(_SEED))
        site = await stack.enter_async_context(running_site(documents, _SEED))
        for script in scripts():
            model.responder.stage.add_script(script)
        yield StandIns(gmail, model, site)


_OURS = ("POSTROOM_", "CONNECTOR_", "BACKFILL_")
SOURCE = "gazette"


def write_home(home: Path, outside: StandIns, **groups: Mapping[str, Any]) -> None:
    """Write `postroom.toml` and `sources.toml`; every process that is given this home finds the stand-ins."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    wanted = _settings(outside)
    for name, group in groups.items():
        wanted[name] = {**wanted.get(name, {}), **group}
    (home / settings.FILE_NAME).write_text(tomli_w.dumps(wanted), "utf-8")
    (home / "sources.toml").write_text(tomli_w.dumps(_sources(outside.site.url)), "utf-8")


@contextmanager
def temporary_home() -> Iterator[Path]:
    """A folder of its own, whatever the environment says; gone afterwards, with everything in it.

    Settings of the person who looks do not reach in here: a database that the environment names is not for a
    demonstration.
    """
    kept = {name: value for name, value in os.environ.items() if name.upper().startswith(_OURS)}
    folder = Path(tempfile.mkdtemp(prefix="postroom-demo-"))
    for name in kept:
        del os.environ[name]
    os.environ[settings.HOME_VARIABLE] = str(folder)
    try:
        yield folder
    finally:
        del os.environ[settings.HOME_VARIABLE]
        os.environ.update(kept)
        shutil.rmtree(folder)


def _settings(outside: StandIns) -> dict[str, dict[str, Any]]:
    return {
        "switchboard": {"port": 0},
        "dashboard": {"dev": True},
        "worker": {"concurrency": 8, "poll_s": 1.0},
        "recurring": {"live": "every 2s", "backfill": "every 2s"},
        "backfill": {"enabled": True},
        "sync": {"rps_start": 50.0, "rps_max": 100.0},
        "model": {
            "provider": "compatible",
            "name": "Simulated (its answers are made up)",
            "base_url": outside.model.url,
            "api_key": outside.model.token,
            "input_price": "0.30",
            "output_price": "2.50",
            "max_output_tokens": 200,
        },
        "web": {"fetches_per_minute": 600.0, "min_delay_ms": 0, "max_delay_ms": 50, "max_concurrent": 4},
    }


def _sources(url: str) -> dict[str, Any]:
    endpoint = {"name": "all", "mode": "sitemap", "url": f"{url}/sitemap.xml", "links": ["/documents/"]}
    gazette = {
        "slug": SOURCE,
        "name": "Official gazette (simulated)",
        "domains": ["127.0.0.1"],
        "allow_private": True,
        "endpoint": [endpoint],
    }
    return {"source": [gazette]}


T = TypeVar("T")

DEMO_CALLER = Caller(Role.DASHBOARD, "the demonstration")
_LOOK_AGAIN_S = 0.1
_PATIENCE_S = 180.0
_MOST_LOOKED_AT, _MOST_REPORTED = 100, 2


@dataclass(frozen=True)
class SoFar:
    """Not there yet. As long as this changes, it is worth waiting for, on a slow computer too."""

    amount: object


@dataclass(frozen=True)
class DemoSession:
    app: App
    outside: StandIns
    url: str
    """Where the dashboard is."""
    _agent: Tools

    @property
    def email(self) -> str:
        return self.outside.gmail.email

    @property
    def who(self) -> Actor:
        return Actor.of(DEMO_CALLER)

    async def read(self, transaction: Callable[[Tx], T]) -> T:
        return await self.app.database.read(transaction)

    async def write(self, transaction: Callable[[Tx], T]) -> T:
        return await self.app.database.write(transaction)

    async def account(self) -> Account:
        return await self.read(lambda tx: get_account(tx, self.email))

    async def ask(self, tool: ToolSignature[A, R], **arguments: Any) -> R:
        """As an agent, over MCP."""
        return await self._agent.call(tool, arguments)

    def deliver(self, *letters: DemoLetter) -> list[str]:
        """They arrive in the mailbox now; their ids there."""
        return [self.outside.gmail.control.deliver(letter.raw(self.email)) for letter in letters]

    def labels_at_source(self, gmail_id: str) -> frozenset[str]:
        """As the mailbox has them, by name, asked behind Gmail's back."""
        return self.outside.gmail.control.labels_of(gmail_id)

    async def until(self, look: Callable[[], Awaitable[T | SoFar | None]], what: str) -> T:
        """Look until there is something to see. While nothing moves, patience ends; then something is broken."""
        seen: object = None
        try:
            async with asyncio.timeout(_PATIENCE_S) as patience:
                while True:
                    found = await look()
                    if found is not None and not isinstance(found, SoFar):
                        return found
                    if found != seen:
                        seen = found
                        patience.reschedule(asyncio.get_running_loop().time() + _PATIENCE_S)
                    await asyncio.sleep(_LOOK_AGAIN_S)
        except TimeoutError:
            troubles = await self.read(_troubles)
            said = f" Its jobs say: {'; '.join(troubles)}" if troubles else ""
            where = f"The demonstration waited for {what}, and nothing moved for {_PATIENCE_S:.0f} seconds."
            raise Fatal(f"{where}{said}") from None


def _troubles(tx: Tx) -> list[str]:
    """The last errors of jobs, each once: the reason why something does not come about."""
    with_error = select(jobs.c.type, jobs.c.last_error).where(jobs.c.last_error.is_not(None))
    rows = tx.execute(with_error.order_by(jobs.c.seq.desc()).limit(_MOST_LOOKED_AT)).all()
    return list(dict.fromkeys(f"{row.type}: {row.last_error}" for row in rows))[:_MOST_REPORTED]


@asynccontextmanager
async def open_demo_session(app: App, outside: StandIns, url: str) -> AsyncIterator[DemoSession]:
    """With a token of its own for MCP, which ends with the block."""
    new, now = NewToken(Role.AGENT, "the demonstration", expires_days=1), app.clock.now()
    async with AsyncExitStack() as stack:
        token, text = await app.database.write(lambda tx: create_token(tx, new, now))
        http = await stack.enter_async_context(http_client())
        yield DemoSession(app, outside, url, over_http(f"{url}/mcp", text, http))
        await app.database.write(lambda tx: revoke_token(tx, token.id, app.clock.now()))
