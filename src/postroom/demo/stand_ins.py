"""Everything outside, simulated on loopback (a mailbox, a model, a web site), and a home folder that points to it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from postroom import settings
from postroom.demo.letters import scripts
from postroom.sim.gmail.server import GmailSim, build, running_sim
from postroom.sim.model.server import ModelSim, running_model
from postroom.sim.web.server import SiteSim, running_site

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
            "name": "simulated-model",
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
