"""Everything outside, simulated on loopback (a mailbox, a model, a web site), a home folder that points to it, the
mail that arrives during the demonstration, and what the simulated model says about it. All of it is made up.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.utils import formatdate, make_msgid, parseaddr
from pathlib import Path
from typing import Any

import tomli_w

from postroom import settings
from postroom.sim.gmail.server import GmailSim, build, running_sim
from postroom.sim.model.answers import Script, ScriptedAnswer
from postroom.sim.model.server import ModelSim, running_model
from postroom.sim.web.server import SiteSim, running_site

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
