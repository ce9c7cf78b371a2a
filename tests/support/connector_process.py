"""`postroom connector gmail` as a person starts it, on a home of its own."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from postroom.gmail.grants import GrantStore, StaticGrant
from postroom.gmail.sim.server import Sim
from postroom.vault import Vault


class ConnectorProcess:
    def __init__(self, home: Path, sim: Sim, switchboard: str, token: str, **variables: str) -> None:
        home.mkdir(parents=True, exist_ok=True)
        GrantStore(Vault(home)).save(StaticGrant(email=sim.email, api_base=sim.url, access_token=sim.token))
        self._email = sim.email
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("POSTROOM_", "CONNECTOR_"))},
            "POSTROOM_HOME": str(home),
            "CONNECTOR_SWITCHBOARD_URL": switchboard,
            "CONNECTOR_TOKEN": token,
            "CONNECTOR_LIVE_POLL_INTERVAL_S": "1",
            **variables,
        }
        self.process: asyncio.subprocess.Process | None = None
        self.health = ""

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "postroom",
            "connector",
            "gmail",
            "--account",
            self._email,
            env=self._environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        if not line:
            _, errors = await self.process.communicate()
            raise AssertionError(errors.decode())
        self.health = json.loads(line)["health"]

    async def kill(self) -> None:
        """However it stands; one that has ended already is left alone."""
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            await self.process.communicate()

    async def end(self) -> tuple[int, str]:
        """SIGTERM; the exit code and what it logged."""
        assert self.process is not None
        self.process.terminate()
        _, errors = await self.process.communicate()
        return self.process.returncode or 0, errors.decode()

    async def refusal(self) -> tuple[int, str]:
        """For one that ends by itself."""
        try:
            await self.start()
        except AssertionError as error:
            assert self.process is not None
            return self.process.returncode or 0, str(error)
        await self.kill()
        raise AssertionError("it started")


Variables = dict[str, Any]
